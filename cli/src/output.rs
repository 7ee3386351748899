//! Standard output: results and nothing else. A reader that went away ends the command quietly.

use crate::error::{CliError, Result};
use serde::Serialize;
use std::io::{ErrorKind, Write as _};

fn refused(error: std::io::Error) -> CliError {
    if error.kind() == ErrorKind::BrokenPipe { CliError::Pipe } else { CliError::Output(error) }
}

/// Writes a text as it stands, at once.
pub(crate) fn text(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(refused)
}

/// Writes a text and ends its last line where it doesn't end itself.
pub(crate) fn lines(lines: &str) -> Result<()> {
    text(lines)?;
    if lines.is_empty() || lines.ends_with('\n') { Ok(()) } else { text("\n") }
}

/// Writes one JSON value on a line of its own.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(value).map_err(|e| CliError::Output(e.into()))?;
    text(&(line + "\n"))
}

/// A line on standard error. One that can't be written (a full disk behind it, a reader that went away) is dropped: a
/// remark never decides how a command ends.
macro_rules! remark {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}
pub(crate) use remark;

/// A line on standard error that is no result: a warning, a remark.
pub(crate) fn note(text: &str) {
    remark!("note: {}", crate::error::printable(text));
}
