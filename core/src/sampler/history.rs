//! The tokens accepted so far, as far back as a penalty looks, and how often each stands in the window.

/// The last tokens of a sequence.
#[derive(Debug)]
pub(super) struct History {
    /// The last tokens, oldest first; up to twice `n_keep`, so that dropping the oldest costs a constant per token.
    tokens: Vec<u32>,
    n_keep: usize,
    /// Window of `counts`, in tokens.
    n_window: usize,
    /// (token, occurrences in the window), ascending tokens.
    counts: Vec<(u32, u32)>,
}

impl Clone for History {
    fn clone(&self) -> Self {
        // A copied vector has no spare room, and then the next token would allocate.
        let mut copy = History::new(self.n_window, self.n_keep);
        copy.clone_from(self);
        copy
    }

    fn clone_from(&mut self, other: &Self) {
        self.tokens.clear();
        self.tokens.extend_from_slice(&other.tokens);
        self.counts.clear();
        self.counts.extend_from_slice(&other.counts);
        (self.n_keep, self.n_window) = (other.n_keep, other.n_window);
    }
}

impl History {
    /// Keeps the last `n_keep` tokens and counts those among the last `n_window` <= `n_keep`.
    pub(super) fn new(n_window: usize, n_keep: usize) -> Self {
        let n_keep = n_keep.max(n_window);
        History { tokens: Vec::with_capacity(2 * n_keep), n_keep, n_window, counts: Vec::with_capacity(n_window) }
    }

    pub(super) fn push(&mut self, token: u32) {
        if self.n_keep == 0 {
            return;
        }
        if self.n_window > 0 {
            if self.tokens.len() >= self.n_window {
                self.uncount(self.tokens[self.tokens.len() - self.n_window]);
            }
            match self.counts.binary_search_by_key(&token, |c| c.0) {
                Ok(at) => self.counts[at].1 += 1,
                Err(at) => self.counts.insert(at, (token, 1)),
            }
        }
        if self.tokens.len() == 2 * self.n_keep {
            self.tokens.drain(..self.n_keep);
        }
        self.tokens.push(token);
    }

    fn uncount(&mut self, token: u32) {
        if let Ok(at) = self.counts.binary_search_by_key(&token, |c| c.0) {
            self.counts[at].1 -= 1;
            if self.counts[at].1 == 0 {
                self.counts.remove(at);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.counts.clear();
    }

    /// The last `n` tokens, or all if there are fewer, oldest first.
    pub(super) fn last(&self, n: usize) -> &[u32] {
        &self.tokens[self.tokens.len() - n.min(self.tokens.len())..]
    }

    /// (token, occurrences) in the window, ascending tokens.
    pub(super) fn counts(&self) -> &[(u32, u32)] {
        &self.counts
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.tokens.capacity() * 4 + self.counts.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_tail_agree_with_recounting() {
        for (n_window, n_keep) in [(0, 0), (0, 5), (1, 1), (3, 3), (4, 9), (64, 64)] {
            let mut history = History::new(n_window, n_keep);
            let room = (history.tokens.capacity(), history.counts.capacity());
            let mut all = Vec::new();
            let mut x = 1u32;
            for _ in 0..500 {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let token = x >> 29;
                all.push(token);
                history.push(token);
                let tail = |n: usize| &all[all.len() - n.min(all.len())..];
                if n_keep > 0 {
                    assert_eq!(history.last(n_keep), tail(n_keep));
                }
                let want: Vec<(u32, u32)> =
                    (0..8).map(|t| (t, tail(n_window).iter().filter(|&&u| u == t).count() as u32)).filter(|c| c.1 > 0).collect();
                assert_eq!(history.counts(), want);
            }
            assert_eq!(room, (history.tokens.capacity(), history.counts.capacity()), "no growth");
            let copy = history.clone();
            assert_eq!(copy.counts(), history.counts());
            assert_eq!(copy.last(n_keep), history.last(n_keep));
            assert!(copy.tokens.capacity() >= 2 * n_keep);
        }
    }
}
