//! Readers of the file's blocks, and the scatter of one row's block into a tile.
//!
//! Layouts of the blocks are drawn in `selvedge_gguf::format`, whose decoders are the oracle of these readers.

use super::{Quant, STEP, SUPER, Scales, TILE};
use selvedge_gguf::TensorType;

/// One block of one row, its fields taken apart.
pub(super) struct Block {
    /// Integers in column order, unsigned or two's complement as the layout says.
    q: [u8; SUPER],
    /// Scale and minimum of the block, f16 bits.
    d: [u16; 2],
    /// Scales and minima of the groups.
    sc: [u8; 16],
    mn: [u8; 16],
    /// Scales and minima as floats, for lattices.
    scale: [f32; 16],
    min: [f32; 16],
}

impl Default for Block {
    fn default() -> Block {
        Block { q: [0; SUPER], d: [0; 2], sc: [0; 16], mn: [0; 16], scale: [0.0; 16], min: [0.0; 16] }
    }
}

impl Block {
    /// Whether every scale is a finite number.
    pub(super) fn finite(&self, scales: Scales) -> bool {
        match scales {
            Scales::F32 { .. } => self.scale.iter().chain(&self.min).all(|x| x.is_finite()),
            _ => self.d.iter().all(|d| d & 0x7c00 != 0x7c00),
        }
    }
}

/// Reads one block of a type.
pub(super) type ReadBlock = fn(TensorType, &[u8], &mut Block);

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

/// 32 nibbles in 16 bytes: low halves are columns 0..16, high halves 16..32.
fn nibbles32(qs: &[u8], q: &mut [u8]) {
    let (lo, hi) = q[..32].split_at_mut(16);
    for ((&b, lo), hi) in qs[..16].iter().zip(lo).zip(hi) {
        *lo = b & 15;
        *hi = b >> 4;
    }
}

/// Sets bit `bit` of 32 integers from a mask.
fn high_bits32(mask: u32, bit: u32, q: &mut [u8]) {
    for (i, q) in q[..32].iter_mut().enumerate() {
        *q |= ((mask >> i & 1) as u8) << bit;
    }
}

pub(super) fn q4_0(_: TensorType, b: &[u8], out: &mut Block) {
    out.d[0] = u16_at(b, 0);
    nibbles32(&b[2..], &mut out.q);
}

pub(super) fn q4_1(_: TensorType, b: &[u8], out: &mut Block) {
    out.d = [u16_at(b, 0), u16_at(b, 2)];
    nibbles32(&b[4..], &mut out.q);
}

pub(super) fn q5_0(_: TensorType, b: &[u8], out: &mut Block) {
    out.d[0] = u16_at(b, 0);
    nibbles32(&b[6..], &mut out.q);
    high_bits32(u32::from_le_bytes([b[2], b[3], b[4], b[5]]), 4, &mut out.q);
}

pub(super) fn q5_1(_: TensorType, b: &[u8], out: &mut Block) {
    out.d = [u16_at(b, 0), u16_at(b, 2)];
    nibbles32(&b[8..], &mut out.q);
    high_bits32(u32::from_le_bytes([b[4], b[5], b[6], b[7]]), 4, &mut out.q);
}

pub(super) fn q8_0(_: TensorType, b: &[u8], out: &mut Block) {
    out.d[0] = u16_at(b, 0);
    out.q[..32].copy_from_slice(&b[2..34]);
}

pub(super) fn iq4_nl(_: TensorType, b: &[u8], out: &mut Block) {
    out.d[0] = u16_at(b, 0);
    nibbles32(&b[2..], &mut out.q);
}

/// scales u8[16] (low nibble scale, high nibble minimum), qs u8[64] (2 bits), d, dmin
pub(super) fn q2_k(_: TensorType, b: &[u8], out: &mut Block) {
    out.d = [u16_at(b, 80), u16_at(b, 82)];
    for ((sc, mn), &b) in out.sc.iter_mut().zip(&mut out.mn).zip(&b[..16]) {
        (*sc, *mn) = (b & 15, b >> 4);
    }
    two_bits(&b[16..80], &mut out.q);
}

/// 256 two-bit integers in two halves of 32 bytes: bits 2s of byte l are column 32 s + l of the half.
fn two_bits(qs: &[u8], q: &mut [u8; SUPER]) {
    for (half, q) in qs.chunks_exact(32).zip(q.chunks_exact_mut(128)) {
        for (s, q) in q.chunks_exact_mut(32).enumerate() {
            q.iter_mut().zip(half).for_each(|(q, &b)| *q = b >> (2 * s) & 3);
        }
    }
}

/// hmask u8[32], qs u8[64] (2 bits), scales u8[12] (6 bits, less 32), d
pub(super) fn q3_k(_: TensorType, b: &[u8], out: &mut Block) {
    out.d[0] = u16_at(b, 108);
    two_bits(&b[32..96], &mut out.q);
    // The mask bit set means that 4 is not subtracted: q in 0..8 with offset 4.
    for (i, q) in out.q.iter_mut().enumerate() {
        *q |= (b[i % 32] >> (i / 32) & 1) << 2;
    }
    let s = &b[96..108];
    for i in 0..16 {
        let low = if i < 8 { s[i] & 15 } else { s[i - 8] >> 4 };
        let high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
        out.sc[i] = (low | high << 4).wrapping_sub(32);
    }
}

/// The 6-bit scales and minima of Q4_K and Q5_K in 12 bytes.
fn scales_k4(s: &[u8], out: &mut Block) {
    for i in 0..4 {
        out.sc[i] = s[i] & 63;
        out.mn[i] = s[i + 4] & 63;
        out.sc[i + 4] = (s[i + 8] & 15) | (s[i] >> 6) << 4;
        out.mn[i + 4] = (s[i + 8] >> 4) | (s[i + 4] >> 6) << 4;
    }
}

/// 256 nibbles in four runs of 32 bytes: low halves are 32 columns, high halves the next 32.
fn nibbles256(qs: &[u8], q: &mut [u8; SUPER]) {
    for (qs, q) in qs.chunks_exact(32).zip(q.chunks_exact_mut(64)) {
        let (lo, hi) = q.split_at_mut(32);
        for ((&b, lo), hi) in qs.iter().zip(lo).zip(hi) {
            *lo = b & 15;
            *hi = b >> 4;
        }
    }
}

/// d, dmin, scales u8[12], qs u8[128]
pub(super) fn q4_k(_: TensorType, b: &[u8], out: &mut Block) {
    out.d = [u16_at(b, 0), u16_at(b, 2)];
    scales_k4(&b[4..16], out);
    nibbles256(&b[16..144], &mut out.q);
}

/// d, dmin, scales u8[12], qh u8[32], qs u8[128]
pub(super) fn q5_k(_: TensorType, b: &[u8], out: &mut Block) {
    out.d = [u16_at(b, 0), u16_at(b, 2)];
    scales_k4(&b[4..16], out);
    nibbles256(&b[48..176], &mut out.q);
    for (group, q) in out.q.chunks_exact_mut(32).enumerate() {
        q.iter_mut().zip(&b[16..48]).for_each(|(q, &h)| *q |= (h >> group & 1) << 4);
    }
}

/// ql u8[128], qh u8[64], scales i8[16], d
pub(super) fn q6_k(_: TensorType, b: &[u8], out: &mut Block) {
    out.d[0] = u16_at(b, 208);
    out.sc.copy_from_slice(&b[192..208]);
    for half in 0..2 {
        let (ql, qh) = (&b[half * 64..][..64], &b[128 + half * 32..][..32]);
        let q = &mut out.q[half * 128..][..128];
        for l in 0..32 {
            q[l] = (ql[l] & 15) | (qh[l] & 3) << 4;
            q[l + 32] = (ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4;
            q[l + 64] = (ql[l] >> 4) | (qh[l] >> 4 & 3) << 4;
            q[l + 96] = (ql[l + 32] >> 4) | (qh[l] >> 6) << 4;
        }
    }
}

/// d, scales_h u16, scales_l u8[4], qs u8[128] (nibbles by 32)
pub(super) fn iq4_xs(_: TensorType, b: &[u8], out: &mut Block) {
    out.d[0] = u16_at(b, 0);
    let high = u16_at(b, 2);
    for i in 0..8 {
        let low = b[4 + i / 2] >> (4 * (i % 2)) & 15;
        out.sc[i] = (low | ((high >> (2 * i) & 3) as u8) << 4).wrapping_sub(32);
        nibbles32(&b[8 + 16 * i..], &mut out.q[32 * i..]);
    }
}

/// Any type with an int8 lattice.
pub(super) fn lattice(ty: TensorType, b: &[u8], out: &mut Block) {
    let format = ty.row();
    if let Some(lattice) = format.lattice {
        let mut q = [0_i8; SUPER];
        let groups = format.block_elems / lattice.group;
        (lattice.unpack)(b, &mut q[..format.block_elems], &mut out.scale[..groups], &mut out.min[..groups]);
        out.q.iter_mut().zip(q).for_each(|(o, q)| *o = q as u8);
    }
}

/// The low four bits of a step's integers of row `r`.
fn nibbles(q: &[u8], dst: &mut [u8], r: usize) {
    for j in 0..4 {
        for i in 0..4 {
            dst[j * 64 + r * 4 + i] = q[4 * j + i] & 15 | q[16 + 4 * j + i] << 4;
        }
    }
}

/// Writes a block of row `r` that begins at column `col` into its tile.
pub(super) fn scatter(block: &Block, quant: Quant, scales: Scales, col: usize, n_cols: usize, r: usize, dst: &mut [u8]) {
    let step_bytes = quant.step_bytes() + scales.step_bytes();
    let groups = scales.groups();
    let put16 = |dst: &mut [u8], at: usize, x: u16| dst[at + 2 * r..][..2].copy_from_slice(&x.to_le_bytes());
    let put32 = |dst: &mut [u8], at: usize, x: f32| dst[at + 4 * r..][..4].copy_from_slice(&x.to_le_bytes());
    for s in 0..n_cols / STEP {
        let step = col / STEP + s;
        let before = (step * STEP / SUPER + 1) * scales.super_bytes() + step * step_bytes;
        let q = &block.q[s * STEP..][..STEP];
        match quant {
            Quant::Nibble { .. } | Quant::NibbleIq4 => nibbles(q, &mut dst[before..], r),
            Quant::Five { .. } => {
                nibbles(q, &mut dst[before..], r);
                for i in 0..4 {
                    dst[before + 256 + r * 4 + i] = (0..8).fold(0, |bits, j| bits | (q[4 * j + i] >> 4 & 1) << j);
                }
            }
            Quant::Six { .. } => {
                nibbles(q, &mut dst[before..], r);
                for (at, i) in (0..8).map(|at| (256 + at / 4 * 64 + r * 4 + at % 4, at / 4 * 16 + at % 4)) {
                    dst[before + at] = (0..4).fold(0, |bits, m| bits | (q[4 * m + i] >> 4 & 3) << (2 * m));
                }
            }
            Quant::Signed => {
                for j in 0..8 {
                    dst[before + j * 64 + r * 4..][..4].copy_from_slice(&q[4 * j..][..4]);
                }
            }
        }
        let at = before + quant.step_bytes();
        match scales {
            Scales::F16 { min } => {
                put16(dst, at, block.d[0]);
                if min {
                    put16(dst, at + 2 * TILE, block.d[1]);
                }
            }
            Scales::Super { min, .. } => {
                if (step * STEP).is_multiple_of(SUPER) {
                    put16(dst, before - scales.super_bytes(), block.d[0]);
                    if min {
                        put16(dst, before - scales.super_bytes() + 2 * TILE, block.d[1]);
                    }
                }
                for g in 0..groups {
                    dst[at + g * TILE + r] = block.sc[s * groups + g];
                    if min {
                        dst[at + (groups + g) * TILE + r] = block.mn[s * groups + g];
                    }
                }
            }
            Scales::F32 { min, .. } => {
                for g in 0..groups {
                    put32(dst, at + g * 4 * TILE, block.scale[s * groups + g]);
                    if min {
                        put32(dst, at + (groups + g) * 4 * TILE, block.min[s * groups + g]);
                    }
                }
            }
        }
    }
}
