//! Special tokens: which there are, which end a turn, and how they are cut out of a text before it is split.

use selvedge_gguf::{Metadata, Value};

use super::error::Warning;
use super::vocab::{Index, TokenType, Vocab};
use crate::ids::TokenId;

/// The tokens that a file names by role; `None` where it names none. No role has a default id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecialTokens {
    /// Start of a text.
    pub bos: Option<TokenId>,
    /// End of a text.
    pub eos: Option<TokenId>,
    /// End of a turn; by its spelling where the file has no key for it.
    pub eot: Option<TokenId>,
    /// End of a message that expects a tool's answer; by its spelling where the file has no key for it.
    pub eom: Option<TokenId>,
    /// Stands for what can't be spelled; by its type where the file has no key for it.
    pub unk: Option<TokenId>,
    /// Separates two texts.
    pub sep: Option<TokenId>,
    /// Fills a batch.
    pub pad: Option<TokenId>,
    /// Carries the class of a text.
    pub cls: Option<TokenId>,
    /// Stands for a word to be guessed.
    pub mask: Option<TokenId>,
    /// Fill in the middle: before the prefix.
    pub fim_pre: Option<TokenId>,
    /// Fill in the middle: before the suffix.
    pub fim_suf: Option<TokenId>,
    /// Fill in the middle: before what is to be filled in.
    pub fim_mid: Option<TokenId>,
    /// Fill in the middle: padding.
    pub fim_pad: Option<TokenId>,
    /// Fill in the middle: before a repository's name.
    pub fim_rep: Option<TokenId>,
    /// Fill in the middle: before a file's name.
    pub fim_sep: Option<TokenId>,
}

type Field = fn(&mut SpecialTokens) -> &mut Option<TokenId>;

/// Metadata keys of roles. To add one, add its field and a row; a row loses against an earlier one of the same field.
const KEYS: &[(&str, Field)] = &[
    ("tokenizer.ggml.bos_token_id", |s| &mut s.bos),
    ("tokenizer.ggml.eos_token_id", |s| &mut s.eos),
    ("tokenizer.ggml.eot_token_id", |s| &mut s.eot),
    ("tokenizer.ggml.eom_token_id", |s| &mut s.eom),
    ("tokenizer.ggml.unknown_token_id", |s| &mut s.unk),
    ("tokenizer.ggml.seperator_token_id", |s| &mut s.sep), // spelled so in files
    ("tokenizer.ggml.separator_token_id", |s| &mut s.sep),
    ("tokenizer.ggml.padding_token_id", |s| &mut s.pad),
    ("tokenizer.ggml.cls_token_id", |s| &mut s.cls),
    ("tokenizer.ggml.mask_token_id", |s| &mut s.mask),
    ("tokenizer.ggml.fim_pre_token_id", |s| &mut s.fim_pre),
    ("tokenizer.ggml.fim_suf_token_id", |s| &mut s.fim_suf),
    ("tokenizer.ggml.fim_mid_token_id", |s| &mut s.fim_mid),
    ("tokenizer.ggml.fim_pad_token_id", |s| &mut s.fim_pad),
    ("tokenizer.ggml.fim_rep_token_id", |s| &mut s.fim_rep),
    ("tokenizer.ggml.fim_sep_token_id", |s| &mut s.fim_sep),
    ("tokenizer.ggml.prefix_token_id", |s| &mut s.fim_pre), // older names
    ("tokenizer.ggml.suffix_token_id", |s| &mut s.fim_suf),
    ("tokenizer.ggml.middle_token_id", |s| &mut s.fim_mid),
];

/// A spelling that ends a turn.
struct TurnEnd {
    text: &'static str,
    /// Nobody writes this by chance: a token spelled so is a control token even where the file says otherwise. The
    /// others end a turn only where the file marks them as control.
    certain: bool,
    /// The role that it takes where the file has no key for the role.
    role: Option<Field>,
}

const fn turn_end(text: &'static str, certain: bool, role: Option<Field>) -> TurnEnd {
    TurnEnd { text, certain, role }
}

/// Well-known spellings of what ends a turn. To add one, add a row; a certain one starts with `<` and ends with `>`.
const TURN_ENDS: &[TurnEnd] = &[
    turn_end("<|eot_id|>", true, Some(|s| &mut s.eot)),
    turn_end("<|im_end|>", true, Some(|s| &mut s.eot)),
    turn_end("<end_of_turn>", true, Some(|s| &mut s.eot)),
    turn_end("<|end|>", true, Some(|s| &mut s.eot)),
    turn_end("<turn|>", true, Some(|s| &mut s.eot)),
    turn_end("<end_of_utterance>", true, Some(|s| &mut s.eot)),
    turn_end("<|endoftext|>", true, Some(|s| &mut s.eot)),
    turn_end("<|end_of_text|>", true, Some(|s| &mut s.eot)),
    turn_end("<｜end▁of▁sentence｜>", true, Some(|s| &mut s.eot)),
    turn_end("<|eom_id|>", true, Some(|s| &mut s.eom)),
    turn_end("<|return|>", true, None),
    turn_end("<|call|>", true, None),
    turn_end("<EOT>", false, Some(|s| &mut s.eot)),
    turn_end("_<EOT>", false, Some(|s| &mut s.eot)),
    turn_end("[EOT]", false, Some(|s| &mut s.eot)),
    turn_end("[EOS]", false, None),
    turn_end("<eos>", false, None),
    turn_end("</s>", false, None),
];

/// In a vocabulary that has all of the left, the right closes a message within a turn and doesn't end it.
const NOT_AN_END: (&[&str], &str) = (&["<|return|>", "<|call|>"], "<|end|>");

/// Whether a token spelled so is a control token whatever its type.
pub(super) fn is_certain_turn_end(raw: &[u8]) -> bool {
    raw.first() == Some(&b'<') && raw.last() == Some(&b'>') && TURN_ENDS.iter().any(|row| row.certain && row.text.as_bytes() == raw)
}

/// A role's id in the file: `None` when absent or negative (some files write -1 for none).
fn id_of(metadata: &Metadata<'_>, key: &str) -> Result<Option<i64>, selvedge_gguf::Error> {
    match metadata.get(key) {
        Some(Value::I8(_) | Value::I16(_) | Value::I32(_) | Value::I64(_)) => {
            Ok(metadata.get(key).and_then(|v| v.as_i128()).map(|id| id as i64).filter(|&id| id >= 0))
        }
        _ => Ok(metadata.u64(key)?.map(|id| i64::try_from(id).unwrap_or(i64::MAX))),
    }
}

/// Ids that the file names, for a file without token types.
pub(super) fn named_ids(metadata: &Metadata<'_>, n_vocab: usize) -> Vec<u32> {
    let ids = KEYS.iter().filter_map(|(key, _)| id_of(metadata, key).ok().flatten());
    ids.filter(|&id| id < n_vocab as i64).map(|id| id as u32).collect()
}

impl SpecialTokens {
    /// Reads the keys, then fills roles from spellings and types that leave no doubt.
    pub(super) fn read(metadata: &Metadata<'_>, vocab: &Vocab, warnings: &mut Vec<Warning>) -> Result<Self, selvedge_gguf::Error> {
        let n_vocab = vocab.len();
        let mut special = Self::default();
        for &(key, field) in KEYS {
            let Some(found) = id_of(metadata, key)? else { continue };
            if found >= n_vocab as i64 {
                warnings.push(Warning::SpecialOutOfRange { key, found, n_vocab });
            } else {
                field(&mut special).get_or_insert(TokenId(found as u32));
            }
        }
        Ok(special)
    }

    /// Fills the roles that spellings give, from the control tokens of `matcher`; returns the ids that end a turn.
    pub(super) fn complete(&mut self, vocab: &Vocab, matcher: &Matcher) -> Box<[TokenId]> {
        let find = |text: &str| matcher.find(vocab, text.as_bytes()).filter(|&id| vocab.token_type(id) == TokenType::Control).map(TokenId);
        let (all, not_an_end) = NOT_AN_END;
        let within = all.iter().all(|text| find(text).is_some());
        let ends_turn = |row: &&TurnEnd| !(within && row.text == not_an_end);
        let mut stop_ids = Vec::new();
        for row in TURN_ENDS.iter().filter(ends_turn) {
            let Some(id) = find(row.text) else { continue };
            stop_ids.push(id);
            if let Some(field) = row.role {
                field(self).get_or_insert(id);
            }
        }
        let is_unknown = |id: &u32| vocab.token_type(*id) == TokenType::Unknown;
        self.unk = self.unk.or_else(|| matcher.ids.iter().copied().find(is_unknown).map(TokenId));
        stop_ids.extend([self.eos, self.eot, self.eom].into_iter().flatten());
        stop_ids.sort_unstable();
        stop_ids.dedup();
        stop_ids.into_boxed_slice()
    }
}

/// Counts what a [`Matcher`] will hold, before it is built.
#[derive(Default)]
pub(super) struct Census {
    n: usize,
    lengths: Vec<(u8, u32)>,
}

impl Census {
    pub(super) fn count(&mut self, spelling: &[u8]) {
        let Some(&first) = spelling.first() else { return };
        self.n += 1;
        self.add((first, spelling.len() as u32));
    }

    /// Counts what another has counted.
    pub(super) fn merge(&mut self, other: Census) {
        self.n += other.n;
        other.lengths.into_iter().for_each(|row| self.add(row));
    }

    fn add(&mut self, row: (u8, u32)) {
        if let Err(at) = self.lengths.binary_search_by(|l| longest_first(l).cmp(&longest_first(&row))) {
            self.lengths.insert(at, row);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.n * size_of::<u32>() + Index::n_slot(self.n) * size_of::<u32>() + self.lengths.len() * size_of::<(u8, u32)>()
    }
}

/// Order of length rows: by first byte, the longest first.
fn longest_first(row: &(u8, u32)) -> (u8, u32) {
    (row.0, !row.1)
}

/// Finds special tokens in a text, the longest at each place from left to right.
pub(super) struct Matcher {
    /// Special tokens in order of their ids.
    ids: Box<[u32]>,
    /// From spelling to a place in `ids`.
    index: Index,
    /// (first byte, length) of all spellings, the longest first for each byte.
    lengths: Box<[(u8, u32)]>,
}

/// A piece of a text: a special token, or text to be split.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

impl Matcher {
    pub(super) fn new(vocab: &Vocab) -> Self {
        let special = |id: &u32| vocab.token_type(*id).is_special() && !vocab.bytes(*id).is_empty();
        let mut census = Census::default();
        (0..vocab.len() as u32).filter(special).for_each(|id| census.count(vocab.bytes(id)));
        let mut ids = Vec::with_capacity(census.n);
        ids.extend((0..vocab.len() as u32).filter(special));
        let spelling = |at: u32| vocab.bytes(ids[at as usize]);
        let mut index = Index::new(ids.len());
        for at in 0..ids.len() as u32 {
            index.insert(at, spelling(at), spelling);
        }
        Self { ids: ids.into_boxed_slice(), index, lengths: census.lengths.into_boxed_slice() }
    }

    /// The special token with a spelling; the lowest id where several share it.
    pub(super) fn find(&self, vocab: &Vocab, bytes: &[u8]) -> Option<u32> {
        let at = self.index.find(bytes, |at| vocab.bytes(self.ids[at as usize]))?;
        self.ids.get(at as usize).copied()
    }

    /// Cuts `text` into fragments. `trusted(start, end)` says whether a control token may be found there.
    pub(super) fn cut<'t>(
        &self,
        vocab: &Vocab,
        text: &'t str,
        mut trusted: impl FnMut(usize, usize) -> bool,
        mut emit: impl FnMut(Fragment<'t>),
    ) {
        let bytes = text.as_bytes();
        let mut is_first = [false; 256];
        self.lengths.iter().for_each(|row| is_first[usize::from(row.0)] = true);
        let (mut start, mut at) = (0, 0);
        while let Some(step) = bytes[at..].iter().position(|&b| is_first[usize::from(b)]) {
            at += step;
            let found = self.at(vocab, &bytes[at..], |id, len| vocab.token_type(id) == TokenType::UserDefined || trusted(at, at + len));
            let Some((id, len)) = found else {
                at += 1;
                continue;
            };
            // A spelling may be invalid UTF-8 by itself: it then only matches where its ends are characters' ends.
            let (Some(before), Some(after)) = (text.get(start..at), text.get(at + len..)) else {
                at += 1;
                continue;
            };
            let before = if vocab.has(id, super::vocab::STRIP_LEFT) { before.trim_end_matches(is_c_space) } else { before };
            if !before.is_empty() {
                emit(Fragment::Text(before));
            }
            emit(Fragment::Token(id));
            let after = if vocab.has(id, super::vocab::STRIP_RIGHT) { after.trim_start_matches(is_c_space) } else { after };
            at = text.len() - after.len();
            start = at;
        }
        if let Some(rest) = text.get(start..).filter(|rest| !rest.is_empty()) {
            emit(Fragment::Text(rest));
        }
    }

    /// The longest special token at the start of `text` that `allowed` lets pass.
    fn at(&self, vocab: &Vocab, text: &[u8], mut allowed: impl FnMut(u32, usize) -> bool) -> Option<(u32, usize)> {
        let &first = text.first()?;
        let from = self.lengths.partition_point(|row| row.0 < first);
        let rows = self.lengths[from..].iter().take_while(|row| row.0 == first);
        rows.filter_map(|row| {
            let len = row.1 as usize;
            let id = self.find(vocab, text.get(..len)?)?;
            allowed(id, len).then_some((id, len))
        })
        .next()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.ids) + self.index.heap_bytes() + size_of_val(&*self.lengths)
    }

    /// The special tokens, ascending.
    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }
}

/// White space as files' strip attributes mean it: that of the C locale.
fn is_c_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// Architectures, splits and model names whose special tokens take white space with them; files carry no such
/// attribute. To add one, add a row.
const STRIPS: &[Strip] = &[
    Strip {
        key: "tokenizer.ggml.pre",
        contains: &["jina-v2-de", "jina-v2-es", "jina-v2-code"],
        attribute: super::vocab::STRIP_LEFT,
        only: &["<mask>"],
        never: &[],
    },
    Strip {
        key: "general.architecture",
        contains: &["nomic-bert-moe", "jina-bert-v3"],
        attribute: super::vocab::STRIP_LEFT,
        only: &["<mask>"],
        never: &[],
    },
    Strip {
        key: "general.name",
        contains: &["phi-3", "phi3"],
        attribute: super::vocab::STRIP_RIGHT,
        only: &[],
        never: &["<unk>", "<s>", "<|endoftext|>"],
    },
    Strip { key: "general.name", contains: &["modern-bert"], attribute: super::vocab::STRIP_LEFT, only: &["[MASK]"], never: &[] },
];

struct Strip {
    key: &'static str,
    /// Any of these in the key's value, in small letters.
    contains: &'static [&'static str],
    attribute: u8,
    /// The tokens concerned; empty for all special tokens.
    only: &'static [&'static str],
    never: &'static [&'static str],
}

/// Sets the strip attributes that the model is known to need.
pub(super) fn set_strips(metadata: &Metadata<'_>, vocab: &mut Vocab, matcher: &Matcher) {
    let concerned = |row: &&Strip| {
        let value = metadata.get(row.key).and_then(|v| v.as_bytes()).unwrap_or_default();
        let value = String::from_utf8_lossy(value).to_lowercase();
        row.contains.iter().any(|part| value.contains(part))
    };
    let Some(row) = STRIPS.iter().find(concerned) else { return };
    for &id in matcher.ids() {
        let is = |text: &&'static str| text.as_bytes() == vocab.bytes(id);
        if (row.only.is_empty() || row.only.iter().any(is)) && !row.never.iter().any(is) {
            vocab.set(id, row.attribute);
        }
    }
}
