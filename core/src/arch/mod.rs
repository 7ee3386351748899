//! Architectures: what a model's keys mean, and which tensors it has.
//!
//! To add one that is a decoder like those here: write `arch/x.rs` with a `SPEC` that sets what differs in
//! [`DecoderConfig`], and add a row to [`ARCHITECTURES`]. One with another structure supplies its own `build` in its row
//! and changes nothing else. It then runs on the reference backend; `tests/arch.rs` iterates the table and asks for a
//! model with values computed elsewhere.

pub mod decoder;
mod gemma;
mod gemma2;
mod gemma3;
mod granite;
mod llama;
mod phi3;
mod qwen2;
mod qwen3;
pub mod rope;
mod smollm3;

use crate::graph::VerifiedGraph;
use crate::model::{Keys, ModelError, ModelFile};
pub use decoder::{DecoderConfig, LayerConfig};
use selvedge_gguf::Gguf;

/// A row of the table.
#[derive(Debug)]
pub struct ArchSpec {
    /// `general.architecture` of its files.
    pub gguf_name: &'static str,
    /// Reads and checks the keys.
    pub config: fn(&Keys<'_>, &ModelFile) -> Result<DecoderConfig, ModelError>,
    /// Builds the graph for a context of that many positions.
    pub build: fn(&DecoderConfig, &ModelFile, usize) -> Result<VerifiedGraph, ModelError>,
}

/// All architectures, by name.
pub static ARCHITECTURES: &[ArchSpec] =
    &[gemma::SPEC, gemma2::SPEC, gemma3::SPEC, granite::SPEC, llama::SPEC, phi3::SPEC, qwen2::SPEC, qwen3::SPEC, smollm3::SPEC];

/// A model's architecture with its configuration.
#[derive(Debug)]
pub struct Architecture {
    /// Its row.
    pub spec: &'static ArchSpec,
    /// What the file's keys say.
    pub config: DecoderConfig,
}

impl Architecture {
    /// Reads what a file says of its model. No tensor is read.
    ///
    /// # Errors
    /// An architecture that isn't in the table; keys that are missing or make no sense.
    pub fn of(file: &ModelFile) -> Result<Architecture, ModelError> {
        Architecture::read(file, &file.gguf()?)
    }

    /// The same from the file's parsed table, which takes milliseconds to make where the vocabulary is large.
    ///
    /// # Errors
    /// As [`Architecture::of`].
    pub fn read(file: &ModelFile, gguf: &Gguf<'_>) -> Result<Architecture, ModelError> {
        let keys = Keys::new(&gguf.metadata)?;
        let spec = ARCHITECTURES.iter().find(|s| s.gguf_name == keys.architecture()).ok_or_else(|| ModelError::UnknownArchitecture {
            found: keys.architecture().escape_debug().to_string(),
            known: ARCHITECTURES.iter().map(|s| s.gguf_name).collect::<Vec<_>>().join(", "),
        })?;
        Ok(Architecture { spec, config: (spec.config)(&keys, file)? })
    }

    /// The graph for a context of `n_ctx` positions.
    ///
    /// # Errors
    /// Tensors that are missing, of other dimensions than the keys demand, or stored in a way that can't be decoded.
    pub fn build(&self, file: &ModelFile, n_ctx: usize) -> Result<VerifiedGraph, ModelError> {
        (self.spec.build)(&self.config, file, n_ctx)
    }
}

/// Tensors of the file that a graph doesn't read: worth a warning, as they may belong to something that isn't supported.
pub fn unused_tensors<'a>(file: &'a ModelFile, graph: &VerifiedGraph) -> Vec<&'a str> {
    let settings = [rope::FREQS, rope::FACTORS[0], rope::FACTORS[1]];
    let read: std::collections::HashSet<&str> = graph.weights.iter().map(|w| w.tensor.as_str()).chain(settings).collect();
    file.tensors().map(|(name, _)| name).filter(|name| !read.contains(name)).collect()
}
