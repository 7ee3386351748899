//! Qwen 2 and 2.5: biases on q, k and v. Source: transformers `modeling_qwen2.py`; its window is off in all published models.

use super::{ArchSpec, DecoderConfig, decoder};
use crate::ops::Pairing;

pub(super) const SPEC: ArchSpec = ArchSpec {
    gguf_name: "qwen2",
    config: |keys, file| Ok(DecoderConfig { qkv_bias: true, ..DecoderConfig::from_keys(keys, file, Pairing::Halves)? }),
    build: decoder::build,
};
