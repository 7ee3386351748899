//! Q2_K: 256 elements of 2 bits; scales and minima of 4 bits per 16 elements.
//!
//! ```text
//!  0            16          80  82     84
//! | scales[16] | qs[2][32] | d | dmin |     scales: low 4 bits scale s, high 4 bits minimum m; d, dmin f16
//!
//! half h of 128 elements: qs[h] byte i holds elements i, 32 + i, 64 + i, 96 + i, from bit 0 up
//! ```
//! `value = (d * s) * q - (dmin * m)`.

use super::{Field, FormatRow, LatticeRow, QK_K, TensorType, decode_lattice, f16_at};

const BYTES: usize = 84;
const _: () = assert!(BYTES == QK_K / 16 + QK_K / 4 + 2 + 2);

const LATTICE: LatticeRow = LatticeRow {
    group: 16,
    has_min: true,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q2_K,
    name: "Q2_K",
    block_elems: QK_K,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, QK_K, 16>(bytes, out, &LATTICE)),
    encode: None,
    lattice: Some(LATTICE),
    fields: &[Field::new(80, 2, 2)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for ((&byte, scale), min) in block[..16].iter().zip(scale).zip(min) {
        *scale = d * f32::from(byte & 0x0f);
        *min = dmin * f32::from(byte >> 4);
    }
    crumbs(&block[16..80], q, |c| c as i8);
}

/// Splits 64 bytes into 256 integers of 2 bits in the order of the drawing above.
pub(super) fn crumbs(packed: &[u8], q: &mut [i8], of: impl Fn(u8) -> i8) {
    for (packed, q) in packed.chunks_exact(32).zip(q.chunks_exact_mut(128)) {
        for (k, q) in q.chunks_exact_mut(32).enumerate() {
            for (&byte, q) in packed.iter().zip(q) {
                *q = of(byte >> (2 * k) & 3);
            }
        }
    }
}
