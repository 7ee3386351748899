//! What can go wrong in a command, and with which exit status it ends.

use selvedge::{PlanError, RegistryError, SamplerError, SessionError};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Why a command ended early. Every message is one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CliError {
    /// The command was worded wrongly.
    #[error("{0}")]
    Usage(String),
    /// Whoever reads standard output went away: not an error of ours, and nobody is left to be told.
    #[error("standard output was closed")]
    Pipe,
    /// Ctrl-C.
    #[error("cancelled")]
    Cancelled,
    /// The library refused.
    #[error(transparent)]
    Selvedge(selvedge::Error),
    /// The system refused a file.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Standard output can't be written.
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
    /// A file given to the command holds something else than it should.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What was expected and found.
        what: String,
    },
    /// A conversation that the context doesn't hold.
    #[error(
        "the conversation has {tokens} tokens and the context holds {n_ctx}: /reset forgets it, -c sets a longer context at the next start"
    )]
    ConversationTooLong {
        /// Tokens of the conversation.
        tokens: usize,
        /// Positions of the context.
        n_ctx: usize,
    },
    /// The model isn't in the models folder.
    #[error("{0}")]
    NoModel(String),
    /// Packed weights couldn't be kept.
    #[error("{0}")]
    Pack(String),
    /// A model couldn't be brought.
    #[error("{0}")]
    Pull(String),
    /// Something that the design has and this version hasn't.
    #[error("{0}")]
    NotYet(&'static str),
    /// Two backends disagree.
    #[error("{0}")]
    Diverged(String),
}

/// What a command returns.
pub(crate) type Result<T> = std::result::Result<T, CliError>;

impl<E: Into<selvedge::Error>> From<E> for CliError {
    fn from(error: E) -> CliError {
        let error = error.into();
        if error.is_cancelled() { CliError::Cancelled } else { CliError::Selvedge(error) }
    }
}

impl CliError {
    /// The system's refusal of a file.
    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CliError {
        let path = path.to_owned();
        move |source| CliError::File { what, path, source }
    }

    /// 0 done, 2 wrong usage, 1 anything else.
    fn status(&self) -> u8 {
        use selvedge::Error;
        match self {
            CliError::Pipe => 0,
            CliError::Usage(_) => 2,
            CliError::Selvedge(Error::Registry(RegistryError::UnknownBackend { .. } | RegistryError::UnknownIsa { .. })) => 2,
            CliError::Selvedge(Error::Plan(PlanError::Option { .. }) | Error::ContextTooShort { .. }) => 2,
            CliError::Selvedge(Error::Session(SessionError::Sampler(
                SamplerError::Param { .. } | SamplerError::Token { .. } | SamplerError::Bias { .. } | SamplerError::OrderTwice { .. },
            ))) => 2,
            CliError::Selvedge(Error::Session(SessionError::Stop(_))) => 2,
            _ => 1,
        }
    }

    /// Tells the error on standard error and gives the exit status.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if !matches!(self, CliError::Pipe) {
            tell(&self.to_string(), json);
        }
        ExitCode::from(self.status())
    }
}

/// One line on standard error: `error: ...`, or an object with `--json`.
pub(crate) fn tell(message: &str, json: bool) {
    if json {
        crate::output::remark!("{}", serde_json::json!({ "error": message }));
    } else {
        crate::output::remark!("error: {}", printable(message));
    }
}

/// A text in which nothing can move the cursor, colour the terminal or end the line: messages quote what files say.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => out.push(' '),
            c if c.is_control() => {
                let _ = write!(out, "{}", c.escape_default());
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_follow_what_went_wrong() {
        let registry = RegistryError::UnknownIsa { found: "mmx".into(), known: "scalar".into() };
        assert_eq!(CliError::from(registry).status(), 2);
        assert_eq!(CliError::Usage("x".into()).status(), 2);
        assert_eq!(CliError::Pipe.status(), 0);
        assert_eq!(CliError::Cancelled.status(), 1);
        assert_eq!(CliError::from(SessionError::EmptyPrompt).status(), 1);
    }

    #[test]
    fn messages_stay_on_their_line() {
        assert_eq!(printable("a\u{1b}[31mb\nc"), "a\\u{1b}[31mb c");
    }
}
