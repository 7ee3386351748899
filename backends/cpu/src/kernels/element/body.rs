//! The bodies. All are inlined into a function of the wanted instruction set.

use super::ELEMENT_ROWS;
use crate::pack::TILE;
use selvedge_core::kv::LayerLayout;
use selvedge_core::math;
use selvedge_core::ops::{ACT_GROUP, Act, Act8Layout, Add, RmsNorm, Rope, SoftCap};
use std::ops::Range;

/// 1.5 * 2^23: adding it leaves the nearest integer, ties to even, in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// Groups that are read at once, row by row: many reads at a time are on their way.
const SPAN: usize = 4;

/// Columns of a group in some rows.
type Groups = [[f32; ACT_GROUP]; ELEMENT_ROWS];

/// Quantises group `g` of the rows `rows` and writes codes, scales and sums; false where a value isn't finite. What is one
/// number a row is computed for all rows at once: a division each would be waited for.
///
/// # Safety
/// `base` has the layout's size for `k` columns; rows (at most [`ELEMENT_ROWS`]) and group lie inside; no other thread
/// touches the rows.
#[inline(always)]
unsafe fn quantize_groups(x: &Groups, base: *mut u8, layout: &Act8Layout, rows: Range<usize>, k: usize, g: usize) -> bool {
    let mut amax = [0_u32; ELEMENT_ROWS];
    for (amax, x) in amax.iter_mut().zip(x).take(rows.len()) {
        // Magnitudes of floats are ordered as integers, NaN and infinity above all: no order of comparison can lose one.
        for x in x {
            *amax = (*amax).max(x.to_bits() & 0x7fff_ffff);
        }
    }
    if amax.iter().any(|&amax| amax >= 0x7f80_0000) {
        return false;
    }
    let s = amax.map(|amax| f32::from_bits(amax) / 127.0);
    let inverse = s.map(|s| {
        let inverse = 1.0 / s;
        if inverse.is_finite() { inverse } else { 0.0 }
    });
    let mut packed = [0_i32; ELEMENT_ROWS];
    for (i, row) in rows.clone().enumerate() {
        let code = |x: f32| ((x * inverse[i] + ROUND).to_bits() as i32 - ROUND.to_bits() as i32).clamp(-127, 127);
        let mut codes = [0_u8; ACT_GROUP];
        // Sums of both halves in one word: 16 codes of magnitude up to 127 sum to 12 bits.
        let mut sum = 0;
        for j in 0..ACT_GROUP / 2 {
            let (a, b) = (code(x[i][j]), code(x[i][ACT_GROUP / 2 + j]));
            (codes[j], codes[ACT_GROUP / 2 + j]) = (a as u8, b as u8);
            sum += a + (b << 16);
        }
        packed[i] = sum;
        // SAFETY: the group lies inside the row.
        unsafe { base.add(layout.q + row * k + g * ACT_GROUP).cast::<[u8; ACT_GROUP]>().write(codes) };
    }
    let low = packed.map(|packed| i32::from(packed as i16));
    let sums = [low, std::array::from_fn(|i| (packed[i] - low[i]) >> 16)];
    let n_rows = layout.n_rows;
    // SAFETY: the layout's parts hold a value for every row and 32 columns, or 16.
    unsafe {
        let at = |part: usize, group: usize| base.add(part + (group * n_rows + rows.start) * 4);
        write_rows(at(layout.scale, g), s, rows.len());
        write_rows(at(layout.sum32, g), std::array::from_fn(|i| s[i] * (sums[0][i] + sums[1][i]) as f32), rows.len());
        for (half, sums) in sums.into_iter().enumerate() {
            write_rows(at(layout.sum, 2 * g + half), sums, rows.len());
            write_rows(at(layout.sum16, 2 * g + half), std::array::from_fn(|i| s[i] * sums[i] as f32), rows.len());
        }
    }
    true
}

/// Writes the first `n` values.
#[inline(always)]
unsafe fn write_rows<T: Copy>(to: *mut u8, values: [T; ELEMENT_ROWS], n: usize) {
    // SAFETY: the caller gives room for n values, aligned to 4 bytes as they are.
    unsafe {
        if n == ELEMENT_ROWS {
            to.cast::<[T; ELEMENT_ROWS]>().write(values);
        } else {
            std::ptr::copy_nonoverlapping(values.as_ptr(), to.cast(), n);
        }
    }
}

/// # Safety
/// `x` holds the rows, at most [`ELEMENT_ROWS`], of `k` columns; `base` has the layout's size; no other thread touches these
/// rows.
#[inline(always)]
pub(super) unsafe fn quantize_rows(x: *const f32, base: *mut u8, layout: &Act8Layout, rows: Range<usize>, k: usize) -> bool {
    let mut finite = true;
    let mut spans: [Groups; SPAN] = [[[0.0; ACT_GROUP]; ELEMENT_ROWS]; SPAN];
    let n_groups = k / ACT_GROUP;
    for first in (0..n_groups).step_by(SPAN) {
        let n = SPAN.min(n_groups - first);
        for (i, row) in rows.clone().enumerate() {
            for (j, groups) in spans.iter_mut().enumerate().take(n) {
                // SAFETY: the row has that many groups.
                groups[i] = unsafe { *x.add(row * k + (first + j) * ACT_GROUP).cast() };
            }
        }
        for (j, groups) in spans.iter().enumerate().take(n) {
            // SAFETY: the caller's promise.
            finite &= unsafe { quantize_groups(groups, base, layout, rows.clone(), k, first + j) };
        }
    }
    finite
}

/// # Safety
/// `x`, `out` and a residual that isn't null hold `n` floats; `out` may be `x` or the residual itself.
#[inline(always)]
pub(super) unsafe fn rms_norm_row(x: *const f32, n: usize, w: &[f32], eps: f32, residual: *const f32, out: *mut f32) -> bool {
    let group = w.len();
    let mut finite = true;
    for start in (0..n).step_by(group) {
        // SAFETY: the group lies inside the row; the slice is dropped before `out`, which may be the same memory, is written.
        let sum_sq = math::sum_sq16(unsafe { std::slice::from_raw_parts(x.add(start), group) });
        finite &= sum_sq.is_finite();
        let factor = RmsNorm::factor(sum_sq, group, eps);
        for (i, &w) in w.iter().enumerate() {
            // SAFETY: start + i < n.
            unsafe {
                let y = *x.add(start + i) * factor * w;
                *out.add(start + i) = if residual.is_null() { y } else { y + *residual.add(start + i) };
            }
        }
    }
    finite
}

/// # Safety
/// As for `quantize_rows`; at most [`ELEMENT_ROWS`] rows, as many columns as `w` has.
#[inline(always)]
pub(super) unsafe fn rms_norm_quantize_rows(
    x: *const f32,
    w: &[f32],
    eps: f32,
    base: *mut u8,
    layout: &Act8Layout,
    rows: Range<usize>,
) -> bool {
    let k = w.len();
    let mut finite = true;
    let mut factors = [0.0; ELEMENT_ROWS];
    for (factor, row) in factors.iter_mut().zip(rows.clone()) {
        // SAFETY: the caller's promise.
        let sum_sq = math::sum_sq16(unsafe { std::slice::from_raw_parts(x.add(row * k), k) });
        finite &= sum_sq.is_finite();
        *factor = RmsNorm::factor(sum_sq, k, eps);
    }
    let (ws, _) = w.as_chunks::<ACT_GROUP>();
    let mut groups: Groups = [[0.0; ACT_GROUP]; ELEMENT_ROWS];
    for (g, w) in ws.iter().enumerate() {
        for ((group, factor), row) in groups.iter_mut().zip(&factors).zip(rows.clone()) {
            // SAFETY: the row has that many groups.
            let x = unsafe { &*x.add(row * k + g * ACT_GROUP).cast::<[f32; ACT_GROUP]>() };
            *group = std::array::from_fn(|i| x[i] * factor * w[i]);
        }
        // SAFETY: the caller's promise.
        finite &= unsafe { quantize_groups(&groups, base, layout, rows.clone(), k, g) };
    }
    finite
}

/// Applies `f` to `n` elements of two inputs, sixteen at a time so that `out` may be one of them and the loop still
/// compiles to vectors.
///
/// # Safety
/// All hold `n` floats; `out` may be equal to an input.
#[inline(always)]
unsafe fn zip(a: *const f32, b: *const f32, out: *mut f32, n: usize, f: impl Fn(f32, f32) -> f32) {
    let mut i = 0;
    while i + TILE <= n {
        let mut y = [0.0; TILE];
        // SAFETY: i + 16 <= n.
        unsafe {
            let (a, b) = (a.add(i).cast::<[f32; TILE]>().read(), b.add(i).cast::<[f32; TILE]>().read());
            for j in 0..TILE {
                y[j] = f(a[j], b[j]);
            }
            out.add(i).cast::<[f32; TILE]>().write(y);
        }
        i += TILE;
    }
    while i < n {
        // SAFETY: i < n.
        unsafe { *out.add(i) = f(*a.add(i), *b.add(i)) };
        i += 1;
    }
}

/// # Safety
/// As for `zip`.
#[inline(always)]
pub(super) unsafe fn glu(act: Act, gate: *const f32, up: *const f32, out: *mut f32, n: usize) {
    match act {
        // SAFETY: the caller's promise.
        Act::Silu => unsafe { zip(gate, up, out, n, |g, u| math::silu(g) * u) },
        // SAFETY: likewise.
        Act::GeluTanh => unsafe { zip(gate, up, out, n, |g, u| math::gelu_tanh(g) * u) },
    }
}

/// # Safety
/// As for `zip`.
#[inline(always)]
pub(super) unsafe fn add(a: *const f32, b: *const f32, scale: f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { zip(a, b, out, n, |a, b| Add::eval(a, b, scale)) }
}

/// # Safety
/// `src` holds `n` rows of 16, `dst` takes `n` rows of `width <= 16` that are `stride` apart.
#[inline(always)]
pub(super) unsafe fn copy_tile(src: *const f32, dst: *mut f32, n: usize, stride: usize, width: usize) {
    for r in 0..n {
        // SAFETY: the caller's promise.
        unsafe {
            let (src, dst) = (src.add(r * TILE), dst.add(r * stride));
            if width == TILE {
                *dst.cast::<[f32; TILE]>() = *src.cast::<[f32; TILE]>();
            } else {
                std::ptr::copy_nonoverlapping(src, dst, width);
            }
        }
    }
}

/// # Safety
/// As for `copy_tile`; `a` lies as `dst` does, and may be `dst`.
#[inline(always)]
pub(super) unsafe fn add_tile(a: *const f32, src: *const f32, scale: f32, dst: *mut f32, n: usize, stride: usize, width: usize) {
    for r in 0..n {
        // SAFETY: the caller's promise.
        unsafe {
            let (a, src, dst) = (a.add(r * stride), src.add(r * TILE), dst.add(r * stride));
            if width == TILE {
                let (a, b) = (*a.cast::<[f32; TILE]>(), *src.cast::<[f32; TILE]>());
                *dst.cast::<[f32; TILE]>() = std::array::from_fn(|i| Add::eval(a[i], b[i], scale));
            } else {
                zip(a, src, dst, width, |a, b| Add::eval(a, b, scale));
            }
        }
    }
}

/// # Safety
/// As for `zip`.
#[inline(always)]
pub(super) unsafe fn scale(x: *const f32, factor: f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { zip(x, x, out, n, |x, _| x * factor) }
}

/// # Safety
/// As for `zip`.
#[inline(always)]
pub(super) unsafe fn soft_cap(x: *const f32, cap: f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { zip(x, x, out, n, |x, _| SoftCap::eval(x, cap)) }
}

/// # Safety
/// None beyond the slices'.
#[inline(always)]
pub(super) unsafe fn rope_row(x: &mut [f32], table: &[f32], rope: &Rope) {
    rope.eval_row(x, table);
}

/// Keys and values of a row, all heads, into the cache.
///
/// # Safety
/// As for [`LayerLayout::store`] of every head; `k` and `v` hold all heads.
#[inline(always)]
pub(super) unsafe fn kv_store(base: *mut u8, layout: &LayerLayout, slot: usize, k: &[f32], v: &[f32]) {
    for (head, (k, v)) in k.chunks_exact(layout.d_k).zip(v.chunks_exact(layout.d_v)).enumerate() {
        // SAFETY: the caller's promise.
        unsafe { layout.store(base, head, slot, k, v) };
    }
}
