//! Q6_K: 256 elements of 6 bits; scales of 8 bits per 16 elements.
//!
//! ```text
//!  0            128          192          208  210
//! | ql[2][64]   | qh[2][32]  | scales[16] | d  |     scales i8, d f16
//!
//! half h of 128 elements: ql[h] byte i, 0 <= i < 64: low 4 bits of element i low, of element 64 + i high
//!                         qh[h] byte i, 0 <= i < 32: upper 2 bits of elements i, 32 + i, 64 + i, 96 + i, from bit 0 up
//! ```
//! `value = (d * scale) * (q - 32)`.

use super::{
    Field, FormatRow, LatticeRow, QK_K, TensorType, decode_lattice, f16_at, k_encode, nibbles,
    put_f16,
};

const BYTES: usize = 210;
const _: () = assert!(BYTES == QK_K / 2 + QK_K / 4 + QK_K / 16 + 2);

const LATTICE: LatticeRow = LatticeRow {
    group: 16,
    has_min: false,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::Q6_K,
    name: "Q6_K",
    block_elems: QK_K,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, QK_K, 16>(bytes, out, &LATTICE)),
    encode: Some(encode),
    lattice: Some(LATTICE),
    fields: &[Field::new(208, 2, 1)],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let d = f16_at(block, 208);
    for (scale, &s) in scale.iter_mut().zip(&block[192..208]) {
        *scale = d * f32::from(s as i8);
    }
    let halves = block[..128]
        .chunks_exact(64)
        .zip(block[128..192].chunks_exact(32));
    for ((low, high), q) in halves.zip(q.chunks_exact_mut(128)) {
        nibbles(low, q, |n| n as i8 - 32);
        for (j, q) in q.chunks_exact_mut(32).enumerate() {
            for (&high, q) in high.iter().zip(q) {
                *q += ((high >> (2 * j) & 3) << 4) as i8;
            }
        }
    }
}

fn encode(values: &[f32], out: &mut [u8]) {
    for (values, out) in values.chunks_exact(QK_K).zip(out.chunks_exact_mut(BYTES)) {
        let block = k_encode::symmetric_block(values);
        for (h, q) in block.q.chunks_exact(128).enumerate() {
            let stored = |i: usize| (q[i] + 32) as u8;
            for i in 0..64 {
                out[64 * h + i] = stored(i) & 0x0f | stored(64 + i) << 4;
            }
            for i in 0..32 {
                out[128 + 32 * h + i] =
                    (0..4).fold(0, |bits, j| bits | (stored(32 * j + i) >> 4) << (2 * j));
            }
        }
        for (&s, out) in block.scales.iter().zip(&mut out[192..208]) {
            *out = s as u8;
        }
        put_f16(out, 208, block.d);
    }
}
