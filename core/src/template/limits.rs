//! Bounds on what a template may cost.
//!
//! A template comes with a model file from anywhere, so it is hostile until shown otherwise. Everything
//! that it can make grow is counted here: steps, bytes built (the sum over the whole rendering, so it
//! bounds what lives at any time too), bytes printed, nesting of its source, of its values and of its calls.
//! The largest published templates stay under a hundredth of each bound.

use super::error::Error;

/// Bytes of template source.
pub(super) const MAX_SOURCE: usize = 1 << 20;
/// Nesting of a template's source: brackets, operators in a row and blocks together. The parser and the
/// evaluator recurse along it, on a stack of [`STACK_BYTES`].
pub(super) const MAX_SOURCE_DEPTH: usize = 200;
/// Branches of one `if`: the parser recurses along them.
pub(super) const MAX_ELIF: usize = 256;
/// Tokens in a template.
pub(super) const MAX_TOKENS: usize = 200_000;
/// Nesting of a value: of the messages given, and of the lists and dicts that a template builds.
pub(super) const MAX_VALUE_DEPTH: usize = 128;
/// Nesting of evaluation: expressions, statements and macro calls together.
pub(super) const MAX_EVAL_DEPTH: usize = 1000;
/// Stack of the thread that parses and renders: 16 KiB for each level of evaluation. Tests walk every kind of nesting
/// to its bound, and the fuzz target does so with the larger frames of the address sanitizer.
pub(super) const STACK_BYTES: usize = 16 << 20;
/// Steps of one rendering, for a short conversation; under a second.
pub(super) const MAX_STEPS: u64 = 10_000_000;
/// Bytes of strings, lists and dicts that one rendering of a short conversation may build, all of them together.
pub(super) const MAX_BUILT: u64 = 48 << 20;
/// Bytes that one rendering of a short conversation may print.
pub(super) const MAX_OUTPUT: u64 = 16 << 20;
/// Bytes that may be built and printed for each byte that the request brings.
const GRANT: u64 = 16;
/// Items of one `range`, as in Jinja's sandbox.
pub(super) const MAX_RANGE: i128 = 100_000;

/// What is left of a rendering's allowance. The limits in errors are those of a short conversation.
#[derive(Debug)]
pub(super) struct Budget {
    steps: u64,
    built: u64,
    printed: u64,
    depth: usize,
}

impl Budget {
    /// A full allowance.
    pub(super) fn new() -> Self {
        Budget { steps: MAX_STEPS, built: MAX_BUILT, printed: MAX_OUTPUT, depth: 0 }
    }

    /// Takes `n` steps: one for an expression or a loop's turn, one for each item that a filter walks.
    pub(super) fn step(&mut self, n: usize) -> Result<(), Error> {
        match self.steps.checked_sub(n as u64) {
            Some(left) => {
                self.steps = left;
                Ok(())
            }
            None => Err(limit("the number of steps", MAX_STEPS)),
        }
    }

    /// Adds what a request's string of `bytes` bytes may cost: long conversations are their sender's affair.
    pub(super) fn grant(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.steps = self.steps.saturating_add(bytes);
        self.built = self.built.saturating_add(GRANT * bytes);
        self.printed = self.printed.saturating_add(GRANT * bytes);
    }

    /// Takes `bytes` from what may be printed.
    pub(super) fn print(&mut self, bytes: usize) -> Result<(), Error> {
        match self.printed.checked_sub(bytes as u64) {
            Some(left) => {
                self.printed = left;
                Ok(())
            }
            None => Err(limit("the number of bytes printed", MAX_OUTPUT)),
        }
    }

    /// Goes one level down in the evaluation; [`Budget::leave`] comes back. After an error nobody comes back,
    /// and nothing more is evaluated.
    pub(super) fn enter(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > MAX_EVAL_DEPTH {
            return Err(limit("the nesting of evaluation", MAX_EVAL_DEPTH as u64));
        }
        self.step(1)
    }

    /// Comes back up from [`Budget::enter`].
    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Takes the steps of reading `bytes` bytes once.
    pub(super) fn scan(&mut self, bytes: usize) -> Result<(), Error> {
        self.step(bytes / 16)
    }

    /// Takes `bytes` from what may be built. Called before the allocation.
    pub(super) fn build(&mut self, bytes: usize) -> Result<(), Error> {
        match self.built.checked_sub(bytes as u64) {
            Some(left) => {
                self.built = left;
                Ok(())
            }
            None => Err(limit("the number of bytes built", MAX_BUILT)),
        }
    }
}

/// A limit passed, at a line that the evaluator adds.
pub(super) fn limit(what: &'static str, limit: u64) -> Error {
    Error::Limit { line: 0, what, limit }
}
