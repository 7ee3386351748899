//! AVX2 rows: eight floats in a register.

use super::vector::{self, Vector, vector_kernels};
use super::{AttentionKernels, BlockArgs, Query, finish_body, merge_body, scalar};
use selvedge_core::kv::KvElem;
use std::arch::x86_64::*;

vector_kernels!(Avx2, "avx2,fma,f16c", "attention_avx2");

struct Avx2;

impl Vector for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: the caller has the instruction set; likewise below.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m256) {
        // SAFETY: the caller gives room for eight floats.
        unsafe { _mm256_storeu_ps(to, x) }
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> __m256 {
        // SAFETY: the caller gives eight floats.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m256 {
        // SAFETY: the caller gives eight halves.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8, scales: *const u16, shared: bool) -> __m256 {
        // SAFETY: the caller gives eight integers, and one scale or eight.
        unsafe {
            let q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())));
            let scales = if shared { _mm_set1_epi16(*scales as i16) } else { _mm_loadu_si128(scales.cast()) };
            _mm256_mul_ps(q, _mm256_cvtph_ps(scales))
        }
    }
}
