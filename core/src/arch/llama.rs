//! Llama 1 to 3 and all that say they are: Mistral, SmolLM, Vicuna and the like; biases where the file has them.
//! Source: Touvron et al. 2023; transformers `modeling_llama.py`, `modeling_mistral.py` (window). Rows of q and k are
//! permuted in the file so that neighbours form a pair.

use super::{ArchSpec, DecoderConfig, decoder};
use crate::ops::Pairing;

pub(super) const SPEC: ArchSpec = ArchSpec {
    gguf_name: "llama",
    config: |keys, file| DecoderConfig::from_keys(keys, file, Pairing::Interleaved)?.with_window(keys),
    build: decoder::build,
};
