//! IQ3_XXS and IQ3_S: 256 elements, 4 at a time a point of a grid with signs.
//!
//! ```text
//! IQ3_XXS  0   2         66          98
//!         | d | qs[64]  | u32 w[8]  |     per 32 elements: eight points of 4, and w with four times 7 bits of signs
//!                                        from bit 0 up, then 4 bits of scale s
//! IQ3_S    0   2         66      74          106         110
//!         | d | qs[64]  | qh[8] | signs[32] | scales[4] |     point i: byte i of qs, ninth bit in qh at bit i;
//!                                                            scales: 4 bits per 32 elements, low nibble first
//! ```
//! IQ3_XXS: `value = (d * (s + 0.5) / 2) * signed point`; IQ3_S: `value = (d * (2s + 1)) * signed point`. Signs as in IQ2.

use super::iq2::{nibble_at, put_signed, signs_of_7_bits};
use super::{
    Field, FormatRow, LatticeRow, QK_K, TensorType, decode_lattice, f16_at, grids, u32_at,
};

const XXS_BYTES: usize = 98;
const S_BYTES: usize = 110;
const _: () = assert!(XXS_BYTES == 2 + QK_K / 4 + QK_K / 32 * 4);
const _: () = assert!(S_BYTES == 2 + QK_K / 4 + QK_K / 32 + QK_K / 8 + QK_K / 64);

static XXS_GRID: [[i8; 4]; 256] = expand_4(&grids::IQ3_XXS, [4, 12, 20, 28, 36, 44, 52, 62]);
static S_GRID: [[i8; 4]; 512] = expand_4(&grids::IQ3_S, [1, 3, 5, 7, 9, 11, 13, 15]);

/// The points of a grid of 4 coordinates with 3 bits each.
const fn expand_4<const N: usize>(packed: &[u16; N], levels: [i8; 8]) -> [[i8; 4]; N] {
    let mut points = [[0; 4]; N];
    let mut i = 0;
    while i < N {
        let mut k = 0;
        while k < 4 {
            points[i][k] = levels[(packed[i] >> (3 * k) & 7) as usize];
            k += 1;
        }
        i += 1;
    }
    points
}

const XXS_LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: false,
    unpack: unpack_xxs,
};
const S_LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: false,
    unpack: unpack_s,
};

pub(super) const XXS: FormatRow = FormatRow {
    ty: TensorType::IQ3_XXS,
    name: "IQ3_XXS",
    block_elems: QK_K,
    block_bytes: XXS_BYTES,
    decode: Some(|bytes, out| decode_lattice::<XXS_BYTES, QK_K, 8>(bytes, out, &XXS_LATTICE)),
    encode: None,
    lattice: Some(XXS_LATTICE),
    fields: &[Field::new(0, 2, 1), Field::new(66, 4, 8)],
};

pub(super) const S: FormatRow = FormatRow {
    ty: TensorType::IQ3_S,
    name: "IQ3_S",
    block_elems: QK_K,
    block_bytes: S_BYTES,
    decode: Some(|bytes, out| decode_lattice::<S_BYTES, QK_K, 8>(bytes, out, &S_LATTICE)),
    encode: None,
    lattice: Some(S_LATTICE),
    fields: &[Field::new(0, 2, 1)],
};

fn unpack_xxs(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let d = f16_at(block, 0);
    let groups = block[2..66]
        .chunks_exact(8)
        .zip(block[66..XXS_BYTES].chunks_exact(4));
    for (((points, word), q), scale) in groups.zip(q.chunks_exact_mut(32)).zip(scale) {
        let word = u32_at(word, 0);
        *scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        for (k, (&point, q)) in points.iter().zip(q.chunks_exact_mut(4)).enumerate() {
            let signs = signs_of_7_bits(word >> (k / 2 * 7));
            put_signed(&XXS_GRID[point as usize], signs >> (k % 2 * 4), q);
        }
    }
}

fn unpack_s(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let d = f16_at(block, 0);
    let (low, high, signs, scales) = (
        &block[2..66],
        &block[66..74],
        &block[74..106],
        &block[106..110],
    );
    for (g, scale) in scale.iter_mut().enumerate() {
        *scale = d * (1.0 + 2.0 * nibble_at(scales, g));
    }
    for (i, q) in q.chunks_exact_mut(4).enumerate() {
        let point = usize::from(low[i]) | usize::from(high[i / 8] >> (i % 8) & 1) << 8;
        put_signed(&S_GRID[point], signs[i / 2] >> (i % 2 * 4), q);
    }
}
