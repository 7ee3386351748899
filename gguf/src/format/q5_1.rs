//! Q5_1: 32 elements of 5 bits with scale and offset.
//!
//! ```text
//!  0   2   4    8                24
//! | d | m | qh | q0|q16 ... q15|q31 |     d, m f16; qh and nibbles as in Q5_0
//! ```
//! `value = d * q + m`, in lattice form `min = -m`. Encoding: the smallest element becomes 0, the largest 31.

use super::q5_0::add_high_bits;
use super::{
    Field, FormatRow, LatticeRow, TensorType, decode_lattice, f16_at, legacy_encode, nibbles,
    put_f16, u32_at,
};

const ELEMS: usize = 32;
const BYTES: usize = 24;
const _: () = assert!(BYTES == 2 + 2 + ELEMS / 8 + ELEMS / 2);

const LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: true,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q5_1,
    name: "Q5_1",
    block_elems: ELEMS,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, ELEMS, 1>(bytes, out, &LATTICE)),
    encode: Some(encode),
    lattice: Some(LATTICE),
    fields: &[Field::new(0, 2, 2), Field::new(4, 4, 1)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    scale[0] = f16_at(block, 0);
    min[0] = -f16_at(block, 2);
    nibbles(&block[8..BYTES], q, |n| n as i8);
    add_high_bits(u32_at(block, 4), q);
}

fn encode(values: &[f32], out: &mut [u8]) {
    for (values, out) in values.chunks_exact(ELEMS).zip(out.chunks_exact_mut(BYTES)) {
        let (d, m, q) = legacy_encode::affine(values, 31);
        put_f16(out, 0, d);
        put_f16(out, 2, m);
        out[4..8].copy_from_slice(&legacy_encode::high_bits(&q));
        legacy_encode::put_nibbles(&q, &mut out[8..]);
    }
}
