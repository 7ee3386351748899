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

    /// The index of the first element equal to `x`.
    fn position(xs: &[f32], x: f32) -> Option<usize> {
        let (blocks, _) = xs.as_chunks::<STRIDE>();
        let mut first = blocks.len() * STRIDE;
        for (n, block) in blocks.iter().enumerate() {
            let mut hit = [0u32; 16];
            for i in 0..STRIDE {
                hit[i % 16] |= u32::from(block[i] == x);
            }
            if hit != [0; 16] {
                first = n * STRIDE;
                break;
            }
        }
        xs[first..].iter().position(|&y| y == x).map(|i| first + i)
    }

    /// out\[i\] = e^((xs\[i\] - max) / temperature), and their sum in the 16-lane order; at most [`BLOCK`] elements.
    fn weights(xs: &[f32], max: f32, temperature: f32, out: &mut [f32]) -> f32 {
        let out = &mut out[..xs.len()];
        // Division by 1 changes nothing but the time.
        if temperature == 1.0 {
            for (w, &x) in out.iter_mut().zip(xs) {
                *w = math::exp(x - max);
            }
        } else {
            for (w, &x) in out.iter_mut().zip(xs) {
                *w = math::exp((x - max) / temperature);
            }
        }
        math::sum16(out)
    }

    /// The sum of ws\[i\] (xs\[i\] - max) / temperature in the 16-lane order, where no weight counts as 0.
    fn weighted_distance(xs: &[f32], ws: &[f32], max: f32, temperature: f32) -> f32 {
        let mut lanes = [0.0f32; 16];
        let (x_blocks, x_rest) = xs.as_chunks::<16>();
        let (w_blocks, w_rest) = ws.as_chunks::<16>();
        for (x, w) in x_blocks.iter().zip(w_blocks) {
            for i in 0..16 {
                // Without the select a banned token would give 0 * -inf.
                let d = if w[i] > 0.0 { (x[i] - max) / temperature } else { 0.0 };
                lanes[i] = w[i].mul_add(d, lanes[i]);
            }
        }
        for (lane, (&x, &w)) in lanes.iter_mut().zip(x_rest.iter().zip(w_rest)) {
            let d = if w > 0.0 { (x - max) / temperature } else { 0.0 };
            *lane = w.mul_add(d, *lane);
        }
        math::sum16(&lanes)
    }

    /// Appends the keys of all elements in [lo, hi], in the order of ids.
    fn collect(xs: &[f32], lo: f32, hi: f32, keys: &mut Vec<u64>) -> () {
        for (n, block) in xs.chunks(STRIDE).enumerate() {
            if math::max16(block) >= lo {
                for (i, &x) in block.iter().enumerate() {
                    if x >= lo && x <= hi {
                        keys.push(key(x, (n * STRIDE + i) as u32));
                    }
                }
            }
        }
    }

    /// Fills `keys` with the `k` smallest keys (largest logits) of the elements above -inf, in no order; k > 0.
    ///
    /// One pass with a rising threshold: `keys` holds up to [`top_k_room`] and is cut back to the best k when full.
    fn top_k(xs: &[f32], k: usize, keys: &mut Vec<u64>) -> () {
        keys.clear();
        let full = top_k_room(k);
        let mut worst = u64::MAX;
        let mut lo = f32::MIN;
        for (n, block) in xs.chunks(STRIDE).enumerate() {
            if math::max16(block) < lo {
                continue;
            }
            for (i, &x) in block.iter().enumerate() {
                if x >= lo {
                    let key = key(x, (n * STRIDE + i) as u32);
                    if key < worst {
                        keys.push(key);
                    }
                }
            }
            if keys.len() + STRIDE > full {
                keys.select_nth_unstable(k - 1);
                keys.truncate(k);
                worst = keys[k - 1];
                lo = xs[worst as u32 as usize];
            }
        }
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
                    (max.to_bits(), position(level, &xs, max), bits, keys, top)
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
        }
    }
}
