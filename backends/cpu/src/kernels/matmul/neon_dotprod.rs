//! NEON rows with `sdot`, which adds four products of signed bytes to each lane: a quad of four output rows at once, by
//! four bytes of a register that holds sixteen activations. Inline assembly, as the intrinsic isn't stable.

use super::TileArgs;
use super::neon::{
    Dot, F16, F32, FIRST_HALF, Five, Nibble, NibbleIq4, SECOND_HALF, ScaleKind, Signed, Six, Super, Weights, by_halves, tile as any_tile,
};
use crate::pack::{Layout, Quant, Scales};
use std::arch::aarch64::*;
use std::arch::asm;

/// By `sdot`.
struct Sdot;

/// Adds the products with quad `J` of the sixteen columns in `x`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot<const J: usize>(mut sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: registers alone; the function has the instruction.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]", inout(vreg) sum, in(vreg) w, in(vreg) x, const J % 4,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// Quad `J` with all rows. `x`: the half of the step in which it lies.
#[inline(always)]
unsafe fn quad<W: Weights, const J: usize, const N: usize, const H: usize>(
    sums: &mut [[int32x4_t; H]; N],
    q: *const u8,
    h0: usize,
    x: &[int8x16_t; N],
) {
    for h in 0..H {
        // SAFETY: J < 8 and h0 + H <= 4; the caller has the instruction set.
        unsafe {
            let w = W::open(W::bytes(q, J, h0 + h), J);
            for (sums, &x) in sums.iter_mut().zip(x) {
                sums[h] = sdot::<J>(sums[h], w, x);
            }
        }
    }
}

/// Sixteen columns of `N` rows.
#[inline(always)]
pub(super) unsafe fn columns<const N: usize>(x: *const i8, k: usize) -> [int8x16_t; N] {
    // SAFETY: the caller gives N rows of sixteen columns, `k` apart.
    std::array::from_fn(|n| unsafe { vld1q_s8(x.add(n * k)) })
}

impl Dot for Sdot {
    #[inline(always)]
    unsafe fn group<W: Weights, const PART: u8, const N: usize, const H: usize>(
        q: *const u8,
        h0: usize,
        x: *const i8,
        k: usize,
        start: [i32; N],
    ) -> [[int32x4_t; H]; N] {
        // SAFETY: the caller's promise: the N rows hold 32 columns from `x` on.
        unsafe {
            let mut sums = start.map(|s| [vdupq_n_s32(s); H]);
            let s = &mut sums;
            match PART {
                FIRST_HALF => {
                    let x = columns(x, k);
                    quad::<W, 0, N, H>(s, q, h0, &x);
                    quad::<W, 1, N, H>(s, q, h0, &x);
                    quad::<W, 2, N, H>(s, q, h0, &x);
                    quad::<W, 3, N, H>(s, q, h0, &x);
                }
                SECOND_HALF => {
                    let x = columns(x.add(16), k);
                    quad::<W, 4, N, H>(s, q, h0, &x);
                    quad::<W, 5, N, H>(s, q, h0, &x);
                    quad::<W, 6, N, H>(s, q, h0, &x);
                    quad::<W, 7, N, H>(s, q, h0, &x);
                }
                _ => {
                    let (low, high) = (columns(x, k), columns(x.add(16), k));
                    // The low and the high nibbles of the same bytes together.
                    quad::<W, 0, N, H>(s, q, h0, &low);
                    quad::<W, 4, N, H>(s, q, h0, &high);
                    quad::<W, 1, N, H>(s, q, h0, &low);
                    quad::<W, 5, N, H>(s, q, h0, &high);
                    quad::<W, 2, N, H>(s, q, h0, &low);
                    quad::<W, 6, N, H>(s, q, h0, &high);
                    quad::<W, 3, N, H>(s, q, h0, &low);
                    quad::<W, 7, N, H>(s, q, h0, &high);
                }
            }
            sums
        }
    }
}

super::int_kernels!();

#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn tile<W: Weights, S: ScaleKind, const N: usize, const H: usize>(args: &TileArgs, row: usize, h0: usize, offset: i32) {
    // SAFETY: the caller's promise.
    unsafe { any_tile::<Sdot, W, S, N, H>(args, row, h0, offset) }
}

/// All rows of activations, four at a time.
unsafe fn rows<W: Weights, S: ScaleKind>(args: &TileArgs, offset: i32) {
    let mut row = 0;
    while row < args.n_rows {
        let n = (args.n_rows - row).min(4);
        // SAFETY: the caller's promise, and n rows remain.
        unsafe {
            match n {
                4 => by_halves!(args, row, offset, tile::<W, S, 4, 2>),
                3 => by_halves!(args, row, offset, tile::<W, S, 3, 2>),
                2 => tile::<W, S, 2, 4>(args, row, 0, offset),
                _ => tile::<W, S, 1, 4>(args, row, 0, offset),
            }
        }
        row += n;
    }
}
