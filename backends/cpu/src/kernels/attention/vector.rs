//! The vector form of attention, written once over [`Vector`] and compiled per instruction set by [`vector_kernels`].
//!
//! Scores run with positions in lanes, values with features in lanes; two registers at a time, and as many queries as
//! there are registers for share each load and conversion.

use super::{BlockArgs, Query, factors};
use selvedge_core::kv::{KV_BLOCK, KvElem, LayerLayout, PAGE};
use selvedge_core::math::{self, N_LANE};
use selvedge_core::ops::SoftCap;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A register of floats. All functions need the instruction set of the implementor.
pub(super) trait Vector {
    /// The register.
    type V: Copy;
    /// Floats in it; two registers divide [`PAGE`], one or two are [`N_LANE`].
    const LANES: usize;
    unsafe fn splat(x: f32) -> Self::V;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `x` where it is greater than `acc`, `acc` elsewhere, also where one of them is NaN.
    unsafe fn larger(acc: Self::V, x: Self::V) -> Self::V;
    /// `x` in the lanes `lo..hi`, `other` elsewhere; the bounds may lie outside the register.
    unsafe fn within(x: Self::V, lo: isize, hi: isize, other: f32) -> Self::V;
    /// [`math`]'s tree over its 16 virtual lanes, of sums and of maxima.
    unsafe fn tree(lanes: &[f32; N_LANE]) -> f32;
    unsafe fn tree_larger(lanes: &[f32; N_LANE]) -> f32;
    unsafe fn store(to: *mut f32, x: Self::V);
    unsafe fn load_f32(from: *const f32) -> Self::V;
    unsafe fn load_f16(from: *const u16) -> Self::V;
    /// Integers times their f16 scales: one scale for all, or one each.
    unsafe fn load_i8(from: *const i8, scales: *const u16, shared: bool) -> Self::V;
    /// Asks for a cache line, which need not exist.
    unsafe fn fetch(_: *const u8) {}
}

/// Cache lines that will be needed, asked for one at a time while others are worked on.
struct Fetch {
    at: *const u8,
    left: usize,
}

impl Fetch {
    /// A head's keys or values at an offset of a page; nothing where the page is null.
    fn new(page: *const u8, offset: usize, n_bytes: usize) -> Fetch {
        Fetch { at: page.wrapping_add(offset), left: if page.is_null() { 0 } else { n_bytes / 64 } }
    }

    #[inline(always)]
    unsafe fn one<S: Vector>(&mut self) {
        if self.left > 0 {
            // SAFETY: the caller has the instruction set; the address need not exist.
            unsafe { S::fetch(self.at) };
            self.at = self.at.wrapping_add(64);
            self.left -= 1;
        }
    }
}

/// Scores of one query against a block, then weights: written where some query sees the positions.
type Scores = [MaybeUninit<f32>; PAGE];

/// Neighbouring elements of a head's keys or values as floats. `n`: elements before the scales; `idx`: of the first
/// element; `scale`: of its scale; `shared`: whether all have one scale (features of a value) or one each.
pub(super) trait Load {
    unsafe fn load<S: Vector>(base: *const u8, n: usize, idx: usize, scale: usize, shared: bool) -> S::V;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Q8;

impl Load for F32 {
    #[inline(always)]
    unsafe fn load<S: Vector>(base: *const u8, _: usize, idx: usize, _: usize, _: bool) -> S::V {
        // SAFETY: the caller keeps the elements inside the page.
        unsafe { S::load_f32(base.cast::<f32>().add(idx)) }
    }
}

impl Load for F16 {
    #[inline(always)]
    unsafe fn load<S: Vector>(base: *const u8, _: usize, idx: usize, _: usize, _: bool) -> S::V {
        // SAFETY: the caller keeps the elements inside the page.
        unsafe { S::load_f16(base.cast::<u16>().add(idx)) }
    }
}

impl Load for Q8 {
    #[inline(always)]
    unsafe fn load<S: Vector>(base: *const u8, n: usize, idx: usize, scale: usize, shared: bool) -> S::V {
        // SAFETY: the caller keeps the elements and their scales, which follow n integers, inside the page.
        unsafe { S::load_i8(base.cast::<i8>().add(idx), base.add(n).cast::<u16>().add(scale), shared) }
    }
}

/// `N` queries against a block.
#[inline(always)]
pub(super) unsafe fn block<S: Vector, E: Load, const N: usize>(args: &BlockArgs, queries: &[Query]) {
    let layout = args.layout;
    let (d_k, d_v) = (layout.d_k, layout.d_v);
    // SAFETY: offsets of the head inside the page.
    let (k, v) = unsafe { (args.page.add(layout.k_offset(args.head)), args.page.add(layout.v_offset(args.head))) };
    let mut s = [[const { MaybeUninit::uninit() }; PAGE]; N];
    let lo = queries.iter().map(|q| q.lo).min().unwrap_or(0);
    let hi = queries.iter().map(|q| q.hi).max().unwrap_or(PAGE);
    let pair = 2 * S::LANES;
    // The values while keys are read, and the next block's keys while values are.
    let page = if args.next.is_null() { args.next } else { args.page };
    let mut fetch = Fetch::new(page, layout.v_offset(args.head), PAGE * layout.elem.head_bytes(d_v));
    // As far as some query sees one of the positions.
    for p in (lo / pair * pair..hi).step_by(pair) {
        // SAFETY: d < d_k and p + pair <= 64 keep loads inside the head's keys, stores inside `s`.
        unsafe {
            let mut acc = [[S::splat(0.0); 2]; N];
            for d in 0..d_k {
                let (idx, scale) = (d * PAGE + p, d / KV_BLOCK * PAGE + p);
                let k0 = E::load::<S>(k, d_k * PAGE, idx, scale, false);
                let k1 = E::load::<S>(k, d_k * PAGE, idx + S::LANES, scale + S::LANES, false);
                fetch.one::<S>();
                for (acc, query) in acc.iter_mut().zip(queries) {
                    let q = S::splat(*query.q.add(d));
                    *acc = [S::fma(k0, q, acc[0]), S::fma(k1, q, acc[1])];
                }
            }
            for (s, acc) in s.iter_mut().zip(&acc) {
                let s = s.as_mut_ptr().cast::<f32>().add(p);
                S::store(s, acc[0]);
                S::store(s.add(S::LANES), acc[1]);
            }
        }
    }
    let (mut max, mut sum) = ([0.0; N], [0.0; N]);
    let seen = lo / pair * pair..hi.next_multiple_of(pair);
    for (i, query) in queries.iter().enumerate() {
        // SAFETY: the caller has the instruction set; scores of `seen` were written above.
        (max[i], sum[i]) = unsafe { soft_max::<S>(&mut s[i], seen.clone(), query.lo, query.hi, args.scale, args.soft_cap) };
    }
    let into = merge_sums(&max, &sum, queries);
    let mut fetch = Fetch::new(args.next, layout.k_offset(args.head), PAGE * layout.elem.head_bytes(d_k));
    let mut d = 0;
    while d + pair <= d_v {
        // SAFETY: d + pair <= d_v.
        unsafe { values::<S, E, N, 2>(v, d_v, d, lo..hi, &s, queries, &into, &mut fetch) };
        d += pair;
    }
    while d + S::LANES <= d_v {
        // SAFETY: d + LANES <= d_v.
        unsafe { values::<S, E, N, 1>(v, d_v, d, lo..hi, &s, queries, &into, &mut fetch) };
        d += S::LANES;
    }
    while d < d_v {
        for ((s, query), &[a, b]) in s.iter().zip(queries).zip(&into) {
            let mut o = 0.0_f32;
            for (p, e) in s.iter().enumerate().take(query.hi).skip(query.lo) {
                // SAFETY: p < 64 and d < d_v; weights of what the query sees were written.
                o = unsafe { layout.value(v, p, d).mul_add(e.assume_init(), o) };
            }
            // SAFETY: `out` holds d_v + 2 floats.
            let out = unsafe { &mut *query.out.add(2 + d) };
            *out = if query.merge { o.mul_add(b, *out * a) } else { o };
        }
        d += 1;
    }
}

/// Writes maxima and sums, merged where the query says so; the factors of what was there and of the block.
#[inline(always)]
fn merge_sums<const N: usize>(max: &[f32; N], sum: &[f32; N], queries: &[Query]) -> [[f32; 2]; N] {
    let mut old = [[0.0; 2]; N];
    for (old, query) in old.iter_mut().zip(queries).filter(|(_, query)| query.merge) {
        // SAFETY: `out` holds d_v + 2 floats.
        *old = unsafe { *query.out.cast() };
    }
    // For all at once: vectors compute the exponentials.
    let (mut new, mut a, mut b) = ([0.0; N], [0.0; N], [0.0; N]);
    for i in 0..N {
        (new[i], a[i], b[i]) = factors(old[i][0], max[i]);
    }
    for (i, query) in queries.iter().enumerate() {
        let merged = if query.merge { [new[i], sum[i].mul_add(b[i], old[i][1] * a[i])] } else { [max[i], sum[i]] };
        // SAFETY: as above.
        unsafe { *query.out.cast() = merged };
    }
    std::array::from_fn(|i| [a[i], b[i]])
}

/// As [`super::soft_max`], in registers: `seen` is whole pairs of them that hold `lo..hi`; others are left alone.
#[inline(always)]
unsafe fn soft_max<S: Vector>(s: &mut Scores, seen: Range<usize>, lo: usize, hi: usize, scale: f32, soft_cap: f32) -> (f32, f32) {
    let at = s.as_mut_ptr().cast::<f32>();
    if soft_cap != 0.0 {
        // SAFETY: scores that were written.
        for s in unsafe { std::slice::from_raw_parts_mut(at.add(seen.start), seen.len()) } {
            *s = SoftCap::eval(*s * scale, soft_cap);
        }
    }
    let scale = if soft_cap != 0.0 { 1.0 } else { scale };
    let whole = lo <= seen.start && hi >= seen.end;
    let within = |x: S::V, p: usize, other: f32| {
        // SAFETY: the caller has the instruction set.
        if whole { x } else { unsafe { S::within(x, lo as isize - p as isize, hi as isize - p as isize, other) } }
    };
    // SAFETY: p + LANES <= 64, and p modulo 16 + LANES <= 16.
    unsafe {
        let mut lanes = [f32::NEG_INFINITY; N_LANE];
        for p in seen.clone().step_by(S::LANES) {
            let x = within(S::mul(S::load_f32(at.add(p)), S::splat(scale)), p, f32::NEG_INFINITY);
            S::store(at.add(p), x);
            let lane = lanes.as_mut_ptr().add(p % N_LANE);
            S::store(lane, S::larger(S::load_f32(lane), x));
        }
        let max = S::tree_larger(&lanes);
        let mut lanes = [0.0; N_LANE];
        for first in seen.step_by(N_LANE) {
            let block = &mut *at.add(first).cast::<[f32; N_LANE]>();
            for s in block {
                *s = math::exp(*s - max);
            }
            for p in (first..first + N_LANE).step_by(S::LANES) {
                let e = within(S::load_f32(at.add(p)), p, 0.0);
                S::store(at.add(p), e);
                let lane = lanes.as_mut_ptr().add(p % N_LANE);
                S::store(lane, S::add(S::load_f32(lane), e));
            }
        }
        (max, S::tree(&lanes))
    }
}

/// As [`super::WidenFn`] says.
#[inline(always)]
pub(super) unsafe fn widen<S: Vector, E: Load>(args: &BlockArgs, positions: Range<usize>, to: *mut f32) -> BlockArgs {
    let layout = args.layout;
    let (d_k, d_v) = (layout.d_k, layout.d_v);
    let floats = LayerLayout::new(KvElem::F32, 1, d_k, d_v);
    let pair = 2 * S::LANES;
    // SAFETY: features and positions lie inside the head, and inside the place, which has room for 64 positions of floats.
    unsafe {
        let (k, v) = (args.page.add(layout.k_offset(args.head)), args.page.add(layout.v_offset(args.head)));
        let (k_to, v_to) = (to, to.cast::<u8>().add(floats.v_offset(0)).cast::<f32>());
        for d in 0..d_k {
            // Whole pairs of registers, as they are read.
            for p in (positions.start / pair * pair..positions.end.next_multiple_of(pair)).step_by(S::LANES) {
                let idx = d * PAGE + p;
                S::store(k_to.add(idx), E::load::<S>(k, d_k * PAGE, idx, d / KV_BLOCK * PAGE + p, false));
            }
        }
        for p in positions {
            let mut d = 0;
            while d + S::LANES <= d_v {
                let [x] = features::<S, E, 1>(v, d_v, d, p);
                S::store(v_to.add(p * d_v + d), x);
                d += S::LANES;
            }
            while d < d_v {
                *v_to.add(p * d_v + d) = layout.value(v, p, d);
                d += 1;
            }
        }
    }
    BlockArgs { page: to.cast_const().cast(), layout: floats, head: 0, next: std::ptr::null(), ..*args }
}

/// `R` registers of features of a position, from `d` on.
#[inline(always)]
unsafe fn features<S: Vector, E: Load, const R: usize>(v: *const u8, d_v: usize, d: usize, p: usize) -> [S::V; R] {
    // SAFETY: the caller keeps positions and features inside the head's values.
    unsafe {
        let mut x = [S::splat(0.0); R];
        for (r, x) in x.iter_mut().enumerate() {
            let at = d + r * S::LANES;
            *x = E::load::<S>(v, d_v * PAGE, p * d_v + at, p * (d_v / KV_BLOCK) + at / KV_BLOCK, true);
        }
        x
    }
}

/// Adds a position's features, weighted.
#[inline(always)]
unsafe fn add<S: Vector, const R: usize>(acc: &mut [S::V; R], x: [S::V; R], e: f32) {
    // SAFETY: the caller has the instruction set.
    unsafe {
        for (acc, x) in acc.iter_mut().zip(x) {
            *acc = S::fma(x, S::splat(e), *acc);
        }
    }
}

/// Positions that some queries see and others don't.
#[inline(always)]
unsafe fn some<S: Vector, E: Load, const N: usize, const R: usize>(
    acc: &mut [[S::V; R]; N],
    v: *const u8,
    d_v: usize,
    d: usize,
    positions: std::ops::Range<usize>,
    s: &[Scores; N],
    queries: &[Query],
) {
    for p in positions {
        // SAFETY: the caller keeps positions and features inside the head's values.
        unsafe {
            let x = features::<S, E, R>(v, d_v, d, p);
            for ((acc, s), query) in acc.iter_mut().zip(s).zip(queries) {
                if p >= query.lo && p < query.hi {
                    add::<S, R>(acc, x, s[p].assume_init());
                }
            }
        }
    }
}

/// Weighted sums of `R` registers of features from `d` on.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "what a block's inner loop works on")]
unsafe fn values<S: Vector, E: Load, const N: usize, const R: usize>(
    v: *const u8,
    d_v: usize,
    d: usize,
    positions: std::ops::Range<usize>,
    s: &[Scores; N],
    queries: &[Query],
    into: &[[f32; 2]; N],
    fetch: &mut Fetch,
) {
    // SAFETY: positions < 64 and d + R * LANES <= d_v keep loads inside the head's values, stores inside `out`.
    unsafe {
        let mut acc = [[S::splat(0.0); R]; N];
        // Positions that all queries see, and before and after them those that only some do.
        let (mut all_lo, mut all_hi) = (positions.start, positions.end);
        for query in queries {
            (all_lo, all_hi) = (all_lo.max(query.lo), all_hi.min(query.hi));
        }
        let all_lo = all_lo.min(positions.end);
        let all_hi = all_hi.max(all_lo);
        some::<S, E, N, R>(&mut acc, v, d_v, d, positions.start..all_lo, s, queries);
        for p in all_lo..all_hi {
            let x = features::<S, E, R>(v, d_v, d, p);
            fetch.one::<S>();
            for (acc, s) in acc.iter_mut().zip(s) {
                add::<S, R>(acc, x, s[p].assume_init());
            }
        }
        some::<S, E, N, R>(&mut acc, v, d_v, d, all_hi..positions.end, s, queries);
        for ((acc, query), &[a, b]) in acc.iter().zip(queries).zip(into) {
            for (r, &acc) in acc.iter().enumerate() {
                let out = query.out.add(2 + d + r * S::LANES);
                let merged = if query.merge { S::fma(acc, S::splat(b), S::mul(S::load_f32(out), S::splat(a))) } else { acc };
                S::store(out, merged);
            }
        }
    }
}

/// The kernels of an instruction set from its [`Vector`]; last, numbers of queries that are taken at once, largest first.
macro_rules! vector_kernels {
    ($vector:ident, $features:literal, $name:literal, $($n:literal)*) => {
        pub(super) const KERNELS: AttentionKernels = AttentionKernels { block, widen, merge, finish, name: $name };

        unsafe fn block(args: &BlockArgs, queries: &[Query]) {
            // SAFETY: the caller's promise.
            unsafe {
                match args.layout.elem {
                    KvElem::F32 => block_of::<vector::F32>(args, queries),
                    KvElem::F16 => block_of::<vector::F16>(args, queries),
                    KvElem::Q8_0 => block_of::<vector::Q8>(args, queries),
                    _ => scalar::block(args, queries),
                }
            }
        }

        /// As many queries at once as registers hold.
        unsafe fn block_of<E: vector::Load>(args: &BlockArgs, mut queries: &[Query]) {
            while !queries.is_empty() {
                // SAFETY: the caller's promise; each arm has as many queries as it says.
                let n = unsafe {
                    match queries.len() {
                        $($n.. => {
                            block_n::<$n, E>(args, &queries[..$n]);
                            $n
                        })*
                        0 => return,
                    }
                };
                queries = &queries[n..];
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn block_n<const N: usize, E: vector::Load>(args: &BlockArgs, queries: &[Query]) {
            // SAFETY: the caller's promise.
            unsafe { vector::block::<$vector, E, N>(args, queries) }
        }

        #[target_feature(enable = $features)]
        unsafe fn widen(args: &BlockArgs, positions: Range<usize>, to: *mut f32) -> BlockArgs {
            // SAFETY: the caller's promise.
            unsafe {
                match args.layout.elem {
                    KvElem::F16 => vector::widen::<$vector, vector::F16>(args, positions, to),
                    KvElem::Q8_0 => vector::widen::<$vector, vector::Q8>(args, positions, to),
                    _ => *args,
                }
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn merge(state: *mut f32, block: *const f32, d_v: usize) {
            // SAFETY: the caller's promise.
            unsafe { merge_body(state, block, d_v) }
        }

        #[target_feature(enable = $features)]
        unsafe fn finish(state: *const f32, d_v: usize, out: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe { finish_body(state, d_v, out) }
        }
    };
}
pub(super) use vector_kernels;
