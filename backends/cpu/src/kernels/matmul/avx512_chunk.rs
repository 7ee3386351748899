//! AVX-512 rows with VNNI for chunks of a prompt: weights are unpacked once for all rows, twelve of activations share each
//! register of them.
//!
//! ```text
//!   per group and row:  8 (4) vpdpbusd, convert, multiply, one fused multiply-add, a second one for the minimum
//! ```
//! Two of these a cycle are what the processor can do, one word of activations read for each: nothing else may stand in
//! the loop. Written in assembly, as the order and the addresses matter: a compiler leaves half of it lying.

use super::TileArgs;
use super::avx512::{self, F16, F32, Five, Nibble, NibbleIq4, ScaleKind, Signed, Six, Super, Weights};
use super::unpacked::{Ahead, Unpacked, unpacked_bytes};
use crate::pack::{Layout, Quant, STEP, Scales, TILE};
use std::arch::asm;
use std::arch::x86_64::*;

/// Rows of activations at once; then as many as remain, by eights, and with the kernel for few rows.
const ROWS: usize = 12;

/// Bytes of scratch for `k` columns: the unpacked tile, and a number of each group for every row at once.
pub(super) fn scratch_bytes(k: usize) -> usize {
    unpacked_bytes(k) + k / 16 * TILE * 4
}

super::int_kernels!();

unsafe fn rows<W: Weights, S: ScaleKind>(args: &TileArgs, offset: i32) {
    // SAFETY: the caller's promise; the scratch is large enough.
    unsafe {
        let tile = Unpacked::new(args);
        // Unsigned, as the instruction wants one side; what they are shifted by is taken back through the activations' sums.
        let mut ahead = tile.fill::<W, S>(args, 0);
        let shift = offset + W::SHIFT;
        let row = match (S::SCALES.has_min(), shift) {
            (false, 0) => all::<S, false, false>(args, tile, &mut ahead, 0),
            (false, _) => all::<S, false, true>(args, tile, &mut ahead, shift),
            (true, 0) => all::<S, true, false>(args, tile, &mut ahead, 0),
            (true, _) => all::<S, true, true>(args, tile, &mut ahead, shift),
        };
        if row < args.n_rows {
            avx512::rows::<W, S>(&args.skip_rows(row), offset);
        }
    }
}

/// All rows but the last few; returns how many.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn all<S: ScaleKind, const MIN: bool, const SHIFTS: bool>(args: &TileArgs, tile: Unpacked, ahead: &mut Ahead, shift: i32) -> usize {
    let mut row = 0;
    while row + 8 <= args.n_rows {
        // SAFETY: the rows remain; the scratch holds the unpacked weights.
        unsafe {
            let n = if row + ROWS <= args.n_rows { ROWS } else { 8 };
            if SHIFTS {
                shifted_sums::<S>(args, row, n, shift);
            }
            match (S::SCALES.groups(), n) {
                (1, ROWS) => rows12_of32::<MIN, SHIFTS>(args, tile, ahead, row),
                (1, _) => rows8_of32::<MIN, SHIFTS>(args, tile, ahead, row),
                (_, ROWS) => rows12_of16::<MIN, SHIFTS>(args, tile, ahead, row),
                _ => rows8_of16::<MIN, SHIFTS>(args, tile, ahead, row),
            }
            row += n;
        }
    }
    row
}

/// Where sums begin that take the shift of the weights back: `[k / group][16]`, of the rows at once.
unsafe fn shifted(args: &TileArgs) -> *mut i32 {
    // SAFETY: `scratch_bytes` counts them behind the unpacked tile.
    unsafe { args.scratch.add(unpacked_bytes(args.k)).cast() }
}

/// The sums of `n` rows' groups times minus `shift`, a power of two as all offsets of integers are.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn shifted_sums<S: ScaleKind>(args: &TileArgs, row: usize, n: usize, shift: i32) {
    debug_assert!(shift.count_ones() == 1, "{shift}");
    let (groups, mask) = (S::SCALES.groups(), (1_u16 << n) - 1);
    // SAFETY: the caller's promise.
    let (to, bits) = (unsafe { shifted(args) }, _mm_cvtsi32_si128(shift.trailing_zeros() as i32));
    for i in 0..args.k / STEP * groups {
        // SAFETY: a sum of every row for each 16 columns; the scratch takes 16 a group.
        unsafe {
            let sums = |at: usize| _mm512_maskz_loadu_epi32(mask, args.sum.add(at * args.stride + row));
            let sum = if groups == 1 { _mm512_add_epi32(sums(2 * i), sums(2 * i + 1)) } else { sums(i) };
            _mm512_store_si512(to.add(i * TILE).cast(), _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_sll_epi32(sum, bits)));
        }
    }
}

/// Products of four columns: `$w` are their weights, `$at` the columns' offset in a group.
#[rustfmt::skip]
macro_rules! quad {
    ($at:literal, 12) => {
        concat!(quad!($at, 8),
            "vpdpbusd zmm8, zmm12, dword ptr [{y} + 2*{k} + ", $at, "]{{1to16}}\n",
            "vpdpbusd zmm9, zmm12, dword ptr [{y} + {k3} + ", $at, "]{{1to16}}\n",
            "vpdpbusd zmm10, zmm12, dword ptr [{y} + 4*{k} + ", $at, "]{{1to16}}\n",
            "vpdpbusd zmm11, zmm12, dword ptr [{y} + {k5} + ", $at, "]{{1to16}}\n",
        )
    };
    ($at:literal, 8) => {
        concat!(
            "vmovdqa64 zmm12, [{w} + 16*", $at, "]\n",
            "vpdpbusd zmm0, zmm12, dword ptr [{x} + ", $at, "]{{1to16}}\n",
            "vpdpbusd zmm1, zmm12, dword ptr [{x} + {k} + ", $at, "]{{1to16}}\n",
            "vpdpbusd zmm2, zmm12, dword ptr [{x} + 2*{k} + ", $at, "]{{1to16}}\n",
            "vpdpbusd zmm3, zmm12, dword ptr [{x} + {k3} + ", $at, "]{{1to16}}\n",
            "vpdpbusd zmm4, zmm12, dword ptr [{x} + 4*{k} + ", $at, "]{{1to16}}\n",
            "vpdpbusd zmm5, zmm12, dword ptr [{x} + {k5} + ", $at, "]{{1to16}}\n",
            "vpdpbusd zmm6, zmm12, dword ptr [{y} + ", $at, "]{{1to16}}\n",
            "vpdpbusd zmm7, zmm12, dword ptr [{y} + {k} + ", $at, "]{{1to16}}\n",
        )
    };
}

/// Scaling of row `$n`'s sum, in `$sum`, into `$acc`.
#[rustfmt::skip]
macro_rules! scaled {
    ($n:literal, $sum:literal, $acc:literal, true) => {
        concat!(scaled!($n, $sum, $acc, false), "vfmadd231ps ", $acc, ", {m}, dword ptr [{sum} + 4*", $n, "]{{1to16}}\n")
    };
    ($n:literal, $sum:literal, $acc:literal, false) => {
        concat!(
            "vcvtdq2ps ", $sum, ", ", $sum, "\n",
            "vmulps zmm13, {v}, dword ptr [{s} + 4*", $n, "]{{1to16}}\n",
            "vfmadd231ps ", $acc, ", ", $sum, ", zmm13\n",
        )
    };
}

/// What row `$n`'s sum begins with.
macro_rules! begin {
    ($n:literal, $sum:literal, true) => {
        concat!("vpbroadcastd ", $sum, ", dword ptr [{shifted} + 4*", $n, "]\n")
    };
    ($n:literal, $sum:literal, false) => {
        concat!("vpxord ", $sum, ", ", $sum, ", ", $sum, "\n")
    };
}

macro_rules! each_row {
    (8, $what:ident, $($rest:tt)*) => {
        concat!(
            each_row!(@ $what, 0, "zmm0", "zmm16", $($rest)*), each_row!(@ $what, 1, "zmm1", "zmm17", $($rest)*),
            each_row!(@ $what, 2, "zmm2", "zmm18", $($rest)*), each_row!(@ $what, 3, "zmm3", "zmm19", $($rest)*),
            each_row!(@ $what, 4, "zmm4", "zmm20", $($rest)*), each_row!(@ $what, 5, "zmm5", "zmm21", $($rest)*),
            each_row!(@ $what, 6, "zmm6", "zmm22", $($rest)*), each_row!(@ $what, 7, "zmm7", "zmm23", $($rest)*),
        )
    };
    (12, $what:ident, $($rest:tt)*) => {
        concat!(
            each_row!(8, $what, $($rest)*),
            each_row!(@ $what, 8, "zmm8", "zmm24", $($rest)*), each_row!(@ $what, 9, "zmm9", "zmm25", $($rest)*),
            each_row!(@ $what, 10, "zmm10", "zmm26", $($rest)*), each_row!(@ $what, 11, "zmm11", "zmm27", $($rest)*),
        )
    };
    (@ begin, $n:literal, $sum:literal, $acc:literal, $flag:tt) => { begin!($n, $sum, $flag) };
    (@ scaled, $n:literal, $sum:literal, $acc:literal, $flag:tt) => { scaled!($n, $sum, $acc, $flag) };
}

macro_rules! quads {
    (32, $rows:tt) => {
        concat!(
            quad!(0, $rows),
            quad!(4, $rows),
            quad!(8, $rows),
            quad!(12, $rows),
            quad!(16, $rows),
            quad!(20, $rows),
            quad!(24, $rows),
            quad!(28, $rows),
        )
    };
    (16, $rows:tt) => {
        concat!(quad!(0, $rows), quad!(4, $rows), quad!(8, $rows), quad!(12, $rows))
    };
}

/// A function for `$rows` rows from `row` on and groups of `$group` columns.
macro_rules! rows_of {
    ($name:ident, $rows:tt, $group:tt) => {
        /// # Safety
        /// As [`TileArgs`] says; so many rows remain, and the scratch holds the unpacked weights and, where they are
        /// shifted, the sums.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        unsafe fn $name<const MIN: bool, const SHIFTS: bool>(args: &TileArgs, tile: Unpacked, ahead: &mut Ahead, row: usize) {
            let per_step = STEP / $group;
            let sums = if per_step == 1 { args.sum32 } else { args.sum16 };
            let mut acc = [_mm512_setzero_ps(); 12];
            for i in 0..args.k / $group {
                ahead.fetch();
                // SAFETY: group i of the rows: a scale for every 32 columns, sums, weights and minima for every group.
                unsafe {
                    let at = Group {
                        x: args.q.add(row * args.k + i * $group),
                        w: tile.weights.add(i * $group * TILE),
                        scale_w: _mm512_load_ps(tile.scales.add(i * TILE)),
                        minus_min: if MIN { _mm512_load_ps(tile.minima.add(i * TILE)) } else { _mm512_setzero_ps() },
                        scale: args.scale.add(i / per_step * args.stride + row),
                        sum: sums.wrapping_add(i * args.stride + row),
                        shifted: shifted(args).add(i * TILE),
                    };
                    match (MIN, SHIFTS) {
                        (false, false) => group!($rows, $group, false, false, args, at, acc),
                        (false, true) => group!($rows, $group, false, true, args, at, acc),
                        (true, false) => group!($rows, $group, true, false, args, at, acc),
                        (true, true) => group!($rows, $group, true, true, args, at, acc),
                    }
                }
            }
            for (n, acc) in acc.iter().enumerate().take($rows) {
                // SAFETY: `out` has 16 floats a row.
                unsafe { _mm512_storeu_ps(args.out.add((row + n) * TILE), *acc) };
            }
        }
    };
}

/// Operands of a group.
struct Group {
    /// Its columns of the first row.
    x: *const i8,
    w: *const u8,
    scale_w: __m512,
    minus_min: __m512,
    /// One for each row, like the next two.
    scale: *const f32,
    sum: *const f32,
    shifted: *const i32,
}

macro_rules! group {
    ($rows:tt, $group:tt, $min:tt, $shifts:tt, $args:ident, $at:ident, $acc:ident) => {
        asm!(
            each_row!($rows, begin, $shifts),
            quads!($group, $rows),
            each_row!($rows, scaled, $min),
            "/* {sum} {shifted} {m} */",
            x = in(reg) $at.x,
            // Six rows can be addressed from one register with three distances.
            y = in(reg) $at.x.wrapping_add(6 * $args.k),
            k = in(reg) $args.k,
            k3 = in(reg) 3 * $args.k,
            k5 = in(reg) 5 * $args.k,
            w = in(reg) $at.w,
            s = in(reg) $at.scale,
            sum = in(reg) $at.sum,
            shifted = in(reg) $at.shifted,
            v = in(zmm_reg) $at.scale_w,
            m = in(zmm_reg) $at.minus_min,
            inout("zmm16") $acc[0], inout("zmm17") $acc[1], inout("zmm18") $acc[2], inout("zmm19") $acc[3],
            inout("zmm20") $acc[4], inout("zmm21") $acc[5], inout("zmm22") $acc[6], inout("zmm23") $acc[7],
            inout("zmm24") $acc[8], inout("zmm25") $acc[9], inout("zmm26") $acc[10], inout("zmm27") $acc[11],
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _, out("zmm6") _,
            out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _, out("zmm12") _, out("zmm13") _,
            options(nostack, readonly, preserves_flags),
        )
    };
}

rows_of!(rows12_of32, 12, 32);
rows_of!(rows8_of32, 8, 32);
rows_of!(rows12_of16, 12, 16);
rows_of!(rows8_of16, 8, 16);
