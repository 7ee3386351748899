//! Kernels: one folder an op, one file an instruction set. The scalar file defines the bits; every other gives the same.

pub(crate) mod attention;
pub(crate) mod element;
pub(crate) mod matmul;
