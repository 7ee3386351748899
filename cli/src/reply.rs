//! One reply: text as it comes, and the numbers that belong to it.

use crate::args::backend_names;
use crate::error::Result;
use crate::progress::{Progress, Unit};
use selvedge::{CancelToken, Event, Finish, GenerateOptions, Session, TokenId};
use serde::Serialize;
use std::ops::ControlFlow;

/// A reply as JSON shows it.
#[derive(Debug, Serialize)]
pub(crate) struct Reply {
    pub(crate) text: String,
    ids: Vec<u32>,
    /// Under the model's own distribution: temperature 1, before biases, penalties and filters.
    logprobs: Vec<f32>,
    finish: &'static str,
    prompt_tokens: usize,
    reused_tokens: usize,
    backend: String,
    ttft_ms: f64,
    /// Of the tokens that weren't in the cache.
    pp_tok_s: Option<f64>,
    /// Of the tokens after the first.
    tg_tok_s: Option<f64>,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    top: Option<Vec<Vec<(u32, f32)>>>,
    #[serde(skip)]
    pub(crate) why: Finish,
}

/// A rate, where there was something to measure.
fn rate(n: usize, seconds: f64) -> Option<f64> {
    (n > 0 && seconds > 0.0).then(|| n as f64 / seconds)
}

impl Reply {
    /// Makes a reply and shows its text as it comes. A text that can't be shown ends the reply with that error.
    pub(crate) fn make(
        session: &mut Session,
        prompt: &[TokenId],
        options: &GenerateOptions,
        cancel: &CancelToken,
        show: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Reply> {
        let (mut text, mut ids, mut logprobs, mut tops) = (String::new(), Vec::new(), Vec::new(), Vec::new());
        let mut shown = Ok(());
        let mut progress = Some(Progress::new("reading", Unit::Count));
        let stats = session.generate(prompt, options, cancel, &mut |event| {
            let delta = match event {
                Event::Prefill { done, total } => {
                    if let Some(progress) = &mut progress {
                        progress.update(done as u64, total as u64);
                    }
                    return ControlFlow::Continue(());
                }
                Event::Token { id, logprob, top, text } => {
                    ids.push(id.0);
                    logprobs.extend(logprob);
                    if options.top_logprobs > 0 {
                        tops.push(top.iter().map(|&(id, logprob)| (id.0, logprob)).collect());
                    }
                    text
                }
                Event::Text(text) => text,
                _ => return ControlFlow::Continue(()),
            };
            if let Some(progress) = progress.take() {
                progress.finish();
            }
            text.push_str(delta);
            shown = show(delta);
            if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if let Some(progress) = progress.take() {
            progress.finish();
        }
        shown?;
        Ok(Reply {
            text,
            ids,
            logprobs,
            finish: stats.finish.name(),
            prompt_tokens: stats.prompt_tokens,
            reused_tokens: stats.reused_tokens,
            backend: backend_names(session.model()),
            ttft_ms: stats.first_token.as_secs_f64() * 1e3,
            pp_tok_s: rate(stats.prompt_tokens - stats.reused_tokens, stats.first_token.as_secs_f64()),
            tg_tok_s: rate(stats.n_decode_steps, stats.decode.as_secs_f64()),
            seed: stats.seed,
            top: (options.top_logprobs > 0).then_some(tops),
            why: stats.finish,
        })
    }

    /// A line for people: what the reply took.
    pub(crate) fn summary(&self) -> String {
        let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |r| format!("{r:.1}"));
        format!(
            "{} prompt tokens ({} kept from before), {} tokens of reply, first after {:.0} ms; {} and {} tokens a second; ended by {}",
            self.prompt_tokens,
            self.reused_tokens,
            self.ids.len(),
            self.ttft_ms,
            rate(self.pp_tok_s),
            rate(self.tg_tok_s),
            self.finish
        )
    }
}
