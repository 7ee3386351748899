//! `score` and `perplexity`: how probable a model finds what is given to it.

use crate::args::{ModelArgs, read_ids, read_text};
use crate::error::{CliError, Result};
use crate::os::Interrupt;
use crate::output;
use crate::progress::{Progress, Unit};
use clap::Args;
use selvedge::{CancelToken, DEFAULT_CHUNK, Logprobs, Model, NUMERICS, ParseSpecial, Session, TokenId};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

/// Rows of logits that are computed at once: enough to read the output matrix seldom, few enough to need little memory.
const TILE: usize = 16;

#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A JSON array of token ids; - is standard input
    #[arg(long, value_name = "FILE")]
    ids: PathBuf,
    /// The K most probable tokens of every position
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = crate::args::alternatives)]
    top: usize,
    /// Rows that are computed at once; changes no bit of the result
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CHUNK)]
    chunk: usize,
}

#[derive(Debug, Serialize)]
struct Score {
    nll: Vec<f64>,
    mean_nll: Option<f64>,
    ppl: Option<f64>,
    top: Vec<Vec<(u32, f64)>>,
    logits_sha256: String,
    numerics: u32,
}

fn mean(nll: &[f64]) -> Option<f64> {
    (!nll.is_empty()).then(|| nll.iter().sum::<f64>() / nll.len() as f64)
}

/// Opens a model to look at the logits of `n` positions, of as many as there are by default where that isn't known.
fn open(args: &ModelArgs, chunk: usize, n: Option<usize>, cancel: &CancelToken) -> Result<Model> {
    let mut options = args.options()?;
    options.plan.chunk = chunk;
    options.plan.max_wanted = TILE.min(chunk).max(1);
    args.open(&options, n, cancel)
}

impl ScoreArgs {
    pub(crate) fn run(self) -> Result<()> {
        let interrupt = Interrupt::watch();
        // The range of ids is known only with the model, its context only with their number.
        let ids = read_ids(&self.ids, u32::MAX as usize)?;
        if ids.is_empty() {
            return Err(CliError::Content { path: self.ids, what: "holds no ids, expected at least one".into() });
        }
        let model = open(&self.model, self.chunk, Some(ids.len()), interrupt.token())?;
        if let Some((i, id)) = ids.iter().enumerate().find(|(_, id)| id.0 as usize >= model.n_vocab()) {
            let what = format!("element {i} is {}, expected a token id from 0 to {}", id.0, model.n_vocab() - 1);
            return Err(CliError::Content { path: self.ids, what });
        }
        let mut session = model.session()?;
        let mut hash = Sha256::new();
        let mut score = Score {
            nll: Vec::with_capacity(ids.len()),
            mean_nll: None,
            ppl: None,
            top: Vec::new(),
            logits_sha256: String::new(),
            numerics: NUMERICS,
        };
        let mut bytes = Vec::new();
        let mut progress = Progress::new("scoring", Unit::Count);
        session.logits(&ids, self.chunk, interrupt.token(), &mut |i, logits| {
            bytes.clear();
            bytes.extend(logits.iter().flat_map(|x| x.to_le_bytes()));
            hash.update(&bytes);
            let row = Logprobs::new(logits);
            score.nll.extend(ids.get(i + 1).and_then(|&next| row.of(next)).map(|logprob| -logprob));
            if self.top > 0 {
                score.top.push(row.top(self.top).into_iter().map(|(id, logprob)| (id.0, logprob)).collect());
            }
            progress.update(i as u64 + 1, ids.len() as u64);
        })?;
        progress.finish();
        score.mean_nll = mean(&score.nll);
        score.ppl = score.mean_nll.map(f64::exp);
        score.logits_sha256 = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        output::json(&score)
    }
}

#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A file with the text; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Control tokens that the text spells are text
    #[arg(long)]
    no_parse_special: bool,
}

#[derive(Debug, Serialize)]
struct Perplexity {
    ppl: f64,
    mean_nll: f64,
    /// Tokens of the text, its start token included.
    n_tokens: usize,
    /// Tokens whose probability counts.
    n_scored: usize,
    n_windows: usize,
    n_ctx: usize,
}

/// Cuts a text's tokens into windows of at most `n_ctx`, each of which begins with the start token where the first does.
fn windows(tokens: &[TokenId], start: Option<TokenId>, n_ctx: usize) -> Vec<Vec<TokenId>> {
    let (first, rest) = tokens.split_at(tokens.len().min(n_ctx));
    let start = start.filter(|start| tokens.first() == Some(start) && n_ctx > 1);
    let per_window = n_ctx - usize::from(start.is_some());
    let later = rest.chunks(per_window).map(|part| start.into_iter().chain(part.iter().copied()).collect());
    std::iter::once(first.to_vec()).chain(later).collect()
}

impl PerplexityArgs {
    pub(crate) fn run(self, json: bool) -> Result<()> {
        let text = read_text(&self.file)?;
        let interrupt = Interrupt::watch();
        let model = open(&self.model, DEFAULT_CHUNK, None, interrupt.token())?;
        let parse = if self.no_parse_special { ParseSpecial::UserDefined } else { ParseSpecial::All };
        let tokens = model.text().continuation(&text, parse)?;
        if tokens.len() < 2 {
            let what = format!("the text has {} tokens, expected at least 2", tokens.len());
            return Err(CliError::Content { path: self.file, what });
        }
        let windows = windows(&tokens, model.tokenizer().first_token(), model.n_ctx());
        let mut session: Session = model.session()?;
        let mut nll = Vec::with_capacity(tokens.len());
        let mut progress = Progress::new("reading", Unit::Count);
        for window in &windows {
            session.logits(window, DEFAULT_CHUNK, interrupt.token(), &mut |i, logits| {
                nll.extend(window.get(i + 1).and_then(|&next| Logprobs::new(logits).of(next)).map(|logprob| -logprob));
                progress.update(nll.len() as u64, tokens.len() as u64);
            })?;
        }
        progress.finish();
        let Some(mean_nll) = mean(&nll) else {
            return Err(CliError::Usage("a context of 1 predicts nothing: set a longer one with -c".into()));
        };
        let (n_tokens, n_scored, n_windows) = (tokens.len(), nll.len(), windows.len());
        let result = Perplexity { ppl: mean_nll.exp(), mean_nll, n_tokens, n_scored, n_windows, n_ctx: model.n_ctx() };
        if json {
            return output::json(&result);
        }
        output::lines(&format!(
            "perplexity {:.4} ({:.6} nats a token; {n_scored} of {n_tokens} tokens in {n_windows} window{} of {})",
            result.ppl,
            result.mean_nll,
            if n_windows == 1 { "" } else { "s" },
            result.n_ctx
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_the_text_once() {
        let tokens: Vec<TokenId> = (0..10).map(TokenId).collect();
        let ids = |windows: Vec<Vec<TokenId>>| windows.iter().map(|w| w.iter().map(|t| t.0).collect::<Vec<_>>()).collect::<Vec<_>>();
        assert_eq!(ids(windows(&tokens, Some(TokenId(0)), 4)), [vec![0, 1, 2, 3], vec![0, 4, 5, 6], vec![0, 7, 8, 9]]);
        assert_eq!(ids(windows(&tokens, None, 4)), [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
        assert_eq!(ids(windows(&tokens, Some(TokenId(7)), 16)), [(0..10).collect::<Vec<_>>()]);
    }
}
