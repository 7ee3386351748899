//! The engine of Selvedge: everything between a GGUF file and text, apart from the kernels.
//!
//! Modules are declared in dependency order; a module uses only those above it (`tests/tidy.rs` holds it).

pub mod os;
pub mod ids;
pub mod cancel;
pub mod math;
pub mod step;
pub mod kv;
pub mod ops;
pub mod graph;
pub mod place;
pub mod backend;
pub mod tokenizer;
pub mod template;
pub mod sampler;
pub mod stop;
