//! Qwen 3, dense: queries and keys normalised per head. Source: transformers `modeling_qwen3.py`.

use super::{ArchSpec, DecoderConfig, decoder};
use crate::ops::Pairing;

pub(super) const SPEC: ArchSpec = ArchSpec {
    gguf_name: "qwen3",
    config: |keys, file| Ok(DecoderConfig { qk_norm: true, ..DecoderConfig::from_keys(keys, file, Pairing::Halves)? }),
    build: decoder::build,
};
