//! AVX-VNNI rows: AVX2's with its products taken by `vpdpbusd`, which sums four of them in 32 bits without saturation.
//!
//! Weights are the unsigned side: signed ones are shifted by 128, which, like every offset, is taken back through the
//! activations' sums.

use super::TileArgs;
use super::avx2::{self, F16, F32, Five, Nibble, NibbleIq4, Products, ScaleKind, Signed, Six, Super, Weights};
use crate::pack::{Layout, Quant, Scales};
use std::arch::x86_64::*;

/// By `vpdpbusd`.
struct Vnni;

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn dot(sum: __m256i, w: __m256i, x: i32) -> __m256i {
    _mm256_dpbusd_avx_epi32(sum, w, _mm256_set1_epi32(x))
}

/// Signed bytes as unsigned ones, 128 more.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn shifted(w: __m256i) -> __m256i {
    _mm256_xor_si256(w, _mm256_set1_epi8(-128))
}

impl Products for Vnni {
    const SIGNED_SHIFT: i32 = 128;
    #[inline(always)]
    unsafe fn group<W: Weights, const FIRST: usize, const QUADS: usize, const N: usize>(
        q: *const u8,
        x: *const i8,
        k: usize,
    ) -> [[__m256i; 2]; N] {
        // SAFETY: the machine has AVX-VNNI; j < 8, and the N rows hold 32 columns from `x` on.
        unsafe {
            let mut isum = [[_mm256_setzero_si256(); 2]; N];
            for j in FIRST..FIRST + QUADS {
                let mut w = [W::quad(q, j, 0), W::quad(q, j, 1)];
                if W::SIGNED {
                    w = [shifted(w[0]), shifted(w[1])];
                }
                for (n, isum) in isum.iter_mut().enumerate() {
                    let x = x.add(n * k + 4 * j).cast::<i32>().read_unaligned();
                    *isum = [dot(isum[0], w[0], x), dot(isum[1], w[1], x)];
                }
            }
            isum
        }
    }
    unsafe fn tile<W: Weights, S: ScaleKind, const N: usize>(args: &TileArgs, row: usize, shift: i32) {
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        unsafe fn compiled<W: Weights, S: ScaleKind, const N: usize>(args: &TileArgs, row: usize, shift: i32) {
            // SAFETY: the caller's promise.
            unsafe { avx2::tile::<Vnni, W, S, N>(args, row, shift) }
        }
        // SAFETY: the caller's promise.
        unsafe { compiled::<W, S, N>(args, row, shift) }
    }
}

super::int_kernels!();

unsafe fn rows<W: Weights, S: ScaleKind>(args: &TileArgs, offset: i32) {
    // SAFETY: the caller's promise.
    unsafe { avx2::rows_by::<Vnni, W, S>(args, offset) }
}
