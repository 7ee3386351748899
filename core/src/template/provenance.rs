//! Strings that know, character by character, who wrote them.
//!
//! A [`Text`] is a string with runs of trusted and untrusted bytes. The evaluator works on nothing else:
//! literals of the template enter as trusted, everything from the request as untrusted, and each operation
//! says for each piece of its result which piece of which argument it is. There is no way from untrusted to
//! trusted: [`TextBuf`] takes pieces of other texts with their marks, and [`TextBuf::push_plain`], for text
//! that nobody wrote (digits, the quotes and commas of JSON), marks as untrusted.

use std::ops::Range;
use std::sync::Arc;

/// Which bytes are trusted.
#[derive(Debug, Clone)]
enum Marks {
    /// All of them, or none.
    All(bool),
    /// Runs `(end, trusted)`, ends ascending, neighbours different.
    Runs(Arc<[(usize, bool)]>),
}

/// An immutable string with marks.
#[derive(Debug, Clone)]
pub(super) struct Text {
    chars: Arc<str>,
    marks: Marks,
}

impl Text {
    /// Text of the template itself.
    pub(super) fn trusted(text: &str) -> Self {
        Text { chars: Arc::from(text), marks: Marks::All(true) }
    }

    /// Text of anybody else.
    pub(super) fn untrusted(text: &str) -> Self {
        Text { chars: Arc::from(text), marks: Marks::All(false) }
    }

    /// The string without its marks.
    pub(super) fn as_str(&self) -> &str {
        &self.chars
    }

    /// The string without its marks, shared.
    pub(super) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.chars)
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.chars.len()
    }

    /// Bytes that a copy takes, marks included.
    pub(super) fn weight(&self) -> usize {
        let n_runs = match &self.marks {
            Marks::All(_) => 0,
            Marks::Runs(runs) => runs.len(),
        };
        self.chars.len() + n_runs * size_of::<(usize, bool)>()
    }

    /// Whether there is no byte.
    pub(super) fn is_empty(&self) -> bool {
        self.chars.is_empty()
    }

    /// Whether each byte is trusted (an empty text has none that is not).
    pub(super) fn is_trusted(&self) -> bool {
        match &self.marks {
            Marks::All(trusted) => *trusted || self.chars.is_empty(),
            Marks::Runs(_) => false,
        }
    }

    /// The runs `(range, trusted)` inside `range`, clipped to it.
    pub(super) fn runs(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, bool)> + '_ {
        let (all, runs): (Option<bool>, &[(usize, bool)]) = match &self.marks {
            Marks::All(trusted) => (Some(*trusted), &[]),
            Marks::Runs(runs) => (None, runs),
        };
        let first = runs.partition_point(|&(end, _)| end <= range.start);
        let mut at = range.start;
        let whole = all.map(|trusted| (range.end, trusted));
        whole.into_iter().chain(runs[first..].iter().copied()).map_while(move |(end, trusted)| {
            let piece = at..end.min(range.end);
            at = piece.end;
            (piece.start < piece.end).then_some((piece, trusted))
        })
    }

    /// The piece at `range`, which must lie on character borders.
    pub(super) fn slice(&self, range: Range<usize>) -> Text {
        if range == (0..self.chars.len()) {
            return self.clone();
        }
        let mut buf = TextBuf::default();
        buf.push_slice(self, range);
        buf.finish()
    }

    /// Characters with the byte at which each starts and its mark.
    pub(super) fn chars(&self) -> impl Iterator<Item = (usize, char, bool)> + '_ {
        self.runs(0..self.len()).flat_map(move |(range, trusted)| {
            let start = range.start;
            self.chars[range].char_indices().map(move |(i, c)| (start + i, c, trusted))
        })
    }

    /// The text with each character replaced by `map(character)`, which keeps its mark.
    pub(super) fn map_chars<I: Iterator<Item = char>>(&self, map: impl Fn(char) -> I) -> Text {
        let mut buf = TextBuf::default();
        for (_, c, trusted) in self.chars() {
            for mapped in map(c) {
                buf.push_char(mapped, trusted);
            }
        }
        buf.finish()
    }
}

/// A [`Text`] being built.
#[derive(Debug, Default)]
pub(super) struct TextBuf {
    chars: String,
    /// Runs `(end, trusted)`; the last end is the length of `chars`.
    runs: Vec<(usize, bool)>,
}

impl TextBuf {
    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.chars.len()
    }

    /// Appends `text` with its marks.
    pub(super) fn push(&mut self, text: &Text) {
        self.push_slice(text, 0..text.len());
    }

    /// Appends a piece of `text` with its marks.
    pub(super) fn push_slice(&mut self, text: &Text, range: Range<usize>) {
        self.chars.push_str(&text.chars[range.clone()]);
        let base = self.chars.len() - range.len();
        for (piece, trusted) in text.runs(range.clone()) {
            self.mark(base + piece.end - range.start, trusted);
        }
    }

    /// Appends what nobody wrote: untrusted.
    pub(super) fn push_plain(&mut self, text: &str) {
        self.push_marked(text, false);
    }

    /// Appends `text` made from something with this mark (an escape of one of its characters).
    pub(super) fn push_marked(&mut self, text: &str, trusted: bool) {
        self.chars.push_str(text);
        self.mark(self.chars.len(), trusted);
    }

    /// Appends a character made from one with this mark.
    pub(super) fn push_char(&mut self, c: char, trusted: bool) {
        self.chars.push(c);
        self.mark(self.chars.len(), trusted);
    }

    fn mark(&mut self, end: usize, trusted: bool) {
        match self.runs.last_mut() {
            Some(last) if last.1 == trusted => last.0 = end,
            Some(last) if last.0 == end => {}
            None if end == 0 => {}
            _ => self.runs.push((end, trusted)),
        }
    }

    /// The text built.
    pub(super) fn finish(self) -> Text {
        let marks = match self.runs.as_slice() {
            [] => Marks::All(false),
            [(_, trusted)] => Marks::All(*trusted),
            _ => Marks::Runs(self.runs.into()),
        };
        Text { chars: self.chars.into(), marks }
    }

    /// The string and its runs `(end, trusted)`.
    pub(super) fn into_parts(self) -> (String, Vec<(usize, bool)>) {
        (self.chars, self.runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_keep_their_marks() {
        let mut buf = TextBuf::default();
        buf.push(&Text::trusted("<a>"));
        buf.push(&Text::untrusted("bé"));
        buf.push(&Text::trusted(""));
        buf.push(&Text::untrusted("c"));
        buf.push(&Text::trusted("<d>"));
        let text = buf.finish();
        let runs: Vec<_> = text.runs(0..text.len()).collect();
        assert_eq!(runs, [(0..3, true), (3..7, false), (7..10, true)]);
        let runs: Vec<_> = text.runs(2..8).collect();
        assert_eq!(runs, [(2..3, true), (3..7, false), (7..8, true)]);
        assert_eq!(text.runs(4..4).count(), 0);
        let piece = text.slice(1..7);
        assert_eq!(piece.as_str(), "a>béc");
        assert_eq!(piece.runs(0..piece.len()).collect::<Vec<_>>(), [(0..2, true), (2..6, false)]);
        let chars: Vec<_> = piece.chars().map(|(_, c, trusted)| (c, trusted)).collect();
        assert_eq!(chars[1..3], [('>', true), ('b', false)]);
        assert!(!text.is_trusted() && text.slice(0..3).is_trusted() && text.slice(3..3).is_trusted());
    }
}
