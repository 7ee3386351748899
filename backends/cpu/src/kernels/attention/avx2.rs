//! AVX2 rows. Scores run with 16 positions in two registers per query, values with 8 features in a register; up to four
//! queries share each load and conversion.

use super::{AttentionKernels, BlockArgs, Query, finish_body, merge_body, soft_max};
use selvedge_core::kv::{KvElem, PAGE};
use std::arch::x86_64::*;

pub(super) const KERNELS: AttentionKernels = AttentionKernels { block, merge, finish, name: "attention_avx2" };

unsafe fn block(args: &BlockArgs, queries: &[Query]) {
    // SAFETY: the caller's promise; each arm has as many queries as it says.
    unsafe {
        match (args.layout.elem, queries.len()) {
            (KvElem::F32, 1) => block_n::<1, true>(args, queries),
            (KvElem::F32, 2) => block_n::<2, true>(args, queries),
            (KvElem::F32, 3) => block_n::<3, true>(args, queries),
            (KvElem::F32, 4) => block_n::<4, true>(args, queries),
            (_, 1) => block_n::<1, false>(args, queries),
            (_, 2) => block_n::<2, false>(args, queries),
            (_, 3) => block_n::<3, false>(args, queries),
            (_, 4) => block_n::<4, false>(args, queries),
            _ => debug_assert!(false, "one to four queries"),
        }
    }
}

/// Eight elements at index `idx`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load<const WIDE: bool>(base: *const u8, idx: usize) -> __m256 {
    // SAFETY: the caller keeps eight elements inside the page.
    unsafe {
        if WIDE {
            _mm256_loadu_ps(base.cast::<f32>().add(idx))
        } else {
            _mm256_cvtph_ps(_mm_loadu_si128(base.cast::<u16>().add(idx).cast()))
        }
    }
}

/// One element at index `idx`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load1<const WIDE: bool>(base: *const u8, idx: usize) -> f32 {
    // SAFETY: the caller keeps the element inside the page.
    unsafe {
        if WIDE {
            *base.cast::<f32>().add(idx)
        } else {
            _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(*base.cast::<u16>().add(idx)))))
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_n<const N: usize, const WIDE: bool>(args: &BlockArgs, queries: &[Query]) {
    let layout = args.layout;
    let (d_k, d_v) = (layout.d_k, layout.d_v);
    // SAFETY: offsets of the head inside the page.
    let (k, v) = unsafe { (args.page.add(layout.k_offset(args.head)), args.page.add(layout.v_offset(args.head))) };
    let mut s = [[0.0_f32; PAGE]; N];
    let lo = queries.iter().map(|q| q.lo).min().unwrap_or(0);
    let hi = queries.iter().map(|q| q.hi).max().unwrap_or(PAGE);
    // Sixteen positions at a time, as far as some query sees one of them.
    for p in (lo / 16 * 16..hi).step_by(16) {
        let mut acc = [[_mm256_setzero_ps(); 2]; N];
        for d in 0..d_k {
            // SAFETY: d < d_k and p + 16 <= 64.
            let (k0, k1) = unsafe { (load::<WIDE>(k, d * PAGE + p), load::<WIDE>(k, d * PAGE + p + 8)) };
            for (acc, query) in acc.iter_mut().zip(queries) {
                // SAFETY: d < d_k.
                let q = _mm256_set1_ps(unsafe { *query.q.add(d) });
                *acc = [_mm256_fmadd_ps(k0, q, acc[0]), _mm256_fmadd_ps(k1, q, acc[1])];
            }
        }
        for (s, acc) in s.iter_mut().zip(&acc) {
            // SAFETY: p + 16 <= 64.
            unsafe {
                _mm256_storeu_ps(s.as_mut_ptr().add(p), acc[0]);
                _mm256_storeu_ps(s.as_mut_ptr().add(p + 8), acc[1]);
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
    while d + 16 <= d_v {
        let mut acc = [[_mm256_setzero_ps(); 2]; N];
        for p in lo..hi {
            // SAFETY: p < 64 and d + 16 <= d_v.
            let (v0, v1) = unsafe { (load::<WIDE>(v, p * d_v + d), load::<WIDE>(v, p * d_v + d + 8)) };
            for ((acc, s), query) in acc.iter_mut().zip(&s).zip(queries) {
                if N == 1 || (p >= query.lo && p < query.hi) {
                    let e = _mm256_set1_ps(s[p]);
                    *acc = [_mm256_fmadd_ps(v0, e, acc[0]), _mm256_fmadd_ps(v1, e, acc[1])];
                }
            }
        }
        for (acc, query) in acc.iter().zip(queries) {
            // SAFETY: `out` holds d_v + 2 floats.
            unsafe {
                _mm256_storeu_ps(query.out.add(2 + d), acc[0]);
                _mm256_storeu_ps(query.out.add(2 + d + 8), acc[1]);
            }
        }
        d += 16;
    }
    while d < d_v {
        for (s, query) in s.iter().zip(queries) {
            let mut o = 0.0_f32;
            for (p, e) in s.iter().enumerate().take(query.hi).skip(query.lo) {
                // SAFETY: p < 64 and d < d_v.
                o = unsafe { load1::<WIDE>(v, p * d_v + d) }.mul_add(*e, o);
            }
            // SAFETY: `out` holds d_v + 2 floats.
            unsafe { *query.out.add(2 + d) = o };
        }
        d += 1;
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn merge(state: *mut f32, block: *const f32, d_v: usize) {
    // SAFETY: the caller's promise.
    unsafe { merge_body(state, block, d_v) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn finish(state: *const f32, d_v: usize, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { finish_body(state, d_v, out) }
}
