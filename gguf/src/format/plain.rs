//! Types without blocks that hold floats: F32, F16, BF16. Little endian, one element after the other.

use super::{Field, FormatRow, TensorType, f16_at, put_f16, u16_at, u32_at};

pub(super) const F32: FormatRow = FormatRow {
    ty: TensorType::F32,
    name: "F32",
    block_elems: 1,
    block_bytes: 4,
    decode: Some(|bytes, out| each::<4>(bytes, out, |b| f32::from_bits(u32_at(b, 0)))),
    encode: Some(|values, out| {
        each_back::<4>(values, out, |v, b| b.copy_from_slice(&v.to_le_bytes()))
    }),
    lattice: None,
    fields: &[Field::new(0, 4, 1)],
};

pub(super) const F16: FormatRow = FormatRow {
    ty: TensorType::F16,
    name: "F16",
    block_elems: 1,
    block_bytes: 2,
    decode: Some(|bytes, out| each::<2>(bytes, out, |b| f16_at(b, 0))),
    encode: Some(|values, out| each_back::<2>(values, out, |v, b| put_f16(b, 0, v))),
    lattice: None,
    fields: &[Field::new(0, 2, 1)],
};

pub(super) const BF16: FormatRow = FormatRow {
    ty: TensorType::BF16,
    name: "BF16",
    block_elems: 1,
    block_bytes: 2,
    decode: Some(|bytes, out| {
        each::<2>(bytes, out, |b| {
            f32::from_bits(u32::from(u16_at(b, 0)) << 16)
        })
    }),
    encode: Some(|values, out| {
        each_back::<2>(values, out, |v, b| {
            b.copy_from_slice(&half::bf16::from_f32(v).to_le_bytes())
        });
    }),
    lattice: None,
    fields: &[Field::new(0, 2, 1)],
};

fn each<const BYTES: usize>(bytes: &[u8], out: &mut [f32], of: impl Fn(&[u8]) -> f32) {
    for (b, out) in bytes.chunks_exact(BYTES).zip(out) {
        *out = of(b);
    }
}

fn each_back<const BYTES: usize>(values: &[f32], out: &mut [u8], put: impl Fn(f32, &mut [u8])) {
    for (&v, b) in values.iter().zip(out.chunks_exact_mut(BYTES)) {
        put(v, b);
    }
}
