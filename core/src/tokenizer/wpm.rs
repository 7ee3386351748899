//! Word pieces (BERT): words are normalised, then covered greedily by the longest pieces.
//!
//! Follows the tokenizer that the models were trained with: control characters vanish, punctuation and Chinese
//! characters are words of their own, accents are stripped where case is, a word that pieces can't cover, or of more
//! than [`MAX_WORD`] characters, is the unknown token.

use selvedge_gguf::Metadata;

use super::error::Error;
use super::unicode::{class, strip_accents};
use super::vocab::Vocab;
use crate::ids::TokenId;

/// Longest word that is cut into pieces, in characters.
const MAX_WORD: usize = 100;

/// The algorithm's settings.
pub(super) struct Wpm {
    lowercase: bool,
    strip_accents: bool,
}

impl Wpm {
    pub(super) fn new(metadata: &Metadata<'_>) -> Result<Self, Error> {
        let lowercase = metadata.bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
        let strip_accents = metadata.bool("tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lowercase);
        Ok(Self { lowercase, strip_accents })
    }

    /// Appends the tokens of a fragment.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, unk: Option<TokenId>, out: &mut Vec<TokenId>) {
        let mut word = Word { text: String::from(" "), n_char: 0 };
        for c in text.chars() {
            let k = class(c);
            let is_blank = matches!(c, '\t' | '\n' | '\r');
            if c == '\0' || c == char::REPLACEMENT_CHARACTER || (k.is_other() && !is_blank) {
                continue;
            }
            if k.is_space() {
                word.finish(vocab, unk, out);
            } else if k.is_punct() || c.is_ascii_punctuation() || is_chinese(c) {
                word.finish(vocab, unk, out);
                self.normalise(c, &mut word);
                word.finish(vocab, unk, out);
            } else {
                self.normalise(c, &mut word);
            }
        }
        word.finish(vocab, unk, out);
    }

    /// Appends what a character becomes; nothing for an accent that is stripped.
    fn normalise(&self, c: char, word: &mut Word) {
        let mut push = |c: char| match self.lowercase {
            true => c.to_lowercase().for_each(|c| word.push(c)),
            false => word.push(c),
        };
        match self.strip_accents {
            true => strip_accents(c, push),
            false => push(c),
        }
    }
}

/// The word being read, behind the space that marks a word's first piece.
struct Word {
    text: String,
    n_char: usize,
}

impl Word {
    fn push(&mut self, c: char) {
        self.n_char += 1;
        // A longer word is unknown whatever follows: no need to keep it.
        if self.n_char <= MAX_WORD {
            self.text.push(c);
        }
    }

    /// Appends the word's tokens and starts the next.
    fn finish(&mut self, vocab: &Vocab, unk: Option<TokenId>, out: &mut Vec<TokenId>) {
        if self.n_char > 0 {
            let start = out.len();
            let mut rest = self.text.as_bytes();
            while !rest.is_empty() && self.n_char <= MAX_WORD {
                let mut longest = None;
                vocab.each_prefix(rest, |id, len| longest = Some((id, len)));
                // A piece that ends within a character can't be followed by one that begins there.
                let Some((id, len)) = longest else { break };
                out.push(TokenId(id));
                rest = &rest[len..];
            }
            if !rest.is_empty() {
                out.truncate(start);
                out.extend(unk);
            }
        }
        self.text.truncate(1);
        self.n_char = 0;
    }
}

/// The blocks that the original tokenizer counts as Chinese, each character of which is a word.
fn is_chinese(c: char) -> bool {
    matches!(c,
        '\u{4E00}'..='\u{9FFF}' | '\u{3400}'..='\u{4DBF}' | '\u{20000}'..='\u{2A6DF}' | '\u{2A700}'..='\u{2B73F}'
        | '\u{2B740}'..='\u{2B81F}' | '\u{2B920}'..='\u{2CEAF}' | '\u{F900}'..='\u{FAFF}' | '\u{2F800}'..='\u{2FA1F}')
}
