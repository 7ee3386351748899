//! Cancel tokens: from any thread, at any moment, harmless before the start, twice, and after the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks whatever was given a clone of it to stop at the next chance: between two layers, or between two tensors in load.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that nobody has cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Takes a cancel back, so that the token can serve another request.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
