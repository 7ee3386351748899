//! GGUF: bytes to metadata and a tensor table, a writer, and the block formats in which tensors are stored.
//!
//! The crate knows bytes, not models, and does no input or output: mapping files is the caller's part.
//! [`Gguf::parse`] checks everything about a file once; what it returns can be used without further checks.
//!
//! ```
//! use selvedge_gguf::{Gguf, TensorType, Writer, decode_row};
//!
//! let mut writer = Writer::new();
//! writer.set("general.architecture", "llama").set("llama.block_count", 2u32);
//! writer.add_values("output_norm.weight", TensorType::Q8_0, &[32], &[0.5; 32])?;
//! let bytes = writer.to_bytes()?;
//!
//! let gguf = Gguf::parse(&bytes)?;
//! assert_eq!(gguf.metadata.require_u32("llama.block_count")?, 2);
//! let tensor = gguf.tensor("output_norm.weight").expect("written above");
//! let mut values = vec![0.0; tensor.n_elems() as usize];
//! decode_row(tensor.ty, gguf.tensor_bytes(tensor), &mut values)?;
//! assert!((values[31] - 0.5).abs() < 1e-4);
//! # Ok::<(), selvedge_gguf::Error>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "a test may panic"))]

mod cursor;
mod error;
#[allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "blocks have constant sizes: every index is bounded by the chunk that the loop cuts"
)]
pub mod format;
mod metadata;
mod owned;
mod reader;
pub mod split;
mod tensor;
mod value;
mod writer;

pub use error::Error;
pub use format::{FormatRow, LatticeRow, TensorType, decode_row, encode_row, swap_endian};
pub use metadata::Metadata;
pub use owned::OwnedValue;
pub use reader::{DEFAULT_ALIGNMENT, Endian, Gguf, MAX_KEY};
pub use split::{SplitInfo, SplitName};
pub use tensor::{MAX_DIMS, MAX_TENSOR_NAME, TensorInfo};
pub use value::{Array, MAX_ARRAY_DEPTH, Value, ValueType};
pub use writer::{Outline, Writer, WriterTensor};
