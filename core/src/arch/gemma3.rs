//! Gemma 3, text: five windowed layers to one that sees all, each kind with its own rotary base, queries and keys
//! normalised per head. Source: Gemma team 2025; transformers `modeling_gemma3.py`.

use super::{ArchSpec, DecoderConfig, decoder, gemma};
use crate::model::ModelError;
use selvedge_gguf::Error;

/// Layers of the 27B model.
const N_LAYER_27B: usize = 62;
/// Where files name none: one layer of so many sees all, and windowed layers turn by this base.
const PERIOD: usize = 6;
const LOCAL_BASE: f64 = 10_000.0;
/// Base of the layers that see all, where a file names none.
const GLOBAL_BASE: f64 = 1_000_000.0;

pub(super) const SPEC: ArchSpec = ArchSpec {
    gguf_name: "gemma3",
    config: |keys, file| {
        let mut config = gemma::shared(keys, file)?;
        // Without its window no layer would compute what was trained: files with neither are refused, not guessed.
        let window =
            decoder::window(keys)?.ok_or_else(|| ModelError::from(Error::KeyMissing { key: keys.name("attention.sliding_window") }))?;
        let windowed = keys.pattern("attention.sliding_window_pattern", config.n_layer(), PERIOD)?;
        if keys.f32("rope.freq_base")?.is_none() {
            config.ropes[0].base = GLOBAL_BASE;
        }
        let local = config.ropes[0].local(keys, "rope.freq_base_swa", LOCAL_BASE)?;
        config.ropes.push(local);
        for (layer, _) in config.layers.iter_mut().zip(windowed).filter(|(_, windowed)| *windowed && window > 0) {
            (layer.window, layer.rope) = (Some(window), Some(1));
        }
        Ok(DecoderConfig {
            post_norms: true,
            qk_norm: true,
            attention_scale: keys.positive_or_off("attention.scale")?.unwrap_or(gemma::attention_scale(&config, N_LAYER_27B)),
            final_soft_cap: keys.positive_or_off("final_logit_softcapping")?,
            ..config
        })
    },
    build: decoder::build,
};
