//! Elementary functions that give the same bits on every machine.
//!
//! The standard library hands `exp`, `sin`, `powf` and their kin to the platform's C library, whose last bits differ
//! between systems and versions. Everything here is built from operations that IEEE 754 defines to the last bit:
//! `+ - * /`, fused multiply-add, comparisons, selects and integer operations on the bit pattern. So a function gives
//! the same bits on every instruction set, at every optimisation level, in a scalar loop and in a vectorised one, as
//! long as the thread runs in the default floating-point environment (round to nearest, no flush to zero).
//! Only a NaN's sign and payload are outside the promise; whether a result is NaN is inside it.
//!
//! * [`single`], re-exported here: `f32` functions for kernels. Branch-free and `#[inline(always)]`, so that a loop over
//!   them in a `#[target_feature(enable = "avx2,fma")]` function becomes vector code. Without the `fma` target feature
//!   [`f32::mul_add`] is a call of the C library's `fmaf`: the same bits (it is correctly rounded), only slower.
//! * [`double`]: `f64` functions for tables (RoPE angles and bases), accurate rather than fast.
//! * [`lanes`], re-exported here: sums and maxima in the one order that the project uses, 16 virtual lanes and a tree.
//!
//! Conversions between `f32` and half-precision floats are those of the `half` crate: its software and its hardware
//! paths both round to nearest even and agree on every value that isn't a NaN.

/// Version of the arithmetic: it goes wherever bits are compared or kept, and rises in the commit that changes them.
pub const NUMERICS: u32 = 1;

pub mod double;
pub mod lanes;
pub mod single;

pub use lanes::{N_LANE, all_finite, dot16, max16, sum_sq16, sum16};
pub use single::{exp, gelu_tanh, ln, sigmoid, silu, tanh};
