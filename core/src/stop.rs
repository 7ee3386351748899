//! Stop strings matched over token borders.
//!
//! Text comes in pieces, cut anywhere between characters, and leaves in pieces. What could still become part of a stop
//! string is held back: the longest suffix of the text that is a prefix of a stop string, nothing more. The text that
//! leaves is the whole text up to the first occurrence of any stop string, however it was cut.
//!
//! "First" is the occurrence that begins first, as searching the finished text would find it. So where `bc` has come
//! and `abcd` still may, the match is decided by the next character or by the end of the text.
//!
//! The automaton is Aho and Corasick's: a trie of the stop strings, and for each node the longest proper suffix that is
//! a node too. It reads each byte once, in amortised constant time; the node reached is the text held back.

/// Most bytes that all stop strings may have together: it bounds the automaton.
pub const STOP_BYTES_MAX: usize = 1 << 18;

/// Errors of [`StopMatcher::new`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too much to match against.
    #[error("the stop strings have {found} bytes together, expected at most {limit}")]
    TooLong {
        /// Their bytes.
        found: usize,
        /// [`STOP_BYTES_MAX`].
        limit: usize,
    },
}

/// Whether a stop string has been met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopState {
    /// Not so far.
    Continue,
    /// The text ends here: all of it before the match has left, the rest is dropped.
    Matched {
        /// Index of the stop string in the list given to [`StopMatcher::new`]; of several that begin at the same place
        /// the shortest, of equal ones the first.
        stop_idx: usize,
    },
}

/// No node.
const NONE: u32 = u32::MAX;

/// A prefix of a stop string.
#[derive(Debug, Clone)]
struct Node {
    /// Last byte of the prefix.
    byte: u8,
    /// Length of the prefix, bytes.
    depth: u32,
    first_child: u32,
    next_sibling: u32,
    /// The longest proper suffix of the prefix that is a node.
    fail: u32,
    /// Length of the longest stop string that the prefix ends with; 0 for none.
    stop_len: u32,
    stop_idx: u32,
}

/// A match that a longer one, begun earlier, may still overtake.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// Bytes from its beginning to the end of the text.
    len: usize,
    stop_idx: usize,
}

/// Finds the first stop string in a text that comes in pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    /// The root, an empty prefix, comes first.
    nodes: Vec<Node>,
    /// Children of the root by byte: the root is left and entered at most bytes of a text.
    roots: Box<[u32; 256]>,
    /// The node that the text ends with.
    at: u32,
    pending: Option<Pending>,
    /// Text that came and hasn't left: as long as the node is deep.
    held: String,
}

impl StopMatcher {
    /// A matcher for `stops`; empty ones are ignored.
    ///
    /// # Errors
    /// More than [`STOP_BYTES_MAX`] bytes together.
    pub fn new<'a>(stops: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let root = Node { byte: 0, depth: 0, first_child: NONE, next_sibling: NONE, fail: 0, stop_len: 0, stop_idx: 0 };
        let mut matcher = StopMatcher { nodes: vec![root], roots: Box::new([0; 256]), at: 0, pending: None, held: String::new() };
        let (mut n_byte, mut len_max) = (0usize, 0);
        for (stop_idx, stop) in stops.into_iter().enumerate() {
            n_byte = n_byte.saturating_add(stop.len());
            if n_byte > STOP_BYTES_MAX || u32::try_from(stop_idx).is_err() {
                return Err(Error::TooLong { found: n_byte, limit: STOP_BYTES_MAX });
            }
            len_max = len_max.max(stop.len());
            matcher.insert(stop, stop_idx as u32);
        }
        matcher.link();
        // A piece adds to what is held before the next byte is looked at.
        matcher.held.reserve_exact(len_max);
        Ok(matcher)
    }

    fn insert(&mut self, stop: &str, stop_idx: u32) {
        let mut at = 0u32;
        for &byte in stop.as_bytes() {
            let child = self.child(at, byte);
            at = if child == NONE {
                let new = self.nodes.len() as u32;
                let parent = &mut self.nodes[at as usize];
                let (depth, next_sibling) = (parent.depth + 1, parent.first_child);
                parent.first_child = new;
                self.nodes.push(Node { byte, depth, first_child: NONE, next_sibling, fail: 0, stop_len: 0, stop_idx: 0 });
                if at == 0 {
                    self.roots[usize::from(byte)] = new;
                }
                new
            } else {
                child
            };
        }
        let node = &mut self.nodes[at as usize];
        // Of equal stop strings the first counts; the root stands for empty ones and stays without.
        if node.stop_len == 0 && node.depth > 0 {
            (node.stop_len, node.stop_idx) = (node.depth, stop_idx);
        }
    }

    /// Sets `fail` and what follows from it, nodes in order of depth.
    fn link(&mut self) {
        let mut queue = Vec::with_capacity(self.nodes.len());
        queue.push(0u32);
        let mut done = 0;
        while done < queue.len() {
            let parent = queue[done];
            done += 1;
            let mut child = self.nodes[parent as usize].first_child;
            while child != NONE {
                let fail = if parent == 0 { 0 } else { self.next(self.nodes[parent as usize].fail, self.nodes[child as usize].byte) };
                let (stop_len, stop_idx) = (self.nodes[fail as usize].stop_len, self.nodes[fail as usize].stop_idx);
                let node = &mut self.nodes[child as usize];
                node.fail = fail;
                if node.stop_len == 0 {
                    (node.stop_len, node.stop_idx) = (stop_len, stop_idx);
                }
                queue.push(child);
                child = node.next_sibling;
            }
        }
    }

    fn child(&self, parent: u32, byte: u8) -> u32 {
        if parent == 0 {
            let child = self.roots[usize::from(byte)];
            return if child == 0 { NONE } else { child };
        }
        let mut child = self.nodes[parent as usize].first_child;
        while child != NONE && self.nodes[child as usize].byte != byte {
            child = self.nodes[child as usize].next_sibling;
        }
        child
    }

    /// The node after `byte`: the longest suffix of what was read that is a node.
    fn next(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            if at == 0 {
                return self.roots[usize::from(byte)];
            }
            let child = self.child(at, byte);
            if child != NONE {
                return child;
            }
            at = self.nodes[at as usize].fail;
        }
    }

    /// Takes the next piece of the text and appends to `out` what can't belong to a stop string any more.
    ///
    /// After `Matched` the matcher is as new.
    pub fn push(&mut self, text: &str, out: &mut String) -> StopState {
        let mut at = self.at;
        let mut pending = self.pending;
        for (i, &byte) in text.as_bytes().iter().enumerate() {
            at = self.next(at, byte);
            let node = &self.nodes[at as usize];
            if let Some(pending) = &mut pending {
                pending.len += 1;
            }
            let len = node.stop_len as usize;
            if len > pending.map_or(0, |p| p.len) {
                pending = Some(Pending { len, stop_idx: node.stop_idx as usize });
            }
            if let Some(Pending { len, stop_idx }) = pending
                && len >= node.depth as usize
            {
                // Nothing that began earlier can still become a stop string.
                self.emit(text, self.held.len() + i + 1 - len, out);
                self.reset();
                return StopState::Matched { stop_idx };
            }
        }
        let keep_from = self.held.len() + text.len() - self.nodes[at as usize].depth as usize;
        self.emit(text, keep_from, out);
        if keep_from <= self.held.len() {
            self.held.drain(..keep_from);
            self.held.push_str(text);
        } else {
            let start = keep_from - self.held.len();
            self.held.clear();
            self.held.push_str(&text[start..]);
        }
        (self.at, self.pending) = (at, pending);
        StopState::Continue
    }

    /// Ends the text: what is held back leaves, unless a match was waiting for more.
    ///
    /// The matcher is then as new.
    pub fn finish(&mut self, out: &mut String) -> StopState {
        let pending = self.pending;
        out.push_str(&self.held[..self.held.len() - pending.map_or(0, |p| p.len)]);
        self.reset();
        pending.map_or(StopState::Continue, |p| StopState::Matched { stop_idx: p.stop_idx })
    }

    /// Forgets the text so far, what is held back included.
    pub fn reset(&mut self) {
        self.at = 0;
        self.pending = None;
        self.held.clear();
    }

    /// What came and hasn't left.
    #[must_use]
    pub fn held(&self) -> &str {
        &self.held
    }

    /// Appends the first `n` bytes of the held text followed by `text`.
    fn emit(&self, text: &str, n: usize, out: &mut String) {
        let n_held = n.min(self.held.len());
        out.push_str(&self.held[..n_held]);
        out.push_str(&text[..n - n_held]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `pieces` and returns the text that left and the match, checking at each step what is held back.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().copied()).unwrap();
        let (mut out, mut all) = (String::new(), String::new());
        let room = matcher.held.capacity();
        for piece in pieces {
            all.push_str(piece);
            if let StopState::Matched { stop_idx } = matcher.push(piece, &mut out) {
                assert_eq!(matcher.held(), "");
                return (out, Some(stop_idx));
            }
            let held = (0..=all.len()).find(|&i| stops.iter().any(|s| s.as_bytes().starts_with(&all.as_bytes()[i..])));
            assert_eq!(matcher.held(), &all[held.unwrap_or(all.len())..], "{stops:?} {pieces:?}: held after {all:?}");
            assert_eq!(out.clone() + matcher.held(), all);
            assert_eq!(matcher.held.capacity(), room);
        }
        match matcher.finish(&mut out) {
            StopState::Matched { stop_idx } => (out, Some(stop_idx)),
            StopState::Continue => (out, None),
        }
    }

    /// Searching the finished text.
    fn naive(stops: &[&str], text: &str) -> (String, Option<usize>) {
        let found = stops.iter().enumerate().filter(|s| !s.1.is_empty());
        let found = found.filter_map(|(i, s)| text.find(s).map(|at| (at, s.len(), i)));
        match found.min() {
            Some((at, _, i)) => (text[..at].to_owned(), Some(i)),
            None => (text.to_owned(), None),
        }
    }

    fn check(stops: &[&str], text: &str, want: &str) {
        let chars: Vec<&str> = text.split("").filter(|c| !c.is_empty()).collect();
        assert_eq!(run(stops, &chars).0, want, "{stops:?} in {text:?}, by characters");
        assert_eq!(run(stops, &[text]).0, want, "{stops:?} in {text:?}, at once");
        assert_eq!(naive(stops, text).0, want, "{stops:?} in {text:?}, by the definition");
    }

    #[test]
    fn named_cases() {
        check(&["END"], "abc END def", "abc ");
        check(&["END"], "abc EN", "abc EN");
        check(&["END"], "EENDx", "E");
        check(&["aab"], "aaaab", "aa");
        check(&[], "abc", "abc");
        check(&[""], "abc", "abc");
        check(&["", "b"], "abc", "a");
        check(&["a"], "a", "");
        check(&["a"], "", "");
        // The one that begins first, also if another ends earlier.
        check(&["abcd", "bc"], "xabcd", "x");
        check(&["abcd", "bc"], "xabce", "xa");
        check(&["abcd", "bc"], "xabc", "xa");
        check(&["abcdefgh", "cde", "d"], "abcdefgX", "abc".get(..2).unwrap());
        // Emoji share three bytes with their neighbours.
        check(&["\u{1F600}"], "a\u{1F601}\u{1F600}b", "a\u{1F601}");
        check(&["\u{1F600}"], "a\u{1F601}", "a\u{1F601}");
        check(&["é"], "e\u{301}èé", "e\u{301}è");
    }

    #[test]
    fn the_match_is_named() {
        assert_eq!(run(&["x", "", "bc", "bc", "bcd"], &["abcd"]), ("a".to_owned(), Some(2)));
        assert_eq!(run(&["abcd", "bc"], &["ab", "c"]), ("a".to_owned(), Some(1)));
        assert_eq!(run(&["zz"], &["z"]), ("z".to_owned(), None));
    }

    #[test]
    fn nothing_beyond_the_suffix_is_held() {
        let mut matcher = StopMatcher::new(["\n\nUser:"]).unwrap();
        let mut out = String::new();
        assert_eq!(matcher.push("one\n", &mut out), StopState::Continue);
        assert_eq!((out.as_str(), matcher.held()), ("one", "\n"));
        assert_eq!(matcher.push("\nUs", &mut out), StopState::Continue);
        assert_eq!((out.as_str(), matcher.held()), ("one", "\n\nUs"));
        assert_eq!(matcher.push("a\n\n\n", &mut out), StopState::Continue);
        assert_eq!((out.as_str(), matcher.held()), ("one\n\nUsa\n", "\n\n"));
        // A match leaves a matcher as new, and the text after it is dropped.
        assert_eq!(matcher.push("User: hi", &mut out), StopState::Matched { stop_idx: 0 });
        assert_eq!(out, "one\n\nUsa\n");
        assert_eq!(matcher.push("next", &mut out), StopState::Continue);
        assert_eq!(out, "one\n\nUsa\nnext");
    }

    #[test]
    fn random_texts_in_random_pieces_agree_with_searching_the_whole() {
        let mut state = 0x1234_5678_9abc_def1u64;
        let mut below = move |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) as usize % n
        };
        let (mut n_match, mut n_free) = (0, 0);
        for _ in 0..60_000 {
            // Characters of one to four bytes, some with a common lead.
            let alphabet = ["a", "b", "\u{e9}", "\u{1F600}", "\u{1F601}", "\u{20AC}"];
            let n_symbol = 1 + below(alphabet.len());
            let mut word = |longest: usize| (0..below(longest + 1)).map(|_| alphabet[below(n_symbol)]).collect::<String>();
            let text = word(24);
            let stops: Vec<String> = (0..4).map(|_| word(6)).collect();
            let stops: Vec<&str> = stops.iter().take(1 + below(4)).map(String::as_str).collect();
            let mut pieces = Vec::new();
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let ends: Vec<usize> = rest.char_indices().map(|c| c.0).skip(1).chain([rest.len()]).collect();
                let end = ends[below(ends.len().min(5))];
                pieces.push(&rest[..end]);
                rest = &rest[end..];
                if below(8) == 0 {
                    pieces.push("");
                }
            }
            let want = naive(&stops, &text);
            assert_eq!(run(&stops, &pieces), want, "{stops:?} {pieces:?}");
            if want.1.is_some() { n_match += 1 } else { n_free += 1 }
        }
        assert!(n_match > 10_000 && n_free > 10_000, "{n_match} {n_free}");
    }

    #[test]
    fn every_window_of_a_text_is_found_at_its_first_occurrence() {
        let text = "The cat, the hat \u{1F600} and the théâtre: the end.";
        let chars: Vec<usize> = text.char_indices().map(|c| c.0).chain([text.len()]).collect();
        for n in 1..=6 {
            for window in chars.windows(n + 1) {
                let stop = &text[window[0]..window[n]];
                check(&[stop], text, &text[..text.find(stop).unwrap()]);
            }
        }
    }

    #[test]
    fn long_and_many_stops_stay_linear_and_bounded() {
        let long = "x".repeat(1000);
        let text = "x".repeat(999) + "y";
        let mut matcher = StopMatcher::new(["", long.as_str()]).unwrap();
        let mut out = String::new();
        let start = std::time::Instant::now();
        for _ in 0..1000 {
            for piece in text.as_bytes().chunks(7) {
                assert_eq!(matcher.push(std::str::from_utf8(piece).unwrap(), &mut out), StopState::Continue);
            }
        }
        assert_eq!(out.len(), 1_000_000);
        assert_eq!(matcher.push(&long, &mut out), StopState::Matched { stop_idx: 1 });
        assert_eq!(out.len(), 1_000_000);
        // Each suffix of a long run is a stop's prefix: the worst case for failure links.
        let stops: Vec<String> = (1..400).map(|n| "x".repeat(n) + "y").collect();
        let mut matcher = StopMatcher::new(stops.iter().map(String::as_str)).unwrap();
        out.clear();
        assert_eq!(matcher.push(&"x".repeat(1_000_000), &mut out), StopState::Continue);
        assert_eq!(matcher.held().len(), 399);
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
        let too_long = "x".repeat(STOP_BYTES_MAX + 1);
        let error = StopMatcher::new([too_long.as_str()]).unwrap_err();
        assert_eq!(error.to_string(), "the stop strings have 262145 bytes together, expected at most 262144");
        assert!(StopMatcher::new([&too_long[1..]]).is_ok());
    }
}
