//! The sampler: from logits to the next token.
//!
//! One draw runs, in this order:
//! 1. logit biases, always first: -100 bans, 100 forces, what lies between is added;
//! 2. the stages in the order that the parameters give, by default penalties, DRY, top-k, typical, top-p, min-p, XTC,
//!    temperature ([`DEFAULT_ORDER`]); each filter renormalises over what earlier ones left and keeps at least one
//!    candidate;
//! 3. a draw by probability from one uniform number of xoshiro256++ (seeded through splitmix64).
//!
//! Greedy (a temperature below [`TEMPERATURE_EPSILON`]): biases, penalties and DRY, then the largest logit. Mirostat 2:
//! biases, penalties, DRY and temperature, then its own truncation. Ties go to the lowest id everywhere.
//!
//! The same parameters, seed, accepted tokens and logits give the same tokens on every machine: all arithmetic is
//! [`crate::math`]'s and every sum has one order. XTC takes a second random number each step, so switching it on changes
//! the draws of a seed; so do, of course, the parameters themselves and whatever changes the logits.
//!
//! Nothing is allocated after construction. A list is sorted as far as the answer needs: the vocabulary as a whole only
//! where its distribution is so flat that top-p or typical keeps nearly all of it.

mod candidates;
mod dry;
mod error;
mod filters;
mod history;
mod params;
#[cfg(test)]
mod reference;
mod rng;
mod stage;
#[cfg(test)]
mod tests;
mod wide;

pub use error::Error;
pub use params::{BIAS_BAN, BIAS_FORCE, LAST_N_MAX, Mirostat, SamplingParams, TEMPERATURE_EPSILON};
pub use stage::{DEFAULT_ORDER, Stage};

use crate::ids::TokenId;
use crate::math::double;
use candidates::{Candidates, Softmax, Work};
use history::History;
use rng::Rng;
use stage::{Kind, Step};
use std::f64::consts::LN_2;

/// Bound on mirostat's truncation, in bits either way: beyond any surprise that an f32 weight can have.
const MU_MAX: f64 = 256.0;

/// A token and how probable the model found it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm of its probability under the softmax of the logits as they came: temperature 1, before
    /// biases, penalties and filters.
    pub logprob: f32,
}

/// What changes while sampling: random generator, accepted tokens, mirostat's bound. A value, kept to roll back.
#[derive(Debug)]
pub struct SamplerState {
    rng: Rng,
    history: History,
    /// Mirostat's bound on surprise, in bits.
    mu: f64,
}

impl Clone for SamplerState {
    fn clone(&self) -> Self {
        SamplerState { rng: self.rng, history: self.history.clone(), mu: self.mu }
    }

    fn clone_from(&mut self, other: &Self) {
        self.rng = other.rng;
        self.history.clone_from(&other.history);
        self.mu = other.mu;
    }
}

/// The sampler chain of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    n_vocab: usize,
    seed: u64,
    state: SamplerState,
    work: Work,
    dry: dry::Scratch,
    /// Ascending ids.
    dry_breakers: Vec<u32>,
    /// Biases to add, ascending ids; bans and forced tokens are kept apart.
    added: Vec<(u32, f32)>,
    banned: Vec<u32>,
    forced: Vec<u32>,
}

impl Sampler {
    /// A sampler over logits of `n_vocab` tokens; allocates all that it will use.
    ///
    /// # Errors
    /// Those of [`SamplingParams::validate`].
    pub fn new(params: SamplingParams, n_vocab: usize) -> Result<Self, Error> {
        params.validate(n_vocab)?;
        let seed = params.seed.unwrap_or_else(rng::random_seed);
        let mut biases: Vec<(u32, f32)> = params.logit_bias.iter().map(|&(TokenId(id), bias)| (id, bias)).collect();
        // The later of two entries counts: reversed, the stable sort puts it first and dedup keeps it.
        biases.reverse();
        biases.sort_by_key(|b| b.0);
        biases.dedup_by_key(|b| b.0);
        let ids_with = |bias: f32| biases.iter().filter(|b| b.1 == bias).map(|b| b.0).collect::<Vec<_>>();
        let (banned, forced) = (ids_with(BIAS_BAN), ids_with(BIAS_FORCE));
        biases.retain(|b| b.1 > BIAS_BAN && b.1 < BIAS_FORCE && b.1 != 0.0);
        let mut dry_breakers: Vec<u32> = params.dry_breakers.iter().map(|t| t.0).collect();
        dry_breakers.sort_unstable();
        dry_breakers.dedup();

        let used = |stage: Stage, enabled: bool| enabled && params.order.contains(&stage);
        let penalties = used(Stage::Penalties, filters::penalties_enabled(&params));
        let dry = used(Stage::Dry, dry::enabled(&params));
        let n_window = if penalties { params.penalty_last_n } else { 0 };
        let n_dry = if dry { params.dry_last_n } else { 0 };
        let n_change = biases.len() + banned.len() + n_window.min(n_vocab) + n_dry.min(n_vocab);
        let state = SamplerState { rng: Rng::new(seed), history: History::new(n_window, n_dry), mu: initial_mu(&params) };
        Ok(Sampler {
            n_vocab,
            seed,
            state,
            work: Work::new(wide::Level::detect(), n_vocab, n_key(&params, n_vocab).max(forced.len()), n_change),
            dry: dry::Scratch::new(n_dry),
            dry_breakers,
            added: biases,
            banned,
            forced,
            params,
        })
    }

    /// The parameters as given.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The seed in use: the given one, or the one that was taken from the operating system.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Bytes on the heap, for memory plans.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.work.heap_bytes()
            + self.state.history.heap_bytes()
            + self.dry.heap_bytes()
            + self.added.capacity() * 8
            + (self.dry_breakers.capacity() + self.banned.capacity() + self.forced.capacity()) * 4
    }

    /// Tells that `token` is now part of the sequence, drawn here or not: call it for the prompt's tokens as well, in
    /// order, or penalties and DRY won't see them.
    pub fn accept(&mut self, token: TokenId) {
        self.state.history.push(token.0);
    }

    /// Forgets all accepted tokens and starts the random generator over from its seed.
    pub fn reset(&mut self) {
        self.state.history.clear();
        self.state.rng = Rng::new(self.seed);
        self.state.mu = initial_mu(&self.params);
    }

    /// What changes while sampling. Keep a clone before a draw that may be taken back; `clone_from` into an earlier
    /// clone allocates nothing.
    #[must_use]
    pub fn state(&self) -> &SamplerState {
        &self.state
    }

    /// Returns to a state of this sampler, or of one made with the same parameters.
    pub fn restore(&mut self, state: &SamplerState) {
        self.state.clone_from(state);
    }

    /// Draws the next token. It isn't accepted yet: call [`Sampler::accept`].
    ///
    /// `logits`: `n_vocab` values; -inf bans a token (a grammar's mask). They are changed while this runs and are back
    /// as they came when it returns. Time: about two passes over the vocabulary, one of them exponentials;
    /// [`Sampler::sample_token`] saves that one where the chain doesn't need it.
    ///
    /// # Errors
    /// A NaN or +inf logit, another length than the vocabulary's, all tokens banned. The state is then unchanged.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<Sampled, Error> {
        let max = checked_max(self.work.level, logits, self.n_vocab)?;
        Ok(self.draw(logits, max)?.0)
    }

    /// The token that [`Sampler::sample`] would draw, without its log-probability: for a greedy chain the position of the
    /// maximum and nothing else.
    ///
    /// # Errors
    /// Those of [`Sampler::sample`].
    pub fn sample_token(&mut self, logits: &mut [f32]) -> Result<TokenId, Error> {
        let max = checked_max(self.work.level, logits, self.n_vocab)?;
        let (mut step, _, mu) = self.begin(logits, max, false)?;
        let token = choose(&mut step, mu);
        step.candidates.restore();
        Ok(TokenId(token))
    }

    /// [`Sampler::sample`] and [`Sampler::top_logprobs`] for the price of little more than the first.
    ///
    /// # Errors
    /// Those of [`Sampler::sample`]; `out` is then empty.
    pub fn sample_with_top(&mut self, logits: &mut [f32], k: usize, out: &mut Vec<(TokenId, f32)>) -> Result<Sampled, Error> {
        out.clear();
        let max = checked_max(self.work.level, logits, self.n_vocab)?;
        self.top_logits(logits, k, out);
        let drawn = self.draw(logits, max);
        match drawn {
            Ok((sampled, raw)) => {
                out.iter_mut().for_each(|(_, x)| *x = logprob(*x, raw));
                Ok(sampled)
            }
            Err(error) => {
                out.clear();
                Err(error)
            }
        }
    }

    /// A token with its log-probability, and the softmax of the logits as they came, whose maximum is `max`.
    fn draw(&mut self, logits: &mut [f32], max: f32) -> Result<(Sampled, Softmax), Error> {
        let (mut step, raw, mu) = self.begin(logits, max, true)?;
        let token = choose(&mut step, mu);
        let logit = step.candidates.raw_logit(token);
        step.candidates.restore();
        Ok((Sampled { token: TokenId(token), logprob: logprob(logit, raw) }, raw))
    }

    /// Applies the biases: what the stages start from, with at least one candidate; where asked for, the softmax of the
    /// logits as they came; mirostat's bound.
    fn begin<'a>(&'a mut self, logits: &'a mut [f32], max: f32, raw: bool) -> Result<(Step<'a>, Softmax, &'a mut f64), Error> {
        let n_vocab = self.n_vocab;
        let mut step = Step {
            params: &self.params,
            candidates: Candidates::new(logits, max, &mut self.work),
            history: &self.state.history,
            rng: &mut self.state.rng,
            dry: &mut self.dry,
            dry_breakers: &self.dry_breakers,
        };
        let raw = if raw { step.candidates.softmax() } else { Softmax { max, sum: 1.0 } };
        for &(id, bias) in &self.added {
            step.candidates.adjust(id, |logit| logit + bias);
        }
        for &id in &self.banned {
            step.candidates.ban(id);
        }
        if !self.forced.is_empty() {
            step.candidates.keep_only(self.forced.iter().copied());
        }
        if step.candidates.is_empty() {
            step.candidates.restore();
            return Err(Error::AllBanned { n_vocab });
        }
        Ok((step, raw, &mut self.state.mu))
    }

    /// The `k` most probable tokens under the softmax of `logits` (temperature 1, no biases, penalties or filters), most
    /// probable first, ties to the lowest id, with the logarithms of their probabilities. `out` is replaced; fewer than
    /// `k` come where fewer aren't banned. Allocates the first time that a larger `k` is asked for.
    ///
    /// # Errors
    /// Those of [`Sampler::sample`].
    pub fn top_logprobs(&mut self, logits: &[f32], k: usize, out: &mut Vec<(TokenId, f32)>) -> Result<(), Error> {
        out.clear();
        let level = self.work.level;
        let max = checked_max(level, logits, self.n_vocab)?;
        if k > 0 {
            self.top_logits(logits, k, out);
            let raw = Softmax { max, sum: candidates::sum_of_weights(level, logits, max) };
            out.iter_mut().for_each(|(_, x)| *x = logprob(*x, raw));
        }
        Ok(())
    }

    /// Appends the tokens of the `k` largest logits, with these, best first.
    fn top_logits(&mut self, logits: &[f32], k: usize, out: &mut Vec<(TokenId, f32)>) {
        if k > 0 {
            let level = self.work.level;
            let keys = self.work.keys();
            wide::top_k(level, logits, k.min(logits.len()), keys);
            keys.sort_unstable();
            let ids = keys.iter().map(|&key| key as u32);
            out.extend(ids.map(|id| (TokenId(id), logits[id as usize])));
        }
    }
}

/// The logarithm of the sum of e^logit: a logit less this is its token's log-probability. The exponentials are f32, their
/// sum f64: within about 1e-6. NaN where a logit is NaN or +inf, -inf where all are.
#[must_use]
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let level = wide::Level::detect();
    let max = wide::checked_max(level, logits);
    if !max.is_finite() {
        return max.into();
    }
    f64::from(max) + double::ln(candidates::sum_of_weights(level, logits, max))
}

/// Runs the stages that the mode leaves on.
fn run_stages(step: &mut Step<'_>) {
    let params = step.params;
    let runs = |kind: Kind| match kind {
        Kind::Adjust => true,
        Kind::Scale => !params.is_greedy(),
        Kind::Filter => !params.is_greedy() && params.mirostat.is_none(),
    };
    for stage in &params.order {
        let row = stage.row();
        if runs(row.kind) {
            (row.run)(step);
        }
    }
}

/// Runs the stages and takes a token; there is at least one candidate.
fn choose(step: &mut Step<'_>, mu: &mut f64) -> u32 {
    run_stages(step);
    if step.params.is_greedy() {
        // The stages that ran change logits and keep them finite: the fallback can't be reached.
        return step.candidates.best().unwrap_or(0);
    }
    let Some(mirostat) = step.params.mirostat else {
        return step.candidates.draw(step.rng.uniform());
    };
    // Surprise of at most mu bits, written as a distance from the maximum: -log2(e^d / sum) <= mu.
    let Softmax { sum, .. } = step.candidates.softmax();
    let distance = *mu * LN_2 - double::ln(sum);
    step.candidates.keep_near(distance.max(0.0) as f32);
    let token = step.candidates.draw(step.rng.uniform());
    let surprise = -step.candidates.ln_share(token) / LN_2;
    let error = surprise - f64::from(mirostat.tau);
    *mu = (*mu - f64::from(mirostat.eta) * error).clamp(-MU_MAX, MU_MAX);
    token
}

/// Mirostat starts with twice the target.
fn initial_mu(params: &SamplingParams) -> f64 {
    (2.0 * f64::from(params.mirostat.unwrap_or_default().tau)).min(MU_MAX)
}

/// Candidates that a list may have to hold: what top-k leaves if it is the first filter, else the vocabulary.
fn n_key(params: &SamplingParams, n_vocab: usize) -> usize {
    if params.is_greedy() {
        return 0;
    }
    let filters = || params.order.iter().filter(|stage| stage.row().kind == Kind::Filter);
    let only_top_k = params.mirostat.is_none() && filters().next() == Some(&Stage::TopK) && params.top_k > 0;
    if only_top_k { wide::top_k_room(params.top_k as usize).min(n_vocab) } else { n_vocab }
}

/// The largest logit, which is finite.
fn checked_max(level: wide::Level, logits: &[f32], n_vocab: usize) -> Result<f32, Error> {
    if logits.len() != n_vocab {
        return Err(Error::LogitsLen { expected: n_vocab, found: logits.len() });
    }
    let max = wide::checked_max(level, logits);
    if max.is_nan() {
        let at = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY).unwrap_or(0);
        return Err(Error::NonFinite { token: at as u32, found: logits[at] });
    }
    if max == f32::NEG_INFINITY {
        return Err(Error::AllBanned { n_vocab });
    }
    Ok(max)
}

/// ln(e^(logit - max) / sum), kept finite.
fn logprob(logit: f32, raw: Softmax) -> f32 {
    let logprob = f64::from(logit) - f64::from(raw.max) - double::ln(raw.sum);
    (logprob as f32).clamp(f32::MIN, 0.0)
}
