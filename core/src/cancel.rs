//! Cancel tokens: from any thread, at any moment, harmless before the start, twice, and after the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks whatever was given a clone of it to stop at the next chance: between two layers, or between two tensors in load.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    cancelled: AtomicBool,
    parent: Option<CancelToken>,
}

impl CancelToken {
    /// A token that nobody has cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// A token that is cancelled with this one, and can be cancelled alone: for one request of many, and for what ends a
    /// request from inside.
    pub fn child(&self) -> CancelToken {
        CancelToken(Arc::new(Flag { cancelled: AtomicBool::new(false), parent: Some(self.clone()) }))
    }

    /// Cancels.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
    }

    /// Takes a cancel back, so that the token can serve another request. One of its parent's stays.
    pub fn reset(&self) {
        self.0.cancelled.store(false, Ordering::Release);
    }

    /// Whether it was cancelled, or the token that it is a child of.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire) || self.0.parent.as_ref().is_some_and(CancelToken::is_cancelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_cancelled_with_its_parent_and_alone() {
        let parent = CancelToken::new();
        let (a, b) = (parent.child(), parent.child().child());
        a.cancel();
        assert!(a.is_cancelled() && !b.is_cancelled() && !parent.is_cancelled());
        parent.cancel();
        assert!(b.is_cancelled());
        b.reset();
        assert!(b.is_cancelled());
        parent.reset();
        assert!(!b.is_cancelled() && a.is_cancelled());
    }
}
