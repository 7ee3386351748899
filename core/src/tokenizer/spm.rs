//! Score-driven merging of characters (SentencePiece's BPE), with single bytes for what has no piece.

use std::collections::BinaryHeap;

use super::error::Warning;
use super::vocab::{MARKER, TokenType, Vocab};
use crate::ids::TokenId;

/// No neighbour.
const NONE: u32 = u32::MAX;

/// The algorithm's own tables.
pub(super) struct Spm {
    /// The token that expresses a byte, or [`NONE`].
    byte_ids: Box<[u32; 256]>,
}

/// A run of characters that stands for one token so far; `len` 0 once its left neighbour has taken it.
struct Symbol {
    start: u32,
    len: u32,
    prev: u32,
    next: u32,
}

/// Two neighbours that form a token. The largest is merged first: by score, then the leftmost.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    /// The score's order in the high half, the bit-inverted place of the left symbol in the low one.
    key: u64,
    /// Length of both together when the pair was found, to tell whether it is still there.
    len: u32,
}

impl Spm {
    pub(super) fn new(vocab: &Vocab, warnings: &mut Vec<Warning>) -> Self {
        let mut byte_ids = Box::new([NONE; 256]);
        for id in (0..vocab.len() as u32).filter(|&id| vocab.token_type(id) == TokenType::Byte) {
            if let [byte] = vocab.bytes(id) {
                let slot = &mut byte_ids[usize::from(*byte)];
                *slot = (*slot).min(id);
            }
        }
        for byte in 0..=u8::MAX {
            let slot = &mut byte_ids[usize::from(byte)];
            if *slot == NONE {
                *slot = vocab.find(&[byte]).unwrap_or(NONE);
            }
        }
        let count = byte_ids.iter().filter(|&&id| id == NONE).count();
        if count > 0 {
            warnings.push(Warning::BytesMissing { count });
        }
        Self { byte_ids }
    }

    /// Appends the tokens of a fragment. n log n in its length: each merge shortens the list of symbols by one and
    /// finds at most two new pairs; a pair's spelling is looked up only up to the longest token.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, prefix_space: bool, unk: Option<TokenId>, out: &mut Vec<TokenId>) {
        // A marker in the text can't be told from a space once it is a token, so it is one from the start.
        let rewritten;
        let text = if prefix_space || text.contains(MARKER) {
            rewritten = [if prefix_space { " " } else { "" }, &text.replace(MARKER, " ")].concat();
            rewritten.as_str()
        } else {
            text
        };
        let bytes = text.as_bytes();
        let mut symbols = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            let i = symbols.len() as u32;
            symbols.push(Symbol { start: start as u32, len: c.len_utf8() as u32, prev: i.wrapping_sub(1), next: i + 1 });
        }
        let Some(last) = symbols.last_mut() else { return };
        last.next = NONE;
        let spelling = |s: &Symbol, len: u32| &bytes[s.start as usize..(s.start + len) as usize];
        let pair = |symbols: &[Symbol], left: u32| -> Option<Pair> {
            let l = symbols.get(left as usize)?;
            let r = symbols.get(l.next as usize)?;
            let len = l.len + r.len;
            if len as usize > vocab.max_len() {
                return None;
            }
            let id = vocab.find(spelling(l, len))?;
            Some(Pair { key: u64::from(ordered(vocab.score(id))) << 32 | u64::from(!left), len })
        };
        let mut heap = Vec::with_capacity(symbols.len());
        heap.extend((0..symbols.len() as u32).filter_map(|left| pair(&symbols, left)));
        let mut heap = BinaryHeap::from(heap);
        while let Some(Pair { key, len }) = heap.pop() {
            let left = !(key as u32);
            let (l_len, right) = (symbols[left as usize].len, symbols[left as usize].next);
            let Some(r) = symbols.get_mut(right as usize).filter(|r| l_len != 0 && l_len + r.len == len) else {
                continue;
            };
            r.len = 0;
            let after = r.next;
            let l = &mut symbols[left as usize];
            l.len = len;
            l.next = after;
            let before = l.prev;
            if let Some(after) = symbols.get_mut(after as usize) {
                after.prev = left;
            }
            heap.extend(pair(&symbols, before));
            heap.extend(pair(&symbols, left));
        }
        let mut at = 0;
        while let Some(symbol) = symbols.get(at as usize) {
            let piece = spelling(symbol, symbol.len);
            match vocab.find(piece) {
                Some(id) => out.push(TokenId(id)),
                None => self.spell(piece, unk, out),
            }
            at = symbol.next;
        }
    }

    /// A character without a piece: its bytes, or the unknown token once where a byte has none.
    fn spell(&self, piece: &[u8], unk: Option<TokenId>, out: &mut Vec<TokenId>) {
        let id = |byte: &u8| self.byte_ids[usize::from(*byte)];
        if piece.iter().all(|byte| id(byte) != NONE) {
            out.extend(piece.iter().map(|byte| TokenId(id(byte))));
        } else {
            out.extend(unk);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.byte_ids)
    }
}

/// An integer in the order of the number; no score is NaN.
fn ordered(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}
