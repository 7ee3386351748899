//! TQ1_0 and TQ2_0: 256 ternary elements with one scale.
//!
//! ```text
//! TQ1_0    0        32       48      52  54
//!         | a[32]  | b[16]  | c[4]  | d |     d f16
//! five elements to a byte in base 3: a byte i holds elements i + 32k, b byte i elements 160 + i + 16k (k from 0 to 4),
//! c byte i elements 240 + i + 4k (k from 0 to 3); the byte is the fraction of 256 that the digits make, the first digit
//! the most significant: digit k = (byte * 3^k mod 256) * 3 / 256
//!
//! TQ2_0    0          64  66
//!         | qs[2][32] | d |     qs as in Q2_K; the value 3 is possible and decodes to 2
//! ```
//! `value = d * (digit - 1)`. The scale counts for the whole block; the lattice repeats it per 32 elements.

use super::q2_k::crumbs;
use super::{Field, FormatRow, LatticeRow, QK_K, TensorType, decode_lattice, f16_at};

const TQ1_0_BYTES: usize = 54;
const TQ2_0_BYTES: usize = 66;
const _: () = assert!(TQ1_0_BYTES == 32 + 16 + 4 + 2 && 5 * (32 + 16) + 4 * 4 == QK_K);
const _: () = assert!(TQ2_0_BYTES == QK_K / 4 + 2);

const TQ1_0_LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: false,
    unpack: unpack_tq1_0,
};
const TQ2_0_LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: false,
    unpack: unpack_tq2_0,
};

pub(super) const TQ1_0: FormatRow = FormatRow {
    ty: TensorType::TQ1_0,
    name: "TQ1_0",
    block_elems: QK_K,
    block_bytes: TQ1_0_BYTES,
    decode: Some(|bytes, out| decode_lattice::<TQ1_0_BYTES, QK_K, 8>(bytes, out, &TQ1_0_LATTICE)),
    encode: None,
    lattice: Some(TQ1_0_LATTICE),
    fields: &[Field::new(52, 2, 1)],
};

pub(super) const TQ2_0: FormatRow = FormatRow {
    ty: TensorType::TQ2_0,
    name: "TQ2_0",
    block_elems: QK_K,
    block_bytes: TQ2_0_BYTES,
    decode: Some(|bytes, out| decode_lattice::<TQ2_0_BYTES, QK_K, 8>(bytes, out, &TQ2_0_LATTICE)),
    encode: None,
    lattice: Some(TQ2_0_LATTICE),
    fields: &[Field::new(64, 2, 1)],
};

fn unpack_tq1_0(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale.fill(f16_at(block, 52));
    let (a, rest) = q.split_at_mut(160);
    let (b, c) = rest.split_at_mut(80);
    trits(&block[..32], a);
    trits(&block[32..48], b);
    trits(&block[48..52], c);
}

/// Element `i + packed.len() * k` from digit k of byte i.
fn trits(packed: &[u8], q: &mut [i8]) {
    let mut power = 1u8;
    for q in q.chunks_exact_mut(packed.len()) {
        for (&byte, q) in packed.iter().zip(q) {
            let fraction = byte.wrapping_mul(power);
            *q = ((u16::from(fraction) * 3) >> 8) as i8 - 1;
        }
        power = power.wrapping_mul(3);
    }
}

fn unpack_tq2_0(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale.fill(f16_at(block, 64));
    crumbs(&block[..64], q, |c| c as i8 - 1);
}
