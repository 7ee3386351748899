//! NVFP4: 64 floats of 4 bits (E2M1) with a scale of 8 bits (unsigned E4M3) per 16 elements.
//!
//! ```text
//!  0      4           36
//! | d[4] | qs[4][8]  |     qs[g] byte i: element 16g + i low, element 16g + 8 + i high
//! ```
//! `value = E4M3(d[g]) / 2 * E2M1[q]` with the doubled table of MXFP4. The sign bit of a scale is ignored.

use super::mxfp4::E2M1;
use super::{FormatRow, LatticeRow, TensorType, decode_lattice, nibbles};

const ELEMS: usize = 64;
const BYTES: usize = 36;
const _: () = assert!(BYTES == ELEMS / 16 + ELEMS / 2);

const LATTICE: LatticeRow = LatticeRow {
    group: 16,
    has_min: false,
    unpack,
};

pub(super) const ROW: FormatRow = FormatRow {
    ty: TensorType::NVFP4,
    name: "NVFP4",
    block_elems: ELEMS,
    block_bytes: BYTES,
    decode: Some(|bytes, out| decode_lattice::<BYTES, ELEMS, 4>(bytes, out, &LATTICE)),
    encode: None,
    lattice: Some(LATTICE),
    fields: &[],
};

fn unpack(block: &[u8], q: &mut [i8], scale: &mut [f32], _min: &mut [f32]) {
    for (&byte, scale) in block[..4].iter().zip(scale) {
        *scale = half_ue4m3(byte);
    }
    for (packed, q) in block[4..BYTES].chunks_exact(8).zip(q.chunks_exact_mut(16)) {
        nibbles(packed, q, |n| E2M1[n as usize]);
    }
}

/// Half of an unsigned E4M3 number, exponent bias 7. The pattern 0x7f, a NaN in other uses, counts as 0 here.
fn half_ue4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 0x0f, f32::from(byte & 7));
    if byte == 0x7f {
        return 0.0;
    }
    // All products are by powers of two, hence exact.
    let power = |e: i32| f32::from_bits(((127 + e) as u32) << 23);
    match exponent {
        0 => mantissa * power(-10),
        e => (1.0 + mantissa / 8.0) * power(i32::from(e) - 8),
    }
}
