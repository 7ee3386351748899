//! Types that are listed and sized but not decoded: integers and F64, which no weight uses, the activation formats, and
//! Q1_0, for whose values no reference exists.
//!
//! ```text
//! Q8_1   f16 d, f16 d * sum(q), i8 q[32]          36 bytes (as stored by programs of today; older ones had 40)
//! Q8_K   f32 d, i8 q[256], i16 sums[16]           292 bytes
//! Q1_0   f16 d, u8 bits[16]                       18 bytes, 128 elements
//! ```

use super::{Field, FormatRow, TensorType};

const fn opaque(
    ty: TensorType,
    name: &'static str,
    block_elems: usize,
    block_bytes: usize,
    fields: &'static [Field],
) -> FormatRow {
    FormatRow {
        ty,
        name,
        block_elems,
        block_bytes,
        decode: None,
        encode: None,
        lattice: None,
        fields,
    }
}

pub(super) const I8: FormatRow = opaque(TensorType::I8, "I8", 1, 1, &[]);
pub(super) const I16: FormatRow = opaque(TensorType::I16, "I16", 1, 2, &[Field::new(0, 2, 1)]);
pub(super) const I32: FormatRow = opaque(TensorType::I32, "I32", 1, 4, &[Field::new(0, 4, 1)]);
pub(super) const I64: FormatRow = opaque(TensorType::I64, "I64", 1, 8, &[Field::new(0, 8, 1)]);
pub(super) const F64: FormatRow = opaque(TensorType::F64, "F64", 1, 8, &[Field::new(0, 8, 1)]);
pub(super) const Q8_1: FormatRow = opaque(
    TensorType::Q8_1,
    "Q8_1",
    32,
    2 + 2 + 32,
    &[Field::new(0, 2, 2)],
);
pub(super) const Q8_K: FormatRow = opaque(
    TensorType::Q8_K,
    "Q8_K",
    256,
    4 + 256 + 32,
    &[Field::new(0, 4, 1), Field::new(260, 2, 16)],
);
pub(super) const Q1_0: FormatRow = opaque(
    TensorType::Q1_0,
    "Q1_0",
    128,
    2 + 16,
    &[Field::new(0, 2, 1)],
);
