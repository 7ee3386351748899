//! NEON rows with `smmla`, which multiplies two rows of activations by two output rows, eight columns of signed bytes each,
//! into the four lanes of a register. What remains of an odd number of rows is `sdot`'s. Inline assembly, as the intrinsic
//! isn't stable.
//!
//! ```text
//!   quads 2i and 2i + 1 of four output rows   a0 a1 a2 a3, b0 b1 b2 b3     four bytes each
//!   zipped                                    a0 b0 a1 b1, a2 b2 a3 b3     eight columns of rows 0 and 1, of rows 2 and 3
//!   activations, zipped                       x0 x1                        the same columns of two rows
//!   sums                                      x0w0 x0w1 x1w0 x1w1, x0w2 x0w3 x1w2 x1w3, at the end zipped to a register a row
//! ```
//! Nibbles are zipped before they are unpacked: half as many.

use super::TileArgs;
use super::neon::{
    Dot, F16, F32, FIRST_HALF, Five, Nibble, NibbleIq4, SECOND_HALF, ScaleKind, Signed, Six, Super, Weights, by_halves, tile as any_tile,
};
use super::neon_dotprod::{self, columns};
use crate::pack::{Layout, Quant, Scales};
use std::arch::aarch64::*;
use std::arch::asm;

/// By `smmla`, for an even number of rows.
struct Smmla;

#[inline]
#[target_feature(enable = "neon,dotprod,i8mm")]
fn smmla(mut sum: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    // SAFETY: registers alone; the function has the instruction.
    unsafe {
        asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) x, in(vreg) w,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// Rows by pairs, `x[2m]` and `x[2m + 1]` with sixteen columns each, to their first eight columns and their last.
#[inline(always)]
unsafe fn zipped<const N: usize>(x: [int8x16_t; N]) -> [int8x16_t; N] {
    #[inline]
    #[target_feature(enable = "neon")]
    fn zip([a, b]: [int8x16_t; 2]) -> [int8x16_t; 2] {
        let (a, b) = (vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b));
        [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))]
    }
    let mut out = x;
    for pair in out.as_chunks_mut::<2>().0 {
        // SAFETY: the caller has the instruction set.
        *pair = unsafe { zip(*pair) };
    }
    out
}

/// The eight columns of quads `J` and `J + 1` with all rows. `x`: [`zipped`] columns of the half of the step in which they lie.
#[inline(always)]
unsafe fn eight<W: Weights, const J: usize, const N: usize, const H: usize>(
    sums: &mut [[int32x4_t; H]; N],
    q: *const u8,
    h0: usize,
    x: &[int8x16_t; N],
) {
    #[inline]
    #[target_feature(enable = "neon")]
    fn zip(a: uint8x16_t, b: uint8x16_t) -> [uint8x16_t; 2] {
        let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
        [vreinterpretq_u8_u32(vzip1q_u32(a, b)), vreinterpretq_u8_u32(vzip2q_u32(a, b))]
    }
    for h in 0..H {
        // SAFETY: J < 7 and h0 + H <= 4; the caller has the instruction set.
        unsafe {
            let [w01, w23] = zip(W::bytes(q, J, h0 + h), W::bytes(q, J + 1, h0 + h));
            let (w01, w23) = (W::open(w01, J), W::open(w23, J));
            for m in (0..N).step_by(2) {
                let x = x[m + J % 4 / 2];
                sums[m][h] = smmla(sums[m][h], x, w01);
                sums[m + 1][h] = smmla(sums[m + 1][h], x, w23);
            }
        }
    }
}

impl Dot for Smmla {
    #[inline(always)]
    unsafe fn group<W: Weights, const PART: u8, const N: usize, const H: usize>(
        q: *const u8,
        h0: usize,
        x: *const i8,
        k: usize,
        start: [i32; N],
    ) -> [[int32x4_t; H]; N] {
        const { assert!(N.is_multiple_of(2), "rows come by pairs") };
        #[inline]
        #[target_feature(enable = "neon")]
        fn begin(first: i32, second: i32) -> int32x4_t {
            vcombine_s32(vdup_n_s32(first), vdup_n_s32(second))
        }
        #[inline]
        #[target_feature(enable = "neon")]
        fn by_row(w01: int32x4_t, w23: int32x4_t) -> [int32x4_t; 2] {
            let (a, b) = (vreinterpretq_s64_s32(w01), vreinterpretq_s64_s32(w23));
            [vreinterpretq_s32_s64(vzip1q_s64(a, b)), vreinterpretq_s32_s64(vzip2q_s64(a, b))]
        }
        // SAFETY: the caller's promise: the N rows hold 32 columns from `x` on.
        unsafe {
            let mut sums: [[int32x4_t; H]; N] = std::array::from_fn(|n| [begin(start[n & !1], start[n | 1]); H]);
            let s = &mut sums;
            match PART {
                FIRST_HALF => {
                    let x = zipped(columns(x, k));
                    eight::<W, 0, N, H>(s, q, h0, &x);
                    eight::<W, 2, N, H>(s, q, h0, &x);
                }
                SECOND_HALF => {
                    let x = zipped(columns(x.add(16), k));
                    eight::<W, 4, N, H>(s, q, h0, &x);
                    eight::<W, 6, N, H>(s, q, h0, &x);
                }
                _ => {
                    let (low, high) = (zipped(columns(x, k)), zipped(columns(x.add(16), k)));
                    // The low and the high nibbles of the same bytes together.
                    eight::<W, 0, N, H>(s, q, h0, &low);
                    eight::<W, 4, N, H>(s, q, h0, &high);
                    eight::<W, 2, N, H>(s, q, h0, &low);
                    eight::<W, 6, N, H>(s, q, h0, &high);
                }
            }
            for m in (0..N).step_by(2) {
                for h in 0..H {
                    [sums[m][h], sums[m + 1][h]] = by_row(sums[m][h], sums[m + 1][h]);
                }
            }
            sums
        }
    }
}

super::int_kernels!();

#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn tile<W: Weights, S: ScaleKind, const N: usize, const H: usize>(args: &TileArgs, row: usize, h0: usize, offset: i32) {
    // SAFETY: the caller's promise.
    unsafe { any_tile::<Smmla, W, S, N, H>(args, row, h0, offset) }
}

/// All rows of activations: four at a time, two, one.
unsafe fn rows<W: Weights, S: ScaleKind>(args: &TileArgs, offset: i32) {
    let mut row = 0;
    while row < args.n_rows {
        // SAFETY: the caller's promise, and the rows remain.
        unsafe {
            row += match args.n_rows - row {
                4.. => {
                    by_halves!(args, row, offset, tile::<W, S, 4, 2>);
                    4
                }
                2.. => {
                    tile::<W, S, 2, 4>(args, row, 0, offset);
                    2
                }
                _ => {
                    neon_dotprod::tile::<W, S, 1, 4>(args, row, 0, offset);
                    1
                }
            }
        }
    }
}
