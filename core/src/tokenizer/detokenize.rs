//! Tokens back to text, one at a time: no character is split and no byte is lost.

use super::vocab::TokenType;
use super::{Kind, Tokenizer};
use crate::ids::TokenId;

/// Turns tokens into text as they come.
///
/// Bytes that may be the start of a character are held until it is whole. Bytes that can't become one are given out at
/// once as U+FFFD, one for each maximal part, as `String::from_utf8_lossy` does. Holds at most 3 bytes and never
/// allocates, but for the text that it is given to append to.
///
/// A plain value: cloning it forks the stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detokenizer {
    held: [u8; 4],
    n_held: usize,
    /// The next text token loses its leading space: it is the one that encoding adds.
    at_start: bool,
    render_special: bool,
}

impl Detokenizer {
    /// For tokens that begin a text: the space that encoding puts before a text, where it does, is taken away.
    pub fn new() -> Self {
        Self { at_start: true, ..Self::default() }
    }

    /// For tokens that follow `last`: a leading space belongs to the text, unless `last` is a special token, after which
    /// encoding puts a space as it does before a text. `None` for an empty context.
    pub fn after(tokenizer: &Tokenizer, last: Option<TokenId>) -> Self {
        let at_start = last.is_none_or(|id| tokenizer.token_type(id).is_special());
        Self { at_start, ..Self::default() }
    }

    /// Whether control and unknown tokens are written out as they are spelled; by default they give no text.
    #[must_use]
    pub fn render_special(mut self, render: bool) -> Self {
        self.render_special = render;
        self
    }

    /// Bytes of an unfinished character that are held back, 0 to 3.
    pub fn n_held(&self) -> usize {
        self.n_held
    }

    /// Appends what a token adds to the text; an id outside the vocabulary adds nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: TokenId, out: &mut String) {
        let mut bytes = tokenizer.piece(id, self.render_special);
        if tokenizer.pads_with_space() {
            if tokenizer.token_type(id).is_special() {
                self.at_start = true;
            } else {
                if self.at_start && tokenizer.token_type(id) != TokenType::Byte {
                    bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
                }
                self.at_start = false;
            }
        }
        self.push_bytes(bytes, out);
    }

    /// Appends bytes to the text.
    pub fn push_bytes(&mut self, mut bytes: &[u8], out: &mut String) {
        while self.n_held > 0 {
            let Some((&byte, rest)) = bytes.split_first() else { return };
            self.held[self.n_held] = byte;
            match std::str::from_utf8(&self.held[..=self.n_held]) {
                Ok(whole) => out.push_str(whole),
                Err(e) if e.error_len().is_none() => {
                    self.n_held += 1;
                    bytes = rest;
                    continue;
                }
                Err(_) => {
                    // What was held was a maximal part; the new byte begins anew.
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.n_held = 0;
                    continue;
                }
            }
            self.n_held = 0;
            bytes = rest;
        }
        for chunk in bytes.utf8_chunks() {
            out.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            // An incomplete character can only be the last chunk.
            let ends_here = std::ptr::eq(invalid.as_ptr_range().end, bytes.as_ptr_range().end);
            if ends_here && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none()) {
                self.held[..invalid.len()].copy_from_slice(invalid);
                self.n_held = invalid.len();
            } else {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    /// Ends the text: what is held becomes one U+FFFD. The state is then as after [`Self::new`].
    pub fn finish(&mut self, out: &mut String) {
        if self.n_held > 0 {
            out.push(char::REPLACEMENT_CHARACTER);
        }
        *self = Self { render_special: self.render_special, ..Self::new() };
    }
}

impl Tokenizer {
    /// The text of a whole sequence; control and unknown tokens give text only where `render_special` is set.
    pub fn decode(&self, ids: &[TokenId], render_special: bool) -> String {
        let mut out = String::new();
        let mut detokenizer = Detokenizer::new().render_special(render_special);
        ids.iter().for_each(|&id| detokenizer.push(self, id, &mut out));
        detokenizer.finish(&mut out);
        out
    }

    /// Whether encoding puts a space before a text, which decoding takes away.
    fn pads_with_space(&self) -> bool {
        match &self.kind {
            Kind::Spm(_) => self.add_space_prefix,
            Kind::Bpe(_) => false,
            Kind::Wpm(_) => true,
            Kind::Ugm(_) => self.add_space_prefix || self.merge_spaces,
        }
    }
}
