//! What can be wrong with sampling parameters and with logits.

use super::Stage;

/// Errors of the sampler; each names what was expected and what was found.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter outside its range, NaN included.
    #[error("sampling parameter {name} is {}, expected {expected}", shown(*.found))]
    Param {
        /// Field of `SamplingParams`.
        name: &'static str,
        /// The range, in words.
        expected: &'static str,
        /// The value.
        found: f64,
    },
    /// A token id in the parameters that the vocabulary doesn't have.
    #[error("sampling parameter {name} names token {token}, but the vocabulary has ids 0 to {}", .n_vocab.saturating_sub(1))]
    Token {
        /// Field of `SamplingParams`.
        name: &'static str,
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A logit bias that isn't a number from -100 to 100.
    #[error("logit bias of token {token} is {found}, expected a number from -100 (ban) to 100 (force)")]
    Bias {
        /// The token.
        token: u32,
        /// The value.
        found: f32,
    },
    /// A stage that stands twice in the order.
    #[error("sampler stage {} stands twice in the order, expected at most once", .stage.name())]
    OrderTwice {
        /// The stage.
        stage: Stage,
    },
    /// A stage name that no stage has.
    #[error("no sampler stage is called {found:?}, expected one of {}", Stage::names())]
    StageName {
        /// The name.
        found: String,
    },
    /// A vocabulary without tokens, or with more than ids can count.
    #[error("a vocabulary of {n_vocab} tokens can't be sampled from, expected 1 to {}", u32::MAX)]
    Vocab {
        /// Its size.
        n_vocab: usize,
    },
    /// Logits of another length than the vocabulary.
    #[error("{found} logits were given for a vocabulary of {expected} tokens")]
    LogitsLen {
        /// Size of the vocabulary.
        expected: usize,
        /// Number of logits.
        found: usize,
    },
    /// A logit that is NaN or +inf (-inf is allowed: it bans the token).
    #[error("the logit of token {token} is {found}, expected a finite number: the model's output can't be sampled from")]
    NonFinite {
        /// The first such token.
        token: u32,
        /// Its logit.
        found: f32,
    },
    /// Every token is banned, by -inf logits or by biases.
    #[error("all {n_vocab} tokens are banned, expected at least one that may follow")]
    AllBanned {
        /// Size of the vocabulary.
        n_vocab: usize,
    },
}

/// A parameter's value as it was given: fractions were given as `f32`, counts as integers.
fn shown(value: f64) -> String {
    if value.fract() == 0.0 { value.to_string() } else { (value as f32).to_string() }
}
