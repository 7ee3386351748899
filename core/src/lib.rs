//! The engine of Selvedge: everything between a GGUF file and text, apart from the kernels.
//!
//! Modules are declared in dependency order; a module uses only those above it (`tests/tidy.rs` holds it).

pub mod arch;
pub mod backend;
pub mod cancel;
pub mod graph;
pub mod ids;
pub mod kv;
pub mod math;
pub mod model;
pub mod ops;
pub mod os;
pub mod place;
pub mod sampler;
pub mod step;
pub mod stop;
pub mod template;
pub mod tokenizer;
