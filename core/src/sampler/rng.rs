//! The random generator: xoshiro256++ seeded through splitmix64, both by Blackman and Vigna (public domain).
//!
//! Written here, since a seed must give the same tokens in every version: a generator crate may change its streams.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Generator state: a value, cloned for snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rng {
    state: [u64; 4],
}

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        let mut x = seed;
        let state = std::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Rng { state }
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform in [0, 1), 53 bits.
    pub(super) fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }
}

/// A seed that nobody chose: the standard library's hash keys come from the operating system.
pub(super) fn random_seed() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_published_streams() {
        // First outputs of splitmix64 from seed 1234567 are the state; xoshiro256++ from state 1, 2, 3, 4 is the
        // published reference vector.
        assert_eq!(Rng::new(1_234_567).state[..3], [6457827717110365317, 3203168211198807973, 9817491932198370423]);
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let got: Vec<u64> = (0..6).map(|_| rng.next_u64()).collect();
        let want = [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205, 9973669472204895162];
        assert_eq!(got, want);
    }

    #[test]
    fn uniform_stays_below_one_and_covers_the_range() {
        let mut rng = Rng::new(0);
        let xs: Vec<f64> = (0..100_000).map(|_| rng.uniform()).collect();
        assert!(xs.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = xs.iter().sum::<f64>() / xs.len() as f64;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        // All bits set is the largest output.
        assert!((u64::MAX >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0) < 1.0);
    }

    #[test]
    fn seeds_differ_and_repeat() {
        assert_eq!(Rng::new(7), Rng::new(7));
        assert_ne!(Rng::new(7), Rng::new(8));
        assert_ne!(random_seed(), random_seed());
    }
}
