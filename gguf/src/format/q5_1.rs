//! Q5_1: 32 elements of 5 bits with scale and offset.
//!
//! ```text
//!  0   2   4    8                24
//! | d | m | qh | q0|q16 ... q15|q31 |     d, m f16; qh and nibbles as in Q5_0
//! ```
//! `value = d * q + m`, in lattice form `min = -m`.

use super::q5_0::add_high_bits;
use super::{Field, FormatRow, LatticeRow, TensorType, decode_lattice, f16_at, nibbles, u32_at};

const ELEMS: usize = 32;
const BYTES: usize = 24;
const _: () = assert!(BYTES == 2 + 2 + ELEMS / 8 + ELEMS / 2);

const LATTICE: LatticeRow = LatticeRow { group: 32, has_min: true, unpack };

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q5_1,
    name: "Q5_1",
    block_elems: ELEMS,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, ELEMS, 1>(bytes, out, &LATTICE)),
    encode: None,
    lattice: Some(LATTICE),
    fields: &[Field::new(0, 2, 2), Field::new(4, 4, 1)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    scale[0] = f16_at(block, 0);
    min[0] = -f16_at(block, 2);
    nibbles(&block[8..BYTES], q, |n| n as i8);
    add_high_bits(u32_at(block, 4), q);
}
