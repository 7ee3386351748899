//! A session: one conversation's tokens in an engine of its own, and the loop that turns a prompt into text.
//!
//! ```text
//!   generate: keep the common prefix ─▶ prompt in chunks ─▶ sample ─▶ stop id? ─▶ detokenise ─▶ stop string? ─▶ event
//!                                                             ▲                                                  │
//!                                                             └────────────── one row per token ◀────────────────┘
//! ```
//! Whatever ends a call (an error, a cancel, the caller's own wish), the session stays valid at its last committed position.

mod context;

pub use context::Overflow;

use crate::cancel::CancelToken;
use crate::engine::{Engine, LoadedModel, StepError};
use crate::ids::{SeqId, TokenId};
use crate::os::FloatEnv;
use crate::sampler::{self, Sampler, SamplingParams};
use crate::step::{Row, Want};
use crate::stop::{self, StopMatcher, StopState};
use crate::tokenizer::{Detokenizer, Tokenizer};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The one sequence of a session's engine.
const SEQ: SeqId = SeqId(0);

/// What a reply is made by.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// Most tokens of the reply; `None`: until the context ends.
    pub max_tokens: Option<usize>,
    /// Sampling.
    pub sampling: SamplingParams,
    /// Texts that end the reply and are not part of it.
    pub stops: Vec<String>,
    /// Whether tokens come with their log-probabilities (default: yes), which cost a softmax over the vocabulary each.
    pub logprobs: bool,
    /// Alternatives to report with each token; more than none asks for `logprobs` too.
    pub top_logprobs: usize,
    /// Whether tokens that end a turn are text like any other.
    pub ignore_stop_ids: bool,
    /// What happens when the context is full.
    pub overflow: Overflow,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        GenerateOptions {
            max_tokens: None,
            sampling: SamplingParams::default(),
            stops: Vec::new(),
            logprobs: true,
            top_logprobs: 0,
            ignore_stop_ids: false,
            overflow: Overflow::default(),
        }
    }
}

impl GenerateOptions {
    fn wants_logprobs(&self) -> bool {
        self.logprobs || self.top_logprobs > 0
    }
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// The model ended its turn with this token.
    Stop(TokenId),
    /// The stop text of this index came.
    StopText(usize),
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// The caller cancelled, by token or by its answer to an event.
    Cancelled,
}

impl Finish {
    /// The word for it in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop(_) | Finish::StopText(_) => "stop",
            Finish::Length => "length",
            Finish::Context => "context",
            Finish::Cancelled => "cancelled",
        }
    }
}

/// What a caller is told while a reply is made.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Positions of the prompt that are done.
    Prefill {
        /// Done, those kept from before included.
        done: usize,
        /// In all.
        total: usize,
    },
    /// A token of the reply.
    Token {
        /// Its id.
        id: TokenId,
        /// Its log-probability before any sampler changed the logits; `None` where the options ask for none.
        logprob: Option<f32>,
        /// The likeliest tokens with their log-probabilities, best first.
        top: &'a [(TokenId, f32)],
        /// Text that can be shown now: whole characters, nothing that may yet become a stop text; may be empty.
        text: &'a str,
    },
    /// Text that was held back, at the end.
    Text(&'a str),
}

/// What a reply took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stats {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, the ones that were in the cache already.
    pub reused_tokens: usize,
    /// Tokens of the reply, without the one that ended it.
    pub n_tokens: usize,
    /// Time to the first token.
    pub first_token: Duration,
    /// Time from the first token to the end.
    pub decode: Duration,
    /// Steps after the first token.
    pub n_decode_steps: usize,
    /// Seed that was used.
    pub seed: u64,
}

/// A reply as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The text.
    pub text: String,
    /// The tokens.
    pub ids: Vec<TokenId>,
    /// Their log-probabilities; empty where the options ask for none.
    pub logprobs: Vec<f32>,
    /// What it took.
    pub stats: Stats,
}

/// Why no reply could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The prompt has no token.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// The prompt doesn't fit.
    #[error("the prompt has {tokens} tokens and the context holds {n_ctx}: shorten it or open the model with a longer context")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions of the context.
        n_ctx: usize,
    },
    /// Positions that were to be built on aren't in the cache.
    #[error("the first {keep} positions were to be kept and the session holds {found}")]
    NotKept {
        /// Positions asked for.
        keep: usize,
        /// Positions that are there.
        found: usize,
    },
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// Sampling failed, or its parameters make no sense.
    #[error(transparent)]
    Sampler(#[from] sampler::Error),
    /// Stop texts that can't be used.
    #[error(transparent)]
    Stop(#[from] stop::Error),
    /// An overflow policy that can't free anything.
    #[error("{what} is {found}, expected {expected}")]
    Overflow {
        /// Which number.
        what: &'static str,
        /// What is allowed.
        expected: String,
        /// What was given.
        found: usize,
    },
}

/// One conversation.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    /// Tokens of the committed positions.
    tokens: Vec<TokenId>,
    rows: Vec<Row>,
    /// What remains while a shift computes it again; kept, so that a shift allocates nothing.
    remaining: Vec<TokenId>,
}

impl Session {
    /// A session with an engine of its own: threads, arena, cache.
    pub fn new(model: Arc<LoadedModel>) -> Result<Session, StepError> {
        let engine = Engine::new(model)?;
        let tokens = Vec::with_capacity(engine.n_ctx());
        let rows = Vec::with_capacity(engine.max_rows());
        let remaining = Vec::with_capacity(engine.n_ctx());
        Ok(Session { engine, tokens, rows, remaining })
    }

    /// The model.
    pub fn model(&self) -> &Arc<LoadedModel> {
        self.engine.model()
    }

    /// Tokens that are in the cache.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Positions that the session may reach.
    pub fn n_ctx(&self) -> usize {
        self.engine.n_ctx()
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.keep(0);
    }

    /// Keeps the first `to` positions, or none where a window was lost; returns how many are kept.
    pub fn keep(&mut self, to: usize) -> usize {
        let kept = self.engine.rollback(SEQ, to);
        self.tokens.truncate(kept);
        kept
    }

    /// Length of the prefix that `tokens` shares with what is in the cache.
    pub fn common_prefix(&self, tokens: &[TokenId]) -> usize {
        self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }

    /// Makes a reply to `prompt`, whose common prefix with the session's tokens is kept. The sink is told everything as it
    /// happens and may end the reply; it is called on this thread. Penalties look at the prompt too.
    pub fn generate(
        &mut self,
        prompt: &[TokenId],
        options: &GenerateOptions,
        cancel: &CancelToken,
        sink: Sink<'_>,
    ) -> Result<Stats, SessionError> {
        let start = Instant::now();
        let n_ctx = self.n_ctx();
        if prompt.is_empty() {
            return Err(SessionError::EmptyPrompt);
        }
        if prompt.len() > n_ctx {
            return Err(SessionError::PromptTooLong { tokens: prompt.len(), n_ctx });
        }
        options.overflow.check(n_ctx)?;
        let model = self.model().clone();
        let mut chooser = Chooser::new(options, model.n_vocab(), prompt)?;
        let mut text = TextOut::new(&model, options, prompt)?;
        // The last token is computed again in any case: its logits are what the reply begins with.
        let kept = self.keep(self.common_prefix(prompt).min(prompt.len() - 1));
        let mut stats = Stats::new(prompt.len(), kept, chooser.sampler.seed());
        let max_tokens = options.max_tokens.unwrap_or(usize::MAX);
        let last = if max_tokens > 0 { Some(&mut chooser) } else { None };
        let mut fed = self.feed(&prompt[kept..], last, cancel, Some(&mut *sink))?;
        stats.first_token = start.elapsed();
        let begun = Instant::now();
        stats.finish = loop {
            if fed.is_break() {
                break Finish::Cancelled;
            }
            let Some((id, logprob)) = chooser.chosen.take() else { break Finish::Length };
            if !options.ignore_stop_ids && model.tokenizer().is_stop(id) {
                break Finish::Stop(id);
            }
            stats.n_tokens += 1;
            let matched = text.push(id);
            let event = Event::Token { id, logprob, top: &chooser.top, text: &text.shown };
            if sink(event).is_break() {
                break Finish::Cancelled;
            }
            if let Some(stop) = matched {
                break Finish::StopText(stop);
            }
            if stats.n_tokens >= max_tokens {
                break Finish::Length;
            }
            if self.tokens.len() == n_ctx {
                match options.overflow {
                    Overflow::Stop => break Finish::Context,
                    Overflow::Shift { n_keep, n_discard } => {
                        if self.shift(n_keep, n_discard, cancel)?.is_break() {
                            break Finish::Cancelled;
                        }
                    }
                }
            }
            fed = self.feed(&[id], Some(&mut chooser), cancel, None)?;
            stats.n_decode_steps += 1;
        };
        stats.decode = begun.elapsed();
        if !matches!(stats.finish, Finish::StopText(_)) {
            if let Some(stop) = text.finish() {
                stats.finish = Finish::StopText(stop);
            }
            if !text.shown.is_empty() {
                // The reply is over: there is nothing left that the answer could end.
                let _ = sink(Event::Text(&text.shown));
            }
        }
        Ok(stats)
    }

    /// Makes a reply and gives it as a whole.
    pub fn complete(&mut self, prompt: &[TokenId], options: &GenerateOptions, cancel: &CancelToken) -> Result<Completion, SessionError> {
        let (mut text, mut ids, mut logprobs) = (String::new(), Vec::new(), Vec::new());
        let stats = self.generate(prompt, options, cancel, &mut |event| {
            match event {
                Event::Token { id, logprob, text: delta, .. } => {
                    ids.push(id);
                    logprobs.extend(logprob);
                    text.push_str(delta);
                }
                Event::Text(delta) => text.push_str(delta),
                Event::Prefill { .. } => {}
            }
            ControlFlow::Continue(())
        })?;
        Ok(Completion { text, ids, logprobs, stats })
    }

    /// Computes the logits of every position of `tokens` from an empty session, `chunk` rows at a time, and shows them.
    pub fn logits(
        &mut self,
        tokens: &[TokenId],
        chunk: usize,
        cancel: &CancelToken,
        on_logits: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), SessionError> {
        self.logits_after(0, tokens, chunk, cancel, on_logits)
    }

    /// As [`Session::logits`], after the first `keep` positions of the session, which must be there.
    pub fn logits_after(
        &mut self,
        keep: usize,
        tokens: &[TokenId],
        chunk: usize,
        cancel: &CancelToken,
        on_logits: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), SessionError> {
        let n_ctx = self.n_ctx();
        if keep + tokens.len() > n_ctx {
            return Err(SessionError::PromptTooLong { tokens: keep + tokens.len(), n_ctx });
        }
        if self.keep(keep) != keep {
            return Err(SessionError::NotKept { keep, found: self.tokens.len() });
        }
        let chunk = chunk.clamp(1, self.engine.max_rows().max(1));
        for part in tokens.chunks(chunk) {
            let first = self.tokens.len();
            self.rows.clear();
            self.rows.extend(part.iter().enumerate().map(|(i, &t)| Row::token(SEQ, (first + i) as u32, t, Want::Logits)));
            self.engine.step(&self.rows, cancel, &mut |i, logits| on_logits(first + i, logits))?;
            self.tokens.extend_from_slice(part);
        }
        Ok(())
    }

    /// Computes tokens after those in the cache, in chunks. The logits of the last go to `last`.
    fn feed(
        &mut self,
        tokens: &[TokenId],
        mut last: Option<&mut Chooser>,
        cancel: &CancelToken,
        mut sink: Option<Sink<'_>>,
    ) -> Result<ControlFlow<()>, SessionError> {
        let total = self.tokens.len() + tokens.len();
        // A prompt goes in chunks of the prepared size, the last of them with its logits.
        for part in tokens.chunks(self.engine.max_rows().max(1)) {
            let first = self.tokens.len();
            self.rows.clear();
            self.rows.extend(part.iter().enumerate().map(|(i, &t)| Row::token(SEQ, (first + i) as u32, t, Want::Nothing)));
            if let (Some(row), true) = (self.rows.last_mut(), last.is_some() && first + part.len() == total) {
                row.want = Want::Logits;
            }
            let mut chosen = Ok(());
            let stepped = self.engine.step(&self.rows, cancel, &mut |_, logits| {
                if let Some(chooser) = &mut last {
                    chosen = chooser.choose(logits);
                }
            });
            match stepped {
                Ok(()) => self.tokens.extend_from_slice(part),
                Err(e) if e.is_cancelled() => return Ok(ControlFlow::Break(())),
                Err(e) => return Err(e.into()),
            }
            chosen?;
            if let Some(sink) = &mut sink
                && sink(Event::Prefill { done: self.tokens.len(), total }).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Drops positions from the middle and computes what comes after them again.
    fn shift(&mut self, n_keep: usize, n_discard: Option<usize>, cancel: &CancelToken) -> Result<ControlFlow<()>, SessionError> {
        let n_discard = Overflow::discard(n_keep, n_discard, self.n_ctx());
        let mut remaining = std::mem::take(&mut self.remaining);
        remaining.clear();
        remaining.extend_from_slice(&self.tokens[..n_keep]);
        remaining.extend_from_slice(&self.tokens[(n_keep + n_discard).min(self.tokens.len())..]);
        let kept = self.keep(n_keep);
        let fed = self.feed(&remaining[kept..], None, cancel, None);
        self.remaining = remaining;
        fed
    }
}

/// Who is told of events.
pub type Sink<'a> = &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>;

impl Stats {
    fn new(prompt_tokens: usize, reused_tokens: usize, seed: u64) -> Stats {
        Stats {
            finish: Finish::Length,
            prompt_tokens,
            reused_tokens,
            n_tokens: 0,
            first_token: Duration::ZERO,
            decode: Duration::ZERO,
            n_decode_steps: 0,
            seed,
        }
    }
}

/// Logits to the next token.
#[derive(Debug)]
struct Chooser {
    sampler: Sampler,
    logprobs: bool,
    n_top: usize,
    top: Vec<(TokenId, f32)>,
    /// The token, with its log-probability where one is asked for.
    chosen: Option<(TokenId, Option<f32>)>,
}

impl Chooser {
    fn new(options: &GenerateOptions, n_vocab: usize, prompt: &[TokenId]) -> Result<Chooser, sampler::Error> {
        let mut sampler = Sampler::new(options.sampling.clone(), n_vocab)?;
        prompt.iter().for_each(|&t| sampler.accept(t));
        let n_top = options.top_logprobs.min(n_vocab);
        Ok(Chooser { sampler, logprobs: options.wants_logprobs(), n_top, top: Vec::with_capacity(n_top), chosen: None })
    }

    fn choose(&mut self, logits: &mut [f32]) -> Result<(), sampler::Error> {
        // The caller's environment is back before the caller is told of the token.
        let _env = FloatEnv::default_here();
        let (token, logprob) = if self.logprobs {
            let sampled = self.sampler.sample_with_top(logits, self.n_top, &mut self.top)?;
            (sampled.token, Some(sampled.logprob))
        } else {
            (self.sampler.sample_token(logits)?, None)
        };
        self.sampler.accept(token);
        self.chosen = Some((token, logprob));
        Ok(())
    }
}

/// Tokens to text that may be shown.
#[derive(Debug)]
struct TextOut {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    piece: String,
    shown: String,
}

impl TextOut {
    fn new(model: &LoadedModel, options: &GenerateOptions, prompt: &[TokenId]) -> Result<TextOut, stop::Error> {
        let tokenizer = model.tokenizer().clone();
        let detokenizer = Detokenizer::after(&tokenizer, prompt.last().copied());
        let matcher = StopMatcher::new(options.stops.iter().map(String::as_str))?;
        // As much as a long token with what was held back needs, so that nothing grows between two tokens.
        Ok(TextOut { tokenizer, detokenizer, matcher, piece: String::with_capacity(1024), shown: String::with_capacity(4096) })
    }

    /// Takes a token; the index of the stop text that it completes.
    fn push(&mut self, token: TokenId) -> Option<usize> {
        self.piece.clear();
        self.shown.clear();
        self.detokenizer.push(&self.tokenizer, token, &mut self.piece);
        match self.matcher.push(&self.piece, &mut self.shown) {
            StopState::Matched { stop_idx } => Some(stop_idx),
            StopState::Continue => None,
        }
    }

    /// What is left; the index of the stop text that it ends in.
    fn finish(&mut self) -> Option<usize> {
        self.piece.clear();
        self.shown.clear();
        self.detokenizer.finish(&mut self.piece);
        let state = match self.matcher.push(&self.piece, &mut self.shown) {
            StopState::Continue => self.matcher.finish(&mut self.shown),
            matched => matched,
        };
        match state {
            StopState::Matched { stop_idx } => Some(stop_idx),
            StopState::Continue => None,
        }
    }
}
