//! Packed weights in a file: a GGUF file whose first tensors are the pieces of a backend's pack.
//!
//! ```text
//!   metadata of the model
//!   selvedge.pack.form      name and version of the packed form      selvedge.pack.tensor  [tensor of each piece]
//!   selvedge.pack.numerics  version of the arithmetic                selvedge.pack.type    [its storage type]
//!   selvedge.pack.source    SHA-256 of the model's file              selvedge.pack.n_in, n_out, first, rows  [its shape, the rows held]
//!   tensors: a piece each, I8 with one dimension, or F32 for vectors; in a file that ships, then those that aren't packed
//! ```
//! The pack is the data section, so a mapping of the file is the pack. Whatever bytes a piece holds, kernels read inside it:
//! a damaged file gives wrong numbers and nothing worse.

mod file;
mod source;
mod store;

pub use file::{PackFile, PackTable};
pub use store::{Cleaned, PackStore, StoreError};
pub(crate) use store::{Found, Made};
