//! IQ4_NL and IQ4_XS: 4 bits that choose among 16 uneven levels.
//!
//! ```text
//! IQ4_NL   0   2                18
//!         | d | q0|q16 ... q15|q31 |     32 elements; d f16; nibbles as in Q4_0
//!
//! IQ4_XS   0   2           4             8              136
//!         | d | scales_h  | scales_l[4] | qs[8][16]    |     256 elements; qs[g] as in IQ4_NL
//! scale s of group g, 6 bits stored with 32 added: lower 4 bits in scales_l byte g / 2, low nibble first;
//! upper 2 bits in scales_h, a u16, at bit 2g
//! ```
//! `value = d * LEVELS[q]`, respectively `(d * s) * LEVELS[q]`.

use super::{
    Field, FormatRow, LatticeRow, QK_K, TensorType, decode_lattice, f16_at, nibbles, u16_at,
};

const NL_ELEMS: usize = 32;
const NL_BYTES: usize = 18;
const XS_BYTES: usize = 136;
const _: () = assert!(NL_BYTES == 2 + NL_ELEMS / 2);
const _: () = assert!(XS_BYTES == 2 + 2 + QK_K / 64 + QK_K / 2);

/// The levels that the format defines.
const LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

const NL_LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: false,
    unpack: unpack_nl,
};
const XS_LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: false,
    unpack: unpack_xs,
};

pub(super) const NL: FormatRow = FormatRow {
    ty: TensorType::IQ4_NL,
    name: "IQ4_NL",
    block_elems: NL_ELEMS,
    block_bytes: NL_BYTES,
    decode: Some(|bytes, out| decode_lattice::<NL_BYTES, NL_ELEMS, 1>(bytes, out, &NL_LATTICE)),
    encode: None,
    lattice: Some(NL_LATTICE),
    fields: &[Field::new(0, 2, 1)],
};

pub(super) const XS: FormatRow = FormatRow {
    ty: TensorType::IQ4_XS,
    name: "IQ4_XS",
    block_elems: QK_K,
    block_bytes: XS_BYTES,
    decode: Some(|bytes, out| decode_lattice::<XS_BYTES, QK_K, 8>(bytes, out, &XS_LATTICE)),
    encode: None,
    lattice: Some(XS_LATTICE),
    fields: &[Field::new(0, 2, 2)],
};

fn unpack_nl(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale[0] = f16_at(block, 0);
    nibbles(&block[2..NL_BYTES], q, |n| LEVELS[n as usize]);
}

fn unpack_xs(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let (d, high) = (f16_at(block, 0), u16_at(block, 2));
    for (g, scale) in scale.iter_mut().enumerate() {
        let s = block[4 + g / 2] >> (g % 2 * 4) & 0x0f | ((high >> (2 * g) & 3) << 4) as u8;
        *scale = d * f32::from(s as i8 - 32);
    }
    for (packed, q) in block[8..XS_BYTES]
        .chunks_exact(16)
        .zip(q.chunks_exact_mut(32))
    {
        nibbles(packed, q, |n| LEVELS[n as usize]);
    }
}
