//! Gemma 1: GELU, embeddings scaled by the root of their width, tied output. Source: transformers `modeling_gemma.py`;
//! files hold norm weights with the 1 added.

use super::{ArchSpec, DecoderConfig, decoder};
use crate::model::{Keys, ModelError, ModelFile};
use crate::ops::{Act, Pairing};

pub(super) const SPEC: ArchSpec = ArchSpec { gguf_name: "gemma", config: shared, build: decoder::build };

/// What all Gemmas have in common.
pub(super) fn shared(keys: &Keys<'_>, file: &ModelFile) -> Result<DecoderConfig, ModelError> {
    let config = DecoderConfig::from_keys(keys, file, Pairing::Halves)?;
    Ok(DecoderConfig { act: Act::GeluTanh, embedding_scale: (config.d_model as f32).sqrt(), ..config })
}

/// Scores are divided by the root of the head size; in the largest model of a series by that of the width per head.
pub(super) fn attention_scale(config: &DecoderConfig, n_layer_of_largest: usize) -> f32 {
    let d = if config.n_layer() == n_layer_of_largest { config.d_model / config.layers[0].n_head } else { config.d_k };
    1.0 / (d as f32).sqrt()
}
