//! Element-wise kernels and norms: one body each, compiled once per instruction set.
//!
//! The bodies are plain Rust over IEEE operations in a fixed order; compiling them for wider registers changes their
//! speed and nothing else, as the compiler never reorders or contracts floating-point arithmetic. Reductions use the 16
//! virtual lanes of `selvedge_core::math`.
//!
//! To add one: a body in `body.rs` and a line in the table below.

mod body;

use crate::isa::Isa;
use selvedge_core::kv::LayerLayout;
use selvedge_core::ops::{Act, Act8Layout, Rope};
use std::ops::Range;

/// Rows of element-wise work in one task.
pub(crate) const ELEMENT_ROWS: usize = 8;

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        /// The kernels of one instruction set.
        ///
        /// # Safety
        /// The machine has the instruction set; pointers cover what each kernel's body says.
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct Elements { $($(#[$doc])* pub $name: unsafe fn($($ty),*) $(-> $ret)?,)* }

        /// Without special instructions.
        pub(crate) mod scalar {
            use super::*;
            $(pub(crate) unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's promise.
                unsafe { body::$name($($arg),*) }
            })*
            pub(super) const ALL: Elements = Elements { $($name,)* };
        }

        #[cfg(target_arch = "x86_64")]
        mod avx2 {
            use super::*;
            $(#[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's promise.
                unsafe { body::$name($($arg),*) }
            })*
            pub(super) const ALL: Elements = Elements { $($name,)* };
        }

        #[cfg(target_arch = "x86_64")]
        mod avx512 {
            use super::*;
            $(#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
            unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's promise.
                unsafe { body::$name($($arg),*) }
            })*
            pub(super) const ALL: Elements = Elements { $($name,)* };
        }
    };
}

kernels! {
    /// Some rows to 8 bits; false where a value isn't finite.
    quantize_rows(x: *const f32, base: *mut u8, layout: &Act8Layout, rows: Range<usize>, k: usize) -> bool;
    /// Norm of groups, with an optional residual; false where a value isn't finite.
    rms_norm_row(x: *const f32, n: usize, w: &[f32], eps: f32, residual: *const f32, out: *mut f32) -> bool;
    /// Norms of whole rows, at most [`ELEMENT_ROWS`], then to 8 bits; false where a value isn't finite.
    rms_norm_quantize_rows(x: *const f32, w: &[f32], eps: f32, base: *mut u8, layout: &Act8Layout, rows: Range<usize>) -> bool;
    /// `out = act(gate) * up`
    glu(act: Act, gate: *const f32, up: *const f32, out: *mut f32, n: usize);
    /// `out = a + scale * b`
    add(a: *const f32, b: *const f32, scale: f32, out: *mut f32, n: usize);
    /// A tile of a product to where it belongs.
    copy_tile(src: *const f32, dst: *mut f32, n: usize, stride: usize, width: usize);
    /// `dst = a + scale * src` for a tile of a product.
    add_tile(a: *const f32, src: *const f32, scale: f32, dst: *mut f32, n: usize, stride: usize, width: usize);
    /// `out = factor * x`
    scale(x: *const f32, factor: f32, out: *mut f32, n: usize);
    /// `out = cap * tanh(x / cap)`
    soft_cap(x: *const f32, cap: f32, out: *mut f32, n: usize);
    /// Turns the heads of a row in place.
    rope_row(x: &mut [f32], table: &[f32], rope: &Rope);
    /// Keys and values of a row into the cache.
    kv_store(base: *mut u8, layout: &LayerLayout, slot: usize, k: &[f32], v: &[f32]);
}

/// The kernels for an instruction set.
pub(crate) fn select(isa: Isa) -> Elements {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => avx2::ALL,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Amx => avx512::ALL,
        // On aarch64 NEON, with fused multiply-add, is in every function already.
        _ => scalar::ALL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, seed: u32) -> Vec<f32> {
        let mut s = seed;
        (0..n)
            .map(|_| {
                s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (s >> 8) as f32 / (1 << 20) as f32 - 8.0
            })
            .collect()
    }

    #[test]
    fn all_instruction_sets_give_the_same_bits() {
        for isa in Isa::available() {
            let (a, b) = (scalar::ALL, select(isa));
            for n in [32, 64, 96, 576, 608] {
                let (x, y, w) = (values(n, 1), values(n, 2), values(n, 3));
                let run = |f: &dyn Fn(&Elements, *mut f32)| {
                    let (mut oa, mut ob) = (vec![0.0_f32; n], vec![0.0_f32; n]);
                    f(&a, oa.as_mut_ptr());
                    f(&b, ob.as_mut_ptr());
                    assert!(oa.iter().zip(&ob).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa:?} {n}");
                };
                // SAFETY: the buffers hold n floats, and the machine has the instruction set.
                run(&|e, o| unsafe { (e.glu)(Act::Silu, x.as_ptr(), y.as_ptr(), o, n) });
                // SAFETY: as above.
                run(&|e, o| unsafe { (e.glu)(Act::GeluTanh, x.as_ptr(), y.as_ptr(), o, n) });
                // SAFETY: as above.
                run(&|e, o| unsafe { (e.add)(x.as_ptr(), y.as_ptr(), 0.3, o, n) });
                for width in [16, 7] {
                    // SAFETY: two rows of 16 go where rows are n / 2 apart.
                    run(&|e, o| unsafe { (e.copy_tile)(x.as_ptr(), o, 2, n / 2, width) });
                    // SAFETY: as above.
                    run(&|e, o| unsafe { (e.add_tile)(x.as_ptr(), y.as_ptr(), 0.3, o, 2, n / 2, width) });
                }
                // SAFETY: as above.
                run(&|e, o| unsafe { (e.soft_cap)(x.as_ptr(), 5.0, o, n) });
                // SAFETY: as above.
                run(&|e, o| unsafe { assert!((e.rms_norm_row)(x.as_ptr(), n, &w, 1e-5, y.as_ptr(), o)) });
                let layout = Act8Layout::new(1, n);
                let quantized = |e: &Elements| {
                    let mut buffer = vec![0_u64; layout.n_bytes / 8];
                    // SAFETY: the buffer has the layout's size.
                    assert!(unsafe { (e.rms_norm_quantize_rows)(x.as_ptr(), &w, 1e-6, buffer.as_mut_ptr().cast(), &layout, 0..1) });
                    buffer
                };
                assert_eq!(quantized(&a), quantized(&b));
            }
        }
    }

    #[test]
    fn quantise_edges() {
        let layout = Act8Layout::new(1, 64);
        for isa in Isa::available() {
            let e = select(isa);
            let run = |x: &[f32]| {
                let mut buffer = vec![0_u64; layout.n_bytes / 8];
                // SAFETY: the buffer has the layout's size.
                let finite = unsafe { (e.quantize_rows)(x.as_ptr(), buffer.as_mut_ptr().cast(), &layout, 0..1, 64) };
                let bytes: Vec<u8> = buffer.iter().flat_map(|w| w.to_le_bytes()).collect();
                (finite, bytes[..64].iter().map(|&b| b as i8).collect::<Vec<_>>())
            };
            let mut x = [0.0; 64];
            assert_eq!(run(&x), (true, vec![0; 64]));
            // 1 / s overflows: zeros, as DESIGN 3.1 says.
            x[3] = 1e-40;
            assert_eq!(run(&x), (true, vec![0; 64]));
            x[3] = -127.0;
            x[4] = 2.5;
            x[5] = 3.5;
            let (_, q) = run(&x);
            assert_eq!((q[3], q[4], q[5]), (-127, 2, 4), "ties go to even");
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                x[40] = bad;
                assert!(!run(&x).0);
            }
        }
    }
}
