//! AVX-512 rows. Scores run with 32 positions in two registers per query, values with 32 features; up to four queries
//! share each load and conversion.

use super::{AttentionKernels, BlockArgs, Query, finish_body, merge_body, scalar, soft_max};
use selvedge_core::kv::{KV_BLOCK, KvElem, PAGE};
use std::arch::x86_64::*;

pub(super) const KERNELS: AttentionKernels = AttentionKernels { block, merge, finish, name: "attention_avx512" };

unsafe fn block(args: &BlockArgs, queries: &[Query]) {
    // SAFETY: the caller's promise; each arm has as many queries as it says.
    unsafe {
        match args.layout.elem {
            KvElem::F32 => block_of::<F32>(args, queries),
            KvElem::F16 => block_of::<F16>(args, queries),
            KvElem::Q8_0 => block_of::<Q8>(args, queries),
            _ => scalar::block(args, queries),
        }
    }
}

unsafe fn block_of<E: Load>(args: &BlockArgs, queries: &[Query]) {
    // SAFETY: the caller's promise.
    unsafe {
        match queries.len() {
            1 => block_n::<1, E>(args, queries),
            2 => block_n::<2, E>(args, queries),
            3 => block_n::<3, E>(args, queries),
            4 => block_n::<4, E>(args, queries),
            _ => debug_assert!(false, "one to four queries"),
        }
    }
}

/// Sixteen neighbouring elements of a head's keys or values as floats. `n`: elements before the scales; `idx`: of the first
/// element; `scale`: of its scale; `shared`: whether the sixteen have one scale (features of a value) or one each.
trait Load {
    unsafe fn load(base: *const u8, n: usize, idx: usize, scale: usize, shared: bool) -> __m512;
}

struct F32;
struct F16;
struct Q8;

impl Load for F32 {
    #[inline(always)]
    unsafe fn load(base: *const u8, _: usize, idx: usize, _: usize, _: bool) -> __m512 {
        // SAFETY: the caller keeps sixteen elements inside the page.
        unsafe { _mm512_loadu_ps(base.cast::<f32>().add(idx)) }
    }
}

impl Load for F16 {
    #[inline(always)]
    unsafe fn load(base: *const u8, _: usize, idx: usize, _: usize, _: bool) -> __m512 {
        // SAFETY: the caller keeps sixteen elements inside the page.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(base.cast::<u16>().add(idx).cast())) }
    }
}

impl Load for Q8 {
    #[inline(always)]
    unsafe fn load(base: *const u8, n: usize, idx: usize, scale: usize, shared: bool) -> __m512 {
        // SAFETY: the caller keeps sixteen elements and their scales inside the page.
        unsafe {
            let q = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(base.add(idx).cast())));
            let scales = base.add(n).cast::<u16>().add(scale);
            let halves = if shared { _mm256_set1_epi16(*scales as i16) } else { _mm256_loadu_si256(scales.cast()) };
            _mm512_mul_ps(q, _mm512_cvtph_ps(halves))
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
unsafe fn block_n<const N: usize, E: Load>(args: &BlockArgs, queries: &[Query]) {
    let layout = args.layout;
    let (d_k, d_v) = (layout.d_k, layout.d_v);
    // SAFETY: offsets of the head inside the page.
    let (k, v) = unsafe { (args.page.add(layout.k_offset(args.head)), args.page.add(layout.v_offset(args.head))) };
    let mut s = [[0.0_f32; PAGE]; N];
    let lo = queries.iter().map(|q| q.lo).min().unwrap_or(0);
    let hi = queries.iter().map(|q| q.hi).max().unwrap_or(PAGE);
    // Thirty-two positions at a time, as far as some query sees one of them.
    for p in (lo / 32 * 32..hi).step_by(32) {
        let mut acc = [[_mm512_setzero_ps(); 2]; N];
        for d in 0..d_k {
            // SAFETY: d < d_k and p + 32 <= 64.
            let (k0, k1) = unsafe {
                let (idx, scale) = (d * PAGE + p, d / KV_BLOCK * PAGE + p);
                (E::load(k, d_k * PAGE, idx, scale, false), E::load(k, d_k * PAGE, idx + 16, scale + 16, false))
            };
            for (acc, query) in acc.iter_mut().zip(queries) {
                // SAFETY: d < d_k.
                let q = _mm512_set1_ps(unsafe { *query.q.add(d) });
                *acc = [_mm512_fmadd_ps(k0, q, acc[0]), _mm512_fmadd_ps(k1, q, acc[1])];
            }
        }
        for (s, acc) in s.iter_mut().zip(&acc) {
            // SAFETY: p + 32 <= 64.
            unsafe {
                _mm512_storeu_ps(s.as_mut_ptr().add(p), acc[0]);
                _mm512_storeu_ps(s.as_mut_ptr().add(p + 16), acc[1]);
            }
        }
    }
    for (s, query) in s.iter_mut().zip(queries) {
        let (max, sum) = soft_max(s, query.lo, query.hi, args.scale, args.soft_cap);
        // SAFETY: `out` holds d_v + 2 floats.
        unsafe {
            *query.out = max;
            *query.out.add(1) = sum;
        }
    }
    let mut d = 0;
    while d + 32 <= d_v {
        let mut acc = [[_mm512_setzero_ps(); 2]; N];
        for p in lo..hi {
            // SAFETY: p < 64 and d + 32 <= d_v.
            let (v0, v1) = unsafe {
                let (idx, scale) = (p * d_v + d, p * (d_v / KV_BLOCK) + d / KV_BLOCK);
                (E::load(v, d_v * PAGE, idx, scale, true), E::load(v, d_v * PAGE, idx + 16, scale, true))
            };
            for ((acc, s), query) in acc.iter_mut().zip(&s).zip(queries) {
                if N == 1 || (p >= query.lo && p < query.hi) {
                    let e = _mm512_set1_ps(s[p]);
                    *acc = [_mm512_fmadd_ps(v0, e, acc[0]), _mm512_fmadd_ps(v1, e, acc[1])];
                }
            }
        }
        for (acc, query) in acc.iter().zip(queries) {
            // SAFETY: `out` holds d_v + 2 floats.
            unsafe {
                _mm512_storeu_ps(query.out.add(2 + d), acc[0]);
                _mm512_storeu_ps(query.out.add(2 + d + 16), acc[1]);
            }
        }
        d += 32;
    }
    while d < d_v {
        for (s, query) in s.iter().zip(queries) {
            let mut o = 0.0_f32;
            for (p, e) in s.iter().enumerate().take(query.hi).skip(query.lo) {
                // SAFETY: p < 64 and d < d_v.
                o = unsafe { layout.value(v, p, d) }.mul_add(*e, o);
            }
            // SAFETY: `out` holds d_v + 2 floats.
            unsafe { *query.out.add(2 + d) = o };
        }
        d += 1;
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
unsafe fn merge(state: *mut f32, block: *const f32, d_v: usize) {
    // SAFETY: the caller's promise.
    unsafe { merge_body(state, block, d_v) }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
unsafe fn finish(state: *const f32, d_v: usize, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { finish_body(state, d_v, out) }
}
