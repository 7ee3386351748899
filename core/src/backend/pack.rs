//! Weights in a backend's own form: how they lie, who writes them and who holds their bytes.

use crate::os::Region;
use selvedge_gguf::TensorType;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A piece of a pack: some rows of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackPiece {
    /// Tensor of the model's file.
    pub tensor: String,
    /// Its storage type; F32 for a vector, which is kept as plain numbers.
    pub ty: TensorType,
    /// Its columns.
    pub n_in: usize,
    /// Its rows; 1 for a vector.
    pub n_out: usize,
    /// The rows that the piece holds.
    pub rows: Range<usize>,
    /// Whether it is a vector of plain f32.
    pub plain: bool,
    /// Place in the pack, bytes, a multiple of [`crate::os::ALIGN`].
    pub offset: usize,
    /// Size, bytes.
    pub n_bytes: usize,
}

/// How a backend lays out weights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackLayout {
    /// Name and version of the form.
    pub form: String,
    /// Pieces, ascending by offset, each starting at the first aligned byte after the one before.
    pub pieces: Vec<PackPiece>,
    /// Tensors that are read as the file has them besides.
    pub unpacked: Vec<String>,
    /// Bytes in all.
    pub n_bytes: usize,
}

/// Bytes in which a pack is written: a file system that has huge pages can hold a chunk in one.
pub const PACK_CHUNK: usize = 2 << 20;

/// Takes the bytes of a pack.
pub trait PackSink: Sync {
    /// The first offset at which a chunk begins; below [`PACK_CHUNK`].
    fn phase(&self) -> usize {
        0
    }
    /// Takes the bytes from `offset` on: a chunk.
    ///
    /// # Errors
    /// Why they can't be kept.
    fn put(&self, offset: usize, bytes: &[u8]) -> std::io::Result<()>;
}

/// The chunks of a pack of `n_bytes`.
pub fn pack_chunks(n_bytes: usize, phase: usize) -> impl Iterator<Item = Range<usize>> {
    let first = (phase > 0).then_some(0..phase.min(n_bytes));
    first.into_iter().chain((phase..n_bytes).step_by(PACK_CHUNK).map(move |start| start..(start + PACK_CHUNK).min(n_bytes)))
}

/// Packed bytes, in memory or in a mapped file, aligned to [`crate::os::ALIGN`].
pub type PackBytes = Arc<dyn HoldBytes>;

/// Whatever holds bytes that don't move.
pub trait HoldBytes: Send + Sync + std::fmt::Debug {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

impl HoldBytes for Region {
    fn bytes(&self) -> &[u8] {
        Region::bytes(self)
    }
}

#[derive(Debug)]
struct NoBytes;

impl HoldBytes for NoBytes {
    fn bytes(&self) -> &[u8] {
        &[]
    }
}

/// For backends that pack nothing.
pub fn no_pack() -> PackBytes {
    Arc::new(NoBytes)
}

/// A region is filled from many threads at once.
impl PackSink for Mutex<Region> {
    fn put(&self, offset: usize, bytes: &[u8]) -> std::io::Result<()> {
        // A copy of a chunk takes a fraction of the time of packing it, so that threads seldom meet here.
        let mut region = self.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        region.bytes_mut()[offset..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_pack_once() {
        for (n_bytes, phase) in [(0, 0), (1, 0), (1, 100), (PACK_CHUNK, 0), (5 * PACK_CHUNK + 7, 0), (5 * PACK_CHUNK + 7, 4096)] {
            let chunks: Vec<_> = pack_chunks(n_bytes, phase).filter(|c| !c.is_empty()).collect();
            let mut end = 0;
            for chunk in &chunks {
                assert_eq!(chunk.start, end);
                assert!(chunk.start == 0 || chunk.start % PACK_CHUNK == phase, "{chunk:?}");
                end = chunk.end;
            }
            assert_eq!(end, n_bytes);
        }
    }
}
