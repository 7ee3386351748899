//! Text to tokens and back, from nothing but a file's metadata.
//!
//! ```text
//! spans ──special::Matcher::cut──▶ fragments ──spm | bpe (pre) | wpm | ugm──▶ ids ──Detokenizer──▶ text
//! ```
//!
//! Four algorithms stand behind one type; [`MODELS`] says which name in the file means which. Every one is n log n in
//! the text at worst, without recursion on it. A text is either trusted, as a chat template's own words are, or not, as
//! are the words of people and tools: control tokens are found in trusted text alone.
//!
//! Where a file is silent: no role of a token has a default id; a byte-level vocabulary without `tokenizer.ggml.pre`
//! is split by the row `default`, with a warning.

mod bpe;
mod detokenize;
mod error;
mod pre;
mod special;
mod spm;
mod ugm;
mod unicode;
mod unicode_tables;
mod vocab;
mod wpm;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::ops::Range;

use selvedge_gguf::Metadata;

use crate::ids::TokenId;
use bpe::Bpe;
use pre::PreTokenizer;
use special::{Fragment, Matcher};
use spm::Spm;
use ugm::Ugm;
use vocab::{LookupKind, Source, Spelling, Vocab};
use wpm::Wpm;

pub use detokenize::Detokenizer;
pub use error::{Error, Warning};
pub use special::SpecialTokens;
pub use vocab::TokenType;

const KEY_MODEL: &str = "tokenizer.ggml.model";
const KEY_PRE: &str = "tokenizer.ggml.pre";
const KEY_TOKENS: &str = "tokenizer.ggml.tokens";
const KEY_TYPES: &str = "tokenizer.ggml.token_type";
const KEY_SCORES: &str = "tokenizer.ggml.scores";
const KEY_MERGES: &str = "tokenizer.ggml.merges";
const KEY_CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const KEY_ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const KEY_ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const KEY_ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
const KEY_MERGE_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";

/// Longest text that is encoded at once, in bytes (64 MiB): bounds the working memory, at most about 40 bytes for each,
/// and places in it fit 32 bits with room for what normalising adds.
pub const MAX_TEXT: usize = 1 << 26;

/// A value of `tokenizer.ggml.model`: its algorithm, and what holds where the file doesn't say.
struct Model {
    name: &'static str,
    algorithm: Algorithm,
    spelling: Spelling,
    lookup: LookupKind,
    keep_scores: bool,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
}

#[derive(Clone, Copy)]
enum Algorithm {
    Spm,
    Bpe,
    Wpm,
    Ugm,
}

/// The models. To add one, add its file, its [`Kind`] and a row.
const MODELS: &[Model] = &[
    Model {
        name: "llama",
        algorithm: Algorithm::Spm,
        spelling: Spelling::Marker,
        lookup: LookupKind::Hash,
        keep_scores: true,
        add_bos: true,
        add_eos: false,
        add_space_prefix: true,
    },
    Model {
        name: "gpt2",
        algorithm: Algorithm::Bpe,
        spelling: Spelling::ByteLevel,
        lookup: LookupKind::Hash,
        keep_scores: false,
        add_bos: false, // or what the pre-tokenizer's row says
        add_eos: false,
        add_space_prefix: false,
    },
    Model {
        name: "bert",
        algorithm: Algorithm::Wpm,
        spelling: Spelling::Marker,
        lookup: LookupKind::Sorted,
        keep_scores: false,
        add_bos: true,
        add_eos: true,
        add_space_prefix: false,
    },
    Model {
        name: "t5",
        algorithm: Algorithm::Ugm,
        spelling: Spelling::Marker,
        lookup: LookupKind::Sorted,
        keep_scores: true,
        add_bos: false,
        add_eos: true,
        add_space_prefix: false,
    },
];

impl Model {
    fn of(metadata: &Metadata<'_>) -> Result<&'static Self, Error> {
        let why = "it says how text becomes tokens";
        let found = metadata.str(KEY_MODEL)?.ok_or(Error::KeyMissing { key: KEY_MODEL, why })?;
        MODELS.iter().find(|m| m.name == found).ok_or_else(|| {
            let names: Vec<&str> = MODELS.iter().map(|m| m.name).collect();
            Error::UnknownModel { found: found.into(), expected: names.join(", ") }
        })
    }

    fn source<'a>(&self, metadata: &Metadata<'a>) -> Result<Source<'a>, Error> {
        Source::read(metadata, self.spelling, self.lookup, self.keep_scores)
    }
}

/// The algorithm with its own tables.
enum Kind {
    Spm(Spm),
    Bpe(Bpe),
    Wpm(Wpm),
    Ugm(Ugm),
}

/// Buffers that one call of encode reuses from word to word.
#[derive(Default)]
struct Scratch {
    ids: Vec<u32>,
    symbols: Vec<bpe::Symbol>,
    heap: BinaryHeap<Reverse<u64>>,
}

/// Which special tokens are found in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ParseSpecial {
    /// User-defined words alone: control tokens in the text stay text. For what people and tools wrote.
    #[default]
    UserDefined,
    /// All, control tokens too. For text of one's own, as a chat template's.
    All,
}

/// How a text is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EncodeOptions {
    /// Whether the start and end tokens that the model wants are added, unless the text has them already.
    pub add_special: bool,
    /// Which special tokens are found in the text.
    pub parse_special: ParseSpecial,
}

/// A part of a text, and whether control tokens are found in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span<'t> {
    /// The text.
    pub text: &'t str,
    /// Whether it is one's own: [`ParseSpecial::All`] if so.
    pub trusted: bool,
}

/// So many tokens or merges are worth a second thread.
const WORTH_A_THREAD: usize = 20_000;

/// Does `work` on the two halves of `0..n` at the same time where that pays, and hands its results to `take` in order.
fn in_halves<T: Send>(n: usize, work: impl Fn(Range<usize>) -> T + Sync, mut take: impl FnMut(T)) {
    if n < WORTH_A_THREAD {
        return take(work(0..n));
    }
    let half = n / 2;
    std::thread::scope(|scope| {
        let later = std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, || work(half..n));
        take(work(0..half));
        // Where the system gives no thread, or the thread ended early, this one does all.
        let later = later.ok().and_then(|thread| thread.join().ok());
        take(later.unwrap_or_else(|| work(half..n)));
    });
}

/// A model's tokenizer. Immutable; shared freely between threads.
pub struct Tokenizer {
    vocab: Vocab,
    kind: Kind,
    matcher: Matcher,
    special: SpecialTokens,
    stop_ids: Box<[TokenId]>,
    /// What encoding puts first and last when asked to.
    first: Option<TokenId>,
    last: Option<TokenId>,
    add_space_prefix: bool,
    merge_spaces: bool,
    warnings: Vec<Warning>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Tokenizer");
        f.field("n_vocab", &self.n_vocab()).field("special", &self.special).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds the tokenizer that a file's metadata describes.
    ///
    /// Shared spellings are encoded to their lowest id. Special token ids outside the vocabulary are disabled, with a
    /// warning. Merges of unknown tokens are left out, with a warning.
    ///
    /// # Errors
    /// A model or pre-tokenizer that isn't known; keys that are missing or of the wrong type; scores or types fewer than
    /// tokens; a damaged normaliser table.
    pub fn from_metadata(metadata: &Metadata<'_>) -> Result<Self, Error> {
        let mut warnings = Vec::new();
        let model = Model::of(metadata)?;
        let source = model.source(metadata)?;
        let pre = match model.algorithm {
            Algorithm::Bpe => Some(pre_tokenizer(metadata, &mut warnings)?),
            _ => None,
        };
        let mut vocab = Vocab::build(&source, &mut warnings)?;
        let matcher = Matcher::new(&vocab);
        special::set_strips(metadata, &mut vocab, &matcher);
        let mut special = SpecialTokens::read(metadata, &vocab, &mut warnings)?;
        let stop_ids = special.complete(&vocab, &matcher);

        let add_space_prefix = metadata.bool(KEY_ADD_SPACE)?.unwrap_or(model.add_space_prefix);
        let merge_spaces = metadata.bool(KEY_MERGE_SPACES)?.unwrap_or(false);
        let kind = match (model.algorithm, pre) {
            (Algorithm::Spm, _) => Kind::Spm(Spm::new(&vocab, &mut warnings)),
            (Algorithm::Bpe, pre) => {
                let pre = pre.map_or_else(|| pre_tokenizer(metadata, &mut warnings), Ok)?;
                Kind::Bpe(Bpe::new(metadata, &vocab, pre, &mut warnings)?)
            }
            (Algorithm::Wpm, _) => Kind::Wpm(Wpm::new(metadata)?),
            (Algorithm::Ugm, _) => Kind::Ugm(Ugm::new(metadata, &vocab, add_space_prefix, merge_spaces)?),
        };

        let is_wpm = matches!(kind, Kind::Wpm(_));
        let mut edge = |flag, default: bool, id: Option<TokenId>, key| -> Result<Option<TokenId>, Error> {
            let asked = metadata.bool(flag)?;
            if asked == Some(true) && id.is_none() {
                warnings.push(Warning::SpecialAbsent { flag, key });
            }
            Ok(id.filter(|_| asked.unwrap_or(default)))
        };
        let add_bos = model.add_bos || pre.is_some_and(|pre| pre.add_bos);
        let (first, last) = if is_wpm {
            // Files of these models set no flags for their frame of class and separator.
            (special.cls.or(special.bos), special.sep.or(special.eos))
        } else {
            (special.bos, special.eos)
        };
        let first = edge(KEY_ADD_BOS, add_bos, first, "tokenizer.ggml.bos_token_id")?;
        let last = if is_wpm { last } else { edge(KEY_ADD_EOS, model.add_eos, last, "tokenizer.ggml.eos_token_id")? };
        warnings.shrink_to_fit();
        Ok(Self { vocab, kind, matcher, special, stop_ids, first, last, add_space_prefix, merge_spaces, warnings })
    }

    /// Bytes that [`Self::from_metadata`] will hold on the heap, without building it; warnings aside, exactly
    /// [`Self::heap_bytes`].
    ///
    /// # Errors
    /// As [`Self::from_metadata`], as far as sizes depend on it.
    pub fn planned_bytes(metadata: &Metadata<'_>) -> Result<usize, Error> {
        let model = Model::of(metadata)?;
        let (vocab, matcher) = model.source(metadata)?.measure();
        let kind = match model.algorithm {
            Algorithm::Spm => size_of::<[u32; 256]>(),
            Algorithm::Bpe => Bpe::planned_bytes(metadata)?,
            Algorithm::Wpm => 0,
            Algorithm::Ugm => Ugm::planned_bytes(metadata)?,
        };
        Ok(vocab + matcher + kind)
    }

    /// Bytes that this tokenizer holds on the heap.
    pub fn heap_bytes(&self) -> usize {
        let kind = match &self.kind {
            Kind::Spm(spm) => spm.heap_bytes(),
            Kind::Bpe(bpe) => bpe.heap_bytes(),
            Kind::Wpm(_) => 0,
            Kind::Ugm(ugm) => ugm.heap_bytes(),
        };
        let warnings = self.warnings.capacity() * size_of::<Warning>();
        self.vocab.heap_bytes() + self.matcher.heap_bytes() + kind + size_of_val(&*self.stop_ids) + warnings
    }

    /// Tokens of a text.
    ///
    /// What the vocabulary can't spell becomes the unknown token, or vanishes where there is none; complete byte-level
    /// vocabularies and those with byte tokens lose nothing.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] above [`MAX_TEXT`] bytes.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<TokenId>, Error> {
        let trusted = options.parse_special == ParseSpecial::All;
        self.encode_trusted(text, options.add_special, |_, _| trusted)
    }

    /// Tokens of a text that is put together from spans: those of the whole text, in which control tokens are found
    /// only where they lie in trusted text altogether. Where no control token is, the borders make no difference.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] above [`MAX_TEXT`] bytes altogether.
    pub fn encode_spans(&self, spans: &[Span<'_>], add_special: bool) -> Result<Vec<TokenId>, Error> {
        if let [span] = spans {
            return self.encode_trusted(span.text, add_special, |_, _| span.trusted);
        }
        check_length(spans.iter().map(|span| span.text.len()).sum())?;
        let text: String = spans.iter().map(|span| span.text).collect();
        // Trusted ranges, ascending, neighbours joined.
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        let mut at = 0;
        for span in spans {
            let end = at + span.text.len();
            match ranges.last_mut() {
                Some(last) if span.trusted && last.1 == at => last.1 = end,
                _ if span.trusted => ranges.push((at, end)),
                _ => {}
            }
            at = end;
        }
        self.encode_trusted(&text, add_special, |start, end| {
            let i = ranges.partition_point(|range| range.1 < end);
            ranges.get(i).is_some_and(|range| range.0 <= start)
        })
    }

    fn encode_trusted(&self, text: &str, add_special: bool, trusted: impl FnMut(usize, usize) -> bool) -> Result<Vec<TokenId>, Error> {
        check_length(text.len())?;
        let mut out = Vec::with_capacity(text.len() / 3 + 4);
        let (first, last) = if add_special { (self.first, self.last) } else { (None, None) };
        out.extend(first);
        let mut scratch = Scratch::default();
        let mut after_special = true;
        let mut at_start = true;
        self.matcher.cut(&self.vocab, text, trusted, |fragment| match fragment {
            Fragment::Token(id) => {
                // The text may bring its own start token: one is enough.
                if !(at_start && first == Some(TokenId(id))) {
                    out.push(TokenId(id));
                }
                (after_special, at_start) = (true, false);
            }
            Fragment::Text(text) => {
                self.encode_fragment(text, after_special, &mut scratch, &mut out);
                (after_special, at_start) = (false, false);
            }
        });
        // The same for the end token, which mustn't be mistaken for the start where the two are one.
        let has_last = out.len() > usize::from(first.is_some()) && out.last().copied() == last;
        out.extend(last.filter(|_| !has_last));
        Ok(out)
    }

    fn encode_fragment(&self, text: &str, after_special: bool, scratch: &mut Scratch, out: &mut Vec<TokenId>) {
        let (vocab, unk) = (&self.vocab, self.special.unk);
        match &self.kind {
            Kind::Spm(spm) => spm.encode(vocab, text, self.add_space_prefix && after_special, unk, out),
            Kind::Bpe(bpe) => bpe.encode(vocab, text, unk, scratch, out),
            Kind::Wpm(wpm) => wpm.encode(vocab, text, unk, out),
            Kind::Ugm(ugm) => ugm.encode(vocab, text, unk, out),
        }
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.vocab.len()
    }

    /// The bytes that a token stands for, not always whole characters: a word piece with its space, one byte, the
    /// spelling of a control token. Empty for an id outside the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.vocab.bytes(id.0)
    }

    /// What a token is for; [`TokenType::Normal`] for an id outside the vocabulary.
    pub fn token_type(&self, id: TokenId) -> TokenType {
        self.vocab.token_type(id.0)
    }

    /// Whether a token is a control token.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.token_type(id) == TokenType::Control
    }

    /// The bytes that a token adds to a text: [`Self::token_bytes`], but nothing for control and unknown tokens unless
    /// `render_special` is set.
    pub fn piece(&self, id: TokenId, render_special: bool) -> &[u8] {
        match self.token_type(id) {
            TokenType::Control | TokenType::Unknown if !render_special => &[],
            _ => self.token_bytes(id),
        }
    }

    /// The token that a special spelling stands for, like `<|im_end|>`: control, unknown and user-defined ones.
    pub fn special_id(&self, spelling: &str) -> Option<TokenId> {
        self.matcher.find(&self.vocab, spelling.as_bytes()).map(TokenId)
    }

    /// The tokens that the file names by role.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The token that encoding puts first when asked to add special tokens.
    pub fn first_token(&self) -> Option<TokenId> {
        self.first
    }

    /// The tokens that end a turn, ascending: the file's, and well-known spellings that are control tokens.
    pub fn stop_ids(&self) -> &[TokenId] {
        &self.stop_ids
    }

    /// Whether a token ends a turn.
    pub fn is_stop(&self, id: TokenId) -> bool {
        self.stop_ids.binary_search(&id).is_ok()
    }

    /// What was odd about the metadata and worked around.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

fn check_length(found: usize) -> Result<(), Error> {
    if found > MAX_TEXT {
        return Err(Error::TextTooLong { found, max: MAX_TEXT });
    }
    Ok(())
}

/// The pre-tokenizer that the file names.
fn pre_tokenizer(metadata: &Metadata<'_>, warnings: &mut Vec<Warning>) -> Result<&'static PreTokenizer, Error> {
    let found = metadata.str(KEY_PRE)?.unwrap_or_else(|| {
        warnings.push(Warning::PreMissing);
        pre::DEFAULT
    });
    let unknown = || Error::UnknownPre { found: found.into(), expected: PreTokenizer::names() };
    PreTokenizer::find(found).ok_or_else(unknown)
}
