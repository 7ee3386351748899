//! GGUF: bytes to metadata and a tensor table, a writer, and the block formats in which tensors are stored.
#![forbid(unsafe_code)]
