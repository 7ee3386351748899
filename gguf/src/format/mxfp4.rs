//! MXFP4: 32 floats of 4 bits (E2M1) with a power of two as scale (E8M0), as in the OCP microscaling formats.
//!
//! ```text
//!  0   1                17
//! | e | q0|q16 ... q15|q31 |     e u8; byte i holds element i low, element i + 16 high
//! ```
//! `value = 2^(e - 128) * E2M1[q]`, where the table holds twice the values of E2M1 so that they are integers.

use super::{FormatRow, LatticeRow, TensorType, decode_lattice, nibbles};

const ELEMS: usize = 32;
const BYTES: usize = 17;
const _: () = assert!(BYTES == 1 + ELEMS / 2);

/// Twice the values of E2M1: sign, two bits of exponent, one bit of mantissa.
pub(super) const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

const LATTICE: LatticeRow = LatticeRow {
    group: 32,
    has_min: false,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::MXFP4,
    name: "MXFP4",
    block_elems: ELEMS,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, ELEMS, 1>(bytes, out, &LATTICE)),
    encode: None,
    lattice: Some(LATTICE),
    fields: &[],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    scale[0] = half_e8m0(block[0]);
    nibbles(&block[1..BYTES], q, |n| E2M1[n as usize]);
}

/// 2^(e - 128), half of what E8M0 means; 0 and 1 are subnormal numbers.
fn half_e8m0(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(if e < 2 {
        0x0020_0000 << e
    } else {
        (e - 1) << 23
    })
}
