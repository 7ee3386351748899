//! Q4_1: 32 elements of 4 bits with scale and offset.
//!
//! ```text
//!  0   2   4                20
//! | d | m | q0|q16 ... q15|q31 |     d, m f16; nibbles as in Q4_0
//! ```
//! `value = d * q + m`, in lattice form `min = -m`. Encoding: the smallest element becomes 0, the largest 15.

use super::{
    Field, FormatRow, LatticeRow, TensorType, decode_lattice, f16_at, legacy_encode, nibbles,
    put_f16,
};

const ELEMS: usize = 32;
const BYTES: usize = 20;
const _: () = assert!(BYTES == 2 + 2 + ELEMS / 2);

const LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: true,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q4_1,
    name: "Q4_1",
    block_elems: ELEMS,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, ELEMS, 1>(bytes, out, &LATTICE)),
    encode: Some(encode),
    lattice: Some(LATTICE),
    fields: &[Field::new(0, 2, 2)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    scale[0] = f16_at(block, 0);
    min[0] = -f16_at(block, 2);
    nibbles(&block[4..BYTES], q, |n| n as i8);
}

fn encode(values: &[f32], out: &mut [u8]) {
    for (values, out) in values.chunks_exact(ELEMS).zip(out.chunks_exact_mut(BYTES)) {
        let (d, m, q) = legacy_encode::affine(values, 15);
        put_f16(out, 0, d);
        put_f16(out, 2, m);
        legacy_encode::put_nibbles(&q, &mut out[4..]);
    }
}
