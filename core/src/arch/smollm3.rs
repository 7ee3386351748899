//! SmolLM 3: a llama in which every fourth layer doesn't mark positions. Source: transformers `modeling_smollm3.py`
//! (`no_rope_layer_interval`, which files don't carry). Rows of q and k are permuted as in llama.

use super::{ArchSpec, DecoderConfig, decoder};
use crate::ops::Pairing;

/// The last layer of every so many has no rotary embedding.
const NO_ROPE_INTERVAL: usize = 4;

pub(super) const SPEC: ArchSpec = ArchSpec {
    gguf_name: "smollm3",
    config: |keys, file| {
        let mut config = DecoderConfig::from_keys(keys, file, Pairing::Interleaved)?;
        config.layers.iter_mut().skip(NO_ROPE_INTERVAL - 1).step_by(NO_ROPE_INTERVAL).for_each(|l| l.rope = None);
        Ok(config)
    },
    build: decoder::build,
};
