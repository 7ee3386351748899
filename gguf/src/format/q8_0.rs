//! Q8_0: 32 elements of 8 bits with one scale.
//!
//! ```text
//!  0   2             34
//! | d | q0 ... q31     |     d f16; q i8, -128 included
//! ```
//! `value = d * q`. Encoding: `d = largest magnitude / 127`, `q` rounded to nearest, ties away from zero.

use super::{
    Field, FormatRow, LatticeRow, TensorType, decode_lattice, f16_at, legacy_encode, put_f16,
};

const ELEMS: usize = 32;
const BYTES: usize = 34;
const _: () = assert!(BYTES == 2 + ELEMS);

const LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: false,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q8_0,
    name: "Q8_0",
    block_elems: ELEMS,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, ELEMS, 1>(bytes, out, &LATTICE)),
    encode: Some(encode),
    lattice: Some(LATTICE),
    fields: &[Field::new(0, 2, 1)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale[0] = f16_at(block, 0);
    for (&byte, q) in block[2..BYTES].iter().zip(q) {
        *q = byte as i8;
    }
}

fn encode(values: &[f32], out: &mut [u8]) {
    for (values, out) in values.chunks_exact(ELEMS).zip(out.chunks_exact_mut(BYTES)) {
        let largest = values.iter().fold(0f32, |best, &v| best.max(v.abs()));
        let d = largest / 127.0;
        let inverse = legacy_encode::inverse(d);
        put_f16(out, 0, d);
        for (&v, out) in values.iter().zip(&mut out[2..]) {
            *out = (v * inverse).round() as i8 as u8;
        }
    }
}
