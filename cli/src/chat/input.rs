//! Turns of a conversation: typed at a terminal, with editing and history, or read from a pipe line by line.

use crate::error::{CliError, Result};
use crate::os;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};

const PROMPT: &str = "> ";
const MORE: &str = "... ";
/// Opens and closes a text of several lines.
const FENCE: &str = "\"\"\"";
/// Lines that the history keeps.
const HISTORY: usize = 1000;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A whole turn, of one or more lines.
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// The end of the input.
    End,
}

/// Where turns come from.
pub(super) enum Input {
    Terminal { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    Pipe,
}

impl Input {
    /// A terminal where both ends of the command are one, and people rather than JSON are wanted.
    pub(super) fn new(json: bool) -> Result<Input> {
        if json || !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
            return Ok(Input::Pipe);
        }
        let config = rustyline::Config::builder().max_history_size(HISTORY).map_err(editor_error)?.build();
        let mut editor = DefaultEditor::with_config(config).map_err(editor_error)?;
        // A conversation works without a history too.
        let history = os::history_file().filter(|file| file.parent().is_some_and(|dir| std::fs::create_dir_all(dir).is_ok()));
        if let Some(file) = &history {
            let _ = editor.load_history(file);
        }
        Ok(Input::Terminal { editor: Box::new(editor), history })
    }

    /// Whether a person sits there.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal { .. })
    }

    /// The next turn.
    pub(super) fn turn(&mut self) -> Result<Turn> {
        let mut lines = Lines::default();
        loop {
            let line = match self.line(if lines.is_empty() { PROMPT } else { MORE })? {
                Turn::Text(line) => line,
                Turn::Interrupted => return Ok(Turn::Interrupted),
                // What was begun before the input ended is a turn still.
                Turn::End if lines.is_empty() => return Ok(Turn::End),
                Turn::End => return Ok(Turn::Text(lines.text)),
            };
            if lines.push(&line) {
                self.remember(&lines.text);
                return Ok(Turn::Text(lines.text));
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Result<Turn> {
        match self {
            Input::Terminal { editor, .. } => match editor.readline(prompt) {
                Ok(line) => Ok(Turn::Text(line)),
                Err(ReadlineError::Interrupted) => Ok(Turn::Interrupted),
                Err(ReadlineError::Eof) => Ok(Turn::End),
                // A broken paste costs the line, not the conversation.
                Err(ReadlineError::Io(e)) if e.kind() == std::io::ErrorKind::InvalidData => {
                    crate::output::note("the line isn't UTF-8 and was dropped");
                    Ok(Turn::Interrupted)
                }
                Err(e) => Err(editor_error(e)),
            },
            Input::Pipe => {
                let stdin = Path::new("standard input");
                let mut bytes = Vec::new();
                if std::io::stdin().lock().read_until(b'\n', &mut bytes).map_err(CliError::file("read", stdin))? == 0 {
                    return Ok(Turn::End);
                }
                let line = String::from_utf8(bytes)
                    .map_err(|_| CliError::Content { path: stdin.to_owned(), what: "a line isn't UTF-8, expected text in UTF-8".into() })?;
                Ok(Turn::Text(line.trim_end_matches(['\n', '\r']).to_owned()))
            }
        }
    }

    /// Keeps a turn for later runs. A history that can't be written is no reason to stop talking.
    fn remember(&mut self, text: &str) {
        if let Input::Terminal { editor, history } = self
            && !text.trim().is_empty()
            && editor.add_history_entry(text).unwrap_or(false)
            && let Some(file) = history
        {
            let _ = editor.append_history(file);
        }
    }
}

fn editor_error(error: ReadlineError) -> CliError {
    let source = match error {
        ReadlineError::Io(e) => e,
        other => std::io::Error::other(other.to_string()),
    };
    CliError::File { what: "read", path: "the terminal".into(), source }
}

/// Lines that become one turn: `\` at the end of a line goes on in the next, `"""` opens and closes a block.
#[derive(Debug, Default)]
struct Lines {
    text: String,
    begun: bool,
    fenced: bool,
}

impl Lines {
    fn is_empty(&self) -> bool {
        !self.begun
    }

    /// Takes a line; whether the turn is whole.
    fn push(&mut self, line: &str) -> bool {
        let mut line = line;
        if self.begun {
            self.text.push('\n');
        } else if let Some(rest) = line.trim_start().strip_prefix(FENCE) {
            self.fenced = true;
            line = rest;
        }
        self.begun = true;
        if self.fenced {
            let closed = line.trim_end().strip_suffix(FENCE);
            self.text.push_str(closed.unwrap_or(line));
            if closed.is_some() {
                // The line breaks after the opening and before the closing fence are no part of the text.
                self.text = self.text.strip_prefix('\n').unwrap_or(&self.text).to_owned();
                self.text = self.text.strip_suffix('\n').unwrap_or(&self.text).to_owned();
            }
            return closed.is_some();
        }
        match line.strip_suffix('\\') {
            Some(line) => {
                self.text.push_str(line);
                false
            }
            None => {
                self.text.push_str(line);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(lines: &[&str]) -> Option<String> {
        let mut all = Lines::default();
        let (last, before) = lines.split_last()?;
        for line in before {
            assert!(!all.push(line), "{line} ends the turn too early");
        }
        all.push(last).then_some(all.text)
    }

    #[test]
    fn lines_join_to_turns() {
        assert_eq!(turn(&["one"]).as_deref(), Some("one"));
        assert_eq!(turn(&[""]).as_deref(), Some(""));
        assert_eq!(turn(&["a\\", "b\\", "c"]).as_deref(), Some("a\nb\nc"));
        assert_eq!(turn(&["\"\"\"", "a", "", " b\\", "\"\"\""]).as_deref(), Some("a\n\n b\\"));
        assert_eq!(turn(&["\"\"\"a\"\"\""]).as_deref(), Some("a"));
        assert_eq!(turn(&["\"\"\"a", "b\"\"\""]).as_deref(), Some("a\nb"));
        assert_eq!(turn(&["\"\"\"", "a"]), None);
        assert_eq!(turn(&["a\\"]), None);
    }
}
