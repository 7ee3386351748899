//! Q4_0: 32 elements of 4 bits with one scale.
//!
//! ```text
//!  0   2                18
//! | d | q0|q16 ... q15|q31 |     d f16; byte i holds element i low, element i + 16 high
//! ```
//! `value = d * (q - 8)`. Encoding: the element largest in magnitude becomes -8, so `d = that / -8`.

use super::{Field, FormatRow, LatticeRow, TensorType, decode_lattice, f16_at, nibbles};

const ELEMS: usize = 32;
const BYTES: usize = 18;
const _: () = assert!(BYTES == 2 + ELEMS / 2);

const LATTICE: LatticeRow = LatticeRow { group: 32, has_min: false, unpack };

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q4_0,
    name: "Q4_0",
    block_elems: ELEMS,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, ELEMS, 1>(bytes, out, &LATTICE)),
    encode: None,
    lattice: Some(LATTICE),
    fields: &[Field::new(0, 2, 1)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale[0] = f16_at(block, 0);
    nibbles(&block[2..BYTES], q, |n| n as i8 - 8);
}
