//! A model's file: mapping, tensor table, typed access to the keys that describe the model.

mod file;
mod keys;
mod mapped;
mod pack;
mod source;

use crate::graph::GraphError;
use crate::os::OutOfMemory;
use selvedge_gguf::TensorType;
use std::path::PathBuf;

pub use file::{Access, ModelFile, TensorRef};
pub use keys::Keys;
pub use pack::{Cleaned, Memo, PackFile, PackStore, PackTable, StoreError};
pub(crate) use pack::{Found, KeepError, Making};
pub use source::ModelSource;

/// What makes a file no model that can be run here. Every variant says what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The system refused to open, stat or map a file.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A folder, a pipe, a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The bytes are no valid GGUF.
    #[error("{}: {source}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: selvedge_gguf::Error,
    },
    /// A key is missing or of another type.
    #[error(transparent)]
    Key(#[from] selvedge_gguf::Error),
    /// A key has a value that makes no sense.
    #[error("metadata key `{key}` is {found}, expected {expected}")]
    KeyValue {
        /// The key.
        key: String,
        /// What would be right.
        expected: String,
        /// What the file says.
        found: String,
    },
    /// A part of a split set isn't there.
    #[error("part {part} of {n_parts} of the split model is missing: {} is not there", path.display())]
    PartMissing {
        /// Where it should be.
        path: PathBuf,
        /// Its number, from 1.
        part: usize,
        /// Parts of the set.
        n_parts: usize,
    },
    /// A part of an open file that the file doesn't hold.
    #[error("the part of {n_bytes} bytes from byte {start} on lies outside the file, which has {file_len}")]
    NoSuchPart {
        /// Where it was to begin.
        start: u64,
        /// Its bytes; 0 where it was to reach to the end.
        n_bytes: u64,
        /// Bytes of the file.
        file_len: u64,
    },
    /// A part of a split set that was given without a path.
    #[error("the model is split into {n_parts} files and was given without a path: open its first file by path, or merge the parts")]
    SplitWithoutPath {
        /// Parts of the set.
        n_parts: usize,
    },
    /// The names of all tensors together exceed what the table can address.
    #[error("the names of the tensors exceed 4 GiB")]
    NamesTooLong,
    /// The file was changed while it was in use.
    #[error("{} was changed while in use ({what} was {expected}, is now {found}): close the model and load it again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// Its value when the file was opened.
        expected: u64,
        /// Its value now.
        found: u64,
    },
    /// No row of the table of architectures has this name.
    #[error("architecture `{found}` isn't supported; those that are: {known}")]
    UnknownArchitecture {
        /// What the file says.
        found: String,
        /// All names of the table.
        known: String,
    },
    /// The architecture is known, a feature that the file uses isn't.
    #[error("{what} isn't supported yet (architecture `{architecture}`, key `{key}` is {found})")]
    Unsupported {
        /// The feature.
        what: &'static str,
        /// The architecture.
        architecture: String,
        /// The key that asks for it.
        key: String,
        /// Its value.
        found: String,
    },
    /// The file has no tensors at all.
    #[error("the file holds no tensors: it is a vocabulary, not a model")]
    NoTensors,
    /// A tensor that the architecture needs isn't there.
    #[error("tensor `{name}` is missing; the architecture `{architecture}` needs it")]
    TensorMissing {
        /// The tensor.
        name: String,
        /// Who needs it.
        architecture: String,
    },
    /// A tensor of other dimensions than the model's keys demand.
    #[error("tensor `{name}` has dimensions {found:?}, expected {expected:?} (columns first)")]
    TensorShape {
        /// The tensor.
        name: String,
        /// Columns and rows, the rows left out for vectors.
        expected: Vec<u64>,
        /// Dimensions in the file.
        found: Vec<u64>,
    },
    /// A tensor stored in a way that can't be decoded.
    #[error("tensor `{name}` is stored as {ty}, which can be listed but not computed with")]
    TensorType {
        /// The tensor.
        name: String,
        /// Its storage type.
        ty: TensorType,
    },
    /// A tensor of settings holds a number that makes no sense.
    #[error("tensor `{name}` holds {found} at {index}, expected {expected}")]
    TensorValue {
        /// The tensor.
        name: String,
        /// Position of the number.
        index: usize,
        /// What would be right.
        expected: &'static str,
        /// The number.
        found: f32,
    },
    /// The graph that was built doesn't verify.
    #[error("the model's graph is inconsistent: {0}")]
    Graph(#[from] GraphError),
    /// No memory for the copy of a file in foreign byte order.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}
