//! A row of a packed matrix as numbers: the inverse of packing, bit for bit what the format's reference decode gives.

use super::{Layout, Quant, STEP, SUPER, Scales, TILE};
use crate::kernels::matmul::IQ4_VALUES;
use half::{bf16, f16};

fn f16_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

fn f32_at(b: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Row `r` of a tile. `out`: as many numbers as the tile has columns.
pub(crate) fn unpack_row(tile: &[u8], layout: Layout, r: usize, out: &mut [f32]) {
    let float = |read: &dyn Fn(usize) -> f32, out: &mut [f32]| out.iter_mut().enumerate().for_each(|(c, x)| *x = read(c * TILE + r));
    match layout {
        Layout::Int { quant, scales } => int(tile, quant, scales, r, out),
        Layout::F32 => float(&|i| f32_at(tile, 4 * i), out),
        Layout::F16 => float(&|i| f16_at(tile, 2 * i), out),
        Layout::Bf16 => float(&|i| bf16::from_le_bytes([tile[2 * i], tile[2 * i + 1]]).to_f32(), out),
    }
}

fn int(tile: &[u8], quant: Quant, scales: Scales, r: usize, out: &mut [f32]) {
    let groups = scales.groups();
    let (mut at, mut d, mut dmin) = (0, 0.0, 0.0);
    for (step, out) in out.chunks_exact_mut(STEP).enumerate() {
        if scales.super_bytes() > 0 && (step * STEP).is_multiple_of(SUPER) {
            d = f16_at(tile, at + 2 * r);
            dmin = if scales.has_min() { f16_at(tile, at + 2 * TILE + 2 * r) } else { 0.0 };
            at += scales.super_bytes();
        }
        let (q, s) = tile[at..].split_at(quant.step_bytes());
        for (c, x) in out.iter_mut().enumerate() {
            let g = c / (STEP / groups);
            // An added minimum is a subtracted one of the other sign, which is how the formats' lattices have it.
            let (scale, min) = match scales {
                Scales::F16 { min } => (f16_at(s, 2 * r), if min { -f16_at(s, 2 * TILE + 2 * r) } else { 0.0 }),
                Scales::Super { min, .. } => {
                    (d * f32::from(s[g * TILE + r] as i8), if min { dmin * f32::from(s[(groups + g) * TILE + r]) } else { 0.0 })
                }
                Scales::F32 { min, .. } => {
                    (f32_at(s, (g * TILE + r) * 4), if min { f32_at(s, ((groups + g) * TILE + r) * 4) } else { 0.0 })
                }
            };
            let value = f32::from(quant.value(q, r, c)) * scale;
            *x = if scales.has_min() { value - min } else { value };
        }
        at += quant.step_bytes() + scales.step_bytes();
    }
}

impl Quant {
    /// The integer at row `r` and column `c` of a step.
    pub(crate) fn value(self, q: &[u8], r: usize, c: usize) -> i16 {
        let nibble = || {
            let byte = q[(c % 16) / 4 * 64 + r * 4 + c % 4];
            if c < 16 { byte & 15 } else { byte >> 4 }
        };
        let byte = || q[c / 4 * 64 + r * 4 + c % 4];
        match self {
            Quant::Nibble { offset } => i16::from(nibble()) - i16::from(offset),
            Quant::NibbleIq4 => i16::from(IQ4_VALUES[usize::from(nibble())]),
            Quant::Five { offset } => {
                let high = q[256 + r * 4 + c % 4] >> (c / 4) & 1;
                i16::from(nibble() | high << 4) - i16::from(offset)
            }
            Quant::Six { offset } => {
                let high = q[256 + c / 16 * 64 + r * 4 + c % 4] >> (c % 16 / 4 * 2) & 3;
                i16::from(nibble() | high << 4) - i16::from(offset)
            }
            Quant::Signed => i16::from(byte() as i8),
        }
    }
}
