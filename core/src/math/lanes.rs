//! Reductions in the project's one order: 16 virtual lanes, then a fixed tree.
//!
//! Lane i takes the elements whose index is i modulo 16, in ascending order; then lane i takes lane i + 8, i + 4, i + 2
//! and i + 1 in turn. An instruction set with 4, 8 or 16 floats in a register computes exactly this in 4, 2 or 1
//! registers, so no vector width can show in the result.

/// Number of virtual lanes.
pub const N_LANE: usize = 16;

#[inline(always)]
fn reduce(mut lanes: [f32; N_LANE], op: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = N_LANE / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = op(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// One pass of `step` over `xs`, lane by lane, then the tree of `op`.
#[inline(always)]
fn fold(xs: &[f32], init: f32, step: impl Fn(f32, f32) -> f32, op: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [init; N_LANE];
    let (blocks, rest) = xs.as_chunks::<N_LANE>();
    for block in blocks {
        for i in 0..N_LANE {
            lanes[i] = step(lanes[i], block[i]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = step(*lane, x);
    }
    reduce(lanes, op)
}

/// Sum of `xs`; 0 for none. NaN where one is NaN or infinities of both signs meet.
#[inline(always)]
#[must_use]
pub fn sum16(xs: &[f32]) -> f32 {
    fold(xs, 0.0, |acc, x| acc + x, |a, b| a + b)
}

/// Sum of squares of `xs`, one fused multiply-add per element; 0 for none.
#[inline(always)]
#[must_use]
pub fn sum_sq16(xs: &[f32]) -> f32 {
    fold(xs, 0.0, |acc, x| x.mul_add(x, acc), |a, b| a + b)
}

/// Dot product, one fused multiply-add per element; 0 for none.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
#[must_use]
pub fn dot16(xs: &[f32], ys: &[f32]) -> f32 {
    assert_eq!(xs.len(), ys.len(), "dot16 takes slices of one length");
    let mut lanes = [0.0f32; N_LANE];
    let (x_blocks, x_rest) = xs.as_chunks::<N_LANE>();
    let (y_blocks, y_rest) = ys.as_chunks::<N_LANE>();
    for (x, y) in x_blocks.iter().zip(y_blocks) {
        for i in 0..N_LANE {
            lanes[i] = x[i].mul_add(y[i], lanes[i]);
        }
    }
    for (lane, (&x, &y)) in lanes.iter_mut().zip(x_rest.iter().zip(y_rest)) {
        *lane = x.mul_add(y, *lane);
    }
    reduce(lanes, |a, b| a + b)
}

/// The larger, by one comparison: a NaN `x` never wins and of two zeros the first stays.
#[inline(always)]
fn larger(acc: f32, x: f32) -> f32 {
    if x > acc { x } else { acc }
}

/// Maximum of `xs`; -inf for none. NaNs are skipped: where one matters, ask [`all_finite`].
#[inline(always)]
#[must_use]
pub fn max16(xs: &[f32]) -> f32 {
    fold(xs, f32::NEG_INFINITY, larger, larger)
}

/// Whether no element is NaN or infinite.
#[inline(always)]
#[must_use]
pub fn all_finite(xs: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let mut bad = [0u32; N_LANE];
    let (blocks, rest) = xs.as_chunks::<N_LANE>();
    for block in blocks {
        for i in 0..N_LANE {
            bad[i] |= u32::from(block[i].to_bits() & EXPONENT == EXPONENT);
        }
    }
    bad == [0; N_LANE] && rest.iter().all(|x| x.is_finite())
}
