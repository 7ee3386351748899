//! AVX2 rows: eight floats in a register.

use super::vector::{self, Vector, vector_kernels};
use super::{AttentionKernels, BlockArgs, Query, finish_body, merge_body, scalar};
use selvedge_core::kv::KvElem;
use selvedge_core::math::N_LANE;
use std::arch::x86_64::*;
use std::ops::Range;

vector_kernels!(Avx2, "avx2,fma,f16c", "attention_avx2", 4 3 2 1);

pub(super) struct Avx2;

/// The last steps of the tree of [`selvedge_core::math::lanes`]: eight lanes to four, two and one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tree_of_8(x: __m256) -> f32 {
    let x4 = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
    _mm_cvtss_f32(_mm_add_ss(x2, _mm_movehdup_ps(x2)))
}

/// The same of maxima. The instruction gives its second operand where the first isn't greater.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tree_larger_of_8(x: __m256) -> f32 {
    let x4 = _mm_max_ps(_mm256_extractf128_ps::<1>(x), _mm256_castps256_ps128(x));
    let x2 = _mm_max_ps(_mm_movehl_ps(x4, x4), x4);
    _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(x2), x2))
}

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
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn larger(acc: __m256, x: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_max_ps(x, acc) }
    }
    #[inline(always)]
    unsafe fn within(x: __m256, lo: isize, hi: isize, other: f32) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let bound = |n: isize| _mm256_set1_epi32(n.clamp(0, 8) as i32);
            let seen = _mm256_andnot_si256(_mm256_cmpgt_epi32(bound(lo), lane), _mm256_cmpgt_epi32(bound(hi), lane));
            _mm256_blendv_ps(_mm256_set1_ps(other), x, _mm256_castsi256_ps(seen))
        }
    }
    #[inline(always)]
    unsafe fn tree(lanes: &[f32; N_LANE]) -> f32 {
        // SAFETY: eight floats each.
        unsafe { tree_of_8(_mm256_add_ps(_mm256_loadu_ps(lanes.as_ptr()), _mm256_loadu_ps(lanes.as_ptr().add(8)))) }
    }
    #[inline(always)]
    unsafe fn tree_larger(lanes: &[f32; N_LANE]) -> f32 {
        // SAFETY: eight floats each.
        unsafe { tree_larger_of_8(_mm256_max_ps(_mm256_loadu_ps(lanes.as_ptr().add(8)), _mm256_loadu_ps(lanes.as_ptr()))) }
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
    #[inline(always)]
    unsafe fn fetch(at: *const u8) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}
