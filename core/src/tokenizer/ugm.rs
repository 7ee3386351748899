//! Unigram model (T5): the text is normalised, then cut where the sum of the pieces' scores is greatest.

use selvedge_gguf::{Metadata, ValueType};

use super::KEY_CHARSMAP;
use super::error::Error;
use super::vocab::{MARKER, TokenType, Vocab, element_type};
use crate::ids::TokenId;

/// How much worse than the worst piece an unknown character is.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Longest replacement of the normaliser's table, in bytes: bounds what a text can grow to, below 32 bits of places. The
/// longest published one has 33.
const MAX_REPLACEMENT: usize = 48;

/// No token.
const NONE: u32 = u32::MAX;

/// The algorithm's own tables and settings.
pub(super) struct Ugm {
    charsmap: Charsmap,
    unknown_score: f32,
    add_space_prefix: bool,
    merge_spaces: bool,
}

/// The normaliser's table: a double array of prefixes, each leaf of which points at a replacement.
#[derive(Default)]
struct Charsmap {
    nodes: Vec<u32>,
    /// Replacements, each with a 0 behind it.
    replacements: Vec<u8>,
}

/// The table's bytes in the file: (nodes, replacements), checked.
fn read_charsmap(metadata: &Metadata<'_>) -> Result<Option<(Vec<u8>, usize)>, Error> {
    let Some(array) = metadata.array(KEY_CHARSMAP)? else { return Ok(None) };
    if !matches!(array.elem_type(), ValueType::U8 | ValueType::I8) {
        return Err(element_type(KEY_CHARSMAP, "bytes", array));
    }
    let bytes: Vec<u8> = array.i64s().into_iter().flatten().map(|v| v as u8).collect();
    if bytes.is_empty() {
        return Ok(None);
    }
    let damaged = |reason: String| Error::Charsmap { reason };
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else {
        return Err(damaged(format!("it has {} bytes, expected at least 4", bytes.len())));
    };
    let n_bytes = u32::from_le_bytes(*head) as usize;
    if !n_bytes.is_multiple_of(4) || n_bytes > rest.len() {
        return Err(damaged(format!("its nodes take {n_bytes} bytes of the {} that follow, expected whole words", rest.len())));
    }
    let replacements = &rest[n_bytes..];
    if let Some(found) = replacements.split(|&b| b == 0).map(<[u8]>::len).find(|&len| len > MAX_REPLACEMENT) {
        return Err(damaged(format!("a replacement has {found} bytes, expected at most {MAX_REPLACEMENT}")));
    }
    Ok(Some((bytes, 4 + n_bytes)))
}

impl Charsmap {
    fn read(metadata: &Metadata<'_>) -> Result<Self, Error> {
        let Some((bytes, split)) = read_charsmap(metadata)? else { return Ok(Self::default()) };
        let words = bytes[4..split].chunks_exact(4);
        let mut nodes = Vec::with_capacity(words.len());
        nodes.extend(words.map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])));
        Ok(Self { nodes, replacements: bytes[split..].into() })
    }

    /// The longest prefix of `text` that has a replacement: (its length, the replacement).
    ///
    /// A node is one word: bits 0 to 7 its byte, bit 8 whether a replacement hangs on it, bit 9 whether the offset in
    /// bits 10 to 30 counts 256ths. A child is at its parent's place xor the offset xor the byte. A step outside the
    /// table, which only a damaged one takes, ends the search.
    fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let offset = |node: u32| ((node >> 10) << ((node & (1 << 9)) >> 6)) as usize;
        let mut found = None;
        let mut at = offset(*self.nodes.first()?);
        for (i, &byte) in text.iter().enumerate() {
            at ^= usize::from(byte);
            let Some(&node) = self.nodes.get(at) else { break };
            if byte == 0 || node & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= offset(node);
            if node >> 8 & 1 == 1 {
                let leaf = self.nodes.get(at).map(|leaf| (leaf & !(1 << 31)) as usize);
                let replacement = leaf.and_then(|start| self.replacements.get(start..));
                let terminated = |r: &'_ [u8]| r.iter().position(|&b| b == 0);
                let replacement = replacement.and_then(|r| r.get(..terminated(r)?));
                found = replacement.map(|r| (i + 1, r)).or(found);
            }
        }
        found
    }
}

impl Ugm {
    pub(super) fn new(metadata: &Metadata<'_>, vocab: &Vocab, add_space_prefix: bool, merge_spaces: bool) -> Result<Self, Error> {
        let normal = (0..vocab.len() as u32).filter(|&id| vocab.token_type(id) == TokenType::Normal);
        let worst = normal.map(|id| vocab.score(id)).filter(|s| s.is_finite()).fold(f32::MAX, f32::min);
        let worst = if worst == f32::MAX { 0.0 } else { worst };
        Ok(Self { charsmap: Charsmap::read(metadata)?, unknown_score: worst - UNKNOWN_PENALTY, add_space_prefix, merge_spaces })
    }

    /// Bytes that [`Self::new`] will hold on the heap.
    pub(super) fn planned_bytes(metadata: &Metadata<'_>) -> Result<usize, Error> {
        Ok(read_charsmap(metadata)?.map_or(0, |(bytes, _)| bytes.len() - 4))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.charsmap.nodes.capacity() * size_of::<u32>() + self.charsmap.replacements.capacity()
    }

    /// Appends the tokens of a fragment. A step for each character, each at most the longest piece.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, unk: Option<TokenId>, out: &mut Vec<TokenId>) {
        let unk = unk.map_or(NONE, |id| id.0);
        let text = self.normalise(text);
        /// The best way to reach a place: its score, its last token, and where that begins.
        #[derive(Clone, Copy)]
        struct Best {
            score: f64,
            token: u32,
            from: u32,
        }
        let mut best = vec![Best { score: f64::NEG_INFINITY, token: unk, from: 0 }; text.len() + 1];
        best[0].score = 0.0;
        let improve = |best: &mut [Best], to: usize, with: Best| {
            if with.score > best[to].score {
                best[to] = with;
            }
        };
        for (at, c) in text.char_indices() {
            let (score, from) = (best[at].score, at as u32);
            let len = c.len_utf8();
            let mut covered = false;
            vocab.each_prefix(&text.as_bytes()[at..], |token, piece_len| {
                covered |= piece_len == len;
                let piece_score = f64::from(vocab.score(token).max(f32::MIN));
                improve(&mut best, at + piece_len, Best { score: score + piece_score, token, from });
            });
            if !covered {
                let score = score + f64::from(self.unknown_score);
                improve(&mut best, at + len, Best { score, token: unk, from });
            }
        }
        // Back from the end; a run of unknown characters is one unknown token.
        let start = out.len();
        let mut at = text.len();
        let mut after = None;
        while at > 0 {
            let Best { token, from, .. } = best[at];
            if !(token == unk && after == Some(unk)) && token != NONE {
                out.push(TokenId(token));
            }
            after = Some(token);
            at = from as usize;
        }
        out[start..].reverse();
    }

    /// The text as pieces spell it: characters replaced by the table, spaces merged and put before words as the file
    /// says.
    fn normalise(&self, text: &str) -> String {
        let mut out = Normalised { text: String::with_capacity(text.len() + 1), in_word: false, prefixed: false };
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let found = self.charsmap.longest(rest.as_bytes());
            // A prefix or a replacement that isn't whole characters comes from a damaged table.
            let replaced = found.and_then(|(len, with)| Some((rest.get(len..)?, std::str::from_utf8(with).ok()?)));
            let (after, piece) = replaced.unwrap_or_else(|| (&rest[c.len_utf8()..], &rest[..c.len_utf8()]));
            piece.chars().for_each(|c| out.push(c, self));
            rest = after;
        }
        out.text
    }
}

/// A text being normalised.
struct Normalised {
    text: String,
    in_word: bool,
    prefixed: bool,
}

impl Normalised {
    fn push(&mut self, c: char, ugm: &Ugm) {
        if c == ' ' {
            self.in_word = false;
            if !ugm.merge_spaces {
                self.text.push(' ');
            }
            return;
        }
        if !self.in_word {
            self.in_word = true;
            if ugm.merge_spaces || (ugm.add_space_prefix && !self.prefixed) {
                self.text.push(' ');
                self.prefixed = true;
            }
        }
        // A marker in the text can't be told from a space once it is a token.
        self.text.push(if MARKER.starts_with(c) { ' ' } else { c });
    }
}
