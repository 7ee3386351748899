//! IQ2_XXS, IQ2_XS, IQ2_S: 256 elements, 8 at a time a point of a grid with signs.
//!
//! ```text
//! IQ2_XXS  0   2                        66
//!         | d | { point[4], u32 w }[8] |     per 32 elements: four points of 8, in w four times 7 bits of signs from
//!                                           bit 0 up, then 4 bits of scale s
//! IQ2_XS   0   2           66           74
//!         | d | qs u16[32] | scales[8] |     qs: 9 bits of point, 7 bits of signs; scales: 4 bits per 16 elements,
//!                                           low nibble first
//! IQ2_S    0   2        34          66      74          82
//!         | d | qs[32] | signs[32] | qh[8] | scales[8] |     point: 8 bits of qs, 2 of qh, four to a byte from bit 0 up;
//!                                                           8 bits of signs
//! ```
//! `value = (d * (s + 0.5) / 4) * (grid[point][k], negated where bit k of the signs is set)`. The product of an f16 and
//! 5 bits is exact in f32. 7 bits of signs stand for 8 with an even number set: see [`signs_of_7_bits`].

use super::{
    Field, FormatRow, LatticeRow, QK_K, TensorType, decode_lattice, f16_at, grids, u16_at, u32_at,
};

const XXS_BYTES: usize = 66;
const XS_BYTES: usize = 74;
const S_BYTES: usize = 82;
const _: () = assert!(XXS_BYTES == 2 + QK_K / 32 * 8);
const _: () = assert!(XS_BYTES == 2 + QK_K / 8 * 2 + QK_K / 32);
const _: () = assert!(S_BYTES == 2 + QK_K / 8 + QK_K / 8 + QK_K / 32 + QK_K / 32);

/// The levels of a coordinate.
const LEVELS: [i8; 4] = [8, 25, 43, 0];

static XXS_GRID: [[i8; 8]; 256] = expand_8(&grids::IQ2_XXS, LEVELS);
static XS_GRID: [[i8; 8]; 512] = expand_8(&grids::IQ2_XS, LEVELS);
static S_GRID: [[i8; 8]; 1024] = expand_8(&grids::IQ2_S, LEVELS);

/// The points of a grid of 8 coordinates with 2 bits each.
pub(super) const fn expand_8<const N: usize>(packed: &[u16; N], levels: [i8; 4]) -> [[i8; 8]; N] {
    let mut points = [[0; 8]; N];
    let mut i = 0;
    while i < N {
        let mut k = 0;
        while k < 8 {
            points[i][k] = levels[(packed[i] >> (2 * k) & 3) as usize];
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
const XS_LATTICE: LatticeRow = LatticeRow {
    group: 16,
    has_min: false,
    unpack: unpack_xs,
};
const S_LATTICE: LatticeRow = LatticeRow {
    group: 16,
    has_min: false,
    unpack: unpack_s,
};

/// A big-endian machine reads the points as bytes and the words behind them as u32.
const XXS_FIELDS: [Field; 9] = {
    let mut fields = [Field::new(0, 2, 1); 9];
    let mut g = 0;
    while g < 8 {
        fields[1 + g] = Field::new(2 + 8 * g + 4, 4, 1);
        g += 1;
    }
    fields
};

pub(super) const XXS: FormatRow = FormatRow {
    ty: TensorType::IQ2_XXS,
    name: "IQ2_XXS",
    block_elems: QK_K,
    block_bytes: XXS_BYTES,
    decode: Some(|bytes, out| decode_lattice::<XXS_BYTES, QK_K, 8>(bytes, out, &XXS_LATTICE)),
    encode: None,
    lattice: Some(XXS_LATTICE),
    fields: &XXS_FIELDS,
};

pub(super) const XS: FormatRow = FormatRow {
    ty: TensorType::IQ2_XS,
    name: "IQ2_XS",
    block_elems: QK_K,
    block_bytes: XS_BYTES,
    decode: Some(|bytes, out| decode_lattice::<XS_BYTES, QK_K, 16>(bytes, out, &XS_LATTICE)),
    encode: None,
    lattice: Some(XS_LATTICE),
    fields: &[Field::new(0, 2, 33)],
};

pub(super) const S: FormatRow = FormatRow {
    ty: TensorType::IQ2_S,
    name: "IQ2_S",
    block_elems: QK_K,
    block_bytes: S_BYTES,
    decode: Some(|bytes, out| decode_lattice::<S_BYTES, QK_K, 16>(bytes, out, &S_LATTICE)),
    encode: None,
    lattice: Some(S_LATTICE),
    fields: &[Field::new(0, 2, 1)],
};

/// 8 signs from the lowest 7 bits: the eighth is set where that makes the number of set bits even.
pub(super) fn signs_of_7_bits(bits: u32) -> u8 {
    let low = (bits & 0x7f) as u8;
    low | (low.count_ones() as u8 & 1) << 7
}

/// The point, negated in each coordinate whose bit in `signs` is set.
pub(super) fn put_signed(point: &[i8], signs: u8, q: &mut [i8]) {
    for (k, (&p, q)) in point.iter().zip(q).enumerate() {
        *q = if signs >> k & 1 == 1 { -p } else { p };
    }
}

/// Scale of 4 bits in nibble `g` of `packed`, low nibble first.
pub(super) fn nibble_at(packed: &[u8], g: usize) -> f32 {
    f32::from(packed[g / 2] >> (g % 2 * 4) & 0x0f)
}

fn unpack_xxs(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let d = f16_at(block, 0);
    let groups = block[2..XXS_BYTES]
        .chunks_exact(8)
        .zip(q.chunks_exact_mut(32));
    for ((group, q), scale) in groups.zip(scale) {
        let word = u32_at(group, 4);
        *scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for (k, (&point, q)) in group[..4].iter().zip(q.chunks_exact_mut(8)).enumerate() {
            put_signed(
                &XXS_GRID[point as usize],
                signs_of_7_bits(word >> (7 * k)),
                q,
            );
        }
    }
}

fn unpack_xs(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let d = f16_at(block, 0);
    for (g, scale) in scale.iter_mut().enumerate() {
        *scale = d * (0.5 + nibble_at(&block[66..], g)) * 0.25;
    }
    for (pair, q) in block[2..66].chunks_exact(2).zip(q.chunks_exact_mut(8)) {
        let word = u16_at(pair, 0);
        put_signed(
            &XS_GRID[(word & 0x1ff) as usize],
            signs_of_7_bits(u32::from(word >> 9)),
            q,
        );
    }
}

fn unpack_s(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let d = f16_at(block, 0);
    let (low, signs, high, scales) = (
        &block[2..34],
        &block[34..66],
        &block[66..74],
        &block[74..82],
    );
    for (g, scale) in scale.iter_mut().enumerate() {
        *scale = d * (0.5 + nibble_at(scales, g)) * 0.25;
    }
    for (i, q) in q.chunks_exact_mut(8).enumerate() {
        let point = usize::from(low[i]) | usize::from(high[i / 4] >> (i % 4 * 2) & 3) << 8;
        put_signed(&S_GRID[point], signs[i], q);
    }
}
