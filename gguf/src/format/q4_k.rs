//! Q4_K: 256 elements of 4 bits; scales and minima of 6 bits per 32 elements.
//!
//! ```text
//!  0   2      4           16              144
//! | d | dmin | scales[12] | qs[4][32]      |     d, dmin f16; qs[j] byte i: element 64j + i low, 64j + 32 + i high
//!
//! scales, 8 scales s and 8 minima m of 6 bits:
//!   byte 0..4    s0..s3 low 6 bits, above them the upper 2 bits of s4..s7
//!   byte 4..8    m0..m3 low 6 bits, above them the upper 2 bits of m4..m7
//!   byte 8..12   lower 4 bits of s4..s7, above them the lower 4 bits of m4..m7
//! ```
//! `value = (d * s) * q - (dmin * m)`.

use super::{
    Field, FormatRow, LatticeRow, QK_K, TensorType, decode_lattice, f16_at, k_encode, nibbles,
    put_f16,
};

const BYTES: usize = 144;
const _: () = assert!(BYTES == 2 + 2 + 12 + QK_K / 2);

const LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: true,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q4_K,
    name: "Q4_K",
    block_elems: QK_K,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, QK_K, 8>(bytes, out, &LATTICE)),
    encode: Some(encode),
    lattice: Some(LATTICE),
    fields: &[Field::new(0, 2, 2)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], min: &mut [f32]) {
    scales_and_mins(block, scale, min);
    for (packed, q) in block[16..BYTES]
        .chunks_exact(32)
        .zip(q.chunks_exact_mut(64))
    {
        nibbles(packed, q, |n| n as i8);
    }
}

/// The 8 scales and 8 minima of a block of Q4_K or Q5_K, whose first 16 bytes are alike.
pub(super) fn scales_and_mins(block: &[u8], scale: &mut [f32], min: &mut [f32]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (s, m) = unpack_6bit(&block[4..16]);
    for i in 0..8 {
        scale[i] = d * f32::from(s[i]);
        min[i] = dmin * f32::from(m[i]);
    }
}

/// The 6-bit integers of the drawing above: scales, minima.
pub(super) fn unpack_6bit(packed: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut s, mut m) = ([0u8; 8], [0u8; 8]);
    for i in 0..4 {
        let (a, b, c) = (packed[i], packed[4 + i], packed[8 + i]);
        s[i] = a & 0x3f;
        m[i] = b & 0x3f;
        s[4 + i] = c & 0x0f | a >> 2 & 0x30;
        m[4 + i] = c >> 4 | b >> 2 & 0x30;
    }
    (s, m)
}

/// Inverse of [`unpack_6bit`].
pub(super) fn pack_6bit(s: &[u8; 8], m: &[u8; 8], packed: &mut [u8]) {
    for i in 0..4 {
        packed[i] = s[i] | s[4 + i] >> 4 << 6;
        packed[4 + i] = m[i] | m[4 + i] >> 4 << 6;
        packed[8 + i] = s[4 + i] & 0x0f | m[4 + i] << 4;
    }
}

fn encode(values: &[f32], out: &mut [u8]) {
    for (values, out) in values.chunks_exact(QK_K).zip(out.chunks_exact_mut(BYTES)) {
        let block = k_encode::affine_block(values, 15);
        put_f16(out, 0, block.d);
        put_f16(out, 2, block.dmin);
        pack_6bit(&block.scales, &block.mins, &mut out[4..16]);
        put_nibbles_64(&block.q, &mut out[16..]);
    }
}

/// The low 4 bits of 256 integers, in the order of `qs` in the drawing.
pub(super) fn put_nibbles_64(q: &[u8; QK_K], out: &mut [u8]) {
    for (q, out) in q.chunks_exact(64).zip(out.chunks_exact_mut(32)) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = q[i] & 0x0f | q[32 + i] << 4;
        }
    }
}
