//! Sampling parameters: plain data, checked once by `validate`.

use super::{DEFAULT_ORDER, Error, Stage};
use crate::ids::TokenId;

/// Temperatures below this are 0: the most probable token is taken. Dividing by less would only overflow.
pub const TEMPERATURE_EPSILON: f32 = 1e-5;

/// A logit bias of this bans its token.
pub const BIAS_BAN: f32 = -100.0;

/// A logit bias of this forces its token: all that lack it are banned.
pub const BIAS_FORCE: f32 = 100.0;

/// The longest window of the penalties and of DRY, in tokens: it bounds their memory and time.
pub const LAST_N_MAX: usize = 1 << 20;

/// Mirostat version 2: the number of candidates follows a target of surprise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// Target surprise of a token, in bits, above 0.
    pub tau: f32,
    /// Share of the error that corrects the bound after each token, above 0, at most 1.
    pub eta: f32,
}

impl Default for Mirostat {
    fn default() -> Self {
        Mirostat { tau: 5.0, eta: 0.1 }
    }
}

/// How the next token is chosen. `Default` gives the project's defaults; fields marked "off at" do nothing there.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Seed of the random generator; none takes one from the operating system, which `Sampler::seed` tells.
    pub seed: Option<u64>,
    /// Divisor of the logits, finite and at least 0. Below [`TEMPERATURE_EPSILON`] the best token is taken: biases,
    /// penalties and DRY still count, filters don't. Default 0.8.
    pub temperature: f32,
    /// Keeps the `top_k` most probable; off at 0. Default 40.
    pub top_k: u32,
    /// Keeps the most probable until their probabilities reach `top_p`, in [0, 1]; off at 1. Default 0.95.
    pub top_p: f32,
    /// Keeps those with at least `min_p` times the largest probability, in [0, 1]; off at 0. Default 0.05.
    pub min_p: f32,
    /// Locally typical sampling: keeps those whose surprise is nearest the entropy until their probabilities reach
    /// `typical_p`, in [0, 1]; off at 1 (default).
    pub typical_p: f32,
    /// Probability, in [0, 1], that a step excludes top choices (XTC); off at 0 (default).
    pub xtc_probability: f32,
    /// XTC removes all tokens of at least this probability but the least probable of them, in [0, 1]; nothing above 0.5,
    /// which no two tokens reach. Default 0.1.
    pub xtc_threshold: f32,
    /// Divides positive and multiplies negative logits of tokens in the window, above 0; off at 1 (default).
    pub repeat_penalty: f32,
    /// Subtracted once per occurrence in the window; off at 0 (default).
    pub frequency_penalty: f32,
    /// Subtracted once if the token stands in the window; off at 0 (default).
    pub presence_penalty: f32,
    /// Window of the three penalties, in tokens, the prompt's included; off at 0. Default 64.
    pub penalty_last_n: usize,
    /// DRY: a token that would continue a repeated run of n tokens loses
    /// `dry_multiplier * dry_base^(n - dry_allowed_length)`; off at 0 (default).
    pub dry_multiplier: f32,
    /// Base of the above, at least 1. Default 1.75.
    pub dry_base: f32,
    /// Runs shorter than this are free. Default 2; 0 is taken as 1.
    pub dry_allowed_length: u32,
    /// Window of DRY, in tokens; off at 0. Default 1024.
    pub dry_last_n: usize,
    /// Tokens that end a run and are never penalised: those whose text holds a line break, a quote and so on.
    pub dry_breakers: Vec<TokenId>,
    /// Mirostat instead of all filters of the order (penalties, DRY and temperature stay); off by default.
    pub mirostat: Option<Mirostat>,
    /// Added to logits before anything else, from -100 (bans) to 100 (forces). Of two entries for a token the later
    /// counts.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Order of the stages; one that is missing is off, the temperature then 1. Default [`DEFAULT_ORDER`].
    pub order: Vec<Stage>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            seed: None,
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_last_n: 64,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_last_n: 1024,
            dry_breakers: Vec::new(),
            mirostat: None,
            logit_bias: Vec::new(),
            order: DEFAULT_ORDER.to_vec(),
        }
    }
}

/// A checked range: name, the range in words, the value, whether it lies inside.
type Check = (&'static str, &'static str, f64, bool);

impl SamplingParams {
    /// Always the most probable token.
    #[must_use]
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// Temperature alone, no filter: draws from the model's own distribution at temperature 1.
    #[must_use]
    pub fn plain(temperature: f32) -> Self {
        SamplingParams { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() }
    }

    /// Whether the best token is taken without a draw.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature < TEMPERATURE_EPSILON
    }

    /// Checks every field against its range, and the tokens against a vocabulary of `n_vocab`.
    ///
    /// # Errors
    /// The first field that is NaN, infinite, negative where it mustn't be, or out of range; a token outside the
    /// vocabulary; a stage twice in the order.
    pub fn validate(&self, n_vocab: usize) -> Result<(), Error> {
        if n_vocab == 0 || u32::try_from(n_vocab).is_err() {
            return Err(Error::Vocab { n_vocab });
        }
        let unit = |x: f32| (0.0..=1.0).contains(&x);
        let mirostat = self.mirostat.unwrap_or_default();
        let checks: [Check; 16] = [
            ("temperature", "a finite number of at least 0", self.temperature.into(), self.temperature >= 0.0),
            ("top_p", "a number from 0 to 1", self.top_p.into(), unit(self.top_p)),
            ("min_p", "a number from 0 to 1", self.min_p.into(), unit(self.min_p)),
            ("typical_p", "a number from 0 to 1", self.typical_p.into(), unit(self.typical_p)),
            ("xtc_probability", "a number from 0 to 1", self.xtc_probability.into(), unit(self.xtc_probability)),
            ("xtc_threshold", "a number from 0 to 1", self.xtc_threshold.into(), unit(self.xtc_threshold)),
            ("repeat_penalty", "a finite number above 0", self.repeat_penalty.into(), self.repeat_penalty > 0.0),
            ("frequency_penalty", "a finite number", self.frequency_penalty.into(), true),
            ("presence_penalty", "a finite number", self.presence_penalty.into(), true),
            ("dry_multiplier", "a finite number of at least 0", self.dry_multiplier.into(), self.dry_multiplier >= 0.0),
            ("dry_base", "a finite number of at least 1", self.dry_base.into(), self.dry_base >= 1.0),
            ("mirostat tau", "a finite number above 0", mirostat.tau.into(), mirostat.tau > 0.0),
            ("mirostat eta", "a number above 0, at most 1", mirostat.eta.into(), mirostat.eta > 0.0 && mirostat.eta <= 1.0),
            ("penalty_last_n", "at most 1048576 tokens", self.penalty_last_n as f64, self.penalty_last_n <= LAST_N_MAX),
            ("dry_last_n", "at most 1048576 tokens", self.dry_last_n as f64, self.dry_last_n <= LAST_N_MAX),
            (
                "dry_allowed_length",
                "at most 1048576 tokens",
                self.dry_allowed_length.into(),
                self.dry_allowed_length as usize <= LAST_N_MAX,
            ),
        ];
        for (name, expected, found, inside) in checks {
            if !(inside && found.is_finite()) {
                return Err(Error::Param { name, expected, found });
            }
        }
        for &(TokenId(token), bias) in &self.logit_bias {
            if token as usize >= n_vocab {
                return Err(Error::Token { name: "logit_bias", token, n_vocab });
            }
            if !(BIAS_BAN..=BIAS_FORCE).contains(&bias) {
                return Err(Error::Bias { token, found: bias });
            }
        }
        for &TokenId(token) in &self.dry_breakers {
            if token as usize >= n_vocab {
                return Err(Error::Token { name: "dry_breakers", token, n_vocab });
            }
        }
        for (i, &stage) in self.order.iter().enumerate() {
            if self.order[..i].contains(&stage) {
                return Err(Error::OrderTwice { stage });
            }
        }
        Ok(())
    }
}
