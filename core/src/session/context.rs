//! What happens when the context is full.

use super::SessionError;

/// Policy for a full context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overflow {
    /// The reply ends with `Finish::Context`. Nothing is ever dropped unasked.
    #[default]
    Stop,
    /// The first `n_keep` positions stay, the next `n_discard` are dropped, and the rest is computed again at its new
    /// places, so that the result is what a fresh session would give on the remaining tokens.
    Shift {
        /// Positions that stay: a system prompt.
        n_keep: usize,
        /// Positions dropped at a time; `None`: half of those that don't stay.
        n_discard: Option<usize>,
    },
}

impl Overflow {
    /// Refuses numbers that could free nothing.
    pub(super) fn check(self, n_ctx: usize) -> Result<(), SessionError> {
        let Overflow::Shift { n_keep, n_discard } = self else { return Ok(()) };
        if n_keep >= n_ctx {
            return Err(SessionError::Overflow {
                what: "the number of kept positions",
                expected: format!("below the context of {n_ctx}"),
                found: n_keep,
            });
        }
        let most = n_ctx - n_keep;
        match n_discard {
            Some(n) if n == 0 || n > most => {
                Err(SessionError::Overflow { what: "the number of dropped positions", expected: format!("1 to {most}"), found: n })
            }
            _ => Ok(()),
        }
    }

    /// Positions to drop: at least one.
    pub(super) fn discard(n_keep: usize, n_discard: Option<usize>, n_ctx: usize) -> usize {
        n_discard.unwrap_or_else(|| ((n_ctx - n_keep) / 2).max(1))
    }
}
