//! The tokens that may still be drawn, and what the stages ask of them.
//!
//! A set starts as the whole vocabulary, without a list. The first filter that removes something makes a list of sort
//! keys (see [`wide::key`]); later ones shorten it. A list is in the order of ids or in the order of keys, never in an
//! order that a selection algorithm happened to leave, so sums over it have the same bits everywhere. Logits are
//! changed in place, and an undo log gives them back after the draw.

use super::wide::{self, BLOCK, Level};

/// Buffers that outlive a draw, sized once.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) level: Level,
    keys: Vec<u64>,
    /// Logits before the first change of each changed token; a token may stand twice, the first entry counts.
    undo: Vec<(u32, f32)>,
    /// Sum of the weights of each [`BLOCK`] candidates.
    block_sums: Vec<f32>,
}

impl Clone for Work {
    fn clone(&self) -> Self {
        // Contents don't outlive a draw; the room does, which a derived clone would lose.
        Work {
            level: self.level,
            keys: Vec::with_capacity(self.keys.capacity()),
            undo: Vec::with_capacity(self.undo.capacity()),
            block_sums: Vec::with_capacity(self.block_sums.capacity()),
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
        }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.keys.capacity() * 8 + self.undo.capacity() * 8 + self.block_sums.capacity() * 4
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
    softmax: Option<Softmax>,
}

impl<'a> Candidates<'a> {
    /// All tokens of `logits`, whose maximum is `max` (finite) and which hold neither NaN nor +inf.
    pub(super) fn new(logits: &'a mut [f32], max: f32, work: &'a mut Work) -> Self {
        work.undo.clear();
        let mut set = Candidates { logits, work, temperature: 1.0, listed: false, sorted: false, softmax: None };
        set.softmax = Some(set.compute_softmax(max));
        set
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
            self.softmax = None;
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
            self.softmax = None;
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
    fn max(&self) -> f32 {
        match self.softmax {
            Some(softmax) => softmax.max,
            None if self.listed => {
                let best = self.work.keys.iter().min();
                best.map_or(f32::NEG_INFINITY, |&key| self.logits[key as u32 as usize])
            }
            None => wide::checked_max(self.work.level, self.logits),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
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
        let mut sum = 0.0;
        let mut buffers = Buffers::new();
        self.work.block_sums.clear();
        for block in 0..self.n_block() {
            let block_sum = self.weigh_block(block, max, &mut buffers).1;
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

    /// The same for up to [`BLOCK`] keys.
    fn weigh_keys(&self, keys: &[u64], max: f32, buffers: &mut Buffers) -> (usize, f32) {
        for (x, &key) in buffers.logits.iter_mut().zip(keys) {
            *x = self.logits[key as u32 as usize];
        }
        let xs = &buffers.logits[..keys.len()];
        (keys.len(), wide::weights(self.work.level, xs, max, self.temperature, &mut buffers.weights))
    }

    /// The mean of (logit - max) / temperature under the softmax: at most 0.
    pub(super) fn mean_distance(&mut self) -> f64 {
        let Softmax { max, sum } = self.softmax();
        let mut buffers = Buffers::new();
        let mut total = 0.0;
        for block in 0..self.n_block() {
            let (n, _) = self.weigh_block(block, max, &mut buffers);
            let start = block * BLOCK;
            let xs = if self.listed { &buffers.logits[..n] } else { &self.logits[start..start + n] };
            let part = wide::weighted_distance(self.work.level, xs, &buffers.weights[..n], max, self.temperature);
            total += f64::from(part);
        }
        total / sum
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
            self.work.keys.sort_unstable();
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
        } else {
            self.collect(lo, f32::MAX);
        }
    }

    /// Keeps the smallest number of the largest whose weights reach the share `p` < 1; at least one.
    pub(super) fn keep_mass(&mut self, p: f32) {
        let Softmax { max, sum } = self.softmax();
        let target = f64::from(p) * sum;
        if self.listed {
            let n = self.prefix_reaching(max, target, self.sorted);
            self.work.keys.truncate(n.unwrap_or(usize::MAX).max(1));
        } else {
            // Most of the mass lies near the maximum: look there before listing the whole vocabulary.
            for distance in [4.0f32, 8.0, 16.0, f32::INFINITY] {
                self.collect(distance.mul_add(-self.temperature, max), f32::MAX);
                if let Some(n) = self.prefix_reaching(max, target, false) {
                    self.work.keys.truncate(n.max(1));
                    break;
                }
            }
        }
        self.sorted = true;
        self.softmax = None;
    }

    /// Keeps those whose surprise lies nearest the entropy, until their weights reach the share `p` < 1; at least one.
    /// Equal distances from the entropy go to the lowest id.
    pub(super) fn keep_typical(&mut self, p: f32) {
        let Softmax { max, sum } = self.softmax();
        let target = f64::from(p) * sum;
        // Surprise is ln(sum) - d with d = (logit - max) / temperature, entropy its mean: they differ by mean(d) - d.
        let mean = self.mean_distance() as f32;
        if self.listed {
            self.key_by_deviation(max, mean);
            let n = self.prefix_reaching(max, target, false);
            self.work.keys.truncate(n.unwrap_or(usize::MAX).max(1));
        } else {
            for width in [1.0f32, 2.0, 4.0, 8.0, 16.0, f32::INFINITY] {
                // Listed a little wider than trusted, since the bounds are rounded.
                let (lo, hi) = (mean - 1.01 * width, mean + 1.01 * width);
                self.collect(lo.mul_add(self.temperature, max), hi.mul_add(self.temperature, max));
                self.key_by_deviation(max, mean);
                if let Some(n) = self.prefix_reaching(max, target, false) {
                    let n = n.max(1);
                    let last = f32::from_bits((self.work.keys[n - 1] >> 32) as u32);
                    if last <= width {
                        self.work.keys.truncate(n);
                        break;
                    }
                }
            }
        }
        self.refresh();
        self.sort();
    }

    /// Replaces the order half of each key by the distance of the token's surprise from the entropy.
    fn key_by_deviation(&mut self, max: f32, mean: f32) {
        let (logits, temperature) = (&*self.logits, self.temperature);
        for key in &mut self.work.keys {
            let id = *key as u32;
            // The bits of floats that aren't negative are in their order.
            let deviation = (mean - (logits[id as usize] - max) / temperature).abs();
            *key = u64::from(deviation.to_bits()) << 32 | u64::from(id);
        }
    }

    /// The length of the shortest prefix of the list, in ascending order of keys, whose weights sum to `target`; none
    /// if all fall short. That prefix is sorted, the rest isn't: sorting stops where the answer is found.
    fn prefix_reaching(&mut self, max: f32, target: f64, sorted: bool) -> Option<usize> {
        let mut buffers = Buffers::new();
        let mut sum = 0.0;
        let (mut done, mut step) = (0, 64);
        while done < self.work.keys.len() {
            let rest = &mut self.work.keys[done..];
            let n = rest.len().min(step);
            if !sorted {
                if n < rest.len() {
                    rest.select_nth_unstable(n - 1);
                }
                rest[..n].sort_unstable();
            }
            for start in (done..done + n).step_by(BLOCK) {
                let end = (done + n).min(start + BLOCK);
                let (len, _) = self.weigh_keys(&self.work.keys[start..end], max, &mut buffers);
                for (i, &w) in buffers.weights[..len].iter().enumerate() {
                    sum += f64::from(w);
                    if sum >= target {
                        return Some(start + i + 1);
                    }
                }
            }
            done += n;
            step *= 4;
        }
        None
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
        if self.listed {
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
            self.collect(f32::MIN, self.logits[least as u32 as usize]);
            self.work.keys.retain(|&key| key >= least);
        }
        self.softmax = None;
    }
}

/// The sum of e^(logit - max), with the same bits as the softmax over all of `logits` at temperature 1.
pub(super) fn sum_of_weights(level: Level, logits: &[f32], max: f32) -> f64 {
    let mut weights = [0.0; BLOCK];
    logits.chunks(BLOCK).map(|block| f64::from(wide::weights(level, block, max, 1.0, &mut weights))).sum()
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
