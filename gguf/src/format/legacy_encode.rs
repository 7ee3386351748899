//! Encoding of Q4_0, Q4_1, Q5_0, Q5_1: one scale, with or without offset, per 32 elements; the bits of the `gguf` package.

/// Elements of a block.
const ELEMS: usize = 32;

/// `1 / d`, 0 where `d` is 0.
pub(super) fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Scale and integers of 32 values when the largest in magnitude shall become `-half`: `q` is offset by `half`.
/// Of several largest ones the first counts.
pub(super) fn symmetric(values: &[f32], half: u8) -> (f32, [u8; ELEMS]) {
    let largest = values
        .iter()
        .fold(0f32, |best, &v| if v.abs() > best.abs() { v } else { best });
    let half = f32::from(half);
    let d = largest / -half;
    (
        d,
        round_up(values, 0.0, inverse(d), half + 0.5, 2.0 * half - 1.0),
    )
}

/// Scale, offset and integers of 32 values when the smallest shall become 0 and the largest `top`.
pub(super) fn affine(values: &[f32], top: u8) -> (f32, f32, [u8; ELEMS]) {
    let first = values.first().copied().unwrap_or(0.0);
    let low = values.iter().fold(first, |a, &v| if v < a { v } else { a });
    let high = values.iter().fold(first, |a, &v| if v > a { v } else { a });
    let top = f32::from(top);
    let d = (high - low) / top;
    (d, low, round_up(values, low, inverse(d), 0.5, top))
}

/// `(v - low) * inverse + shift`, cut to an integer from 0 to `top`; NaN becomes 0.
fn round_up(values: &[f32], low: f32, inverse: f32, shift: f32, top: f32) -> [u8; ELEMS] {
    let mut q = [0; ELEMS];
    for (&v, q) in values.iter().zip(&mut q) {
        *q = ((v - low) * inverse + shift).min(top) as u8;
    }
    q
}

/// The low 4 bits of 32 integers into 16 bytes: byte i holds integers i and i + 16.
pub(super) fn put_nibbles(q: &[u8; ELEMS], out: &mut [u8]) {
    for (i, out) in out[..ELEMS / 2].iter_mut().enumerate() {
        *out = q[i] & 0x0f | q[i + ELEMS / 2] << 4;
    }
}

/// Bit 4 of 32 integers.
pub(super) fn high_bits(q: &[u8; ELEMS]) -> [u8; 4] {
    q.iter()
        .enumerate()
        .fold(0u32, |bits, (i, &q)| bits | u32::from(q >> 4 & 1) << i)
        .to_le_bytes()
}
