//! Phi 3 and 4 mini: q, k and v in one tensor, gate and up in another; LongRoPE in the long-context ones.
//! Source: Abdin et al. 2024; transformers `modeling_phi3.py`.

use super::{ArchSpec, DecoderConfig, decoder};
use crate::ops::Pairing;

pub(super) const SPEC: ArchSpec = ArchSpec {
    gguf_name: "phi3",
    config: |keys, file| {
        let config = DecoderConfig::from_keys(keys, file, Pairing::Halves)?.with_window(keys)?;
        Ok(DecoderConfig { fused_qkv: true, fused_gate_up: true, ..config })
    },
    build: decoder::build,
};
