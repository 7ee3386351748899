//! Attention of some queries over one block of 64 positions, and the merge of blocks.
//!
//! ```text
//!   s[p] = fma chain over d of q[d] * K[d][p], then * scale, then the soft cap        p in the query's part lo..hi of the block
//!   m    = max s,   e[p] = exp(s[p] - m),  0 elsewhere,   l = sum of e by 16 virtual lanes
//!   o[d] = fma chain over p = lo..hi of e[p] * V[p][d]
//!   merge into (M, L, O):  M' = max(M, m),  a = exp(M - M'),  b = exp(m - M'),  L' = fma(l, b, L * a),  O' = fma(o, b, O * a)
//! ```
//! Blocks are aligned to the absolute position and merged in ascending order from the first that the mask meets, so the
//! bits depend on neither chunk, thread nor page (DESIGN 3.1). Positions outside lo..hi are never read into a result.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;

use crate::isa::Isa;
use selvedge_core::kv::{LayerLayout, PAGE};
use selvedge_core::math;
use std::ops::Range;

/// The most queries that share a pass over a block.
pub(crate) const MAX_QUERIES: usize = 8;

/// One query against one block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query {
    /// `[d_k]`
    pub q: *const f32,
    /// First position of the block that it sees.
    pub lo: usize,
    /// One past the last.
    pub hi: usize,
    /// `[d_v + 2]`: max, sum, weighted values. Written.
    pub out: *mut f32,
    /// Whether `out` holds the result of earlier blocks, which this one is merged into.
    pub merge: bool,
}

/// What the queries of a block have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockArgs {
    /// The layer's part of the page.
    pub page: *const u8,
    /// Its layout.
    pub layout: LayerLayout,
    /// Key head.
    pub head: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Soft cap, or 0 for none.
    pub soft_cap: f32,
    /// The layer's part of the page that the same thread takes next, or null where keys and values need no fetching ahead:
    /// they come from memory where queries are few.
    pub next: *const u8,
}

/// A kernel.
///
/// # Safety
/// Pointers cover what [`Query`] and [`BlockArgs`] say, `lo < hi <= 64`, at most [`MAX_QUERIES`] queries, and the machine
/// has the instruction set.
pub(crate) type BlockFn = unsafe fn(&BlockArgs, &[Query]);

/// Widens the keys and values of a block, from the first position to the one past the last, to floats at the given place,
/// `[d_k + d_v] * 64`, so that many queries share the conversion; where they now lie.
///
/// # Safety
/// As for [`BlockFn`]; the place holds that many floats and is no part of the page.
pub(crate) type WidenFn = unsafe fn(&BlockArgs, Range<usize>, *mut f32) -> BlockArgs;

/// Merges a block's result into a running one.
///
/// # Safety
/// Both hold `d_v + 2` floats and don't overlap; the machine has the instruction set.
pub(crate) type MergeFn = unsafe fn(*mut f32, *const f32, usize);

/// The kernels of an instruction set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionKernels {
    /// One block.
    pub block: BlockFn,
    /// Keys and values as floats, for more queries than take one pass.
    pub widen: WidenFn,
    /// Merge.
    pub merge: MergeFn,
    /// `(state, d_v, out)`: the weighted mean of a finished state.
    pub finish: unsafe fn(*const f32, usize, *mut f32),
    /// Name of the kernel, for explanations.
    pub name: &'static str,
}

/// The kernels for an instruction set.
pub(crate) fn select(isa: Isa) -> AttentionKernels {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => avx2::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Amx => avx512::KERNELS,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => neon::KERNELS,
        _ => scalar::KERNELS,
    }
}

/// Scores to weights: scale, cap, mask, maximum, exponentials and their sum. `s` holds raw dot products, and weights
/// afterwards, zero outside `lo..hi`.
#[inline(always)]
fn soft_max(s: &mut [f32; PAGE], lo: usize, hi: usize, scale: f32, soft_cap: f32) -> (f32, f32) {
    if soft_cap != 0.0 {
        for s in s.iter_mut() {
            *s = selvedge_core::ops::SoftCap::eval(*s * scale, soft_cap);
        }
    } else {
        for s in s.iter_mut() {
            *s *= scale;
        }
    }
    for (p, s) in s.iter_mut().enumerate() {
        *s = if p >= lo && p < hi { *s } else { f32::NEG_INFINITY };
    }
    let max = math::max16(s);
    for s in s.iter_mut() {
        *s = math::exp(*s - max);
    }
    for (p, s) in s.iter_mut().enumerate() {
        *s = if p >= lo && p < hi { *s } else { 0.0 };
    }
    (max, math::sum16(s))
}

#[inline(always)]
unsafe fn merge_body(state: *mut f32, block: *const f32, d_v: usize) {
    // SAFETY: the caller gives d_v + 2 floats each, not overlapping.
    let (state, block) = unsafe { (std::slice::from_raw_parts_mut(state, d_v + 2), std::slice::from_raw_parts(block, d_v + 2)) };
    let (max, a, b) = factors(state[0], block[0]);
    state[0] = max;
    for (s, &x) in state[1..].iter_mut().zip(&block[1..]) {
        *s = x.mul_add(b, *s * a);
    }
}

/// Maximum of a running result and of a block, and the factors that each is merged with.
#[inline(always)]
fn factors(state: f32, block: f32) -> (f32, f32, f32) {
    let max = if block > state { block } else { state };
    (max, math::exp(state - max), math::exp(block - max))
}

#[inline(always)]
unsafe fn finish_body(state: *const f32, d_v: usize, out: *mut f32) {
    // SAFETY: the caller gives d_v + 2 and d_v floats, not overlapping.
    let (state, out) = unsafe { (std::slice::from_raw_parts(state, d_v + 2), std::slice::from_raw_parts_mut(out, d_v)) };
    for (o, &s) in out.iter_mut().zip(&state[2..]) {
        *o = s / state[1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_core::kv::KvElem;

    #[test]
    fn every_kernel_gives_the_scalar_bits() {
        let mut seed = 1_u32;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        for elem in KvElem::ALL.map(|(_, e)| e) {
            for (d_k, d_v) in [(8, 8), (64, 64), (80, 72), (256, 256), (20, 12), (96, 32)] {
                if d_k % elem.block() != 0 || d_v % elem.block() != 0 {
                    continue;
                }
                let layout = LayerLayout::new(elem, 2, d_k, d_v);
                let mut page = vec![0_u64; layout.n_bytes() / 8];
                // Positions that no query may see hold garbage.
                page.fill(u64::MAX);
                let base = page.as_mut_ptr().cast::<u8>();
                let (first, last) = (3, 61);
                for slot in first..last {
                    for head in 0..2 {
                        let k: Vec<f32> = (0..d_k).map(|_| next() * 3.0).collect();
                        let v: Vec<f32> = (0..d_v).map(|_| next()).collect();
                        // SAFETY: the page has the layout's size.
                        unsafe { layout.store(base, head, slot, &k, &v) };
                    }
                }
                let mut floats = vec![0_u64; (d_k + d_v) * PAGE / 2];
                let q: Vec<Vec<f32>> = (0..MAX_QUERIES).map(|_| (0..d_k).map(|_| next()).collect()).collect();
                for soft_cap in [0.0, 2.0] {
                    for n in 1..=MAX_QUERIES {
                        let mut run = |kernels: &AttentionKernels| {
                            let mut out = vec![vec![0.0_f32; d_v + 2]; n];
                            let queries: Vec<Query> = out
                                .iter_mut()
                                .zip(&q)
                                .enumerate()
                                .map(|(i, (out, q))| Query {
                                    q: q.as_ptr(),
                                    lo: first + i,
                                    hi: last - 5 * i,
                                    out: out.as_mut_ptr(),
                                    merge: false,
                                })
                                .collect();
                            let args = BlockArgs { page: base, layout, head: 1, scale: 0.3, soft_cap, next: base };
                            // SAFETY: all buffers have the sizes of the layout.
                            unsafe { (kernels.block)(&args, &queries) };
                            // Widened, and merged into the same block's result.
                            let mut merged = out.clone();
                            let again: Vec<Query> =
                                merged.iter_mut().zip(&queries).map(|(m, q)| Query { out: m.as_mut_ptr(), merge: true, ..*q }).collect();
                            floats.fill(u64::MAX);
                            // SAFETY: as above, with room for all positions.
                            unsafe { (kernels.block)(&(kernels.widen)(&args, first..last, floats.as_mut_ptr().cast()), &again) };
                            for (merged, out) in merged.iter().zip(&out) {
                                let mut state = out.clone();
                                // SAFETY: d_v + 2 floats each.
                                unsafe { (kernels.merge)(state.as_mut_ptr(), out.as_ptr(), d_v) };
                                assert!(state.iter().zip(merged).all(|(a, b)| a.to_bits() == b.to_bits()));
                            }
                            let mut state = out[0].clone();
                            for block in &out {
                                // SAFETY: d_v + 2 floats each.
                                unsafe { (kernels.merge)(state.as_mut_ptr(), block.as_ptr(), d_v) };
                            }
                            out.push(state);
                            out
                        };
                        let want = run(&scalar::KERNELS);
                        assert!(want.iter().flatten().all(|x| x.is_finite()));
                        for isa in Isa::available() {
                            let got = run(&select(isa));
                            let bits = |v: &[Vec<f32>]| v.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
                            assert_eq!(bits(&want), bits(&got), "{isa:?} {elem:?} {d_k} {d_v} {n}");
                        }
                    }
                }
            }
        }
    }
}
