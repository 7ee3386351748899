//! The command `selvedge`: models on this machine, from a terminal or a script.
//!
//! Results go to standard output, everything else to standard error. To add a command: a file with its arguments and its
//! `run`, a variant of [`Command`] and an arm of [`Command::run`].
#![forbid(unsafe_code)]

mod args;
mod bench;
mod chat;
mod diff;
mod error;
mod inspect;
mod models;
mod os;
mod output;
mod pack;
mod plan;
mod progress;
mod prompt;
mod pull;
mod reply;
mod run;
mod score;
mod text;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use error::Result;
use std::process::ExitCode;

/// Language models on the device in hand.
#[derive(Debug, Parser)]
#[command(name = "selvedge", version, arg_required_else_help = true, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print the result as one JSON value
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring a model
    Pull(pull::PullArgs),
    /// Answer once
    Run(Box<run::RunArgs>),
    /// Talk
    Chat(Box<chat::ChatArgs>),
    /// Show what a GGUF file says of itself
    Inspect(inspect::InspectArgs),
    /// Tell what loading a model would take and where it would run
    Plan(plan::PlanArgs),
    /// Bring a model's weights into packed form ahead of time, or into a file that ships
    Pack(pack::PackCommandArgs),
    /// Turn text into token ids
    Tokenize(text::TokenizeArgs),
    /// Turn token ids into text
    Detokenize(text::DetokenizeArgs),
    /// Show the prompt that the chat template makes
    Render(text::RenderArgs),
    /// Tell how probable the model finds a list of token ids
    Score(score::ScoreArgs),
    /// Tell how well the model predicts a text
    Perplexity(score::PerplexityArgs),
    /// Measure the speed of prompt and decode
    Bench(bench::BenchArgs),
    /// Find the first intermediate value in which two backends disagree
    Diff(diff::DiffArgs),
}

impl Command {
    fn run(self, json: bool) -> Result<()> {
        match self {
            Command::Pull(args) => args.run(json),
            Command::Run(args) => args.run(json),
            Command::Chat(args) => args.run(json),
            Command::Inspect(args) => args.run(json),
            Command::Plan(args) => args.run(json),
            Command::Pack(args) => args.run(json),
            Command::Tokenize(args) => args.run(),
            Command::Detokenize(args) => args.run(json),
            Command::Render(args) => args.run(json),
            Command::Score(args) => args.run(),
            Command::Perplexity(args) => args.run(json),
            Command::Bench(args) => args.run(json),
            Command::Diff(args) => args.run(json),
        }
    }
}

/// The command's grammar. A negative number is a value wherever a value is due: where it is out of range, the message then
/// names the option.
fn command() -> clap::Command {
    let values = |arg: clap::Arg| if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg };
    Cli::command().mut_subcommands(|command| command.mut_args(values))
}

fn main() -> ExitCode {
    let json = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json");
    let cli = match command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
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
