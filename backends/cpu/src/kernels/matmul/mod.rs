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

/// `takes_int` and `run_int` of an instruction set, over its own `Nibble`, `Byte`, ... and `rows`: one kernel a combination
/// of integers and scales that a storage type uses.
#[cfg(target_arch = "x86_64")]
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
            Quant::Byte { max: 0..=31, .. }, Scales::F16 { min: false } => Byte<31>, F16<false>;
            Quant::Byte { max: 0..=31, .. }, Scales::F16 { min: true } => Byte<31>, F16<true>;
            Quant::Byte { max: 0..=31, .. }, Scales::Super { group: 32, min: true } => Byte<31>, Super<32, true>;
            Quant::Byte { max: 32..=63, .. }, Scales::Super { group: 16, min: false } => Byte<63>, Super<16, false>;
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
                Quant::Nibble { offset } | Quant::Byte { offset, .. } => i32::from(offset),
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
#[cfg(target_arch = "x86_64")]
use int_kernels;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

use crate::isa::Isa;
use crate::pack::Layout;

/// Operands of a kernel. The caller guarantees (placement, packing and pool do): `w` is a tile of the kernel's layout and
/// `k` columns; activations hold `n_rows` rows of `k` columns; `out` takes `n_rows * 16` floats, row by row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileArgs {
    /// The tile.
    pub w: *const u8,
    /// Columns.
    pub k: usize,
    /// Rows of activations.
    pub n_rows: usize,
    /// `[n_rows, k]` 8-bit activations, or null for float weights.
    pub q: *const i8,
    /// `[n_rows, k / 32]` their scales.
    pub scale: *const f32,
    /// `[n_rows, k / 16]` their sums.
    pub sum: *const i32,
    /// `[n_rows, k]` float activations, or null for integer weights.
    pub x: *const f32,
    /// `[n_rows, 16]`
    pub out: *mut f32,
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
    /// The code.
    pub run: TileFn,
}

/// All kernels, best last.
pub(crate) const KERNELS: &[Kernel] = &[
    Kernel { name: "matmul_any_scalar", takes: |_| true, isa: Isa::Scalar, run: scalar::run },
    #[cfg(target_arch = "x86_64")]
    Kernel { name: "matmul_int_avx2", takes: avx2::takes_int, isa: Isa::Avx2, run: avx2::run_int },
    #[cfg(target_arch = "x86_64")]
    Kernel { name: "matmul_float_avx2", takes: |layout| !layout.act8(), isa: Isa::Avx2, run: avx2::run_float },
    #[cfg(target_arch = "x86_64")]
    Kernel { name: "matmul_int_avx512vnni", takes: avx512::takes_int, isa: Isa::Avx512Vnni, run: avx512::run_int },
    #[cfg(target_arch = "x86_64")]
    Kernel { name: "matmul_float_avx512", takes: |layout| !layout.act8(), isa: Isa::Avx512Vnni, run: avx512::run_float },
];

/// The best kernel for a layout up to an instruction set.
pub(crate) fn select(layout: Layout, isa: Isa) -> Kernel {
    *KERNELS.iter().rfind(|k| k.isa <= isa && (k.takes)(layout)).unwrap_or(&KERNELS[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::element::scalar as element;
    use crate::pack::{Packed, TILE, pack_row, pack_tile};
    use selvedge_core::ops::{Act8Layout, WeightDecl, WeightId, WeightRows};
    use selvedge_gguf::TensorType;

    struct Rng(u64);

    impl Rng {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }

        fn uniform(&mut self) -> f32 {
            (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
        }
    }

    /// Random blocks of any type: random bytes with tame scales.
    fn random_weights(ty: TensorType, n_out: usize, k: usize, rng: &mut Rng) -> Vec<u8> {
        let format = ty.row();
        let n_blocks = n_out * k / format.block_elems;
        let mut bytes: Vec<u8> = (0..n_blocks * format.block_bytes).map(|_| rng.next() as u8).collect();
        for block in bytes.chunks_exact_mut(format.block_bytes) {
            match ty {
                // A scale of 2^-7: products of the largest would overflow.
                TensorType::MXFP4 => block[0] = 120,
                TensorType::F32 => block.copy_from_slice(&rng.uniform().to_le_bytes()),
                TensorType::F16 => block.copy_from_slice(&half::f16::from_f32(rng.uniform()).to_le_bytes()),
                TensorType::BF16 => block.copy_from_slice(&half::bf16::from_f32(rng.uniform()).to_le_bytes()),
                _ => {
                    for field in format.fields {
                        for i in 0..field.count {
                            if field.width == 2 {
                                let x = half::f16::from_f32(rng.uniform() * 0.01).to_le_bytes();
                                block[field.offset + 2 * i..][..2].copy_from_slice(&x);
                            }
                        }
                    }
                }
            }
        }
        bytes
    }

    fn cases() -> Vec<TensorType> {
        (0..64).filter_map(TensorType::from_id).filter(|&ty| pack_row(ty).is_some()).collect()
    }

    #[test]
    fn every_kernel_gives_the_scalar_bits_and_near_the_exact_product() {
        let mut rng = Rng(7);
        for ty in cases() {
            let row = pack_row(ty).unwrap();
            for (n_out, k, n_rows) in [(16, 256, 1), (5, 512, 2), (37, 256, 3), (16, 768, 9), (16, 256, 33)] {
                let mut tensor = random_weights(ty, n_out, k, &mut rng);
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
                for r in 0..n_rows {
                    // SAFETY: the buffer has the layout's size.
                    let ok = unsafe { element::quantize_row(&x[r * k..][..k], a8, &act, r, k) };
                    assert!(ok);
                }
                for tile in 0..packed.n_tiles() {
                    let mut w = vec![0; packed.tile_bytes()];
                    if pack_tile(&row, &decl, rows, &tensor, tile, &mut w).is_err() {
                        // Random scales of types without f16 fields may be NaN; the others must pack.
                        assert!(matches!(ty, TensorType::NVFP4 | TensorType::F64), "{ty}");
                        continue;
                    }
                    let run = |kernel: &Kernel| {
                        let mut out = vec![f32::NAN; n_rows * TILE];
                        let act8 = row.layout.act8();
                        let args = TileArgs {
                            w: w.as_ptr(),
                            k,
                            n_rows,
                            q: a8.cast(),
                            // SAFETY: the offsets lie inside the buffer.
                            scale: unsafe { a8.add(act.scale) }.cast(),
                            // SAFETY: likewise.
                            sum: unsafe { a8.add(act.sum) }.cast(),
                            x: if act8 { std::ptr::null() } else { x.as_ptr() },
                            out: out.as_mut_ptr(),
                        };
                        // SAFETY: the operands have the sizes of `TileArgs`, and the machine has the instruction set.
                        unsafe { (kernel.run)(&args, row.layout) };
                        out
                    };
                    let want = run(&KERNELS[0]);
                    for kernel in KERNELS.iter().filter(|k| k.isa.is_available() && (k.takes)(row.layout)) {
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
