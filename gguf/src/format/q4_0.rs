//! Q4_0: 32 elements of 4 bits with one scale.
//!
//! ```text
//!  0   2                18
//! | d | q0|q16 ... q15|q31 |     d f16; byte i holds element i low, element i + 16 high
//! ```
//! `value = d * (q - 8)`. Encoding: the element largest in magnitude becomes -8, so `d = that / -8`.

use super::{
    Field, FormatRow, LatticeRow, TensorType, decode_lattice, f16_at, legacy_encode, nibbles,
    put_f16,
};

const ELEMS: usize = 32;
const BYTES: usize = 18;
const _: () = assert!(BYTES == 2 + ELEMS / 2);

const LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: false,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q4_0,
    name: "Q4_0",
    block_elems: ELEMS,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, ELEMS, 1>(bytes, out, &LATTICE)),
    encode: Some(encode),
    lattice: Some(LATTICE),
    fields: &[Field::new(0, 2, 1)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale[0] = f16_at(block, 0);
    nibbles(&block[2..BYTES], q, |n| n as i8 - 8);
}

fn encode(values: &[f32], out: &mut [u8]) {
    for (values, out) in values.chunks_exact(ELEMS).zip(out.chunks_exact_mut(BYTES)) {
        let (d, q) = legacy_encode::symmetric(values, 8);
        put_f16(out, 0, d);
        legacy_encode::put_nibbles(&q, &mut out[2..]);
    }
}
