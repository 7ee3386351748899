//! The scalar row, for every layout: it defines the bits.

use super::TileArgs;
use crate::pack::{Layout, Quant, STEP, SUPER, Scales, TILE};
use half::{bf16, f16};

/// Values of IQ4's sixteen codes (llama.cpp's `kvalues_iq4nl`; also in `selvedge_gguf::format`).
pub(crate) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// # Safety
/// As [`TileArgs`] says.
pub(super) unsafe fn run(args: &TileArgs, layout: Layout) {
    // SAFETY: the caller's promise covers the tile and `out`.
    let (tile, out) = unsafe {
        (std::slice::from_raw_parts(args.w, layout.tile_bytes(args.k)), std::slice::from_raw_parts_mut(args.out, args.n_rows * TILE))
    };
    out.fill(0.0);
    match layout {
        Layout::Int { quant, scales } => {
            // SAFETY: the caller's promise covers the activations.
            let (q, scale) = unsafe {
                (
                    std::slice::from_raw_parts(args.q, args.n_rows * args.k),
                    std::slice::from_raw_parts(args.scale, (args.k / STEP - 1) * args.stride + args.n_rows),
                )
            };
            // SAFETY: likewise, one value a group.
            let sum = unsafe {
                match scales.groups() {
                    1 => std::slice::from_raw_parts(args.sum32, (args.k / STEP - 1) * args.stride + args.n_rows),
                    _ => std::slice::from_raw_parts(args.sum16, (args.k / 16 - 1) * args.stride + args.n_rows),
                }
            };
            int(tile, (args.k, args.stride), quant, scales, q, scale, sum, out);
        }
        Layout::F32 | Layout::F16 | Layout::Bf16 => {
            // SAFETY: the caller's promise covers the activations.
            let x = unsafe { std::slice::from_raw_parts(args.x, args.n_rows * args.k) };
            float(tile, args.k, layout, x, out);
        }
    }
}

fn float(tile: &[u8], k: usize, layout: Layout, x: &[f32], out: &mut [f32]) {
    for c in 0..k {
        let mut w = [0.0_f32; TILE];
        for (r, w) in w.iter_mut().enumerate() {
            let at = c * TILE + r;
            *w = match layout {
                Layout::F16 => f16_at(tile, 2 * at),
                Layout::Bf16 => bf16::from_le_bytes([tile[2 * at], tile[2 * at + 1]]).to_f32(),
                _ => f32_at(tile, 4 * at),
            };
        }
        for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(TILE)) {
            for (acc, &w) in out.iter_mut().zip(&w) {
                *acc = w.mul_add(x[c], *acc);
            }
        }
    }
}

fn f16_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

fn f32_at(b: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// The integers of a step, `[row][column]`.
fn unpack(q: &[u8], quant: Quant) -> [[i32; STEP]; TILE] {
    let mut out = [[0; STEP]; TILE];
    for (r, row) in out.iter_mut().enumerate() {
        for (c, v) in row.iter_mut().enumerate() {
            *v = i32::from(quant.value(q, r, c));
        }
    }
    out
}

#[allow(clippy::too_many_arguments, reason = "the operands of one product, taken apart into checked slices")]
fn int(tile: &[u8], (k, stride): (usize, usize), quant: Quant, scales: Scales, q: &[i8], scale: &[f32], sum: &[f32], out: &mut [f32]) {
    let groups = scales.groups();
    let group = STEP / groups;
    let step_bytes = quant.step_bytes() + scales.step_bytes();
    let mut at = 0;
    let (mut d, mut dmin) = ([0.0_f32; TILE], [0.0_f32; TILE]);
    for step in 0..k / STEP {
        if scales.super_bytes() > 0 && (step * STEP).is_multiple_of(SUPER) {
            for r in 0..TILE {
                d[r] = f16_at(tile, at + 2 * r);
                dmin[r] = if scales.has_min() { f16_at(tile, at + 2 * TILE + 2 * r) } else { 0.0 };
            }
            at += scales.super_bytes();
        }
        let w = unpack(&tile[at..][..quant.step_bytes()], quant);
        let s = &tile[at + quant.step_bytes()..][..scales.step_bytes()];
        for g in 0..groups {
            for r in 0..TILE {
                let (scale_w, minus_min) = match scales {
                    Scales::F16 { min } => (f16_at(s, 2 * r), if min { f16_at(s, 2 * TILE + 2 * r) } else { 0.0 }),
                    Scales::Super { min, .. } => (
                        d[r] * f32::from(s[g * TILE + r] as i8),
                        if min { -(dmin[r] * f32::from(s[(groups + g) * TILE + r])) } else { 0.0 },
                    ),
                    Scales::F32 { min, .. } => {
                        (f32_at(s, (g * TILE + r) * 4), if min { -f32_at(s, ((groups + g) * TILE + r) * 4) } else { 0.0 })
                    }
                };
                for (row, out) in out.chunks_exact_mut(TILE).enumerate() {
                    let x = &q[row * k + step * STEP + g * group..][..group];
                    let isum: i32 = w[r][g * group..][..group].iter().zip(x).map(|(&w, &x)| w * i32::from(x)).sum();
                    let s = scale[step * stride + row];
                    let acc = &mut out[r];
                    *acc = (isum as f32).mul_add(scale_w * s, *acc);
                    if scales.has_min() {
                        *acc = minus_min.mul_add(sum[(step * groups + g) * stride + row], *acc);
                    }
                }
            }
        }
        at += step_bytes;
    }
}
