//! Byte-level byte pair encoding: words of a pre-tokenizer, whose bytes are merged by rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use selvedge_gguf::{Array, Metadata};

use super::error::{Error, Warning};
use super::pre::PreTokenizer;
use super::vocab::{Index, TokenType, Vocab, decode_byte_level, element_type};
use super::{KEY_MERGES, Scratch, in_halves};
use crate::ids::TokenId;

/// No neighbour, no token.
const NONE: u32 = u32::MAX;

/// Bits of an id where three share a word; `MAX_TOKENS` needs no more.
const ID_BITS: u32 = 21;

/// Most merges of a vocabulary.
const MAX_MERGES: usize = 1 << 24;

/// Words of up to this many bytes are merged by scanning for the best pair, which needs no heap.
const SCAN_MAX: usize = 32;

/// The algorithm's own tables.
pub(super) struct Bpe {
    pub(super) pre: &'static PreTokenizer,
    /// The token of each single byte, or [`NONE`].
    byte_ids: Box<[u32; 256]>,
    merges: Merges,
}

/// Merges by the tokens that they join.
struct Merges {
    /// By rank, lowest first: left << 42 | right << 21 | result.
    packed: Vec<u64>,
    index: Index,
}

impl Merges {
    fn new(metadata: &Metadata<'_>, vocab: &Vocab, warnings: &mut Vec<Warning>) -> Result<Self, Error> {
        let merges = merges(metadata)?;
        let mut packed: Vec<u64> = Vec::with_capacity(merges.len());
        let mut index = Index::new(merges.len());
        let mut n_ignored = 0;
        let take = |entries: Vec<Option<u64>>| {
            for entry in entries {
                // A pair that occurs twice keeps its first, better rank.
                let Some(entry) = entry else {
                    n_ignored += 1;
                    continue;
                };
                let same = |rank: u32| packed[rank as usize] >> ID_BITS == entry >> ID_BITS;
                if index.insert_hash(packed.len() as u32, entry >> ID_BITS, same) {
                    packed.push(entry);
                }
            }
        };
        // Looking tokens up for each merge is most of what opening a large vocabulary takes.
        in_halves(merges.len(), |range| look_up(merges, range, vocab), take);
        if n_ignored > 0 {
            warnings.push(Warning::MergesIgnored { count: n_ignored });
        }
        Ok(Self { packed, index })
    }

    /// Rank of the merge of two tokens.
    fn rank(&self, left: u32, right: u32) -> Option<u32> {
        if left == NONE || right == NONE {
            return None;
        }
        let key = u64::from(left) << ID_BITS | u64::from(right);
        self.index.find_hash(key, |rank| self.packed[rank as usize] >> ID_BITS == key)
    }

    /// (left, right, result) of a merge.
    fn at(&self, rank: u32) -> (u32, u32, u32) {
        let entry = self.packed[rank as usize];
        let id = |shift: u32| (entry >> shift) as u32 & ((1 << ID_BITS) - 1);
        (id(2 * ID_BITS), id(ID_BITS), id(0))
    }
}

/// The file's merges.
fn merges<'a>(metadata: &Metadata<'a>) -> Result<selvedge_gguf::Array<'a>, Error> {
    let why = "byte-level BPE can't be done without them";
    let merges = metadata.array(KEY_MERGES)?.ok_or(Error::KeyMissing { key: KEY_MERGES, why })?;
    if merges.strings().is_none() {
        return Err(element_type(KEY_MERGES, "string", merges));
    }
    if merges.len() > MAX_MERGES {
        return Err(Error::TooLarge { what: "`tokenizer.ggml.merges`", found: merges.len(), max: MAX_MERGES });
    }
    Ok(merges)
}

/// Merges whose halves are looked up at once.
const AT_ONCE: usize = 8;

/// The packed tokens of some of the merges; `None` where one isn't in the vocabulary.
fn look_up(merges: Array<'_>, range: Range<usize>, vocab: &Vocab) -> Vec<Option<u64>> {
    let Some(all) = merges.strings() else { return Vec::new() };
    let mut all = all.skip(range.start).take(range.len());
    let mut found = Vec::with_capacity(range.len());
    let mut spelling = Vec::new();
    // Training numbers a merge's result in the order of merges: after one token comes the next.
    let mut guess = 0;
    while found.len() < range.len() {
        spelling.clear();
        let mut n = 0;
        // Where each merge's spelling starts, is cut and ends; nothing where it can't be split.
        let cuts: [[usize; 3]; AT_ONCE] = std::array::from_fn(|_| match all.next() {
            None => [spelling.len(); 3],
            Some(merge) => {
                n += 1;
                split(merge, &mut spelling)
            }
        });
        let halves: [&[u8]; 2 * AT_ONCE] = std::array::from_fn(|i| &spelling[cuts[i / 2][i % 2]..cuts[i / 2][i % 2 + 1]]);
        let halves = vocab.find_each(halves);
        found.extend((0..n).map(|i| {
            let result = vocab.find_near(guess, &spelling[cuts[i][0]..cuts[i][2]])?;
            guess = result + 1;
            Some(u64::from(halves[2 * i]?) << (2 * ID_BITS) | u64::from(halves[2 * i + 1]?) << ID_BITS | u64::from(result))
        }));
        if n == 0 {
            break;
        }
    }
    found
}

/// Appends the bytes of a merge that is spelled `left right`: where they start, are cut and end.
fn split(merge: &[u8], spelling: &mut Vec<u8>) -> [usize; 3] {
    let start = spelling.len();
    let whole = merge.iter().skip(1).position(|&b| b == b' ').and_then(|space| {
        let left_ok = decode_byte_level(&merge[..=space], spelling);
        let middle = spelling.len();
        (left_ok && decode_byte_level(&merge[space + 2..], spelling)).then_some([start, middle, spelling.len()])
    });
    whole.unwrap_or_else(|| {
        spelling.truncate(start);
        [start; 3]
    })
}

/// A token in a word that is being merged; `id` is [`NONE`] too once its left neighbour has taken it.
pub(super) struct Symbol {
    id: u32,
    prev: u32,
    next: u32,
}

impl Bpe {
    pub(super) fn new(
        metadata: &Metadata<'_>,
        vocab: &Vocab,
        pre: &'static PreTokenizer,
        warnings: &mut Vec<Warning>,
    ) -> Result<Self, Error> {
        let mut byte_ids = Box::new([NONE; 256]);
        for byte in 0..=u8::MAX {
            byte_ids[usize::from(byte)] = vocab.find(&[byte]).unwrap_or(NONE);
        }
        // Bytes that no UTF-8 text contains (0xC0, 0xC1, 0xF5 and above) aren't missed.
        let in_text = |byte: &usize| !matches!(byte, 0xC0 | 0xC1 | 0xF5..);
        let count = (0..256).filter(in_text).filter(|&byte| byte_ids[byte] == NONE).count();
        if count > 0 {
            warnings.push(Warning::BytesMissing { count });
        }
        Ok(Self { pre, byte_ids, merges: Merges::new(metadata, vocab, warnings)? })
    }

    /// Bytes that [`Self::new`] will hold on the heap.
    pub(super) fn planned_bytes(metadata: &Metadata<'_>) -> Result<usize, Error> {
        let n = merges(metadata)?.len();
        Ok(n * size_of::<u64>() + Index::n_slot(n) * size_of::<u32>() + size_of::<[u32; 256]>())
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.merges.packed.capacity() * size_of::<u64>() + self.merges.index.heap_bytes() + size_of_val(&*self.byte_ids)
    }

    /// Appends the tokens of a fragment.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, unk: Option<TokenId>, scratch: &mut Scratch, out: &mut Vec<TokenId>) {
        // The unknown token of a byte-level vocabulary is often its end of text: a text must not be able to write that.
        let unk = unk.filter(|id| vocab.token_type(id.0) == TokenType::Unknown).map_or(NONE, |id| id.0);
        self.pre.split(text, &mut |word| self.encode_word(vocab, word.as_bytes(), unk, scratch, out));
    }

    fn encode_word(&self, vocab: &Vocab, word: &[u8], unk: u32, scratch: &mut Scratch, out: &mut Vec<TokenId>) {
        let may_be_whole = self.pre.ignore_merges && word.len() <= vocab.max_len();
        if let Some(id) = may_be_whole.then(|| vocab.find(word)).flatten() {
            return out.push(TokenId(id));
        }
        let ids = &mut scratch.ids;
        ids.clear();
        ids.extend(word.iter().map(|&byte| self.byte_ids[usize::from(byte)]));
        if ids.len() <= SCAN_MAX {
            self.merge_by_scan(ids);
        } else {
            self.merge_by_heap(ids, &mut scratch.symbols, &mut scratch.heap);
        }
        out.extend(ids.iter().map(|&id| if id == NONE { unk } else { id }).filter(|&id| id != NONE).map(TokenId));
    }

    /// Merges the pair of the lowest rank, the leftmost of equals, until none is left. Quadratic: short words only.
    fn merge_by_scan(&self, ids: &mut Vec<u32>) {
        let mut ranks = [NONE; SCAN_MAX];
        let rank = |ids: &[u32], i: usize| match (ids.get(i), ids.get(i + 1)) {
            (Some(&l), Some(&r)) => self.merges.rank(l, r).unwrap_or(NONE),
            _ => NONE,
        };
        for (i, slot) in ranks[..ids.len()].iter_mut().enumerate() {
            *slot = rank(ids, i);
        }
        loop {
            let n = ids.len();
            let Some((i, &best)) = ranks[..n].iter().enumerate().min_by_key(|&(_, rank)| rank) else { return };
            if best == NONE {
                return;
            }
            ids[i] = self.merges.at(best).2;
            ids.remove(i + 1);
            ranks.copy_within(i + 2..n, i + 1);
            ranks[i] = rank(ids, i);
            if let Some(before) = i.checked_sub(1) {
                ranks[before] = rank(ids, before);
            }
        }
    }

    /// The same in n log n: each merge removes a symbol and finds at most two new pairs.
    fn merge_by_heap(&self, ids: &mut Vec<u32>, symbols: &mut Vec<Symbol>, heap: &mut BinaryHeap<Reverse<u64>>) {
        symbols.clear();
        heap.clear();
        symbols.extend(ids.iter().zip(0u32..).map(|(&id, i)| Symbol { id, prev: i.wrapping_sub(1), next: i + 1 }));
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let pair = |symbols: &[Symbol], left: u32| -> Option<Reverse<u64>> {
            let l = symbols.get(left as usize)?;
            let rank = self.merges.rank(l.id, symbols.get(l.next as usize)?.id)?;
            Some(Reverse(u64::from(rank) << 32 | u64::from(left)))
        };
        heap.extend((0..symbols.len() as u32).filter_map(|left| pair(symbols, left)));
        while let Some(Reverse(key)) = heap.pop() {
            let left = key as u32;
            let (l_id, r_id, result) = self.merges.at((key >> 32) as u32);
            let right = symbols[left as usize].next;
            let still_there = symbols[left as usize].id == l_id && symbols.get(right as usize).is_some_and(|r| r.id == r_id);
            if !still_there {
                continue;
            }
            let after = symbols[right as usize].next;
            symbols[right as usize].id = NONE;
            symbols[left as usize].id = result;
            symbols[left as usize].next = after;
            if let Some(after) = symbols.get_mut(after as usize) {
                after.prev = left;
            }
            heap.extend(pair(symbols, symbols[left as usize].prev));
            heap.extend(pair(symbols, left));
        }
        ids.clear();
        let mut at = 0;
        while let Some(symbol) = symbols.get(at as usize) {
            ids.push(symbol.id);
            at = symbol.next;
        }
    }
}
