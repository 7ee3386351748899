//! IQ1_S and IQ1_M: 256 elements, 8 at a time a point of a ternary grid, shifted by an eighth up or down.
//!
//! ```text
//! IQ1_S    0   2        34           50
//!         | d | qs[32] | qh u16[8]  |     point i: byte i of qs; per 32 elements in qh four times 3 upper bits of point
//!                                        from bit 0 up, 3 bits of scale s, 1 bit that turns the shift down
//! IQ1_M    0        32       48              56
//!         | qs[32] | qh[16] | scales u16[4] |     point i: byte i of qs, nibble i of qh (low first): 3 upper bits, 1 bit
//!                                                that turns the shift down; scales: four times 3 bits s per 16 elements
//!                                                from bit 0 up, and 4 bits of d, from its lowest to its highest
//! ```
//! `value = (d * (2s + 1)) * (grid[point][k] + 1/8 or - 1/8)`. The lattice multiplies by 8: `q = 8 * grid + 1 or - 1` with
//! an eighth of the scale, which is exact.

use super::iq2::expand_8;
use super::{
    Field, FormatRow, LatticeRow, QK_K, TensorType, decode_lattice, f16_at, grids, u16_at,
};

const S_BYTES: usize = 50;
const M_BYTES: usize = 56;
const _: () = assert!(S_BYTES == 2 + QK_K / 8 + QK_K / 32 * 2);
const _: () = assert!(M_BYTES == QK_K / 8 + QK_K / 16 + QK_K / 32);

/// Eight times the coordinates -1, 0, 1.
static GRID_TIMES_8: [[i8; 8]; 2048] = expand_8(&grids::IQ1, [-8, 0, 8, 0]);

const S_LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: false,
    unpack: unpack_s,
};
const M_LATTICE: LatticeRow = LatticeRow {
    group: 16,
    has_min: false,
    unpack: unpack_m,
};

pub(super) const S: FormatRow = FormatRow {
    ty: TensorType::IQ1_S,
    name: "IQ1_S",
    block_elems: QK_K,
    block_bytes: S_BYTES,
    decode: Some(|bytes, out| decode_lattice::<S_BYTES, QK_K, 8>(bytes, out, &S_LATTICE)),
    encode: None,
    lattice: Some(S_LATTICE),
    fields: &[Field::new(0, 2, 1), Field::new(34, 2, 8)],
};

pub(super) const M: FormatRow = FormatRow {
    ty: TensorType::IQ1_M,
    name: "IQ1_M",
    block_elems: QK_K,
    block_bytes: M_BYTES,
    decode: Some(|bytes, out| decode_lattice::<M_BYTES, QK_K, 16>(bytes, out, &M_LATTICE)),
    encode: None,
    lattice: Some(M_LATTICE),
    fields: &[Field::new(48, 2, 4)],
};

/// Eight times a shifted point.
fn put_point(low: u8, high: u16, down: bool, q: &mut [i8]) {
    let point = &GRID_TIMES_8[usize::from(low) | usize::from(high & 7) << 8];
    let shift = if down { -1 } else { 1 };
    for (&p, q) in point.iter().zip(q) {
        *q = p + shift;
    }
}

fn unpack_s(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let d = f16_at(block, 0);
    let groups = block[2..34]
        .chunks_exact(4)
        .zip(block[34..S_BYTES].chunks_exact(2));
    for (((low, high), q), scale) in groups.zip(q.chunks_exact_mut(32)).zip(scale) {
        let high = u16_at(high, 0);
        *scale = d * f32::from(2 * (high >> 12 & 7) + 1) * 0.125;
        for (k, (&low, q)) in low.iter().zip(q.chunks_exact_mut(8)).enumerate() {
            put_point(low, high >> (3 * k), high & 0x8000 != 0, q);
        }
    }
}

fn unpack_m(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    let (low, high) = (&block[..32], &block[32..48]);
    let words: [u16; 4] = std::array::from_fn(|i| u16_at(block, 48 + 2 * i));
    let bits = words
        .iter()
        .rev()
        .fold(0, |bits, word| bits << 4 | word >> 12);
    let d = half::f16::from_bits(bits).to_f32();
    for (g, scale) in scale.iter_mut().enumerate() {
        *scale = d * f32::from(2 * (words[g / 4] >> (g % 4 * 3) & 7) + 1) * 0.125;
    }
    for (i, q) in q.chunks_exact_mut(8).enumerate() {
        let nibble = high[i / 2] >> (i % 2 * 4);
        put_point(low[i], u16::from(nibble), nibble & 8 != 0, q);
    }
}
