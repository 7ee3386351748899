//! Progress on standard error, where that is a terminal and the work takes long enough to be waited for.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(400);

/// What the numbers of a bar count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes.
    Bytes,
    /// Tokens and the like.
    Count,
}

/// A bar that appears only when the work lasts.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    unit: Unit,
    start: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar for some work.
    pub(crate) fn new(what: impl Into<String>, unit: Unit) -> Progress {
        Progress { what: what.into(), unit, start: Instant::now(), bar: None }
    }

    /// How far the work is; a total of 0 is one that nobody knows.
    pub(crate) fn update(&mut self, done: u64, total: u64) {
        if self.start.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let count = match (self.unit, total) {
                (Unit::Bytes, 0) => "{bytes}",
                (Unit::Bytes, _) => "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}",
                (Unit::Count, 0) => "{pos}",
                (Unit::Count, _) => "{wide_bar} {pos} of {len}",
            };
            // Draws nothing where standard error is no terminal.
            let bar = ProgressBar::with_draw_target((total > 0).then_some(total), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(&format!("{{msg}} {count}"));
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(self.what.clone())
        });
        if total > 0 {
            bar.set_length(total);
        }
        bar.set_position(done);
    }

    /// Takes the bar away.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
