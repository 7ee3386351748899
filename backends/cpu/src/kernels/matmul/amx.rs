//! AMX rows: sixteen rows of activations at once, for chunks of a prompt.
//!
//! ```text
//!   tile of weights ─▶ signed bytes and f32 scales of all columns, once for all rows, in the thread's scratch
//!   16 rows, per group: A 16 x group bytes (activations), B group / 4 x 64 bytes (weights): C = A * B in i32
//!                       16 registers: acc = fma(f32(C), w * s, acc), and the minimum, as every other row does
//!
//!   in flight at once:  product of group t + 3 ─▶ C of group t + 2 to memory ─▶ (group t + 1 waits) ─▶ scaling of group t
//! ```
//! A product takes some fifty cycles and its way through memory as many; spread over the scaling of other groups, row by
//! row, they cost next to nothing. One after the other they would fill the processor's window and stand still.
//!
//! Four columns of sixteen outputs in 64 bytes, as the packed layout has them, are a row of B. Inline assembly, as the
//! intrinsics aren't stable. What remains below sixteen rows is the AVX-512 row's.

use super::TileArgs;
use super::avx512::{self, F16, F32, Five, Nibble, NibbleIq4, ScaleKind, Signed, Six, Super, Weights};
use super::unpacked::{Ahead, Unpacked};
use crate::pack::{Layout, Quant, STEP, Scales, TILE};
use std::arch::asm;
use std::arch::x86_64::*;

/// Rows of activations in a tile register.
const ROWS: usize = 16;

/// Groups between the product and the scaling of one.
const AHEAD: usize = 3;
/// Results in memory: those on their way there and the one that is read.
const BUFFERS: usize = 4;

/// Shapes of the tile registers, as `ldtilecfg` reads them (Intel's manual, volume 1, section 18.3): palette 1; bytes a row
/// from byte 16 on, rows from byte 48 on.
#[repr(C, align(64))]
struct Config([u8; 64]);

impl Config {
    /// Registers 0 and 1 hold results, 2 activations, 3 weights of `quads` times four columns.
    const fn new(quads: u8) -> Config {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let mut i = 0;
        while i < 4 {
            let (row_bytes, n_rows) = match i {
                0 | 1 => (64, ROWS as u8),
                2 => (4 * quads, ROWS as u8),
                _ => (64, quads),
            };
            bytes[16 + 2 * i] = row_bytes;
            bytes[48 + i] = n_rows;
            i += 1;
        }
        Config(bytes)
    }
}

static GROUPS_OF_32: Config = Config::new(8);
static GROUPS_OF_16: Config = Config::new(4);

/// Sums of one group.
#[repr(C, align(64))]
struct Sums([[i32; TILE]; ROWS]);

super::int_kernels!();

unsafe fn rows<W: Weights, S: ScaleKind>(args: &TileArgs, offset: i32) {
    let n_full = args.n_rows / ROWS * ROWS;
    if n_full > 0 {
        // SAFETY: the caller's promise; the scratch is large enough, and the permission to use tiles was given at load.
        unsafe { full::<W, S>(args, n_full, offset) };
    }
    if n_full < args.n_rows {
        // SAFETY: the rows remain; a machine with AMX has AVX-512.
        unsafe { avx512::rows::<W, S>(&args.skip_rows(n_full), offset) };
    }
}

/// The first `n_rows`, a multiple of sixteen.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn full<W: Weights, S: ScaleKind>(args: &TileArgs, n_rows: usize, offset: i32) {
    // SAFETY: the caller's promise.
    let tile = unsafe { Unpacked::new(args) };
    // SAFETY: likewise.
    let mut ahead = unsafe { tile.fill::<W, S>(args, offset + W::SHIFT) };
    let config = if S::SCALES.groups() == 1 { &GROUPS_OF_32 } else { &GROUPS_OF_16 };
    // SAFETY: the configuration is 64 valid bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly)) };
    // SAFETY: the registers are configured, the weights unpacked.
    unsafe {
        if S::SCALES.has_min() { blocks_min::<S>(args, tile, &mut ahead, n_rows) } else { blocks::<S>(args, tile, &mut ahead, n_rows) }
    }
    // SAFETY: the registers are given back, so that a switch of threads needn't save them.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// The operands of products in their order: all groups of sixteen rows, then of the next sixteen.
struct Products {
    q: *const i8,
    weights: *const u8,
    group: usize,
    k: usize,
    first_weights: *const u8,
    /// Groups left in these rows, this one included.
    left: usize,
    n_groups: usize,
    /// Products left, this one included.
    all_left: usize,
}

impl Products {
    /// On to the next; the last one stays, so that what runs ahead at the end computes something valid again.
    #[inline(always)]
    fn advance(&mut self) {
        if self.all_left == 1 {
            return;
        }
        self.all_left -= 1;
        self.left -= 1;
        self.q = self.q.wrapping_add(self.group);
        self.weights = self.weights.wrapping_add(self.group * TILE);
        if self.left == 0 {
            self.left = self.n_groups;
            self.weights = self.first_weights;
            self.q = self.q.wrapping_add((ROWS - 1) * self.k);
        }
    }
}

/// Scaling of a row: `z` and `t` are free.
#[rustfmt::skip]
macro_rules! scaled_row {
    ($n:literal, $acc:literal, min) => {
        concat!(scaled_row!($n, $acc), "vfmadd231ps {", $acc, "}, {m}, dword ptr [{sum} + 4*", $n, "]{{1to16}}\n")
    };
    ($n:literal, $acc:literal) => {
        concat!(
            "vcvtdq2ps {z}, [{c} + 64*", $n, "]\n",
            "vmulps {t}, {w}, dword ptr [{s} + 4*", $n, "]{{1to16}}\n",
            "vfmadd231ps {", $acc, "}, {z}, {t}\n",
        )
    };
}

/// One group: the product into `$new` begins, the result in `$old` goes to memory, and the group whose result lies there
/// is scaled.
macro_rules! group {
    ($new:tt, $old:tt, $acc:ident, $products:ident, $store:expr, $c:expr, $w:expr, $m:expr, $s:expr, $sum:expr $(, $min:ident)?) => {
        // The two have a type, so that the assembler is told whole registers.
        let (_z, _t): (__m512, __m512);
        asm!(
            concat!("tilezero ", $new),
            "tileloadd tmm2, [{q} + {k}*1]",
            scaled_row!(0, "a0" $(, $min)?),
            scaled_row!(1, "a1" $(, $min)?),
            "tileloadd tmm3, [{b} + {line}*1]",
            scaled_row!(2, "a2" $(, $min)?),
            scaled_row!(3, "a3" $(, $min)?),
            concat!("tdpbssd ", $new, ", tmm2, tmm3"),
            scaled_row!(4, "a4" $(, $min)?),
            scaled_row!(5, "a5" $(, $min)?),
            scaled_row!(6, "a6" $(, $min)?),
            scaled_row!(7, "a7" $(, $min)?),
            scaled_row!(8, "a8" $(, $min)?),
            scaled_row!(9, "a9" $(, $min)?),
            scaled_row!(10, "a10" $(, $min)?),
            concat!("tilestored [{store} + {line}*1], ", $old),
            scaled_row!(11, "a11" $(, $min)?),
            scaled_row!(12, "a12" $(, $min)?),
            scaled_row!(13, "a13" $(, $min)?),
            scaled_row!(14, "a14" $(, $min)?),
            scaled_row!(15, "a15" $(, $min)?),
            q = in(reg) $products.q,
            k = in(reg) $products.k,
            b = in(reg) $products.weights,
            line = in(reg) 64_usize,
            store = in(reg) $store,
            c = in(reg) $c,
            s = in(reg) $s,
            w = in(zmm_reg) $w,
            $(m = in(zmm_reg) min_of!($min, $m), sum = in(reg) $sum,)?
            z = out(zmm_reg) _z,
            t = out(zmm_reg) _t,
            a0 = inout(zmm_reg) $acc[0],
            a1 = inout(zmm_reg) $acc[1],
            a2 = inout(zmm_reg) $acc[2],
            a3 = inout(zmm_reg) $acc[3],
            a4 = inout(zmm_reg) $acc[4],
            a5 = inout(zmm_reg) $acc[5],
            a6 = inout(zmm_reg) $acc[6],
            a7 = inout(zmm_reg) $acc[7],
            a8 = inout(zmm_reg) $acc[8],
            a9 = inout(zmm_reg) $acc[9],
            a10 = inout(zmm_reg) $acc[10],
            a11 = inout(zmm_reg) $acc[11],
            a12 = inout(zmm_reg) $acc[12],
            a13 = inout(zmm_reg) $acc[13],
            a14 = inout(zmm_reg) $acc[14],
            a15 = inout(zmm_reg) $acc[15],
            out($new) _, out("tmm2") _, out("tmm3") _,
            options(nostack),
        )
    };
}

macro_rules! min_of {
    (min, $m:expr) => {
        $m
    };
}

/// A product into a register, and the register to memory.
macro_rules! begin {
    ($new:tt, $products:ident, $store:expr) => {
        asm!(
            concat!("tilezero ", $new),
            "tileloadd tmm2, [{q} + {k}*1]",
            "tileloadd tmm3, [{b} + {line}*1]",
            concat!("tdpbssd ", $new, ", tmm2, tmm3"),
            concat!("tilestored [{store} + {line}*1], ", $new),
            q = in(reg) $products.q,
            k = in(reg) $products.k,
            b = in(reg) $products.weights,
            line = in(reg) 64_usize,
            store = in(reg) $store,
            out($new) _, out("tmm2") _, out("tmm3") _,
            options(nostack),
        )
    };
}

/// Defines a function that runs through all rows: with minima and without.
macro_rules! blocks {
    ($name:ident $(, $min:ident)?) => {
        /// All sixteens of `n_rows` rows.
        ///
        /// # Safety
        /// As [`TileArgs`] says; the tile registers are configured and the scratch holds the unpacked weights.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        unsafe fn $name<S: ScaleKind>(args: &TileArgs, tile: Unpacked, ahead: &mut Ahead, n_rows: usize) {
            let (k, stride, groups) = (args.k, args.stride, S::SCALES.groups());
            let group = STEP / groups;
            let n_groups = k / group;
            let Unpacked { weights, scales, minima: _minima } = tile;
            let weights = weights.cast_const();
            let mut buffers = [const { Sums([[0; TILE]; ROWS]) }; BUFFERS];
            let all_left = n_rows / ROWS * n_groups;
            let mut products =
                Products { q: args.q, weights, group, k, first_weights: weights, left: n_groups, n_groups, all_left };
            // SAFETY: the first three products; the registers have the shapes of `Config`: sixteen rows of `group` bytes of
            // activations, `group / 4` rows of 64 bytes of weights, sixteen rows of 64 bytes of sums.
            unsafe {
                begin!("tmm0", products, &mut buffers[0]);
                products.advance();
                begin!("tmm1", products, &mut buffers[1]);
                products.advance();
                begin!("tmm0", products, &mut buffers[2]);
                products.advance();
            }
            const { assert!(AHEAD == 3 && BUFFERS == 4) };
            let buffers = buffers.as_mut_ptr();
            let mut acc = [_mm512_setzero_ps(); ROWS];
            let (mut row, mut i) = (0, 0);
            for t in 0..all_left {
                // SAFETY: group i of the sixteen rows from `row` on: their results lie in buffer t; scales of sixteen outputs for
                // every group, of sixteen rows for every 32 columns, sums of sixteen rows for every group.
                unsafe {
                    let w = _mm512_load_ps(scales.add(i * TILE));
                    let s = args.scale.add(i / groups * stride + row);
                    $(
                        let m = min_of!($min, _mm512_load_ps(_minima.add(i * TILE)));
                        let sum = if groups == 1 { args.sum32 } else { args.sum16 }.add(i * stride + row);
                    )?
                    let (c, store) = (buffers.add(t % BUFFERS), buffers.add((t + 2) % BUFFERS));
                    if t % 2 == 0 {
                        group!("tmm1", "tmm0", acc, products, store, c, w, m, s, sum $(, $min)?);
                    } else {
                        group!("tmm0", "tmm1", acc, products, store, c, w, m, s, sum $(, $min)?);
                    }
                    products.advance();
                }
                ahead.fetch();
                i += 1;
                if i == n_groups {
                    for (n, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: `out` has 16 floats a row.
                        unsafe { _mm512_storeu_ps(args.out.add((row + n) * TILE), *acc) };
                        *acc = _mm512_setzero_ps();
                    }
                    (row, i) = (row + ROWS, 0);
                }
            }
        }
    };
}

blocks!(blocks);
blocks!(blocks_min, min);
