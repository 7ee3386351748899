//! Log-probabilities of whole rows of logits: for scores, perplexity and comparisons.

use selvedge_core::ids::TokenId;
use selvedge_core::math::double;

/// A row of logits seen as log-probabilities: natural logarithms of their softmax, computed in f64 with the project's
/// own functions, so that the same logits give the same numbers everywhere.
#[derive(Debug, Clone, Copy)]
pub struct Logprobs<'a> {
    logits: &'a [f32],
    /// Logarithm of the sum of all exponentials.
    log_sum: f64,
}

impl<'a> Logprobs<'a> {
    /// Log-probabilities of `logits`, `[n_vocab]`, finite or -inf.
    pub fn new(logits: &'a [f32]) -> Logprobs<'a> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&x| double::exp(f64::from(x) - f64::from(max))).sum();
        Logprobs { logits, log_sum: f64::from(max) + double::ln(sum) }
    }

    /// That of a token; `None` outside the vocabulary.
    pub fn of(&self, token: TokenId) -> Option<f64> {
        self.logits.get(token.0 as usize).map(|&x| f64::from(x) - self.log_sum)
    }

    /// The `k` likeliest tokens, best first, ties to the lowest id.
    pub fn top(&self, k: usize) -> Vec<(TokenId, f64)> {
        let k = k.min(self.logits.len());
        if k == 0 {
            return Vec::new();
        }
        let mut ids: Vec<u32> = (0..self.logits.len() as u32).collect();
        // Adding 0 makes both zeros one.
        let order = |a: &u32, b: &u32| (self.logits[*b as usize] + 0.0).total_cmp(&(self.logits[*a as usize] + 0.0)).then(a.cmp(b));
        ids.select_nth_unstable_by(k - 1, order);
        ids.truncate(k);
        ids.sort_unstable_by(order);
        ids.into_iter().map(|id| (TokenId(id), f64::from(self.logits[id as usize]) - self.log_sum)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_ties_go_to_the_lowest_id() {
        let logits = [1000.0, 1001.0, f32::NEG_INFINITY, 1001.0, 999.5];
        let row = Logprobs::new(&logits);
        let sum: f64 = (0..5).map(|i| row.of(TokenId(i)).unwrap().exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        let ids = |k| row.top(k).iter().map(|(t, _)| t.0).collect::<Vec<_>>();
        assert_eq!(ids(0), []);
        assert_eq!(ids(3), [1, 3, 0]);
        assert_eq!(ids(9), [1, 3, 0, 4, 2]);
        assert_eq!(row.of(TokenId(5)), None);
        assert_eq!(row.top(1)[0].1, row.of(TokenId(1)).unwrap());
    }
}
