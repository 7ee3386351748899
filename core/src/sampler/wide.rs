//! The loops over the whole vocabulary, compiled once per vector level.
//!
//! A body is written once in plain Rust over [`crate::math`]; [`Level`] picks the copy that the CPU has registers for.
//! All copies give the same bits, so the level can't show in a token.

use crate::math;

/// The instruction set of the wide loops. A value other than `Portable` exists only where the CPU and the operating
/// system have it: [`Level::available`] is the one place that makes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What the target has without asking; on x86-64 without fused multiply-add, hence slow.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// All levels that this machine runs, slowest first.
    pub(super) fn available() -> impl Iterator<Item = Level> {
        let portable = std::iter::once(Level(Kind::Portable));
        #[cfg(target_arch = "x86_64")]
        let portable = {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = avx2 && is_x86_feature_detected!("avx512f");
            let avx2 = avx2.then_some(Level(Kind::Avx2));
            portable.chain(avx2).chain(avx512.then_some(Level(Kind::Avx512)))
        };
        portable
    }

    /// The fastest level here.
    pub(super) fn detect() -> Level {
        Level::available().last().unwrap_or(Level(Kind::Portable))
    }
}

macro_rules! wide {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty $body:block)*) => {$(
        $(#[$doc])*
        pub(super) fn $name(level: Level, $($arg: $ty),*) -> $ret {
            #[inline(always)]
            fn portable($($arg: $ty),*) -> $ret $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) -> $ret { portable($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f")]
            fn avx512($($arg: $ty),*) -> $ret { portable($($arg),*) }
            match level.0 {
                Kind::Portable => portable($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a level of this kind exists only where `Level::available` found avx2 and fma.
                Kind::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a level of this kind exists only where `Level::available` found avx2, fma and avx512f.
                Kind::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    )*};
}

/// Elements per block of the sums: a block's weights fit into the first-level cache, its sum is rounded to f32 once.
pub(super) const BLOCK: usize = 1024;

/// Elements that one maximum lets [`collect`] and [`top_k`] skip.
const STRIDE: usize = 64;

/// Keys that [`top_k`] holds at most: room enough that cutting back costs a constant per element.
pub(super) fn top_k_room(k: usize) -> usize {
    k.saturating_mul(2).saturating_add(4 * STRIDE)
}

/// Sort key of a candidate: ascending keys are descending logits, then ascending ids. The low half is the id.
pub(super) fn key(logit: f32, id: u32) -> u64 {
    // Adding zero makes one of the two zeros, or their signs would break ties.
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 0x8000_0000 } else { !bits };
    u64::from(!ascending) << 32 | u64::from(id)
}

/// The logit of a key of [`key`]; of both zeros the positive one.
#[inline(always)]
fn logit(key: u64) -> f32 {
    let ascending = !((key >> 32) as u32);
    f32::from_bits(if ascending >> 31 == 1 { ascending & 0x7fff_ffff } else { !ascending })
}

/// Whether any of a stride's elements passes; without a branch for each.
#[inline(always)]
fn any(block: &[f32; STRIDE], passes: impl Fn(f32) -> bool) -> bool {
    block.iter().fold(0, |any, &x| any | u32::from(passes(x))) != 0
}

/// By what candidates are put into order: rising distance of (logit - max) / temperature from `mean`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    max: f32,
    temperature: f32,
    mean: f32,
    /// Whether the logit itself decides where ranks are equal, before the id.
    by_logit: bool,
}

impl Order {
    /// Falling logits, of which `max` is the largest.
    pub(super) fn falling(max: f32) -> Order {
        Order { max, temperature: 1.0, mean: 0.0, by_logit: true }
    }

    /// Rising distance of a token's surprise from the entropy. Surprise is ln(sum) - d with d = (logit - max) /
    /// temperature, entropy its mean: they differ by mean(d) - d.
    pub(super) fn typical(max: f32, temperature: f32, mean: f32) -> Order {
        Order { max, temperature, mean, by_logit: false }
    }

    /// A number of at least 0 that never falls along the order.
    #[inline(always)]
    fn rank(self, logit: f32) -> f32 {
        (self.mean - (logit - self.max) / self.temperature).abs()
    }

    #[inline(always)]
    fn key(self, logit: f32, id: u32) -> u64 {
        // The bits of floats that aren't negative are in their order.
        if self.by_logit { key(logit, id) } else { u64::from(self.rank(logit).to_bits()) << 32 | u64::from(id) }
    }
}

/// Buckets of equal parts of a range of ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread {
    order: Order,
    lo: f32,
    scale: f32,
    last: f32,
}

impl Spread {
    /// `n` buckets, at most 2^22, for ranks from `lo` to `hi`.
    pub(super) fn new(order: Order, (lo, hi): (f32, f32), n: usize) -> Spread {
        Spread { order, lo, scale: n as f32 / (hi - lo), last: (n - 1) as f32 }
    }

    #[inline(always)]
    fn bucket(self, logit: f32) -> u32 {
        let place = (self.order.rank(logit) - self.lo) * self.scale;
        // Ranges without extent or end give NaN for their largest ranks, which belong into the last bucket.
        let place = if place < self.last { place } else { self.last };
        // Adding 2^23 leaves the nearest integer in the mantissa.
        (place + 8_388_608.0).to_bits() & 0x007f_ffff
    }
}

wide! {
    /// The maximum of `xs`, NaN where an element is NaN or +inf; -inf for none.
    fn checked_max(xs: &[f32]) -> f32 {
        let mut bad = [0u32; 16];
        let mut lanes = [f32::NEG_INFINITY; 16];
        let (blocks, rest) = xs.as_chunks::<16>();
        for block in blocks {
            for i in 0..16 {
                let fine = block[i] < f32::INFINITY;
                bad[i] |= u32::from(!fine);
                lanes[i] = if block[i] > lanes[i] { block[i] } else { lanes[i] };
            }
        }
        if bad != [0; 16] || rest.iter().any(|&x| x.is_nan() || x == f32::INFINITY) {
            return f32::NAN;
        }
        let (a, b) = (math::max16(&lanes), math::max16(rest));
        if b > a { b } else { a }
    }

    /// The index of the first element equal to `x`, the maximum of `xs`.
    fn position(xs: &[f32], x: f32) -> Option<usize> {
        let (blocks, _) = xs.as_chunks::<BLOCK>();
        let mut first = 0;
        for block in blocks {
            // A block's maximum is at least x where x is in it.
            if math::max16(block) >= x {
                break;
            }
            first += BLOCK;
        }
        xs[first..].iter().position(|&y| y == x).map(|i| first + i)
    }

    /// out\[i\] = e^((xs\[i\] - max) / temperature), and their sum in the 16-lane order; at most [`BLOCK`] elements.
    fn weights(xs: &[f32], max: f32, temperature: f32, out: &mut [f32]) -> f32 {
        let mut lanes = [0.0f32; 16];
        let (x_blocks, x_rest) = xs.as_chunks::<16>();
        let (w_blocks, w_rest) = out[..xs.len()].as_chunks_mut::<16>();
        // Division by 1 changes nothing but the time.
        if temperature == 1.0 {
            for (w, x) in w_blocks.iter_mut().zip(x_blocks) {
                for i in 0..16 {
                    w[i] = math::exp(x[i] - max);
                    lanes[i] += w[i];
                }
            }
        } else {
            for (w, x) in w_blocks.iter_mut().zip(x_blocks) {
                for i in 0..16 {
                    w[i] = math::exp((x[i] - max) / temperature);
                    lanes[i] += w[i];
                }
            }
        }
        for ((w, &x), lane) in w_rest.iter_mut().zip(x_rest).zip(&mut lanes) {
            *w = math::exp((x - max) / temperature);
            *lane += *w;
        }
        math::sum16(&lanes)
    }

    /// The sum of ws\[i\] (xs\[i\] - max) / temperature in the 16-lane order, where no weight counts as 0.
    fn weighted_distance(xs: &[f32], ws: &[f32], max: f32, temperature: f32) -> f32 {
        let mut lanes = [0.0f32; 16];
        let (x_blocks, x_rest) = xs.as_chunks::<16>();
        let (w_blocks, w_rest) = ws.as_chunks::<16>();
        // Without the selects a banned token would give 0 * -inf. Division by 1 changes nothing but the time.
        if temperature == 1.0 {
            for (x, w) in x_blocks.iter().zip(w_blocks) {
                for i in 0..16 {
                    let d = if w[i] > 0.0 { x[i] - max } else { 0.0 };
                    lanes[i] = w[i].mul_add(d, lanes[i]);
                }
            }
        } else {
            for (x, w) in x_blocks.iter().zip(w_blocks) {
                for i in 0..16 {
                    let d = if w[i] > 0.0 { (x[i] - max) / temperature } else { 0.0 };
                    lanes[i] = w[i].mul_add(d, lanes[i]);
                }
            }
        }
        for (lane, (&x, &w)) in lanes.iter_mut().zip(x_rest.iter().zip(w_rest)) {
            let d = if w > 0.0 { (x - max) / temperature } else { 0.0 };
            *lane = w.mul_add(d, *lane);
        }
        math::sum16(&lanes)
    }

    /// Whether all elements are at least `lo`.
    fn all_reach(xs: &[f32], lo: f32) -> bool {
        let (blocks, rest) = xs.as_chunks::<STRIDE>();
        blocks.iter().all(|block| block.iter().fold(true, |all, &x| all & (x >= lo))) && rest.iter().all(|&x| x >= lo)
    }

    /// Appends the keys of all elements in [lo, hi], in the order of ids.
    fn collect(xs: &[f32], lo: f32, hi: f32, keys: &mut Vec<u64>) -> () {
        let (blocks, rest) = xs.as_chunks::<STRIDE>();
        for (n, block) in blocks.iter().enumerate() {
            if !any(block, |x| x >= lo) {
                continue;
            }
            let mut found = [0u64; STRIDE];
            let mut pass = [0u8; STRIDE];
            for i in 0..STRIDE {
                found[i] = key(block[i], (n * STRIDE + i) as u32);
                pass[i] = u8::from((block[i] >= lo) & (block[i] <= hi));
            }
            // Whether an element passes is a coin's toss where many do: the place of the next is computed, not branched on.
            let mut n_found = 0;
            for i in 0..STRIDE {
                found[n_found & (STRIDE - 1)] = found[i];
                n_found += usize::from(pass[i]);
            }
            keys.extend_from_slice(&found[..n_found]);
        }
        for (i, &x) in rest.iter().enumerate() {
            if x >= lo && x <= hi {
                keys.push(key(x, (blocks.len() * STRIDE + i) as u32));
            }
        }
    }

    /// The sum of `xs`, in no order to rely on: use it where it is exact; and their minimum. No element is NaN.
    fn sum_and_min(xs: &[f32]) -> (f64, f32) {
        let mut sums = [0.0f64; 16];
        let mut least = [f32::INFINITY; 16];
        let (blocks, rest) = xs.as_chunks::<16>();
        for block in blocks {
            for i in 0..16 {
                sums[i] += f64::from(block[i]);
                least[i] = if block[i] < least[i] { block[i] } else { least[i] };
            }
        }
        for (i, &x) in rest.iter().enumerate() {
            sums[i] += f64::from(x);
            least[i] = if x < least[i] { x } else { least[i] };
        }
        (sums.iter().sum(), least.iter().fold(f32::INFINITY, |a, &b| a.min(b)))
    }

    /// The logits of keys.
    fn logits(keys: &[u64], out: &mut [f32]) -> () {
        for (x, &key) in out.iter_mut().zip(keys) {
            *x = logit(key);
        }
    }

    /// The least and the largest rank of the keys' logits.
    fn ranks(keys: &[u64], order: Order) -> (f32, f32) {
        let (mut lo, mut hi) = ([f32::INFINITY; 16], [0.0f32; 16]);
        let mut visit = |keys: &[u64]| {
            for (i, &key) in keys.iter().enumerate() {
                let rank = order.rank(logit(key));
                lo[i] = if rank < lo[i] { rank } else { lo[i] };
                hi[i] = if rank > hi[i] { rank } else { hi[i] };
            }
        };
        let (blocks, rest) = keys.as_chunks::<16>();
        blocks.iter().for_each(|block| visit(block));
        visit(rest);
        (lo.iter().fold(f32::INFINITY, |a, &b| a.min(b)), hi.iter().fold(0.0, |a, &b| a.max(b)))
    }

    /// Counts the keys of each bucket.
    fn count(keys: &[u64], spread: Spread, counts: &mut [u32]) -> () {
        for keys in keys.chunks(STRIDE) {
            let mut buckets = [0; STRIDE];
            for (bucket, &key) in buckets.iter_mut().zip(keys) {
                *bucket = spread.bucket(logit(key));
            }
            for &bucket in &buckets[..keys.len()] {
                counts[bucket as usize] += 1;
            }
        }
    }

    /// Puts the ids of the keys into their buckets: `places` holds where each begins, and then where it ends.
    fn scatter(keys: &[u64], spread: Spread, places: &mut [u32], ids: &mut [u32]) -> () {
        for keys in keys.chunks(STRIDE) {
            let mut buckets = [0; STRIDE];
            for (bucket, &key) in buckets.iter_mut().zip(keys) {
                *bucket = spread.bucket(logit(key));
            }
            for (&bucket, &key) in buckets.iter().zip(keys) {
                let place = &mut places[bucket as usize];
                ids[*place as usize] = key as u32;
                *place += 1;
            }
        }
    }

    /// Makes the keys of an order.
    fn keys(ids: &[u32], xs: &[f32], order: Order, out: &mut [u64]) -> () {
        for (out, &id) in out.iter_mut().zip(ids) {
            *out = order.key(xs[id as usize], id);
        }
    }

    /// Fills `keys` with the `k` smallest keys (largest logits) of the elements above -inf, in no order; k > 0.
    ///
    /// One pass with a rising threshold: `keys` holds up to [`top_k_room`] and is cut back to the best k when full.
    /// From then on an element must exceed the worst of them: an equal one loses by its id, which is larger.
    fn top_k(xs: &[f32], k: usize, keys: &mut Vec<u64>) -> () {
        keys.clear();
        let full = top_k_room(k);
        let mut above = f32::NEG_INFINITY;
        let mut visit = |start: usize, block: &[f32], above: f32| {
            for (i, &x) in block.iter().enumerate() {
                if x > above {
                    keys.push(key(x, (start + i) as u32));
                }
            }
            if keys.len() + STRIDE <= full {
                return above;
            }
            keys.select_nth_unstable(k - 1);
            keys.truncate(k);
            xs[keys[k - 1] as u32 as usize]
        };
        let (blocks, rest) = xs.as_chunks::<STRIDE>();
        for (n, block) in blocks.iter().enumerate() {
            if any(block, |x| x > above) {
                above = visit(n * STRIDE, block, above);
            }
        }
        visit(blocks.len() * STRIDE, rest, above);
        if keys.len() > k {
            keys.select_nth_unstable(k - 1);
            keys.truncate(k);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed;
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Coarse steps, so that there are ties, and some banned.
                if x >> 27 == 3 { f32::NEG_INFINITY } else { ((x >> 20) as f32 - 2048.0) / 128.0 }
            })
            .collect()
    }

    #[test]
    fn all_levels_give_the_same_bits() {
        println!("levels: {:?}", Level::available().collect::<Vec<_>>());
        for n in [1, 15, 16, 17, 63, 64, 65, 1000, 1024] {
            let xs = noise(n, n as u32);
            let results: Vec<_> = Level::available()
                .map(|level| {
                    let max = checked_max(level, &xs);
                    let mut out = vec![0.0; n];
                    let mut bits = Vec::new();
                    for temperature in [1.0, 0.7, 1e-5, 30.0] {
                        bits.push(weights(level, &xs, max, temperature, &mut out).to_bits());
                        bits.push(weighted_distance(&xs, &out, max, temperature, level).to_bits());
                        bits.extend(out.iter().map(|w| w.to_bits()));
                    }
                    let mut keys = Vec::new();
                    collect(level, &xs, -3.0, 5.0, &mut keys);
                    let mut top = Vec::new();
                    top_k(level, &xs, n.div_ceil(3), &mut top);
                    top.sort_unstable();
                    let mut decoded = vec![0.0; keys.len()];
                    logits(level, &keys, &mut decoded);
                    assert!(keys.iter().zip(&decoded).all(|(&key, &x)| x == xs[key as u32 as usize] && x.to_bits() != 1 << 31));
                    let order = Order::typical(max, 0.7, -2.5);
                    let range = ranks(level, &keys, order);
                    let spread = Spread::new(order, range, 32);
                    let mut places = vec![0; 32];
                    count(level, &keys, spread, &mut places);
                    let mut start = 0;
                    for place in &mut places {
                        (*place, start) = (start, start + *place);
                    }
                    let mut ids = vec![0; keys.len()];
                    scatter(level, &keys, spread, &mut places, &mut ids);
                    let mut ordered = vec![0; keys.len()];
                    super::keys(level, &ids, &xs, order, &mut ordered);
                    (max.to_bits(), position(level, &xs, max), bits, keys, top, range.0.to_bits(), range.1.to_bits(), ordered)
                })
                .collect();
            assert!(results.windows(2).all(|r| r[0] == r[1]), "{n} elements");
        }
    }

    fn weighted_distance(xs: &[f32], ws: &[f32], max: f32, temperature: f32, level: Level) -> f32 {
        super::weighted_distance(level, xs, ws, max, temperature)
    }

    #[test]
    fn top_k_is_the_head_of_the_sorted_list() {
        let level = Level::detect();
        let shapes: [(&str, Vec<f32>); 4] = [
            ("noise", noise(5000, 9)),
            ("rising", (0..5000).map(|i| i as f32).collect()),
            ("falling", (0..5000).map(|i| -(i as f32)).collect()),
            ("equal", vec![1.5; 5000]),
        ];
        for (name, xs) in &shapes {
            let mut all: Vec<u64> = xs.iter().enumerate().map(|(i, &x)| key(x, i as u32)).collect();
            all.retain(|&key| xs[key as u32 as usize] > f32::NEG_INFINITY);
            all.sort_unstable();
            for k in [1, 2, 40, 63, 64, 65, 200, 3000, 4999, 5000, 6000] {
                let mut keys = Vec::with_capacity(top_k_room(k).min(xs.len()));
                let room = keys.capacity();
                top_k(level, xs, k, &mut keys);
                keys.sort_unstable();
                assert_eq!(keys, all[..k.min(all.len())], "{name}, top {k}");
                assert_eq!(keys.capacity(), room, "{name}, top {k}: no growth");
            }
        }
    }

    #[test]
    fn keys_order_by_falling_logit_then_rising_id() {
        let xs = [f32::MAX, 1.0, 1e-40, 0.0, -1e-40, -1.0, f32::MIN, f32::NEG_INFINITY];
        for pair in xs.windows(2) {
            assert!(key(pair[0], 9) < key(pair[1], 0), "{pair:?}");
        }
        assert_eq!(key(-0.0, 3), key(0.0, 3), "the two zeros are a tie");
        assert!(key(2.0, 3) < key(2.0, 4));
    }

    #[test]
    fn checked_max_sees_every_position() {
        for level in Level::available() {
            for n in [1, 16, 17, 70] {
                for at in 0..n {
                    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
                        let mut xs = vec![0.0; n];
                        xs[at] = bad;
                        assert!(checked_max(level, &xs).is_nan(), "{level:?}: {bad} at {at} of {n}");
                    }
                    let mut xs = vec![f32::NEG_INFINITY; n];
                    assert_eq!(checked_max(level, &xs), f32::NEG_INFINITY);
                    xs[at] = -7.0;
                    assert_eq!(checked_max(level, &xs), -7.0);
                    assert_eq!(position(level, &xs, -7.0), Some(at));
                }
            }
            assert_eq!(position(level, &[1.0, 2.0], 3.0), None);
            assert_eq!(position(level, &[1.0, 2.0, 2.0], 2.0), Some(1), "the first of equals");
        }
    }
}
