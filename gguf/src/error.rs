//! The crate's one error type: each variant carries what was expected and what was found.

use crate::format::TensorType;
use crate::value::ValueType;

/// What can be wrong with a GGUF file, or with a question asked of one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file has no bytes at all.
    #[error("the file is empty (0 bytes): an interrupted download leaves such a file; fetch it again")]
    Empty,
    /// The file is the small text that Git LFS leaves in place of the real content.
    #[error("this is a Git LFS pointer, not the model itself: run `git lfs pull`, or download the file directly")]
    LfsPointer,
    /// The file starts with a byte order mark, so a text tool has rewritten it.
    #[error("the file starts with a UTF-8 byte order mark before the GGUF magic: a text tool has altered it; fetch it again in binary")]
    ByteOrderMark,
    /// A container from before GGUF.
    #[error("the file is in the old `{found}` container, too old to read: convert the model to GGUF (version 2 or 3)")]
    OldFormat {
        /// Name of the old container.
        found: &'static str,
    },
    /// The first four bytes aren't the magic.
    #[error("not a GGUF file: expected the magic \"GGUF\", found \"{found}\"{hint}")]
    NotGguf {
        /// The first bytes, escaped.
        found: String,
        /// What the file may be instead; empty, or a clause that starts with a separator.
        hint: &'static str,
    },
    /// A container version that isn't 2 or 3.
    #[error("GGUF version {found} isn't supported, expected 2 or 3{hint}")]
    Version {
        /// The version that the file states.
        found: u32,
        /// Advice; empty, or a clause that starts with a separator.
        hint: &'static str,
    },
    /// The file ends before something that it announces.
    #[error("the file is truncated: {what} needs bytes up to {needed}, the file has {file_len}")]
    Truncated {
        /// The thing that doesn't fit.
        what: String,
        /// One past the last byte that it needs; saturated at `u64::MAX`.
        needed: u64,
        /// Size of the file in bytes.
        file_len: u64,
    },
    /// A count that the remaining bytes can't hold.
    #[error("{what} claims {found} entries, but the {remaining} bytes that remain can hold at most {max}")]
    Count {
        /// Whose count it is.
        what: String,
        /// The count in the file.
        found: u64,
        /// The most that could fit.
        max: u64,
        /// Bytes left in the file after the count.
        remaining: u64,
    },
    /// A metadata key that is empty or too long.
    #[error("metadata entry {index} has a key of {found} bytes, expected 1 to {max}")]
    KeyLength {
        /// Position of the entry in the file, from 0.
        index: u64,
        /// Length in the file.
        found: u64,
        /// Longest allowed.
        max: u64,
    },
    /// A metadata key that isn't UTF-8.
    #[error("the key of metadata entry {index} isn't UTF-8: \"{found}\"")]
    KeyEncoding {
        /// Position of the entry in the file, from 0.
        index: u64,
        /// The key's bytes, escaped.
        found: String,
    },
    /// The same key twice.
    #[error("metadata key `{key}` occurs twice")]
    KeyDuplicate {
        /// The key.
        key: String,
    },
    /// A value type id that the format doesn't define.
    #[error("metadata key `{key}` has value type {found}, expected 0 to 12")]
    ValueType {
        /// The key.
        key: String,
        /// The id in the file.
        found: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key `{key}` holds a boolean stored as {found}, expected 0 or 1")]
    Bool {
        /// The key.
        key: String,
        /// The byte in the file.
        found: u8,
    },
    /// Arrays nested too deep.
    #[error("metadata key `{key}` nests arrays deeper than {max} levels")]
    ArrayDepth {
        /// The key.
        key: String,
        /// Deepest allowed.
        max: usize,
    },
    /// `general.alignment` isn't usable.
    #[error("`general.alignment` is {found}, expected a u32 that is a power of two from {min} to {max}")]
    Alignment {
        /// Type and value in the file.
        found: String,
        /// Smallest allowed.
        min: u32,
        /// Largest allowed.
        max: u32,
    },
    /// A tensor name that is too long.
    #[error("the name of tensor {index} has {found} bytes, expected at most {max}")]
    TensorNameLength {
        /// Position in the tensor table, from 0.
        index: u64,
        /// Length in the file.
        found: u64,
        /// Longest allowed.
        max: u64,
    },
    /// A tensor name that isn't UTF-8.
    #[error("the name of tensor {index} isn't UTF-8: \"{found}\"")]
    TensorNameEncoding {
        /// Position in the tensor table, from 0.
        index: u64,
        /// The name's bytes, escaped.
        found: String,
    },
    /// The same tensor name twice.
    #[error("tensor `{name}` occurs twice")]
    TensorDuplicate {
        /// The name.
        name: String,
    },
    /// Too many dimensions.
    #[error("tensor `{name}` has {found} dimensions, expected at most {max}")]
    TensorDims {
        /// The name.
        name: String,
        /// Count in the file.
        found: u32,
        /// Most allowed.
        max: u32,
    },
    /// A storage type id that nobody has defined.
    #[error("tensor `{name}` has storage type {found}, which isn't known: the file may need a newer version of this program")]
    TensorType {
        /// The name.
        name: String,
        /// The id in the file.
        found: u32,
    },
    /// A storage type that existed once and was withdrawn.
    #[error("tensor `{name}` has storage type {found} (`{was}`), which was removed from the format: {way_out}")]
    TensorTypeRemoved {
        /// The name.
        name: String,
        /// The id in the file.
        found: u32,
        /// What the id meant.
        was: &'static str,
        /// What to do about it.
        way_out: &'static str,
    },
    /// Rows that aren't whole blocks.
    #[error("tensor `{name}` has rows of {found} elements, expected a multiple of {expected}, the block of {ty}")]
    TensorRow {
        /// The name.
        name: String,
        /// Its storage type.
        ty: TensorType,
        /// Elements in a block.
        expected: u64,
        /// Elements in a row.
        found: u64,
    },
    /// A size beyond 64 bits.
    #[error("tensor `{name}` with dimensions {found:?} is larger than 2^64 bytes or elements; the file has {file_len} bytes")]
    TensorSize {
        /// The name.
        name: String,
        /// Its dimensions.
        found: Vec<u64>,
        /// Size of the file in bytes.
        file_len: u64,
    },
    /// An offset that isn't a multiple of the alignment.
    #[error("tensor `{name}` is at offset {found}, expected a multiple of the alignment {expected}")]
    TensorUnaligned {
        /// The name.
        name: String,
        /// The file's alignment.
        expected: u64,
        /// Offset in the data section.
        found: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap: the first ends at byte {end}, the second starts at byte {start}")]
    TensorOverlap {
        /// The tensor with the lower offset.
        first: String,
        /// The tensor that starts inside it.
        second: String,
        /// One past the first tensor's last byte, from the start of the file.
        end: u64,
        /// The second tensor's first byte, from the start of the file.
        start: u64,
    },
    /// A key that the caller can't do without.
    #[error("the metadata lacks the key `{key}`")]
    KeyMissing {
        /// The key.
        key: String,
    },
    /// A key whose value is of another type, or out of the range asked for.
    #[error("metadata key `{key}` should be {expected}, found {found}")]
    KeyType {
        /// The key.
        key: String,
        /// What was asked for.
        expected: &'static str,
        /// Type and, where short, value in the file.
        found: String,
    },
    /// Bytes that aren't a whole number of blocks, or an output of another length.
    #[error("decoding {ty}: expected {expected} bytes for {elems} elements, found {found}")]
    BlockLength {
        /// The storage type.
        ty: TensorType,
        /// Elements asked for.
        elems: u64,
        /// Bytes that these elements need; 0 where they aren't whole blocks.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// A storage type without reference decode.
    #[error("storage type {ty} can be listed but not decoded: no reference for its values exists")]
    NoDecoder {
        /// The storage type.
        ty: TensorType,
    },
    /// A storage type without reference encode.
    #[error("storage type {ty} has no encoder; those with one are {available}")]
    NoEncoder {
        /// The storage type.
        ty: TensorType,
        /// Names of the types that can be written.
        available: String,
    },
    /// A writer was given an array whose elements differ in type.
    #[error("metadata key `{key}` holds an array of {expected} with an element of type {found}")]
    ArrayElement {
        /// The key.
        key: String,
        /// The array's element type.
        expected: ValueType,
        /// The odd element's type.
        found: ValueType,
    },
    /// A writer was given data of another size than the dimensions ask for.
    #[error("tensor `{name}` of type {ty} with dimensions {dims:?} needs {expected} bytes of data, found {found}")]
    TensorData {
        /// The name.
        name: String,
        /// Its storage type.
        ty: TensorType,
        /// Its dimensions.
        dims: Vec<u64>,
        /// Bytes that the dimensions need.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// A place outside the set.
    #[error("`split.no` is {no} of a model split over {count} files, expected a number below the count, and at most {max} files")]
    SplitNumber {
        /// `split.no` in the file.
        no: u32,
        /// `split.count` in the file.
        count: u32,
        /// Most files in a set.
        max: u32,
    },
    /// A set was opened by a file that isn't its first.
    #[error("the file is part {} of {count} of a split model: open the first one, {first}", .no.saturating_add(1))]
    SplitNotFirst {
        /// The file's place, from 0.
        no: u32,
        /// Files in the set.
        count: u32,
        /// Name of the first file.
        first: String,
    },
    /// The file's name doesn't tell those of its siblings.
    #[error("the file is the first of {count}, so its name should end in -00001-of-{count:05}.gguf, found {found}: rename it as it was")]
    SplitName {
        /// The name.
        found: String,
        /// Files in the set.
        count: u32,
    },
    /// A file of the set that isn't what its name says.
    #[error(
        "part {} of {count} of a split model says that it is part {} of {found_count}: files of different sets are mixed",
        .index.saturating_add(1), .found_no.saturating_add(1)
    )]
    SplitMember {
        /// Place in which it was given.
        index: u32,
        /// Files given.
        count: u32,
        /// Place that it states.
        found_no: u32,
        /// Number of files that it states.
        found_count: u32,
    },
    /// A tensor in two files of the set.
    #[error("tensor `{name}` is in two parts of the split model, {} and {}", .first.saturating_add(1), .second.saturating_add(1))]
    SplitDuplicate {
        /// The name.
        name: String,
        /// The first file that has it.
        first: u32,
        /// The second.
        second: u32,
    },
    /// The files together have another number of tensors than stated.
    #[error("the files of the set hold {found} tensors together, expected {expected}")]
    SplitTotal {
        /// `split.tensors.count` of the first file.
        expected: u64,
        /// Tensors found.
        found: u64,
    },
}

/// A name from a file for use in a message: control characters escaped, long ones cut, so that the sentence stays one
/// and a terminal isn't written to.
pub(crate) fn shown(name: &str) -> String {
    const MOST: usize = 80;
    let mut out: String = name.chars().take(MOST).flat_map(char::escape_debug).collect();
    if name.chars().nth(MOST).is_some() {
        out.push_str("...");
    }
    out
}

/// Bytes from a file for use in a message.
pub(crate) fn shown_bytes(bytes: &[u8]) -> String {
    const MOST: usize = 40;
    let head = bytes.get(..MOST).unwrap_or(bytes).escape_ascii();
    let dots = if bytes.len() > MOST { "..." } else { "" };
    format!("{head}{dots}")
}
