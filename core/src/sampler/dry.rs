//! DRY ("don't repeat yourself"): penalises the token that would continue a run that the sequence already contains.
//!
//! Let t be the last tokens. For an earlier position whose preceding n tokens equal the last n tokens of t, the token
//! that follows there is one that would lengthen the repeat to n + 1. It loses multiplier * base^(n - allowed) for the
//! largest such n of at least `allowed`; a breaker token ends a run and is itself never penalised.
//! After the sampler of the same name by p-e-w.

use super::stage::Step;
use crate::math::double;

/// The largest penalty: finite, so that DRY can't ban, and far beyond the spread of logits.
const PENALTY_MAX: f64 = 1e30;

/// Buffers for one look over the window, sized once.
#[derive(Debug)]
pub(super) struct Scratch {
    /// z\[i\]: length of the common prefix of the reversed window and its suffix from i.
    z: Vec<u32>,
    /// (token, length of the run that it would continue).
    runs: Vec<(u32, u32)>,
}

impl Clone for Scratch {
    fn clone(&self) -> Self {
        // Contents don't outlive a draw; the room does, which a derived clone would lose.
        Scratch::new(self.z.capacity())
    }
}

impl Scratch {
    pub(super) fn new(n_window: usize) -> Self {
        Scratch { z: Vec::with_capacity(n_window), runs: Vec::with_capacity(n_window) }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.z.capacity() * 4 + self.runs.capacity() * 8
    }

    /// The runs of at least `allowed` tokens that a token would continue: ascending tokens, the longest run of each.
    /// Linear in the window, but for sorting the hits. `breakers` ascend.
    pub(super) fn find(&mut self, window: &[u32], allowed: u32, breakers: &[u32]) -> &[(u32, u32)] {
        let is_breaker = |token: u32| breakers.binary_search(&token).is_ok();
        self.runs.clear();
        // s[i] is the window read backwards.
        let n = window.len();
        let s = |i: usize| window[n - 1 - i];
        let limit = (0..n).take_while(|&i| !is_breaker(s(i))).count();
        if limit < allowed as usize {
            return &self.runs;
        }
        // Z algorithm: [left, right) is the match found so far that reaches furthest.
        self.z.clear();
        self.z.resize(n, 0);
        let (mut left, mut right) = (0, 0);
        for i in 1..n {
            let mut len = if i < right { (self.z[i - left] as usize).min(right - i) } else { 0 };
            while i + len < n && s(len) == s(i + len) {
                len += 1;
            }
            if i + len > right {
                (left, right) = (i, i + len);
            }
            self.z[i] = len as u32;
            let run = len.min(limit) as u32;
            if run >= allowed && !is_breaker(s(i - 1)) {
                self.runs.push((s(i - 1), run));
            }
        }
        self.runs.sort_unstable_by_key(|&(token, run)| (token, std::cmp::Reverse(run)));
        self.runs.dedup_by_key(|&mut (token, _)| token);
        &self.runs
    }
}

/// Whether the stage does anything.
pub(super) fn enabled(params: &super::SamplingParams) -> bool {
    params.dry_multiplier > 0.0 && params.dry_last_n > 0
}

pub(super) fn apply(step: &mut Step<'_>) {
    let params = step.params;
    if !enabled(params) {
        return;
    }
    let allowed = params.dry_allowed_length.max(1);
    let window = step.history.last(params.dry_last_n);
    for &(token, run) in step.dry.find(window, allowed, step.dry_breakers) {
        let growth = double::pow(f64::from(params.dry_base), f64::from(run - allowed));
        let penalty = (f64::from(params.dry_multiplier) * growth).min(PENALTY_MAX) as f32;
        step.candidates.adjust(token, |logit| logit - penalty);
    }
    step.candidates.refresh();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition in the module's words, cubic.
    fn naive(window: &[u32], allowed: u32, breakers: &[u32]) -> Vec<(u32, u32)> {
        let n = window.len();
        let mut best = std::collections::BTreeMap::new();
        for next in 1..n {
            if breakers.contains(&window[next]) {
                continue;
            }
            let run = (0..next).take_while(|&k| window[next - 1 - k] == window[n - 1 - k] && !breakers.contains(&window[n - 1 - k])).count()
                as u32;
            if run >= allowed {
                let longest = best.entry(window[next]).or_insert(0);
                *longest = run.max(*longest);
            }
        }
        best.into_iter().collect()
    }

    #[test]
    fn finds_what_the_definition_finds() {
        let mut x = 12345u32;
        let mut next = move |n: u32| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 16) % n
        };
        for _ in 0..3000 {
            let n_symbol = 1 + next(4);
            let window: Vec<u32> = (0..next(40)).map(|_| next(n_symbol)).collect();
            let allowed = 1 + next(4);
            let breakers: Vec<u32> = if next(2) == 0 { vec![] } else { vec![next(4)] };
            let mut scratch = Scratch::new(64);
            assert_eq!(scratch.find(&window, allowed, &breakers), naive(&window, allowed, &breakers), "{window:?} {allowed} {breakers:?}");
        }
    }

    #[test]
    fn named_runs() {
        let mut scratch = Scratch::new(64);
        // a b c . a b: c would lengthen the run of two.
        assert_eq!(scratch.find(&[1, 2, 3, 9, 1, 2], 2, &[]), [(3, 2)]);
        // The run is too short.
        assert_eq!(scratch.find(&[1, 2, 3, 9, 1, 2], 3, &[]), []);
        // A breaker inside cuts the run to one, a breaker as the next token is free.
        assert_eq!(scratch.find(&[1, 2, 3, 9, 1, 2], 1, &[1]), [(3, 1)]);
        assert_eq!(scratch.find(&[1, 2, 3, 9, 1, 2], 2, &[3]), []);
        // The last token is a breaker: nothing to continue.
        assert_eq!(scratch.find(&[1, 2, 3, 9, 1, 2], 1, &[2]), []);
        // Overlapping: a a a a continues a run of three.
        assert_eq!(scratch.find(&[1, 1, 1, 1], 1, &[]), [(1, 3)]);
        assert_eq!(scratch.find(&[], 1, &[]), []);
    }

    #[test]
    fn stays_linear_on_one_token_repeated() {
        let window = vec![5u32; super::super::LAST_N_MAX];
        let mut scratch = Scratch::new(window.len());
        let start = std::time::Instant::now();
        assert_eq!(scratch.find(&window, 2, &[]), [(5, window.len() as u32 - 1)]);
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    }
}
