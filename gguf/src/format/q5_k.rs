//! Q5_K: 256 elements of 5 bits; scales and minima of 6 bits per 32 elements.
//!
//! ```text
//!  0   2      4           16        48              176
//! | d | dmin | scales[12] | qh[32]  | qs[4][32]      |     first 16 bytes and qs as in Q4_K
//!
//! qh byte i, bit j: bit 4 of element 32j + i
//! ```
//! `value = (d * s) * q - (dmin * m)`.

use super::q4_k::{pack_6bit, put_nibbles_64, scales_and_mins};
use super::{
    Field, FormatRow, LatticeRow, QK_K, TensorType, decode_lattice, k_encode, nibbles, put_f16,
};

const BYTES: usize = 176;
const _: () = assert!(BYTES == 2 + 2 + 12 + QK_K / 8 + QK_K / 2);

const LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: true,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q5_K,
    name: "Q5_K",
    block_elems: QK_K,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, QK_K, 8>(bytes, out, &LATTICE)),
    encode: Some(encode),
    lattice: Some(LATTICE),
    fields: &[Field::new(0, 2, 2)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    scales_and_mins(block, scale, min);
    for (packed, q) in block[48..BYTES]
        .chunks_exact(32)
        .zip(q.chunks_exact_mut(64))
    {
        nibbles(packed, q, |n| n as i8);
    }
    for (j, q) in q.chunks_exact_mut(32).enumerate() {
        for (&high, q) in block[16..48].iter().zip(q) {
            *q |= ((high >> j & 1) << 4) as i8;
        }
    }
}

fn encode(values: &[f32], out: &mut [u8]) {
    for (values, out) in values.chunks_exact(QK_K).zip(out.chunks_exact_mut(BYTES)) {
        let block = k_encode::affine_block(values, 31);
        put_f16(out, 0, block.d);
        put_f16(out, 2, block.dmin);
        pack_6bit(&block.scales, &block.mins, &mut out[4..16]);
        for (i, out) in out[16..48].iter_mut().enumerate() {
            *out = (0..8).fold(0, |bits, j| bits | (block.q[32 * j + i] >> 4 & 1) << j);
        }
        put_nibbles_64(&block.q, &mut out[48..]);
    }
}
