//! Q5_0: 32 elements of 5 bits with one scale.
//!
//! ```text
//!  0   2    6                22
//! | d | qh | q0|q16 ... q15|q31 |     d f16; qh u32, bit i is bit 4 of element i; nibbles as in Q4_0
//! ```
//! `value = d * (q - 16)`. Encoding: the element largest in magnitude becomes -16.

use super::{
    Field, FormatRow, LatticeRow, TensorType, decode_lattice, f16_at, legacy_encode, nibbles,
    put_f16, u32_at,
};

const ELEMS: usize = 32;
const BYTES: usize = 22;
const _: () = assert!(BYTES == 2 + ELEMS / 8 + ELEMS / 2);

const LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: false,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q5_0,
    name: "Q5_0",
    block_elems: ELEMS,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, ELEMS, 1>(bytes, out, &LATTICE)),
    encode: Some(encode),
    lattice: Some(LATTICE),
    fields: &[Field::new(0, 2, 1), Field::new(2, 4, 1)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale[0] = f16_at(block, 0);
    nibbles(&block[6..BYTES], q, |n| n as i8 - 16);
    add_high_bits(u32_at(block, 2), q);
}

/// Adds 16 to each element whose bit in `high` is set.
pub(super) fn add_high_bits(high: u32, q: &mut [i8]) {
    for (i, q) in q[..ELEMS].iter_mut().enumerate() {
        *q += ((high >> i & 1) << 4) as i8;
    }
}

fn encode(values: &[f32], out: &mut [u8]) {
    for (values, out) in values.chunks_exact(ELEMS).zip(out.chunks_exact_mut(BYTES)) {
        let (d, q) = legacy_encode::symmetric(values, 16);
        put_f16(out, 0, d);
        out[2..6].copy_from_slice(&legacy_encode::high_bits(&q));
        legacy_encode::put_nibbles(&q, &mut out[6..]);
    }
}
