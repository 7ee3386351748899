//! Where a model's bytes come from.

use crate::backend::HoldBytes;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a model's bytes are.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ModelSource {
    /// A file by its path, or the first file of a split set: the others are looked for beside it.
    Path(PathBuf),
    /// A part of an open file, as apps get their assets: an archive with the model somewhere in it.
    File {
        /// The file, open for reading.
        file: Arc<File>,
        /// Where the model begins, bytes.
        start: u64,
        /// Its bytes; `None`: to the end of the file.
        n_bytes: Option<u64>,
    },
    /// Bytes in memory. Nothing is kept of them in a folder of packs: they have no identity that a later load could know.
    Bytes(Arc<dyn HoldBytes>),
}

impl From<&Path> for ModelSource {
    fn from(path: &Path) -> ModelSource {
        ModelSource::Path(path.to_owned())
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> ModelSource {
        ModelSource::Path(path)
    }
}
