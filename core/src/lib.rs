//! The engine of Selvedge: everything between a GGUF file and text, apart from the kernels.
//!
//! Modules are declared in dependency order; a module uses only those above it (`tests/tidy.rs` holds it).

pub mod math;
pub mod sampler;
pub mod stop;
pub mod template;
pub mod tokenizer;
