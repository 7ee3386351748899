//! Q3_K: 256 elements of 3 bits; scales of 6 bits per 16 elements.
//!
//! ```text
//!  0           32          96           108  110
//! | hmask[32] | qs[2][32] | scales[12] | d   |     d f16; qs as in Q2_K
//!
//! hmask byte i, bit j: clear where 4 is to be taken from element 32j + i
//! scales, 16 integers s of 6 bits, stored with 32 added:
//!   byte 0..8    lower 4 bits of s0..s7, above them the lower 4 bits of s8..s15
//!   byte 8..12   byte 8 + i: upper 2 bits of s[i], s[4 + i], s[8 + i], s[12 + i], from bit 0 up
//! ```
//! `value = (d * s) * q`.

use super::q2_k::crumbs;
use super::{Field, FormatRow, LatticeRow, QK_K, TensorType, decode_lattice, f16_at};

const BYTES: usize = 110;
const _: () = assert!(BYTES == QK_K / 8 + QK_K / 4 + 12 + 2);

const LATTICE: LatticeRow = LatticeRow {
    group: 16,
    has_min: false,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q3_K,
    name: "Q3_K",
    block_elems: QK_K,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, QK_K, 16>(bytes, out, &LATTICE)),
    encode: None,
    lattice: Some(LATTICE),
    fields: &[Field::new(108, 2, 1)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let d = f16_at(block, 108);
    let (low, high) = block[96..108].split_at(8);
    for (i, scale) in scale.iter_mut().enumerate() {
        let s = low[i % 8] >> (i / 8 * 4) & 0x0f | (high[i % 4] >> (i / 4 * 2) & 3) << 4;
        *scale = d * f32::from(s as i8 - 32);
    }
    crumbs(&block[32..96], q, |c| c as i8 - 4);
    for (j, q) in q.chunks_exact_mut(32).enumerate() {
        for (&mask, q) in block[..32].iter().zip(q) {
            *q += ((mask >> j & 1) << 2) as i8;
        }
    }
}
