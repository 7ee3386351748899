//! Gemma 2: every other layer windowed, soft caps, norms after attention and feed-forward part.
//! Source: Gemma team 2024; transformers `modeling_gemma2.py`.

use super::{ArchSpec, DecoderConfig, decoder, gemma};

/// Layers of the 27B model.
const N_LAYER_27B: usize = 46;

pub(super) const SPEC: ArchSpec = ArchSpec {
    gguf_name: "gemma2",
    config: |keys, file| {
        let mut config = gemma::shared(keys, file)?;
        let window = decoder::window(keys)?.unwrap_or(4096);
        let windowed = keys.pattern("attention.sliding_window_pattern", config.n_layer(), 2)?;
        for (layer, _) in config.layers.iter_mut().zip(windowed).filter(|(_, windowed)| *windowed && window > 0) {
            layer.window = Some(window);
        }
        Ok(DecoderConfig {
            post_norms: true,
            attention_scale: keys.positive_or_off("attention.scale")?.unwrap_or(gemma::attention_scale(&config, N_LAYER_27B)),
            attention_soft_cap: Some(keys.positive("attn_logit_softcapping")?.unwrap_or(50.0)),
            final_soft_cap: Some(keys.positive("final_logit_softcapping")?.unwrap_or(30.0)),
            ..config
        })
    },
    build: decoder::build,
};
