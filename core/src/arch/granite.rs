//! Granite 3, dense: factors of embeddings, residual branches, attention scores and logits. Source: transformers
//! `modeling_granite.py`. Rows of q and k are permuted as in llama.

use super::{ArchSpec, DecoderConfig, decoder};
use crate::ops::Pairing;

pub(super) const SPEC: ArchSpec = ArchSpec {
    gguf_name: "granite",
    config: |keys, file| {
        let mut config = DecoderConfig::from_keys(keys, file, Pairing::Interleaved)?;
        // The files use this key to say whether positions are marked at all.
        if keys.bool("rope.scaling.finetuned")? == Some(false) {
            config.layers.iter_mut().for_each(|l| l.rope = None);
        }
        Ok(DecoderConfig {
            embedding_scale: keys.positive_or_off("embedding_scale")?.unwrap_or(1.0),
            residual_scale: keys.positive_or_off("residual_scale")?.unwrap_or(1.0),
            // Logits are divided by the file's number.
            logit_scale: 1.0 / keys.positive_or_off("logit_scale")?.unwrap_or(1.0),
            ..config
        })
    },
    build: decoder::build,
};
