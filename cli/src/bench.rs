//! `bench`: the speed of prompt and decode.

use crate::args::{ModelArgs, backend_names, file_name};
use crate::error::{CliError, Result};
use crate::os::{AnonWatch, Interrupt, peak_rss};
use crate::output;
use clap::Args;
use selvedge::{CancelToken, Finish, GenerateOptions, SamplingParams, Session, Stats, TokenId};
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::Instant;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt; 0 leaves it out
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512)]
    n_prompt: usize,
    /// Tokens that are decoded; 0 leaves it out
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    n_gen: usize,
    /// Tokens in the context before decode begins
    #[arg(short = 'd', long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Times that each is measured
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = repetitions)]
    repetitions: usize,
}

fn repetitions(text: &str) -> std::result::Result<usize, String> {
    text.parse().ok().filter(|n| (1..=10_000).contains(n)).ok_or_else(|| "expected a number from 1 to 10000".into())
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Phase {
    tok_s: Spread,
}

impl Phase {
    /// `None` where nothing was measured.
    fn new(mut rates: Vec<f64>) -> Option<Phase> {
        rates.sort_by(f64::total_cmp);
        let (&min, &max) = (rates.first()?, rates.last()?);
        let median = (rates[rates.len() / 2] + rates[(rates.len() - 1) / 2]) / 2.0;
        Some(Phase { tok_s: Spread { median, min, max } })
    }
}

#[derive(Debug, Serialize)]
struct Bench {
    model: String,
    pp: Option<Phase>,
    tg: Option<Phase>,
    /// Weights and cache that decode had to read, 10^9 bytes a second.
    gb_s: Option<f64>,
    /// The same, bytes a token, at the middle of the decoded stretch.
    bytes_per_token: u64,
    peak_anon: Option<u64>,
    peak_rss: Option<u64>,
    threads: usize,
    isa: String,
    backend: String,
    open_ms: f64,
    n_prompt: usize,
    n_gen: usize,
    depth: usize,
    repetitions: usize,
}

/// Token ids that differ; which they are doesn't matter, and they are the same in every run.
fn tokens(n: usize, n_vocab: usize) -> Vec<TokenId> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        TokenId(((state >> 33) % n_vocab as u64) as u32)
    };
    std::iter::repeat_with(next).take(n).collect()
}

/// A reply of exactly `n` tokens from an empty session.
fn measure(session: &mut Session, prompt: &[TokenId], n: usize, cancel: &CancelToken) -> Result<Stats> {
    session.reset();
    let options = GenerateOptions {
        max_tokens: Some(n),
        sampling: SamplingParams::greedy(),
        ignore_stop_ids: true,
        logprobs: false,
        ..GenerateOptions::default()
    };
    let stats = session.generate(prompt, &options, cancel, &mut |_| ControlFlow::Continue(()))?;
    if stats.finish == Finish::Cancelled { Err(CliError::Cancelled) } else { Ok(stats) }
}

impl BenchArgs {
    pub(crate) fn run(self, json: bool) -> Result<()> {
        let options = self.model.options()?;
        let interrupt = Interrupt::watch();
        let cancel = interrupt.token();
        let watch = AnonWatch::start();
        // Decode needs a token to begin with.
        let depth = self.depth.max(usize::from(self.n_gen > 0));
        let start = Instant::now();
        let model = self.model.open(&options, Some(self.n_prompt.max(depth.saturating_add(self.n_gen))), cancel)?;
        let mut session = model.session()?;
        let open_ms = start.elapsed().as_secs_f64() * 1e3;
        let (prompt, before) = (tokens(self.n_prompt, model.n_vocab()), tokens(depth, model.n_vocab()));
        let (mut pp, mut tg) = (Vec::new(), Vec::new());
        for turn in 0..=self.repetitions {
            // The first turn touches every page and isn't counted.
            let counts = turn > 0;
            if self.n_prompt > 0 {
                let stats = measure(&mut session, &prompt, 1, cancel)?;
                pp.extend(counts.then(|| self.n_prompt as f64 / stats.first_token.as_secs_f64()));
            }
            if self.n_gen > 0 {
                // The first token of a reply belongs to its prompt.
                let stats = measure(&mut session, &before, self.n_gen + 1, cancel)?;
                tg.extend(counts.then(|| stats.n_decode_steps as f64 / stats.decode.as_secs_f64()));
            }
        }
        let (pp, tg) = (Phase::new(pp), Phase::new(tg));
        let bytes_per_token = model.bytes_per_token(depth + self.n_gen / 2);
        let info = model.backends().first().map(|b| b.info());
        let result = Bench {
            model: file_name(model.file().path()),
            pp,
            tg,
            gb_s: tg.map(|tg| tg.tok_s.median * bytes_per_token as f64 / 1e9),
            bytes_per_token,
            peak_anon: watch.finish(),
            peak_rss: peak_rss(),
            threads: info.as_ref().map_or(0, |info| info.n_threads),
            isa: info.map(|info| info.device).unwrap_or_default(),
            backend: backend_names(&model),
            open_ms,
            n_prompt: self.n_prompt,
            n_gen: self.n_gen,
            depth: self.depth,
            repetitions: self.repetitions,
        };
        if json { output::json(&result) } else { output::lines(&result.table()) }
    }
}

impl Bench {
    fn table(&self) -> String {
        let row = |name: String, phase: Option<Phase>| {
            phase.map_or_else(String::new, |Phase { tok_s: s }| format!("{name:<16} {:>9.1}  ({:.1} to {:.1})\n", s.median, s.min, s.max))
        };
        let mib = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |b| format!("{:.1} MiB", b as f64 / 1048576.0));
        let depth = if self.depth > 0 { format!(" at {}", self.depth) } else { String::new() };
        format!(
            "{}: {}, {} on {} threads, opened in {:.0} ms\ntokens a second  {:>9}\n{}{}{}memory: {} anonymous, {} in all\n",
            self.model,
            self.backend,
            self.isa,
            self.threads,
            self.open_ms,
            "median",
            row(format!("prompt {}", self.n_prompt), self.pp),
            row(format!("decode {}{depth}", self.n_gen), self.tg),
            self.gb_s.map_or(String::new(), |g| format!("decode reads {:.1} MB a token, {g:.1} GB/s\n", self.bytes_per_token as f64 / 1e6)),
            mib(self.peak_anon),
            mib(self.peak_rss),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers() {
        assert!(Phase::new(Vec::new()).is_none());
        assert_eq!(Phase::new(vec![3.0, 1.0, 2.0]).unwrap().tok_s.median, 2.0);
        let even = Phase::new(vec![4.0, 1.0, 2.0, 3.0]).unwrap().tok_s;
        assert_eq!((even.median, even.min, even.max), (2.5, 1.0, 4.0));
    }
}
