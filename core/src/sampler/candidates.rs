//! The tokens that may still be drawn, and what the stages ask of them.
//!
//! A set starts as the whole vocabulary, without a list. The first filter that removes something makes a list of sort
//! keys (see [`wide::key`]); later ones shorten it. A list is in the order of ids or in the order of keys, never in an
//! order that a selection algorithm happened to leave, so sums over it have the same bits everywhere. Logits are
//! changed in place, and an undo log gives them back after the draw.

use super::wide::{self, BLOCK, Level, Order, Spread};

/// Lists up to this length are sorted as they are, longer ones by way of buckets.
const SORTED_AT_ONCE: usize = 256;

/// Most buckets that a list is distributed over.
const N_BUCKET_MAX: usize = 1 << 14;

/// Buckets for a list of `n`: few enough for the first-level cache to follow where each ends, and for sorting one to be
/// more than insertion, which guesses at branches.
fn n_bucket(n: usize) -> usize {
    (n / 32).next_power_of_two().min(N_BUCKET_MAX)
}

/// Buffers that outlive a draw, sized once.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) level: Level,
    keys: Vec<u64>,
    /// Logits before the first change of each changed token; a token may stand twice, the first entry counts.
    undo: Vec<(u32, f32)>,
    /// Sum of the weights of each [`BLOCK`] candidates.
    block_sums: Vec<f32>,
    /// Where each bucket of [`Candidates::distribute`] ends in `ids`.
    bucket_ends: Vec<u32>,
    ids: Vec<u32>,
}

impl Clone for Work {
    fn clone(&self) -> Self {
        // Contents don't outlive a draw; the room does, which a derived clone would lose.
        Work {
            level: self.level,
            keys: Vec::with_capacity(self.keys.capacity()),
            undo: Vec::with_capacity(self.undo.capacity()),
            block_sums: Vec::with_capacity(self.block_sums.capacity()),
            bucket_ends: Vec::with_capacity(self.bucket_ends.capacity()),
            ids: Vec::with_capacity(self.ids.capacity()),
        }
    }
}

impl Work {
    /// Room for `n_key` listed candidates of `n_vocab`, and `n_change` changes of logits.
    pub(super) fn new(level: Level, n_vocab: usize, n_key: usize, n_change: usize) -> Self {
        Work {
            level,
            keys: Vec::with_capacity(n_key),
            undo: Vec::with_capacity(n_change),
            block_sums: Vec::with_capacity(n_vocab.div_ceil(BLOCK)),
            bucket_ends: Vec::with_capacity(n_bucket(n_key)),
            ids: Vec::with_capacity(if n_key > SORTED_AT_ONCE { n_key } else { 0 }),
        }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.keys.capacity() * 8
            + self.undo.capacity() * 8
            + (self.block_sums.capacity() + self.bucket_ends.capacity() + self.ids.capacity()) * 4
    }

    /// The list buffer, for uses outside a draw.
    pub(super) fn keys(&mut self) -> &mut Vec<u64> {
        &mut self.keys
    }
}

/// Softmax over the candidates, not normalised: weights are e^((logit - max) / temperature).
#[derive(Debug, Clone, Copy)]
pub(super) struct Softmax {
    pub(super) max: f32,
    /// Sum of the weights; at least 1, since the maximum weighs 1.
    pub(super) sum: f64,
}

/// The candidates of one draw.
#[derive(Debug)]
pub(super) struct Candidates<'a> {
    logits: &'a mut [f32],
    work: &'a mut Work,
    temperature: f32,
    /// Whether `work.keys` lists the candidates; otherwise all tokens above -inf are.
    listed: bool,
    /// Whether the list is in the order of keys.
    sorted: bool,
    /// Whether a filter has run that kept all tokens: they are as good as listed.
    whole: bool,
    /// The largest logit, where it is known.
    max: Option<f32>,
    softmax: Option<Softmax>,
}

impl<'a> Candidates<'a> {
    /// All tokens of `logits`, whose maximum is `max` (finite) and which hold neither NaN nor +inf.
    pub(super) fn new(logits: &'a mut [f32], max: f32, work: &'a mut Work) -> Self {
        work.undo.clear();
        Candidates { logits, work, temperature: 1.0, listed: false, sorted: false, whole: false, max: Some(max), softmax: None }
    }

    /// Divides all logits by `temperature` > 0, from now on.
    pub(super) fn set_temperature(&mut self, temperature: f32) {
        if temperature != self.temperature {
            self.temperature = temperature;
            self.softmax = None;
        }
    }

    /// Changes one logit (as it stands after division by the temperature); ids outside the vocabulary and banned tokens
    /// are left alone. The result is kept finite: an adjustment never bans.
    pub(super) fn adjust(&mut self, id: u32, change: impl FnOnce(f32) -> f32) {
        let temperature = self.temperature;
        self.replace(id, |logit| (change(logit / temperature) * temperature).clamp(f32::MIN, f32::MAX));
    }

    /// Removes a token.
    pub(super) fn ban(&mut self, id: u32) {
        self.replace(id, |_| f32::NEG_INFINITY);
    }

    fn replace(&mut self, id: u32, change: impl FnOnce(f32) -> f32) {
        let Some(logit) = self.logits.get_mut(id as usize) else { return };
        if *logit > f32::NEG_INFINITY {
            self.work.undo.push((id, *logit));
            *logit = change(*logit);
            (self.max, self.softmax) = (None, None);
        }
    }

    /// Brings a list's keys up to date after logits changed, and drops what was banned.
    pub(super) fn refresh(&mut self) {
        if self.listed {
            let logits = &*self.logits;
            self.work.keys.retain_mut(|key| {
                let logit = logits[*key as u32 as usize];
                *key = wide::key(logit, *key as u32);
                logit > f32::NEG_INFINITY
            });
            self.sorted = false;
            (self.max, self.softmax) = (None, None);
        }
    }

    /// Gives the logits back as they came.
    pub(super) fn restore(self) {
        while let Some((id, logit)) = self.work.undo.pop() {
            self.logits[id as usize] = logit;
        }
    }

    /// The logit of a token as it came, before any change.
    pub(super) fn raw_logit(&self, id: u32) -> f32 {
        let changed = self.work.undo.iter().find(|(changed, _)| *changed == id);
        changed.map_or(self.logits[id as usize], |&(_, raw)| raw)
    }

    /// The candidate with the largest logit, the lowest id among equals; none where all are banned.
    pub(super) fn best(&mut self) -> Option<u32> {
        if self.listed {
            return self.work.keys.iter().min().map(|&key| key as u32);
        }
        let max = self.max();
        if max == f32::NEG_INFINITY {
            return None;
        }
        wide::position(self.work.level, self.logits, max).map(|i| i as u32)
    }

    /// The largest logit, not divided by the temperature; -inf where there is no candidate.
    fn max(&mut self) -> f32 {
        let max = match self.max {
            Some(max) => max,
            None if self.listed => {
                let best = self.work.keys.iter().min();
                best.map_or(f32::NEG_INFINITY, |&key| self.logits[key as u32 as usize])
            }
            None => wide::checked_max(self.work.level, self.logits),
        };
        self.max = Some(max);
        max
    }

    pub(super) fn is_empty(&mut self) -> bool {
        self.max() == f32::NEG_INFINITY
    }

    /// Keeps the given tokens alone, as far as they aren't banned; `ids` ascend.
    pub(super) fn keep_only(&mut self, ids: impl Iterator<Item = u32>) {
        self.work.keys.clear();
        let logits = &*self.logits;
        self.work.keys.extend(ids.map(|id| wide::key(logits[id as usize], id)));
        self.listed = true;
        self.refresh();
    }

    /// The softmax over the candidates, of which there is at least one.
    pub(super) fn softmax(&mut self) -> Softmax {
        match self.softmax {
            Some(softmax) => softmax,
            None => {
                let max = self.max();
                let softmax = self.compute_softmax(max);
                self.softmax = Some(softmax);
                softmax
            }
        }
    }

    fn compute_softmax(&mut self, max: f32) -> Softmax {
        self.sum_blocks(max, |_, _, _| ())
    }

    /// Weighs all blocks, sums them up and shows each: its logits, which may be -inf, and weights.
    fn sum_blocks(&mut self, max: f32, mut show: impl FnMut(Level, &[f32], &[f32])) -> Softmax {
        let mut sum = 0.0;
        let mut buffers = Buffers::new();
        self.work.block_sums.clear();
        for block in 0..self.n_block() {
            let (n, block_sum) = self.weigh_block(block, max, &mut buffers);
            let xs = if self.listed { &buffers.logits[..n] } else { &self.logits[block * BLOCK..][..n] };
            show(self.work.level, xs, &buffers.weights[..n]);
            self.work.block_sums.push(block_sum);
            sum += f64::from(block_sum);
        }
        Softmax { max, sum }
    }

    fn n_block(&self) -> usize {
        let n = if self.listed { self.work.keys.len() } else { self.logits.len() };
        n.div_ceil(BLOCK)
    }

    /// Length and sum of one block's weights, which come into `buffers`.
    fn weigh_block(&self, block: usize, max: f32, buffers: &mut Buffers) -> (usize, f32) {
        let start = block * BLOCK;
        if self.listed {
            let keys = &self.work.keys[start..self.work.keys.len().min(start + BLOCK)];
            return self.weigh_keys(keys, max, buffers);
        }
        let xs = &self.logits[start..self.logits.len().min(start + BLOCK)];
        (xs.len(), wide::weights(self.work.level, xs, max, self.temperature, &mut buffers.weights))
    }

    /// The same for up to [`BLOCK`] keys of logits.
    fn weigh_keys(&self, keys: &[u64], max: f32, buffers: &mut Buffers) -> (usize, f32) {
        wide::logits(self.work.level, keys, &mut buffers.logits);
        let xs = &buffers.logits[..keys.len()];
        (keys.len(), wide::weights(self.work.level, xs, max, self.temperature, &mut buffers.weights))
    }

    /// The same for keys of another order, without the sum.
    fn weigh_ids(&self, keys: &[u64], max: f32, buffers: &mut Buffers) -> usize {
        for (x, &key) in buffers.logits.iter_mut().zip(keys) {
            *x = self.logits[key as u32 as usize];
        }
        let xs = &buffers.logits[..keys.len()];
        wide::weights(self.work.level, xs, max, self.temperature, &mut buffers.weights);
        keys.len()
    }

    /// The softmax, and the mean of (logit - max) / temperature under it: at most 0.
    fn softmax_and_mean(&mut self) -> (Softmax, f64) {
        let (max, temperature) = (self.max(), self.temperature);
        let mut total = 0.0;
        let softmax = self.sum_blocks(max, |level, xs, ws| {
            total += f64::from(wide::weighted_distance(level, xs, ws, max, temperature));
        });
        self.softmax = Some(softmax);
        (softmax, total / softmax.sum)
    }

    /// Natural logarithm of a candidate's probability.
    pub(super) fn ln_share(&mut self, id: u32) -> f64 {
        let Softmax { max, sum } = self.softmax();
        let distance = (self.logits[id as usize] - max) / self.temperature;
        f64::from(distance) - crate::math::double::ln(sum)
    }

    /// Draws by weight; `u` is uniform in [0, 1). There is at least one candidate.
    pub(super) fn draw(&mut self, u: f64) -> u32 {
        let Softmax { max, sum } = self.softmax();
        let mut rest = u * sum;
        // The block in which the running sum passes the target; rounding may leave none, then the last that weighs.
        let mut chosen = 0;
        for (block, &block_sum) in self.work.block_sums.iter().enumerate() {
            if block_sum > 0.0 {
                chosen = block;
                if rest < f64::from(block_sum) {
                    break;
                }
                rest -= f64::from(block_sum);
            }
        }
        let mut buffers = Buffers::new();
        let (n, _) = self.weigh_block(chosen, max, &mut buffers);
        let mut at = 0;
        for (i, &w) in buffers.weights[..n].iter().enumerate() {
            if w > 0.0 {
                at = i;
                if rest < f64::from(w) {
                    break;
                }
                rest -= f64::from(w);
            }
        }
        let at = chosen * BLOCK + at;
        if self.listed { self.work.keys[at] as u32 } else { at as u32 }
    }

    /// The candidates with their probabilities, ascending ids.
    #[cfg(test)]
    pub(super) fn distribution(&mut self) -> Vec<(u32, f64)> {
        use crate::math::double::exp;
        let mut ids: Vec<u32> = if self.listed {
            self.work.keys.iter().map(|&key| key as u32).collect()
        } else {
            (0..self.logits.len() as u32).filter(|&id| self.logits[id as usize] > f32::NEG_INFINITY).collect()
        };
        ids.sort_unstable();
        ids.iter().map(|&id| (id, exp(self.ln_share(id)))).collect()
    }

    /// Puts the list, made if there is none, into the order of keys.
    fn sort(&mut self) {
        if !self.listed {
            self.collect(f32::MIN, f32::MAX);
        }
        if !self.sorted {
            let order = Order::falling(self.max());
            let mut buckets = self.distribute(order);
            self.fill(&mut buckets, self.work.keys.len(), true);
            self.sorted = true;
            self.softmax = None;
        }
    }

    /// Makes the list of all tokens with logits in [lo, hi].
    fn collect(&mut self, lo: f32, hi: f32) {
        self.work.keys.clear();
        wide::collect(self.work.level, self.logits, lo.max(f32::MIN), hi, &mut self.work.keys);
        self.listed = true;
        self.sorted = false;
        self.softmax = None;
    }

    /// Begins to put the list, whose keys are those of logits, into an order: a coarse one first, of which as much as is
    /// needed is then refined by [`Candidates::fill`]. Until that has come to its end the list holds nothing else of use.
    fn distribute(&mut self, order: Order) -> Buckets {
        let Work { level, keys, bucket_ends, ids, .. } = &mut *self.work;
        let n = keys.len();
        bucket_ends.clear();
        ids.clear();
        if n <= SORTED_AT_ONCE {
            bucket_ends.push(n as u32);
            ids.extend(keys.iter().map(|&key| key as u32));
        } else {
            let n_bucket = n_bucket(n);
            let spread = Spread::new(order, wide::ranks(*level, keys, order), n_bucket);
            bucket_ends.resize(n_bucket, 0);
            wide::count(*level, keys, spread, bucket_ends);
            let mut start = 0;
            for end in &mut *bucket_ends {
                (*end, start) = (start, start + *end);
            }
            ids.resize(n, 0);
            wide::scatter(*level, keys, spread, bucket_ends, ids);
        }
        Buckets { order, n_ready: 0, next: 0 }
    }

    /// Makes the keys of the next buckets until `n` are there, each bucket's in order if asked to.
    fn fill(&mut self, buckets: &mut Buckets, n: usize, in_order: bool) {
        let Work { level, keys, bucket_ends, ids, .. } = &mut *self.work;
        let (first, start) = (buckets.next, buckets.n_ready);
        while buckets.n_ready < n {
            buckets.n_ready = bucket_ends[buckets.next] as usize;
            buckets.next += 1;
        }
        wide::keys(*level, &ids[start..buckets.n_ready], self.logits, buckets.order, &mut keys[start..buckets.n_ready]);
        if in_order {
            let mut start = start;
            for &end in &bucket_ends[first..buckets.next] {
                keys[start..end as usize].sort_unstable();
                start = end as usize;
            }
        }
    }

    /// Keeps the `k` > 0 largest.
    pub(super) fn keep_top(&mut self, k: usize) {
        if self.listed {
            if k >= self.work.keys.len() {
                return;
            }
            if !self.sorted {
                self.work.keys.select_nth_unstable(k - 1);
            }
            self.work.keys.truncate(k);
        } else {
            if k >= self.logits.len() {
                return;
            }
            wide::top_k(self.work.level, self.logits, k, &mut self.work.keys);
            self.listed = true;
            self.sorted = false;
        }
        self.sort();
        self.softmax = None;
    }

    /// Keeps those whose logit, divided by the temperature, is at most `distance` >= 0 below the maximum.
    pub(super) fn keep_near(&mut self, distance: f32) {
        let max = self.max();
        // The maximum itself stays, however the bound is rounded.
        let lo = distance.mul_add(-self.temperature, max).min(max).max(f32::MIN);
        if self.listed {
            let logits = &*self.logits;
            self.work.keys.retain(|&key| logits[key as u32 as usize] >= lo);
            self.softmax = None;
        } else if wide::all_reach(self.work.level, self.logits, lo) {
            self.whole = true;
        } else {
            self.collect(lo, f32::MAX);
        }
    }

    /// Keeps the smallest number of the largest whose weights reach the share `p` < 1; at least one.
    pub(super) fn keep_mass(&mut self, p: f32) {
        let Softmax { max, sum } = self.softmax();
        let target = f64::from(p) * sum;
        if self.listed {
            self.cut_at_mass(max, target);
        } else {
            // Most of the mass lies near the maximum: look there before listing the whole vocabulary.
            for distance in [4.0f32, 6.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 16.0, f32::INFINITY] {
                self.collect(distance.mul_add(-self.temperature, max), f32::MAX);
                if distance < f32::INFINITY && self.falls_short(max, target) {
                    continue;
                }
                if self.cut_at_mass(max, target) {
                    break;
                }
            }
        }
    }

    /// Puts the list into the order of keys and cuts it where its weights reach `target`, after at least one; false
    /// where they don't. The softmax of what is left is then known.
    fn cut_at_mass(&mut self, max: f32, target: f64) -> bool {
        let mut buffers = Buffers::new();
        let mut mass = Mass::new(target);
        let mut softmax = Softmax { max, sum: 0.0 };
        let n = self.work.keys.len();
        let mut buckets = (!self.sorted).then(|| self.distribute(Order::falling(max)));
        self.work.block_sums.clear();
        let mut reached = None;
        for start in (0..n).step_by(BLOCK) {
            let end = n.min(start + BLOCK);
            if let Some(buckets) = &mut buckets {
                self.fill(buckets, end, true);
            }
            let (len, mut block_sum) = self.weigh_keys(&self.work.keys[start..end], max, &mut buffers);
            reached = mass.add(self.work.level, &buffers.weights[..len]).map(|i| start + i + 1);
            if let Some(n_kept) = reached {
                block_sum = self.weigh_keys(&self.work.keys[start..n_kept], max, &mut buffers).1;
            }
            self.work.block_sums.push(block_sum);
            softmax.sum += f64::from(block_sum);
            if reached.is_some() {
                break;
            }
        }
        self.work.keys.truncate(reached.unwrap_or(n));
        self.sorted = true;
        self.softmax = Some(softmax);
        reached.is_some()
    }

    /// Keeps those whose surprise lies nearest the entropy, until their weights reach the share `p` < 1; at least one.
    /// Equal distances from the entropy go to the lowest id.
    pub(super) fn keep_typical(&mut self, p: f32) {
        let (Softmax { max, sum }, mean) = self.softmax_and_mean();
        let target = f64::from(p) * sum;
        let mean = mean as f32;
        let order = Order::typical(max, self.temperature, mean);
        if self.listed {
            self.cut_at_deviation(order, max, target);
        } else {
            for width in [2.0f32, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, f32::INFINITY] {
                // Listed a little wider than trusted, since the bounds are rounded.
                let (lo, hi) = (mean - 1.01 * width, mean + 1.01 * width);
                self.collect(lo.mul_add(self.temperature, max), hi.mul_add(self.temperature, max));
                if width < f32::INFINITY && self.falls_short(max, target) {
                    continue;
                }
                if self.cut_at_deviation(order, max, target).is_some_and(|last| last <= width) {
                    break;
                }
            }
        }
        self.refresh();
        self.sort();
    }

    /// Cuts the list where its weights, in that order, reach `target`, after at least one: the deviation of the last
    /// that stays; none, and no cut, where they don't. The list is then in no order.
    fn cut_at_deviation(&mut self, order: Order, max: f32, target: f64) -> Option<f32> {
        let mut buffers = Buffers::new();
        let mut mass = Mass::new(target);
        let n = self.work.keys.len();
        let mut buckets = self.distribute(order);
        let mut start = 0;
        while start < n {
            self.fill(&mut buckets, n.min(start + BLOCK), false);
            // Order matters only inside the part in which the target is reached, and where sums are rounded.
            let end = buckets.n_ready;
            let before = mass.sum;
            let exact = (start..end).step_by(BLOCK).all(|at| {
                let len = self.weigh_ids(&self.work.keys[at..end.min(at + BLOCK)], max, &mut buffers);
                mass.add_below(self.work.level, &buffers.weights[..len])
            });
            if !exact {
                mass.sum = before;
                self.work.keys[start..end].sort_unstable();
                for at in (start..end).step_by(BLOCK) {
                    let len = self.weigh_ids(&self.work.keys[at..end.min(at + BLOCK)], max, &mut buffers);
                    if let Some(i) = mass.add_in_order(&buffers.weights[..len]) {
                        self.work.keys.truncate(at + i + 1);
                        return Some(f32::from_bits((self.work.keys[at + i] >> 32) as u32));
                    }
                }
            }
            start = end;
        }
        None
    }

    /// Whether the list clearly weighs less than `target`, in which case sorting it would be for nothing.
    fn falls_short(&self, max: f32, target: f64) -> bool {
        let mut buffers = Buffers::new();
        let sums = self.work.keys.chunks(BLOCK).map(|keys| f64::from(self.weigh_keys(keys, max, &mut buffers).1));
        sums.sum::<f64>() < 0.999 * target
    }

    /// Of those whose probability is at least `threshold`, removes all but the least probable.
    pub(super) fn drop_top_but_one(&mut self, threshold: f32) {
        let Softmax { max, sum } = self.softmax();
        // p >= threshold, written as a distance from the maximum.
        let distance = -(crate::math::double::ln(f64::from(threshold) * sum) as f32);
        // Also where the distance isn't a number: then no threshold is met.
        if distance.is_nan() || distance < 0.0 {
            return;
        }
        let lo = distance.mul_add(-self.temperature, max).min(max).max(f32::MIN);
        if self.listed || self.whole {
            self.sort();
            let logits = &*self.logits;
            let n = self.work.keys.partition_point(|&key| logits[key as u32 as usize] >= lo);
            self.work.keys.drain(..n.saturating_sub(1));
        } else {
            self.collect(lo, f32::MAX);
            let (n, least) = (self.work.keys.len(), self.work.keys.iter().max().copied());
            let Some(least) = least.filter(|_| n >= 2) else {
                self.listed = false;
                return;
            };
            // Those of the same logit that go: most often none.
            let n_equal = self.work.keys.iter().filter(|&&key| key < least && key >> 32 == least >> 32).count();
            self.collect(f32::MIN, self.logits[least as u32 as usize]);
            if n_equal > 0 {
                self.work.keys.retain(|&key| key >= least);
            }
        }
        (self.max, self.softmax) = (None, None);
    }
}

/// The sum of e^(logit - max), with the same bits as the softmax over all of `logits` at temperature 1.
pub(super) fn sum_of_weights(level: Level, logits: &[f32], max: f32) -> f64 {
    let mut weights = [0.0; BLOCK];
    logits.chunks(BLOCK).map(|block| f64::from(wide::weights(level, block, max, 1.0, &mut weights))).sum()
}

/// How far a list has been put into order.
struct Buckets {
    order: Order,
    /// Candidates at the front of the list whose keys are made.
    n_ready: usize,
    /// The bucket that comes after them.
    next: usize,
}

/// A running sum of weights on its way to a target: what adding one weight after another to an `f64` gives, bit by bit.
///
/// All weights so far are multiples of the last place of the least of them, 2^-24 of it or more. While the sum is below
/// 2^29 times that weight, all partial sums in any order fit into the 53 bits of an `f64`: nothing is rounded, and the
/// order is free.
struct Mass {
    target: f64,
    sum: f64,
    least: f32,
}

impl Mass {
    fn new(target: f64) -> Self {
        Mass { target, sum: 0.0, least: f32::INFINITY }
    }

    /// Adds all weights if that is exact and stays below the target; else adds nothing and returns false.
    fn add_below(&mut self, level: Level, weights: &[f32]) -> bool {
        let (sum, least) = wide::sum_and_min(level, weights);
        self.least = least.min(self.least);
        let sum = self.sum + sum;
        let fits = sum <= f64::from(self.least) * f64::from(1u32 << 29) && sum < self.target;
        if fits {
            self.sum = sum;
        }
        fits
    }

    /// Adds weights up to the one that reaches the target, and returns its index.
    fn add_in_order(&mut self, weights: &[f32]) -> Option<usize> {
        weights.iter().position(|&w| {
            self.sum += f64::from(w);
            self.sum >= self.target
        })
    }

    /// The same, fast where it can be.
    fn add(&mut self, level: Level, weights: &[f32]) -> Option<usize> {
        if self.add_below(level, weights) { None } else { self.add_in_order(weights) }
    }
}

/// Logits and weights of one block.
struct Buffers {
    logits: [f32; BLOCK],
    weights: [f32; BLOCK],
}

impl Buffers {
    fn new() -> Self {
        Buffers { logits: [0.0; BLOCK], weights: [0.0; BLOCK] }
    }
}
