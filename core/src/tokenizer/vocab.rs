//! Token spellings and how they are found: one blob of bytes, one table of offsets, one compact index.
//!
//! A token is stored as the bytes that it stands for: `▁` of the score and piece models is a space, the printable
//! stand-ins of byte-level models are their bytes, `<0x0A>` is a line feed. So decoding is a slice, and a text is
//! looked up without being rewritten.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;

use selvedge_gguf::{Array, Metadata};

use super::error::{Error, Warning};
use super::special;
use super::{KEY_SCORES, KEY_TOKENS, KEY_TYPES, in_halves};
use crate::ids::TokenId;

/// Longest piece that piece models match, in bytes: bounds their time at this many steps a byte. Published
/// vocabularies stay under 100.
pub(super) const MAX_PIECE: usize = 256;

/// Most tokens of a vocabulary: leaves the index 3 bits and more of a slot to tell spellings apart, and a merge three
/// ids in one word.
pub(super) const MAX_TOKENS: usize = 1 << 21;

/// Most bytes of all spellings together: offsets have 32 bits.
const MAX_SPELLING: usize = u32::MAX as usize;

/// The word marker of score and piece models.
pub(super) const MARKER: &str = "▁";

/// What a token is for, as `tokenizer.ggml.token_type` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TokenType {
    /// A piece of text. Also the type of tokens whose number isn't known.
    Normal = 1,
    /// Stands for what can't be spelled.
    Unknown = 2,
    /// Has a meaning for the model and no text; never made from untrusted text.
    Control = 3,
    /// A word that is found in any text before it is split.
    UserDefined = 4,
    /// A piece that training left out; treated like a normal one.
    Unused = 5,
    /// One byte, for what has no piece.
    Byte = 6,
}

impl TokenType {
    fn from_id(id: i64) -> Self {
        match id {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }

    /// Whether it is cut out of a text before the text is split: only where trusted, but for user-defined ones.
    pub(super) fn is_special(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }
}

/// How the file spells its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// UTF-8 with [`MARKER`] for a space.
    Marker,
    /// A printable character for each byte.
    ByteLevel,
}

/// How a spelling is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LookupKind {
    /// Whole spellings, by hash.
    Hash,
    /// Prefixes, in the sorted list of tokens.
    Sorted,
}

/// The vocabulary's arrays in the file, checked against each other.
pub(super) struct Source<'a> {
    pub(super) n_vocab: usize,
    pub(super) spelling: Spelling,
    pub(super) lookup: LookupKind,
    pub(super) keep_scores: bool,
    tokens: Array<'a>,
    types: Option<Array<'a>>,
    pub(super) scores: Option<Array<'a>>,
    /// Ids that are control tokens though no type says so: those that the file's keys name, where it has no types.
    named: Vec<u32>,
}

impl<'a> Source<'a> {
    pub(super) fn read(metadata: &Metadata<'a>, spelling: Spelling, lookup: LookupKind, keep_scores: bool) -> Result<Self, Error> {
        let tokens = metadata
            .array(KEY_TOKENS)?
            .ok_or(Error::KeyMissing { key: KEY_TOKENS, why: "without its tokens the vocabulary can't be used" })?;
        if tokens.strings().is_none() {
            return Err(element_type(KEY_TOKENS, "string", tokens));
        }
        let n_vocab = tokens.len();
        if n_vocab == 0 {
            return Err(Error::EmptyVocabulary);
        }
        if n_vocab > MAX_TOKENS {
            return Err(Error::TooLarge { what: "the vocabulary", found: n_vocab, max: MAX_TOKENS });
        }
        let long_enough = |key, array: Option<Array<'a>>| match array {
            Some(array) if array.len() < n_vocab => Err(Error::ShortArray { key, expected: n_vocab, found: array.len() }),
            array => Ok(array),
        };
        let types = long_enough(KEY_TYPES, metadata.array(KEY_TYPES)?)?;
        if let Some(types) = types.filter(|t| t.i64s().is_none()) {
            return Err(element_type(KEY_TYPES, "integers", types));
        }
        let scores = long_enough(KEY_SCORES, metadata.array(KEY_SCORES)?)?;
        if let Some(scores) = scores.filter(|s| s.f32s().is_none() && s.i64s().is_none()) {
            return Err(element_type(KEY_SCORES, "numbers", scores));
        }
        let named = match types {
            Some(_) => Vec::new(),
            None => special::named_ids(metadata, n_vocab),
        };
        Ok(Self { n_vocab, spelling, lookup, keep_scores, tokens, types, scores, named })
    }

    /// Some tokens as the file spells them, with the type that each is given and whether that isn't the file's.
    fn each(&self, ids: Range<usize>) -> impl Iterator<Item = (&'a [u8], TokenType, bool)> + '_ {
        let mut types = self.types.as_ref().and_then(|t| t.i64s()).map(|types| types.skip(ids.start));
        let mut spellings = self.tokens.strings().map(|spellings| spellings.skip(ids.start));
        ids.map_while(move |id| {
            let raw = spellings.as_mut()?.next()?;
            let declared = match &mut types {
                Some(types) => TokenType::from_id(types.next().unwrap_or(1)),
                None if self.named.contains(&(id as u32)) => TokenType::Control,
                None => TokenType::Normal,
            };
            let changed = declared != TokenType::Control && special::is_certain_turn_end(raw);
            Some((raw, if changed { TokenType::Control } else { declared }, changed))
        })
    }

    /// Bytes that [`Vocab::build`] will hold on the heap, and what the special tokens need: (vocabulary, matcher).
    pub(super) fn measure(&self) -> (usize, usize) {
        let count = |ids: Range<usize>| {
            let mut blob = Vec::new();
            let (mut blob_len, mut n_findable) = (0, 0);
            let mut specials = special::Census::default();
            for (raw, ty, _) in self.each(ids) {
                blob.clear();
                n_findable += usize::from(store(self.spelling, ty, raw, &mut blob) && blob.len() <= MAX_PIECE);
                blob_len += blob.len();
                if ty.is_special() {
                    specials.count(&blob);
                }
            }
            (blob_len, n_findable, specials)
        };
        let (mut blob_len, mut n_findable) = (0, 0);
        let mut specials = special::Census::default();
        in_halves(self.n_vocab, count, |counted| {
            blob_len += counted.0;
            n_findable += counted.1;
            specials.merge(counted.2);
        });
        let n = self.n_vocab;
        let lookup = match self.lookup {
            LookupKind::Hash => Index::n_slot(n) * size_of::<u32>(),
            LookupKind::Sorted => n_findable * size_of::<u32>() + size_of::<[u32; 257]>(),
        };
        let scores = if self.keep_scores { n * size_of::<f32>() } else { 0 };
        (blob_len + (n + 1) * size_of::<u32>() + n + scores + lookup, specials.heap_bytes())
    }
}

/// The error for an array of the wrong elements.
pub(super) fn element_type(key: &'static str, expected: &'static str, array: Array<'_>) -> Error {
    Error::ElementType { key, expected, found: array.elem_type().to_string() }
}

/// Appends the bytes that a token stands for. Returns whether splitting a text may make it.
fn store(spelling: Spelling, ty: TokenType, raw: &[u8], out: &mut Vec<u8>) -> bool {
    match ty {
        TokenType::Byte => {
            match byte_of(raw) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(raw),
            }
            false
        }
        TokenType::Unknown | TokenType::Control | TokenType::UserDefined => {
            out.extend_from_slice(raw);
            false
        }
        TokenType::Normal | TokenType::Unused => match spelling {
            Spelling::Marker => {
                let marker = MARKER.as_bytes();
                let mut rest = raw;
                while let Some(after) = rest.strip_prefix(marker) {
                    out.push(b' ');
                    rest = after;
                }
                // Without a branch a byte: few spellings have a marker further on, or a space.
                let (more, space) = rest.iter().fold((false, false), |(m, s), &b| (m | (b == marker[0]), s | (b == b' ')));
                while more && let Some(at) = rest.windows(marker.len()).position(|window| window == marker) {
                    out.extend_from_slice(&rest[..at]);
                    out.push(b' ');
                    rest = &rest[at + marker.len()..];
                }
                out.extend_from_slice(rest);
                // A text has no spaces when it is looked up, only markers: a piece with a space is never found.
                !raw.is_empty() && !space
            }
            Spelling::ByteLevel => {
                let start = out.len();
                let whole = decode_byte_level(raw, out);
                if !whole {
                    out.truncate(start);
                    out.extend_from_slice(raw);
                }
                whole && !raw.is_empty()
            }
        },
    }
}

/// The byte that a token like `<0x0A>` stands for.
fn byte_of(raw: &[u8]) -> Option<u8> {
    let hex = raw.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let hex = std::str::from_utf8(hex).ok().filter(|h| h.len() == 2)?;
    u8::from_str_radix(hex, 16).ok()
}

/// The byte behind a printable character of byte-level vocabularies: printable Latin-1 stands for itself, the other
/// 68 bytes follow in order from U+0100.
const fn byte_level_table() -> [Option<u8>; 0x144] {
    let mut table = [None; 0x144];
    let mut next = 0x100;
    let mut byte = 0;
    while byte < 256 {
        let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        if printable {
            table[byte] = Some(byte as u8);
        } else {
            table[next] = Some(byte as u8);
            next += 1;
        }
        byte += 1;
    }
    table
}

/// Decodes a byte-level spelling; false, with part of it appended, when a character stands for no byte.
pub(super) fn decode_byte_level(raw: &[u8], out: &mut Vec<u8>) -> bool {
    static BYTES: [Option<u8>; 0x144] = byte_level_table();
    let start = out.len();
    // No character stands for more bytes than it takes.
    out.resize(start + raw.len(), 0);
    let (mut at, mut end) = (0, start);
    while let Some(&first) = raw.get(at) {
        // Every stand-in lies below U+0144: one or two bytes of UTF-8.
        let (byte, len) = match (first, raw.get(at + 1)) {
            (0x21..=0x7E, _) => (Some(first), 1),
            (0xC2..0xE0, Some(&second @ 0x80..0xC0)) => {
                (BYTES.get(usize::from(first & 0x1F) << 6 | usize::from(second & 0x3F)).copied().flatten(), 2)
            }
            _ => (None, 1),
        };
        let Some(byte) = byte else {
            out.truncate(end);
            return false;
        };
        out[end] = byte;
        at += len;
        end += 1;
    }
    out.truncate(end);
    true
}

/// Spellings, types and scores of all tokens.
pub(super) struct Vocab {
    blob: Box<[u8]>,
    /// Token `i` is `blob[starts[i]..starts[i + 1]]`.
    starts: Box<[u32]>,
    /// [`TokenType`] in the low bits, [`STRIP_LEFT`], [`STRIP_RIGHT`] and [`FOUND`] above.
    attributes: Box<[u8]>,
    /// Empty where the algorithm has no use for them.
    scores: Box<[f32]>,
    lookup: Lookup,
    max_len: usize,
}

/// Tokens with consecutive ids, while a vocabulary is read.
#[derive(Default)]
struct Spellings {
    blob: Vec<u8>,
    starts: Vec<u32>,
    attributes: Vec<u8>,
    max_len: usize,
    /// Pieces too long to be found.
    n_long: usize,
    /// Tokens that end a turn though the file doesn't call them control tokens.
    turn_ends: Vec<TokenId>,
}

impl Spellings {
    fn read(source: &Source<'_>, ids: Range<usize>) -> Result<Self, Error> {
        let mut part = Self::default();
        part.blob.reserve(8 * ids.len());
        part.starts.reserve_exact(ids.len() + 1);
        part.attributes.reserve_exact(ids.len());
        for (id, (raw, ty, changed)) in ids.clone().zip(source.each(ids)) {
            let start = part.blob.len();
            check_spelling(start.saturating_add(raw.len()))?;
            if changed {
                part.turn_ends.push(TokenId(id as u32));
            }
            part.starts.push(start as u32);
            let findable = store(source.spelling, ty, raw, &mut part.blob);
            let len = part.blob.len() - start;
            let too_long = findable && source.lookup == LookupKind::Sorted && len > MAX_PIECE;
            part.n_long += usize::from(too_long);
            let found = findable && !too_long;
            if found {
                part.max_len = part.max_len.max(len);
            }
            part.attributes.push(ty as u8 | if found { FOUND } else { 0 });
        }
        Ok(part)
    }

    /// Adds the tokens that follow.
    fn append(&mut self, next: Self) -> Result<(), Error> {
        if self.starts.is_empty() {
            *self = next;
            return Ok(());
        }
        let start = self.blob.len();
        check_spelling(start.saturating_add(next.blob.len()))?;
        self.blob.extend_from_slice(&next.blob);
        self.starts.reserve_exact(next.starts.len() + 1);
        self.starts.extend(next.starts.into_iter().map(|at| at + start as u32));
        self.attributes.extend_from_slice(&next.attributes);
        self.max_len = self.max_len.max(next.max_len);
        self.n_long += next.n_long;
        self.turn_ends.extend(next.turn_ends);
        Ok(())
    }
}

/// Refuses spellings that are too long altogether.
fn check_spelling(found: usize) -> Result<(), Error> {
    if found < MAX_SPELLING {
        return Ok(());
    }
    Err(Error::TooLarge { what: "the spelling of all tokens", found, max: MAX_SPELLING })
}

enum Lookup {
    Hash(Index),
    Sorted(Sorted),
}

/// Attribute: white space left of the token belongs to it.
pub(super) const STRIP_LEFT: u8 = 0x10;
/// Attribute: white space right of the token belongs to it.
pub(super) const STRIP_RIGHT: u8 = 0x20;
/// Attribute: [`Vocab::find`] gives this token for its spelling.
const FOUND: u8 = 0x40;

impl Vocab {
    pub(super) fn build(source: &Source<'_>, warnings: &mut Vec<Warning>) -> Result<Self, Error> {
        let n = source.n_vocab;
        let mut all = Ok(Spellings::default());
        in_halves(
            n,
            |ids| Spellings::read(source, ids),
            |part| {
                if let Ok(whole) = &mut all
                    && let Err(e) = part.and_then(|part| whole.append(part))
                {
                    all = Err(e);
                }
            },
        );
        let Spellings { blob, mut starts, attributes, max_len, n_long, turn_ends } = all?;
        starts.push(blob.len() as u32);
        warnings.extend(turn_ends.into_iter().map(|id| Warning::TurnEndNotControl { id }));
        if n_long > 0 {
            warnings.push(Warning::LongPieces { count: n_long, max: MAX_PIECE });
        }
        let scores = match (source.keep_scores, source.scores) {
            (false, _) => Vec::new(),
            (true, None) => {
                warnings.push(Warning::ScoresMissing);
                vec![0.0; n]
            }
            (true, Some(scores)) => {
                let mut kept = Vec::with_capacity(n);
                // A score that isn't a number loses against every other; -0 equals 0.
                let tidy = |s: f32| if s.is_nan() { f32::NEG_INFINITY } else { s + 0.0 };
                kept.extend(scores.f32s().into_iter().flatten().take(n).map(tidy));
                kept.extend(scores.i64s().into_iter().flatten().take(n).map(|s| s as f32));
                kept
            }
        };
        let mut vocab = Self {
            blob: blob.into_boxed_slice(),
            starts: starts.into_boxed_slice(),
            attributes: attributes.into_boxed_slice(),
            scores: scores.into_boxed_slice(),
            lookup: Lookup::Sorted(Sorted::default()),
            max_len,
        };
        let ids = (0..n as u32).filter(|&id| vocab.has(id, FOUND));
        let mut duplicates = Vec::new();
        vocab.lookup = match source.lookup {
            LookupKind::Hash => {
                let mut index = Index::new(n);
                index.insert_each(ids, |id| vocab.bytes(id), &mut duplicates);
                Lookup::Hash(index)
            }
            LookupKind::Sorted => Lookup::Sorted(Sorted::new(ids, n, &vocab, &mut duplicates)),
        };
        for &id in &duplicates {
            vocab.attributes[id as usize] &= !FOUND;
        }
        if !duplicates.is_empty() {
            warnings.push(Warning::Duplicates { count: duplicates.len() });
        }
        Ok(vocab)
    }

    pub(super) fn len(&self) -> usize {
        self.attributes.len()
    }

    /// The bytes that a token stands for; empty for an id outside the vocabulary.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match (self.starts.get(id), self.starts.get(id + 1)) {
            (Some(&start), Some(&end)) => &self.blob[start as usize..end as usize],
            _ => &[],
        }
    }

    /// The type of a token; [`TokenType::Normal`] for an id outside the vocabulary.
    pub(super) fn token_type(&self, id: u32) -> TokenType {
        TokenType::from_id(i64::from(self.attributes.get(id as usize).map_or(1, |a| a & 0x0F)))
    }

    pub(super) fn has(&self, id: u32, attribute: u8) -> bool {
        self.attributes.get(id as usize).is_some_and(|a| a & attribute != 0)
    }

    pub(super) fn set(&mut self, id: u32, attribute: u8) {
        if let Some(a) = self.attributes.get_mut(id as usize) {
            *a |= attribute;
        }
    }

    /// The score of a token; 0 where scores aren't kept.
    pub(super) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    /// Length of the longest token that [`Self::find`] can find, in bytes.
    pub(super) fn max_len(&self) -> usize {
        self.max_len
    }

    /// The lowest id of a token that splitting may make and that stands for these bytes.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<u32> {
        match &self.lookup {
            Lookup::Hash(index) => index.find(bytes, |id| self.bytes(id)),
            Lookup::Sorted(sorted) => sorted.find(bytes, self),
        }
    }

    /// The same for several spellings at once.
    pub(super) fn find_each<const N: usize>(&self, spellings: [&[u8]; N]) -> [Option<u32>; N] {
        match &self.lookup {
            Lookup::Hash(index) => index.find_each(spellings, |id| self.bytes(id)),
            Lookup::Sorted(sorted) => spellings.map(|bytes| sorted.find(bytes, self)),
        }
    }

    /// [`Self::find`] for bytes that are likely those of token `guess`.
    pub(super) fn find_near(&self, guess: u32, bytes: &[u8]) -> Option<u32> {
        let right = self.has(guess, FOUND) && self.bytes(guess) == bytes;
        if right { Some(guess) } else { self.find(bytes) }
    }

    /// Walks the tokens that are prefixes of `text`, the shortest first.
    pub(super) fn each_prefix(&self, text: &[u8], mut visit: impl FnMut(u32, usize)) {
        if let Lookup::Sorted(sorted) = &self.lookup {
            sorted.each_prefix(text, self, &mut visit);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let lookup = match &self.lookup {
            Lookup::Hash(index) => index.heap_bytes(),
            Lookup::Sorted(sorted) => sorted.heap_bytes(),
        };
        self.blob.len() + size_of_val(&*self.starts) + self.attributes.len() + size_of_val(&*self.scores) + lookup
    }
}

/// Ids by spelling: open addressing with 4 bytes a slot, 4/3 slots an entry.
///
/// A slot holds the id plus one in as many low bits as ids need and part of the hash above, so that a miss seldom
/// touches the spelling. The hash is keyed at random: a hostile vocabulary or text can't aim at one slot.
pub(super) struct Index {
    slots: Box<[u32]>,
    id_bits: u32,
    seed: u64,
}

impl Index {
    /// Slots for `n` entries.
    pub(super) fn n_slot(n: usize) -> usize {
        n + n / 3 + 4
    }

    pub(super) fn new(n: usize) -> Self {
        let id_bits = usize::BITS - n.leading_zeros();
        let slots = vec![0; Self::n_slot(n)].into_boxed_slice();
        Self { slots, id_bits, seed: RandomState::new().build_hasher().finish() | 1 }
    }

    /// First slot to try, and the slot's content but for the id.
    fn place(&self, hash: u64) -> (usize, u32) {
        let home = (u128::from(hash) * self.slots.len() as u128) >> 64;
        (home as usize, (hash as u32) << self.id_bits)
    }

    /// Goes through the slots of a hash until `found` says yes or a slot is free; (slot, whether found).
    fn probe(&self, hash: u64, mut found: impl FnMut(u32) -> bool) -> (usize, bool) {
        let (mut at, tag) = self.place(hash);
        let id_mask = (1u32 << self.id_bits) - 1;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return (at, false);
            }
            if slot & !id_mask == tag && found((slot & id_mask) - 1) {
                return (at, true);
            }
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
    }

    /// Adds an entry; false when one with the same bytes is there, which stays.
    pub(super) fn insert<'v>(&mut self, id: u32, bytes: &[u8], spelling: impl Fn(u32) -> &'v [u8]) -> bool {
        self.insert_as(id, hash_bytes(self.seed, bytes), |other| spelling(other) == bytes)
    }

    /// Adds entries; those whose bytes are there already go to `duplicates`.
    fn insert_each<'v>(&mut self, mut ids: impl Iterator<Item = u32>, spelling: impl Fn(u32) -> &'v [u8], duplicates: &mut Vec<u32>) {
        const AT_ONCE: usize = 16;
        loop {
            let ids: [Option<u32>; AT_ONCE] = std::array::from_fn(|_| ids.next());
            let hashes = ids.map(|id| hash_bytes(self.seed, id.map_or(&[], &spelling)));
            // The slots come into the cache together, before the first of them is waited for.
            std::hint::black_box(hashes.map(|hash| self.slots[self.place(hash).0]));
            for (id, hash) in ids.into_iter().zip(hashes) {
                let Some(id) = id else { return };
                let bytes = spelling(id);
                if !self.insert_as(id, hash, |other| spelling(other) == bytes) {
                    duplicates.push(id);
                }
            }
        }
    }

    fn insert_as(&mut self, id: u32, hash: u64, same: impl FnMut(u32) -> bool) -> bool {
        let (at, there) = self.probe(hash, same);
        if !there {
            self.slots[at] = self.place(hash).1 | (id + 1);
        }
        !there
    }

    pub(super) fn find<'v>(&self, bytes: &[u8], spelling: impl Fn(u32) -> &'v [u8]) -> Option<u32> {
        let mut id = None;
        self.probe(hash_bytes(self.seed, bytes), |other| {
            let same = spelling(other) == bytes;
            if same {
                id = Some(other);
            }
            same
        });
        id
    }

    /// The same for several spellings. Each step is done for all before the next, so that the memory that one has to
    /// wait for is fetched for all at a time.
    fn find_each<'v, const N: usize>(&self, all: [&[u8]; N], spelling: impl Fn(u32) -> &'v [u8]) -> [Option<u32>; N] {
        let hashes = all.map(|bytes| hash_bytes(self.seed, bytes));
        let likely = hashes.map(|hash| {
            let mut id = None;
            self.probe(hash, |first| id.replace(first).is_none());
            id
        });
        let found = likely.map(|id| id.map(&spelling));
        std::array::from_fn(|i| match (likely[i], found[i]) {
            (None, _) | (_, None) => None,
            (Some(id), Some(bytes)) if bytes == all[i] => Some(id),
            // Another spelling with the same part of the hash.
            _ => self.find(all[i], &spelling),
        })
    }

    /// Adds an entry by its hash alone; false when `same` says that an entry with the hash is it.
    pub(super) fn insert_hash(&mut self, id: u32, key: u64, same: impl Fn(u32) -> bool) -> bool {
        self.insert_as(id, mix(key ^ self.seed, SCATTER), same)
    }

    pub(super) fn find_hash(&self, key: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        let mut id = None;
        self.probe(mix(key ^ self.seed, SCATTER), |other| {
            let same = same(other);
            if same {
                id = Some(other);
            }
            same
        });
        id
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }
}

/// An odd constant without structure (the golden ratio's fraction).
const SCATTER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Both halves of the 128-bit product folded together.
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let word = |at: usize| bytes.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default()));
    let half = |at: usize| bytes.get(at..at + 4).map_or(0, |b| u64::from(u32::from_le_bytes(b.try_into().unwrap_or_default())));
    let key = SCATTER ^ seed;
    let n = bytes.len();
    let mut h = seed ^ (n as u64).wrapping_mul(SCATTER);
    // The last word overlaps the one before instead of being padded.
    let last = match n {
        0 => 0,
        1..4 => u64::from(bytes[0]) | u64::from(bytes[n / 2]) << 8 | u64::from(bytes[n - 1]) << 16,
        4..8 => half(0) | half(n - 4) << 32,
        _ => {
            let mut at = 0;
            while at + 8 < n {
                h = mix(h ^ word(at), key);
                at += 8;
            }
            word(n - 8)
        }
    };
    mix(mix(h ^ last, key), SCATTER)
}

/// Ids in the order of their spelling: a trie without nodes.
#[derive(Default)]
struct Sorted {
    ids: Box<[u32]>,
    /// Where the tokens of each first byte begin in `ids`.
    first: Vec<u32>,
}

impl Sorted {
    fn new(ids: impl Iterator<Item = u32>, n: usize, vocab: &Vocab, duplicates: &mut Vec<u32>) -> Self {
        let mut sorted = Vec::with_capacity(n);
        sorted.extend(ids);
        sorted.sort_unstable_by(|&a, &b| vocab.bytes(a).cmp(vocab.bytes(b)).then(a.cmp(&b)));
        sorted.dedup_by(|b, a| {
            let same = vocab.bytes(*a) == vocab.bytes(*b);
            if same {
                duplicates.push(*b);
            }
            same
        });
        let mut first = Vec::with_capacity(257);
        first.extend(
            (0..=256u32).map(|byte| sorted.partition_point(|&id| vocab.bytes(id).first().is_none_or(|&b| u32::from(b) < byte)) as u32),
        );
        Self { ids: sorted.into_boxed_slice(), first }
    }

    fn find(&self, bytes: &[u8], vocab: &Vocab) -> Option<u32> {
        let at = self.ids.binary_search_by(|&id| vocab.bytes(id).cmp(bytes)).ok()?;
        self.ids.get(at).copied()
    }

    /// At most [`MAX_PIECE`] steps, each two binary searches.
    fn each_prefix(&self, text: &[u8], vocab: &Vocab, visit: &mut dyn FnMut(u32, usize)) {
        let Some(&byte) = text.first() else { return };
        let bound = |b: usize| self.first.get(b).map_or(0, |&at| at as usize);
        let (lo, hi) = (bound(usize::from(byte)), bound(usize::from(byte) + 1));
        let mut range = &self.ids[lo..hi];
        let mut depth = 1;
        while let Some(&id) = range.first() {
            // The shortest spelling of a range comes first: it is the prefix itself, if that is a token.
            if vocab.bytes(id).len() == depth {
                visit(id, depth);
                range = &range[1..];
            }
            let Some(&byte) = text.get(depth) else { return };
            let at = |id: u32| vocab.bytes(id)[depth];
            let lo = range.partition_point(|&id| at(id) < byte);
            range = &range[lo..];
            let hi = range.partition_point(|&id| at(id) == byte);
            range = &range[..hi];
            depth += 1;
        }
    }

    fn heap_bytes(&self) -> usize {
        size_of_val(&*self.ids) + self.first.capacity() * size_of::<u32>()
    }
}
