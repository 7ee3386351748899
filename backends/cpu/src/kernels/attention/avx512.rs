//! AVX-512 rows: sixteen floats in a register.

use super::avx2::Avx2;
use super::vector::{self, Vector, vector_kernels};
use super::{AttentionKernels, BlockArgs, Query, finish_body, merge_body, scalar};
use selvedge_core::kv::KvElem;
use selvedge_core::math::N_LANE;
use std::arch::x86_64::*;
use std::ops::Range;

vector_kernels!(Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl", "attention_avx512", 8 4 3 2 1);

struct Avx512;

impl Vector for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the caller has the instruction set; likewise below.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn larger(acc: __m512, x: __m512) -> __m512 {
        // The instruction gives its second operand where the first isn't greater.
        // SAFETY: as above.
        unsafe { _mm512_max_ps(x, acc) }
    }
    #[inline(always)]
    unsafe fn within(x: __m512, lo: isize, hi: isize, other: f32) -> __m512 {
        let below = |n: isize| ((1_u32 << n.clamp(0, 16)) - 1) as u16;
        // SAFETY: as above.
        unsafe { _mm512_mask_mov_ps(_mm512_set1_ps(other), below(hi) & !below(lo), x) }
    }
    #[inline(always)]
    unsafe fn tree(lanes: &[f32; N_LANE]) -> f32 {
        // SAFETY: a machine with AVX-512 has AVX2.
        unsafe { Avx2::tree(lanes) }
    }
    #[inline(always)]
    unsafe fn tree_larger(lanes: &[f32; N_LANE]) -> f32 {
        // SAFETY: likewise.
        unsafe { Avx2::tree_larger(lanes) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        // SAFETY: the caller gives room for sixteen floats.
        unsafe { _mm512_storeu_ps(to, x) }
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> __m512 {
        // SAFETY: the caller gives sixteen floats.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m512 {
        // SAFETY: the caller gives sixteen halves.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8, scales: *const u16, shared: bool) -> __m512 {
        // SAFETY: the caller gives sixteen integers, and one scale or sixteen.
        unsafe {
            let q = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())));
            let scales = if shared { _mm256_set1_epi16(*scales as i16) } else { _mm256_loadu_si256(scales.cast()) };
            _mm512_mul_ps(q, _mm512_cvtph_ps(scales))
        }
    }
    #[inline(always)]
    unsafe fn fetch(at: *const u8) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}
