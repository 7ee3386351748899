//! The command `selvedge`: models on this machine, from a terminal or a script.
//!
//! Results go to standard output, everything else to standard error. To add a command: a file with its arguments and its
//! `run`, a variant of [`Command`] and an arm of [`Command::run`].
#![forbid(unsafe_code)]

mod args;
mod bench;
mod error;
mod models;
mod os;
mod output;
mod progress;
mod prompt;
mod reply;
mod run;
mod score;

use clap::{Parser, Subcommand};
use error::Result;
use std::process::ExitCode;

/// Language models on the device in hand.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print the result as one JSON value
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer once
    Run(Box<run::RunArgs>),
    /// Tell how probable the model finds a list of token ids
    Score(score::ScoreArgs),
    /// Tell how well the model predicts a text
    Perplexity(score::PerplexityArgs),
    /// Measure the speed of prompt and decode
    Bench(bench::BenchArgs),
}

impl Command {
    fn run(self, json: bool) -> Result<()> {
        match self {
            Command::Run(args) => args.run(json),
            Command::Score(args) => args.run(),
            Command::Perplexity(args) => args.run(json),
            Command::Bench(args) => args.run(json),
        }
    }
}

fn main() -> ExitCode {
    let json = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json");
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are results.
        Err(e) if !e.use_stderr() => return output::text(&e.render().to_string()).map_or_else(|e| e.report(json), |()| ExitCode::SUCCESS),
        Err(e) if json => {
            let rendered = e.render().to_string();
            let first = rendered.lines().next().unwrap_or_default();
            error::tell(first.strip_prefix("error: ").unwrap_or(first), json);
            return ExitCode::from(2);
        }
        Err(e) => {
            // Nobody is left to be told where standard error is closed.
            let _ = e.print();
            return ExitCode::from(2);
        }
    };
    match cli.command.run(cli.json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => e.report(cli.json),
    }
}
