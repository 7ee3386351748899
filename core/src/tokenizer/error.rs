//! What can be wrong with a tokenizer's metadata or with a text, and what is odd but no reason to refuse.

use std::fmt;

use crate::ids::TokenId;

/// Why a tokenizer can't be built, or a text can't be encoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata key of the wrong type, or one that is missing.
    #[error(transparent)]
    Metadata(#[from] selvedge_gguf::Error),
    /// `tokenizer.ggml.model` names an algorithm that isn't built in.
    #[error("tokenizer model `{found}` isn't supported, expected one of {expected}")]
    UnknownModel {
        /// The name in the file.
        found: String,
        /// The names that are known.
        expected: String,
    },
    /// `tokenizer.ggml.pre` names a split that isn't built in.
    #[error("pre-tokenizer `{found}` isn't known: the text would be cut otherwise than the model was trained with; known are {expected}")]
    UnknownPre {
        /// The name in the file.
        found: String,
        /// The names that are known.
        expected: String,
    },
    /// A key that the algorithm can't do without.
    #[error("metadata key `{key}` is missing: {why}")]
    KeyMissing {
        /// The key.
        key: &'static str,
        /// What it is needed for.
        why: &'static str,
    },
    /// An array whose elements are of another type.
    #[error("metadata key `{key}` is an array of {found}, expected an array of {expected}")]
    ElementType {
        /// The key.
        key: &'static str,
        /// What the elements should be.
        expected: &'static str,
        /// Type of the elements in the file.
        found: String,
    },
    /// An array with fewer entries than there are tokens.
    #[error("metadata key `{key}` has {found} entries, expected one for each of the {expected} tokens")]
    ShortArray {
        /// The key.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Number of entries in the file.
        found: usize,
    },
    /// A vocabulary without tokens.
    #[error("the vocabulary is empty: `tokenizer.ggml.tokens` has no entries")]
    EmptyVocabulary,
    /// More entries, or more bytes, than the tables can address.
    #[error("{what} has {found}, more than the {max} that are supported")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size in the file.
        found: usize,
        /// The largest size.
        max: usize,
    },
    /// A normaliser table that contradicts itself.
    #[error("`tokenizer.ggml.precompiled_charsmap` is damaged: {reason}")]
    Charsmap {
        /// What is wrong with it.
        reason: String,
    },
    /// A text that is longer than a position can express.
    #[error("the text has {found} bytes, more than the {max} that can be encoded at once")]
    TextTooLong {
        /// Bytes of the text.
        found: usize,
        /// The most that can be encoded at once.
        max: usize,
    },
}

/// Something odd in a tokenizer's metadata that was worked around; `Display` is one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A special token id outside the vocabulary: the token is treated as absent.
    SpecialOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// The id in the file.
        found: i64,
        /// Number of tokens.
        n_vocab: usize,
    },
    /// The file asks for a start or end token that it doesn't define: none is added.
    SpecialAbsent {
        /// The key that asks for it.
        flag: &'static str,
        /// The key that should define it.
        key: &'static str,
    },
    /// A byte-level vocabulary without `tokenizer.ggml.pre`: the default split is used.
    PreMissing,
    /// No scores, so that merges have no order but the position.
    ScoresMissing,
    /// A token spelled like an end of turn, but not marked as a control token: treated as one.
    TurnEndNotControl {
        /// The token.
        id: TokenId,
    },
    /// Tokens that share their spelling with one of a lower id: the lowest id is used for encoding.
    Duplicates {
        /// How many there are.
        count: usize,
    },
    /// Merges whose parts or result aren't in the vocabulary: left out.
    MergesIgnored {
        /// How many there are.
        count: usize,
    },
    /// Byte values that no token can express: a text that needs them loses them.
    BytesMissing {
        /// How many of the 256 values.
        count: usize,
    },
    /// Pieces that are too long to be matched: used for decoding only.
    LongPieces {
        /// How many there are.
        count: usize,
        /// Length of the longest piece that is matched, in bytes.
        max: usize,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SpecialOutOfRange { key, found, n_vocab } => {
                write!(f, "`{key}` is {found}, outside the vocabulary of {n_vocab} tokens: ignored")
            }
            Self::SpecialAbsent { flag, key } => {
                write!(f, "`{flag}` is set, but `{key}` names no token: none is added")
            }
            Self::PreMissing => f.write_str("`tokenizer.ggml.pre` is missing: the default split is used, which may not be the model's own"),
            Self::ScoresMissing => f.write_str("`tokenizer.ggml.scores` is missing: every score is taken as 0"),
            Self::TurnEndNotControl { id } => {
                write!(f, "token {} is spelled like an end of turn but isn't marked as control: treated as control", id.0)
            }
            Self::Duplicates { count } => write!(f, "{count} tokens repeat the spelling of a lower id: the lower id is used for encoding"),
            Self::MergesIgnored { count } => write!(f, "{count} merges name a token that isn't in the vocabulary: ignored"),
            Self::BytesMissing { count } => write!(f, "{count} of the 256 byte values have no token: a text that needs them loses them"),
            Self::LongPieces { count, max } => write!(f, "{count} tokens are longer than {max} bytes: used for decoding only"),
        }
    }
}
