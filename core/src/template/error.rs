//! What can go wrong between a chat template and a prompt.

/// An error of a chat template: of its source, of the values given to it, or raised by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The template called `raise_exception`; the words are its own.
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// What the template said.
        message: String,
        /// Line of the template, counted from 1.
        line: usize,
    },
    /// The source is no valid template.
    #[error("the chat template has a syntax error in line {line}: {message}")]
    Syntax {
        /// Line of the template, counted from 1.
        line: usize,
        /// What was found there.
        message: String,
    },
    /// The template did something that its values don't allow: a call of something undefined, a sum of a
    /// number and a string.
    #[error("the chat template failed in line {line}: {message}")]
    Failed {
        /// Line of the template, counted from 1.
        line: usize,
        /// What it did.
        message: String,
    },
    /// The template needs more time, memory, output or nesting than a template may.
    #[error("the chat template was stopped in line {line}: {what} passes the limit of {limit}")]
    Limit {
        /// Line of the template, counted from 1; 0 when the source as a whole is meant.
        line: usize,
        /// What is limited.
        what: &'static str,
        /// The limit, in the unit that `what` names.
        limit: u64,
    },
    /// The model's file has no chat template.
    #[error("this model has no chat template: use --raw for plain text, or name a template with --template FILE")]
    Missing,
    /// The model's file has no chat template of this name.
    #[error("this model has no chat template named '{name}', it has: {found}")]
    NoSuchName {
        /// The name asked for.
        name: String,
        /// The names that exist, comma separated.
        found: String,
    },
    /// What was to be rendered has the wrong shape.
    #[error("{what} must be {expected}, found {found}")]
    Request {
        /// The part of the request, as `messages[2]`.
        what: String,
        /// What was expected.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// The operating system gave no thread to render on.
    #[error("no thread could be started to render the chat template: {message}")]
    Thread {
        /// The operating system's words.
        message: String,
    },
}

impl Error {
    /// The same error, said of `line` where it had no line yet.
    pub(super) fn at(self, line: usize) -> Self {
        match self {
            Error::Raised { message, line: 0 } => Error::Raised { message, line },
            Error::Syntax { message, line: 0 } => Error::Syntax { message, line },
            Error::Failed { message, line: 0 } => Error::Failed { message, line },
            Error::Limit { what, limit, line: 0 } => Error::Limit { what, limit, line },
            other => other,
        }
    }
}

/// A failure whose line the evaluator adds.
pub(super) fn failed<T>(message: impl Into<String>) -> Result<T, Error> {
    Err(Error::Failed { line: 0, message: message.into() })
}
