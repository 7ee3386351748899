//! The engine of Selvedge: everything between a GGUF file and text, apart from the kernels.
//!
//! Modules are declared in dependency order; a module uses only those above it (`tests/tidy.rs` holds it).

pub mod ids;
pub mod os;
pub mod math;
pub mod cancel;
pub mod sampler;
pub mod stop;
pub mod template;
pub mod tokenizer;
pub mod text;
pub mod step;
pub mod kv;
pub mod ops;
pub mod graph;
pub mod place;
pub mod backend;
pub mod model;
pub mod arch;
pub mod plan;
pub mod engine;
pub mod session;
