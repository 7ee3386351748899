//! One tile of 16 output rows times some rows of activations.
//!
//! ```text
//!   integer weights, per step of 32 columns, per group g of 32 or 16 columns in it, ascending:
//!     isum = sum_k (q_w - offset) * q_x            exact in i32
//!     acc  = fma(f32(isum), w * s, acc)            w = scale of the group (f32), s = scale of the activations
//!     acc  = fma(-min, s * f32(sum_q), acc)        where the type has a minimum (an added one counts as -min)
//!   float weights: acc = fma(w, x, acc), columns ascending
//! ```
//! One accumulator per output, so the bits depend on nothing but the weights and the row of activations (DESIGN 3.1).
//!
//! To add a kernel: a file for its instruction set and rows in its table; the tests below run every row of [`KERNELS`]
//! that this machine can run against the scalar one.

/// `takes_int` and `run_int` of an instruction set, over its own `Nibble`, `Five`, ... and `rows`: one kernel a combination
/// of integers and scales that a storage type uses.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! int_kernels {
    () => {
        super::int_kernels! {
            Quant::Nibble { .. }, Scales::F16 { min: false } => Nibble, F16<false>;
            Quant::Nibble { .. }, Scales::F16 { min: true } => Nibble, F16<true>;
            Quant::Nibble { .. }, Scales::Super { group: 32, min: true } => Nibble, Super<32, true>;
            Quant::Nibble { .. }, Scales::Super { group: 16, min: true } => Nibble, Super<16, true>;
            Quant::Nibble { .. }, Scales::Super { group: 16, min: false } => Nibble, Super<16, false>;
            Quant::NibbleIq4, Scales::F16 { min: false } => NibbleIq4, F16<false>;
            Quant::NibbleIq4, Scales::Super { group: 32, min: false } => NibbleIq4, Super<32, false>;
            Quant::Five { .. }, Scales::F16 { min: false } => Five, F16<false>;
            Quant::Five { .. }, Scales::F16 { min: true } => Five, F16<true>;
            Quant::Five { .. }, Scales::Super { group: 32, min: true } => Five, Super<32, true>;
            Quant::Six { .. }, Scales::Super { group: 16, min: false } => Six, Super<16, false>;
            Quant::Signed, Scales::F16 { min: false } => Signed, F16<false>;
            Quant::Signed, Scales::F32 { group: 32, min: false } => Signed, F32<32, false>;
            Quant::Signed, Scales::F32 { group: 32, min: true } => Signed, F32<32, true>;
            Quant::Signed, Scales::F32 { group: 16, min: false } => Signed, F32<16, false>;
            Quant::Signed, Scales::F32 { group: 16, min: true } => Signed, F32<16, true>;
        }
    };
    ($($quant:pat, $scales:pat => $w:ty, $s:ty;)*) => {
        /// Layouts that [`run_int`] takes.
        pub(super) fn takes_int(layout: Layout) -> bool {
            let Layout::Int { quant, scales } = layout else { return false };
            #[allow(clippy::match_like_matches_macro, reason = "one arm a row of the table")]
            match (quant, scales) {
                $(($quant, $scales) => true,)*
                _ => false,
            }
        }

        /// # Safety
        /// As [`TileArgs`] says; the machine has the instruction set; the layout is one that [`takes_int`].
        pub(super) unsafe fn run_int(args: &TileArgs, layout: Layout) {
            let Layout::Int { quant, scales } = layout else { return };
            // The offset is subtracted through the sums of the activations.
            let offset = match quant {
                Quant::Nibble { offset } | Quant::Five { offset } | Quant::Six { offset } => i32::from(offset),
                Quant::NibbleIq4 | Quant::Signed => 0,
            };
            match (quant, scales) {
                // SAFETY: the caller's promise.
                $(($quant, $scales) => unsafe { rows::<$w, $s>(args, offset) },)*
                _ => debug_assert!(false, "selected for a layout that it does not take"),
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use int_kernels;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_chunk;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_dotprod;
#[cfg(target_arch = "aarch64")]
mod neon_i8mm;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod unpacked;

pub(crate) use scalar::IQ4_VALUES;

use crate::isa::Isa;
use crate::pack::{Layout, TILE};
use selvedge_core::ops::Act8Layout;
use std::ops::Range;

/// Operands of a kernel. The caller guarantees (placement, packing and pool do): `w` is a tile of the kernel's layout and
/// `k` columns; activations hold `n_rows` rows of `k` columns; `out` takes `n_rows * 16` floats, row by row.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "some operands are for some vector rows alone"))]
pub(crate) struct TileArgs {
    /// The tile.
    pub w: *const u8,
    /// Columns.
    pub k: usize,
    /// Rows of activations.
    pub n_rows: usize,
    /// `[n_rows, k]` 8-bit activations, or null for float weights.
    pub q: *const i8,
    /// Distance of the scales and sums of one group of columns from those of the next, elements.
    pub stride: usize,
    /// `[k / 32, stride]` their scales.
    pub scale: *const f32,
    /// `[k / 16, stride]` their sums.
    pub sum: *const i32,
    /// `[k / 32, stride]` scale times sum.
    pub sum32: *const f32,
    /// `[k / 16, stride]` scale times sum.
    pub sum16: *const f32,
    /// `[n_rows, k]` float activations, or null for integer weights.
    pub x: *const f32,
    /// `[n_rows, 16]`
    pub out: *mut f32,
    /// Memory of the calling thread, [`Kernel::scratch`] bytes, aligned to a cache line.
    pub scratch: *mut u8,
    /// Whether the scratch holds what the same kernel left there of the same tile.
    pub unpacked: bool,
}

impl TileArgs {
    /// Some rows of activations that lie at `x`: in the given layout for integer weights, as floats
    /// otherwise.
    ///
    /// # Safety
    /// The activations hold those rows of `k` columns.
    pub(crate) unsafe fn new(
        w: *const u8,
        k: usize,
        x: *const u8,
        act: &Act8Layout,
        rows: Range<usize>,
        out: *mut f32,
        scratch: *mut u8,
    ) -> TileArgs {
        // SAFETY: the caller's promise; a kernel reads the parts that its layout has and no others.
        let part = |offset: usize| unsafe { x.add(offset) };
        let whole = TileArgs {
            w,
            k,
            n_rows: rows.end,
            q: part(act.q).cast(),
            stride: act.n_rows,
            scale: part(act.scale).cast(),
            sum: part(act.sum).cast(),
            sum32: part(act.sum32).cast(),
            sum16: part(act.sum16).cast(),
            x: x.cast(),
            out: out.wrapping_sub(rows.start * TILE),
            scratch,
            unpacked: false,
        };
        whole.skip_rows(rows.start)
    }

    /// The same without the first `row` rows.
    pub(crate) fn skip_rows(&self, row: usize) -> TileArgs {
        TileArgs {
            n_rows: self.n_rows - row,
            q: self.q.wrapping_add(row * self.k),
            scale: self.scale.wrapping_add(row),
            sum: self.sum.wrapping_add(row),
            sum32: self.sum32.wrapping_add(row),
            sum16: self.sum16.wrapping_add(row),
            x: self.x.wrapping_add(row * self.k),
            out: self.out.wrapping_add(row * TILE),
            ..*self
        }
    }
}

/// Products of up to so many rows of activations wait for weights to come from memory: their kernels fetch ahead.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for vector rows"))]
const FEW: usize = 4;
/// How far ahead, bytes: what memory delivers to one core in its latency, several times over. The processor's own
/// prefetchers stop at borders of 4 KiB.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for vector rows"))]
const AHEAD: usize = 4096;

/// Where the higher bits of quad `j` lie: the plane, their first bit in its bytes, and their places over a nibble.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code, reason = "for vector rows"))]
#[inline(always)]
const fn high_bits(bits: usize, j: usize) -> (usize, usize, u8) {
    (bits * j / 8, bits * j % 8, ((1 << bits) - 1) << 4)
}

/// A kernel.
///
/// # Safety
/// As [`TileArgs`] says, and the machine has the kernel's instruction set.
pub(crate) type TileFn = unsafe fn(&TileArgs, Layout);

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    /// Name: op, layout, instruction set.
    pub name: &'static str,
    /// Layouts that it takes.
    pub takes: fn(Layout) -> bool,
    /// Instruction set that it needs.
    pub isa: Isa,
    /// Rows of activations from which it pays.
    pub min_rows: usize,
    /// Bytes of scratch that it needs for so many columns.
    pub scratch: fn(usize) -> usize,
    /// The code.
    pub run: TileFn,
}

/// All kernels, best last.
pub(crate) const KERNELS: &[Kernel] = &[
    row("matmul_any_scalar", |_| true, Isa::Scalar, scalar::run),
    #[cfg(target_arch = "x86_64")]
    row("matmul_int_avx2", avx2::takes_int, Isa::Avx2, avx2::run_int),
    #[cfg(target_arch = "x86_64")]
    row("matmul_float_avx2", |layout| !layout.act8(), Isa::Avx2, avx2::run_float),
    #[cfg(target_arch = "x86_64")]
    row("matmul_int_avxvnni", avxvnni::takes_int, Isa::AvxVnni, avxvnni::run_int),
    #[cfg(target_arch = "x86_64")]
    row("matmul_int_avx512vnni", avx512::takes_int, Isa::Avx512Vnni, avx512::run_int),
    #[cfg(target_arch = "x86_64")]
    Kernel {
        min_rows: 16,
        scratch: avx512_chunk::scratch_bytes,
        ..row("matmul_int_avx512vnni_chunk", avx512_chunk::takes_int, Isa::Avx512Vnni, avx512_chunk::run_int)
    },
    #[cfg(target_arch = "x86_64")]
    row("matmul_float_avx512", |layout| !layout.act8(), Isa::Avx512Vnni, avx512::run_float),
    #[cfg(target_arch = "x86_64")]
    Kernel { min_rows: 16, scratch: unpacked::unpacked_bytes, ..row("matmul_int_amx", amx::takes_int, Isa::Amx, amx::run_int) },
    #[cfg(target_arch = "aarch64")]
    row("matmul_int_neon", neon::takes_int, Isa::Neon, neon::run_int),
    #[cfg(target_arch = "aarch64")]
    row("matmul_float_neon", |layout| !layout.act8(), Isa::Neon, neon::run_float),
    #[cfg(target_arch = "aarch64")]
    row("matmul_int_neon_dotprod", neon_dotprod::takes_int, Isa::NeonDotprod, neon_dotprod::run_int),
    #[cfg(target_arch = "aarch64")]
    row("matmul_int_neon_i8mm", neon_i8mm::takes_int, Isa::NeonI8mm, neon_i8mm::run_int),
];

/// A row for any number of activations, without scratch.
const fn row(name: &'static str, takes: fn(Layout) -> bool, isa: Isa, run: TileFn) -> Kernel {
    Kernel { name, takes, isa, min_rows: 1, scratch: |_| 0, run }
}

/// The best kernel for a layout and a number of rows up to an instruction set.
pub(crate) fn select(layout: Layout, isa: Isa, n_rows: usize) -> Kernel {
    *KERNELS.iter().rfind(|k| isa.includes(k.isa) && k.min_rows <= n_rows && (k.takes)(layout)).unwrap_or(&KERNELS[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::element::scalar as element;
    use crate::pack::random::types;
    use crate::pack::{Packed, pack_row, pack_tile};
    use crate::random::Random;
    use selvedge_core::ops::{WeightDecl, WeightId, WeightRows};
    use selvedge_gguf::TensorType;

    /// A cache line.
    #[derive(Clone)]
    #[repr(align(64))]
    struct Line(#[allow(dead_code, reason = "memory for kernels")] [u8; 64]);

    #[test]
    fn no_kernel_is_chosen_that_needs_more_than_was_asked_for() {
        for layout in types().into_iter().filter_map(pack_row).map(|row| row.layout) {
            for (_, isa) in Isa::ALL {
                for n_rows in [1, 2, 3, 64] {
                    let kernel = select(layout, isa, n_rows);
                    assert!(isa.includes(kernel.isa) && kernel.min_rows <= n_rows, "{isa:?}: {}", kernel.name);
                }
            }
        }
    }

    #[test]
    fn every_kernel_gives_the_scalar_bits_and_near_the_exact_product() {
        let mut rng = Random(7);
        for ty in types() {
            let row = pack_row(ty).unwrap();
            for (n_out, k, n_rows) in [(16, 256, 1), (5, 512, 2), (37, 256, 3), (16, 768, 9), (16, 256, 33), (16, 1824, 41), (16, 3328, 60)]
            {
                if k % ty.row().block_elems != 0 {
                    continue;
                }
                let mut tensor = rng.weights(ty, n_out * k);
                if ty == TensorType::Q8_0 {
                    tensor[2..34].fill(0x80);
                }
                let decl = WeightDecl { tensor: "t".into(), ty, n_in: k, n_out };
                let rows = WeightRows { weight: WeightId(0), first: 0, n: n_out };
                let packed = Packed { offset: 0, n_out, k, layout: row.layout };
                let mut x: Vec<f32> = (0..n_rows * k).map(|_| rng.uniform()).collect();
                x[..32].fill(-1.0);
                let act = Act8Layout::new(n_rows, k);
                let mut a8 = vec![0_u64; act.n_bytes.div_ceil(8)];
                let a8 = a8.as_mut_ptr().cast::<u8>();
                // SAFETY: the buffer has the layout's size.
                let quantized = |rows| unsafe { element::quantize_rows(x.as_ptr(), a8, &act, rows, k) };
                assert!((0..n_rows).step_by(8).all(|row| quantized(row..(row + 8).min(n_rows))));
                for tile in 0..packed.n_tiles() {
                    let mut w = vec![0; packed.tile_bytes()];
                    if pack_tile(&row, &decl, rows, &tensor, tile, &mut w).is_err() {
                        // Random scales of types without f16 fields may be NaN; the others must pack.
                        assert!(matches!(ty, TensorType::NVFP4 | TensorType::F64), "{ty}");
                        continue;
                    }
                    let run = |kernel: &Kernel| {
                        let mut scratch = vec![Line([0xa5; 64]); (kernel.scratch)(k).div_ceil(64)];
                        let mut out = vec![f32::NAN; n_rows * TILE];
                        let activations = if row.layout.act8() { a8.cast_const() } else { x.as_ptr().cast() };
                        // SAFETY: either buffer holds n_rows rows.
                        let args = unsafe {
                            TileArgs::new(w.as_ptr(), k, activations, &act, 0..n_rows, out.as_mut_ptr(), scratch.as_mut_ptr().cast())
                        };
                        // The rows in one call, or in two of which the second finds the tile unpacked.
                        let n_first = if n_rows > 40 { 24 } else { n_rows };
                        // SAFETY: the operands have the sizes of `TileArgs`, and the machine has the instruction set.
                        unsafe {
                            (kernel.run)(&TileArgs { n_rows: n_first, ..args }, row.layout);
                            if n_first < n_rows {
                                (kernel.run)(&TileArgs { unpacked: true, ..args.skip_rows(n_first) }, row.layout);
                            }
                        }
                        out
                    };
                    let want = run(&KERNELS[0]);
                    for kernel in KERNELS.iter().filter(|k| k.isa.enable() && (k.takes)(row.layout)) {
                        let got = run(kernel);
                        for (i, (w, g)) in want.iter().zip(&got).enumerate() {
                            assert_eq!(w.to_bits(), g.to_bits(), "{} {ty} {n_out}x{k} rows {n_rows} output {i}: {w} {g}", kernel.name);
                        }
                    }
                    let mut exact_row = vec![0.0; k];
                    for o in 0..TILE.min(n_out - tile * TILE) {
                        let bytes = k / ty.row().block_elems * ty.row().block_bytes;
                        selvedge_gguf::decode_row(ty, &tensor[(tile * TILE + o) * bytes..][..bytes], &mut exact_row).unwrap();
                        for r in 0..n_rows {
                            let (mut dot, mut magnitude) = (0.0_f64, 0.0_f64);
                            for (w, x) in exact_row.iter().zip(&x[r * k..]) {
                                dot += f64::from(w * x);
                                magnitude += f64::from((w * x).abs());
                            }
                            let got = f64::from(want[r * TILE + o]);
                            // Half a step of 1/127 in each activation, all in the worst direction, and f32 rounding.
                            assert!((got - dot).abs() <= magnitude * 0.012 + 1e-6, "{ty} {o} {r}: {got} against {dot}");
                        }
                    }
                }
            }
        }
    }
}
