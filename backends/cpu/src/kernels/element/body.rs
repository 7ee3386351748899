//! The bodies. All are inlined into a function of the wanted instruction set.

use super::ELEMENT_ROWS;
use crate::pack::TILE;
use selvedge_core::math;
use selvedge_core::ops::{ACT_GROUP, Act, Act8Layout, Add, RmsNorm, Rope, SoftCap};
use std::ops::Range;

/// 1.5 * 2^23: adding it leaves the nearest integer, ties to even, in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// A sum in halves, which compiles to vectors where adding one after the other does not.
#[inline(always)]
fn sum_16(x: &[i32; 16]) -> i32 {
    let x8: [i32; 8] = std::array::from_fn(|i| x[i] + x[i + 8]);
    let x4: [i32; 4] = std::array::from_fn(|i| x8[i] + x8[i + 4]);
    (x4[0] + x4[2]) + (x4[1] + x4[3])
}

/// Quantises group `g` of a row of `k` columns and writes its scale and sums; false where a value isn't finite.
///
/// # Safety
/// `base` has the layout's size; row and group lie inside; no other thread touches the row.
#[inline(always)]
unsafe fn quantize_group(x: &[f32; ACT_GROUP], base: *mut u8, layout: &Act8Layout, row: usize, k: usize, g: usize) -> bool {
    // Magnitudes of floats are ordered as integers, NaN and infinity above all: no order of comparison can lose one.
    let mut amax = 0_u32;
    for x in x {
        amax = amax.max(x.to_bits() & 0x7fff_ffff);
    }
    if amax >= 0x7f80_0000 {
        return false;
    }
    let s = f32::from_bits(amax) / 127.0;
    let inverse = 1.0 / s;
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let mut codes = [0_i32; ACT_GROUP];
    for (code, x) in codes.iter_mut().zip(x) {
        let rounded = (x * inverse + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
        *code = rounded.clamp(-127, 127);
    }
    let (halves, _) = codes.as_chunks::<16>();
    let sums = [sum_16(&halves[0]), sum_16(&halves[1])];
    let n_rows = layout.n_rows;
    let (at32, at16) = (g * n_rows + row, 2 * g * n_rows + row);
    // SAFETY: the layout's parts are aligned to a cache line and hold 32 codes, a value per 32 and two per 16 columns.
    unsafe {
        let q = base.add(layout.q + row * k + g * ACT_GROUP);
        for (i, &code) in codes.iter().enumerate() {
            q.add(i).write(code as u8);
        }
        base.add(layout.scale).cast::<f32>().add(at32).write(s);
        for (i, &sum) in sums.iter().enumerate() {
            base.add(layout.sum).cast::<i32>().add(at16 + i * n_rows).write(sum);
            base.add(layout.sum16).cast::<f32>().add(at16 + i * n_rows).write(s * sum as f32);
        }
        base.add(layout.sum32).cast::<f32>().add(at32).write(s * (sums[0] + sums[1]) as f32);
    }
    true
}

/// Rows are taken side by side: their scales lie beside each other, and one's divisions needn't wait for another's.
///
/// # Safety
/// `x` holds the rows of `k` columns, `base` has the layout's size; no other thread touches these rows.
#[inline(always)]
pub(super) unsafe fn quantize_rows(x: *const f32, base: *mut u8, layout: &Act8Layout, rows: Range<usize>, k: usize) -> bool {
    let mut finite = true;
    for g in 0..k / ACT_GROUP {
        for row in rows.clone() {
            // SAFETY: the caller's promise, and the row has that many groups.
            finite &= unsafe { quantize_group(&*x.add(row * k + g * ACT_GROUP).cast(), base, layout, row, k, g) };
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
    for (g, w) in ws.iter().enumerate() {
        for (factor, row) in factors.iter().zip(rows.clone()) {
            // SAFETY: the caller's promise, and the row has that many groups.
            unsafe {
                let x = &*x.add(row * k + g * ACT_GROUP).cast::<[f32; ACT_GROUP]>();
                let y = std::array::from_fn(|i| x[i] * factor * w[i]);
                finite &= quantize_group(&y, base, layout, row, k, g);
            }
        }
    }
    finite
}

/// Applies `f` to `n` elements of two inputs, eight at a time so that `out` may be one of them and the loop still
/// compiles to vectors.
///
/// # Safety
/// All hold `n` floats; `out` may be equal to an input.
#[inline(always)]
unsafe fn zip(a: *const f32, b: *const f32, out: *mut f32, n: usize, f: impl Fn(f32, f32) -> f32) {
    let mut i = 0;
    while i + 8 <= n {
        let mut y = [0.0; 8];
        // SAFETY: i + 8 <= n.
        unsafe {
            let (a, b) = (a.add(i).cast::<[f32; 8]>().read(), b.add(i).cast::<[f32; 8]>().read());
            for j in 0..8 {
                y[j] = f(a[j], b[j]);
            }
            out.add(i).cast::<[f32; 8]>().write(y);
        }
        i += 8;
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
