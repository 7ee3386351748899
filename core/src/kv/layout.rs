//! How one layer's keys and values of [`PAGE`] positions lie in memory.
//!
//! ```text
//!   K, per head: [d_k][PAGE]     a feature of all positions is contiguous: scores are computed with positions in lanes
//!   V, per head: [PAGE][d_v]     a position is contiguous: the weighted sum runs over positions with features in lanes
//! ```
//! First all K heads, then all V heads.
//!
//! Quantised types keep integers in the same order, followed by the scales of the head, f16: one per [`KV_BLOCK`] features
//! of a position, `[d_k / 32][PAGE]` for keys and `[PAGE][d_v / 32]` for values. An element is `q * scale`, rounded once in
//! f32:
//!
//! ```text
//!   scale = f16(max |x| / 127),   q = clamp(round_to_even(x * (1 / scale)), -127, 127), or 0 where 1 / scale isn't finite
//! ```

use super::PAGE;
use half::f16;

/// Features that share a scale in a quantised cache.
pub const KV_BLOCK: usize = 32;

/// Element type of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvElem {
    /// 32-bit floats: for comparisons with other implementations.
    F32,
    /// 16-bit floats.
    F16,
    /// 8-bit integers with a scale per 32 features.
    Q8_0,
}

impl KvElem {
    /// All types, with the names used on the command line.
    pub const ALL: [(&'static str, KvElem); 3] = [("f16", KvElem::F16), ("f32", KvElem::F32), ("q8_0", KvElem::Q8_0)];

    /// Bytes of a head's part of one position, `d` features.
    pub const fn head_bytes(self, d: usize) -> usize {
        match self {
            KvElem::F32 => d * 4,
            KvElem::F16 => d * 2,
            KvElem::Q8_0 => d + d / KV_BLOCK * 2,
        }
    }

    /// What a head size must be a multiple of.
    pub const fn block(self) -> usize {
        match self {
            KvElem::F32 | KvElem::F16 => 1,
            KvElem::Q8_0 => KV_BLOCK,
        }
    }

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<KvElem> {
        KvElem::ALL.iter().find(|(n, _)| *n == name).map(|&(_, e)| e)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        KvElem::ALL.iter().find(|&&(_, e)| e == self).map_or("", |(n, _)| n)
    }
}

/// Layout of a layer's part of a page. Offsets are in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerLayout {
    /// Element type.
    pub elem: KvElem,
    /// Heads.
    pub n_head_kv: usize,
    /// Key head size.
    pub d_k: usize,
    /// Value head size.
    pub d_v: usize,
}

impl LayerLayout {
    /// A layout; nothing is allocated.
    pub const fn new(elem: KvElem, n_head_kv: usize, d_k: usize, d_v: usize) -> LayerLayout {
        LayerLayout { elem, n_head_kv, d_k, d_v }
    }

    /// Start of a head's keys, `[d_k][PAGE]`.
    pub const fn k_offset(&self, head: usize) -> usize {
        head * PAGE * self.elem.head_bytes(self.d_k)
    }

    /// Start of a head's values, `[PAGE][d_v]`.
    pub const fn v_offset(&self, head: usize) -> usize {
        self.k_offset(self.n_head_kv) + head * PAGE * self.elem.head_bytes(self.d_v)
    }

    /// Size of all heads, a multiple of 64 bytes.
    pub const fn n_bytes(&self) -> usize {
        self.v_offset(self.n_head_kv)
    }

    /// Writes one position of one head: the reference of every store kernel.
    ///
    /// # Safety
    /// `base` is the start of this layer's part of a page (`KvPages::block`), and no other thread touches the position.
    #[inline(always)]
    pub unsafe fn store(&self, base: *mut u8, head: usize, slot: usize, k: &[f32], v: &[f32]) {
        debug_assert!(k.len() == self.d_k && v.len() == self.d_v && slot < PAGE && head < self.n_head_kv);
        // SAFETY: head and slot lie inside the layout; keys stride by PAGE, values follow each other.
        unsafe {
            put(base.add(self.k_offset(head)), self.elem, k, self.d_k * PAGE, (PAGE, slot), (PAGE, slot));
            let d_v = self.d_v;
            put(base.add(self.v_offset(head)), self.elem, v, d_v * PAGE, (1, slot * d_v), (1, slot * (d_v / KV_BLOCK)));
        }
    }

    /// Reads one position of one head.
    ///
    /// # Safety
    /// As for `store`, and the position was written.
    pub unsafe fn load(&self, base: *const u8, head: usize, slot: usize, k: &mut [f32], v: &mut [f32]) {
        debug_assert!(k.len() == self.d_k && v.len() == self.d_v && slot < PAGE && head < self.n_head_kv);
        // SAFETY: as in `store`.
        unsafe {
            let (kb, vb) = (base.add(self.k_offset(head)), base.add(self.v_offset(head)));
            for (d, x) in k.iter_mut().enumerate() {
                *x = self.key(kb, d, slot);
            }
            for (d, x) in v.iter_mut().enumerate() {
                *x = self.value(vb, slot, d);
            }
        }
    }

    /// Feature `d` of the key at `slot`; `keys` is the start of the head's keys.
    ///
    /// # Safety
    /// `keys` points at a page's keys of this layout, and the position was written.
    #[inline(always)]
    pub unsafe fn key(&self, keys: *const u8, d: usize, slot: usize) -> f32 {
        // SAFETY: d < d_k and slot < PAGE keep both indices inside the head.
        unsafe { get(keys, self.elem, self.d_k * PAGE, d * PAGE + slot, d / KV_BLOCK * PAGE + slot) }
    }

    /// Feature `d` of the value at `slot`; `values` is the start of the head's values.
    ///
    /// # Safety
    /// As for `key`.
    #[inline(always)]
    pub unsafe fn value(&self, values: *const u8, slot: usize, d: usize) -> f32 {
        // SAFETY: d < d_v and slot < PAGE keep both indices inside the head.
        unsafe { get(values, self.elem, self.d_v * PAGE, slot * self.d_v + d, slot * (self.d_v / KV_BLOCK) + d / KV_BLOCK) }
    }
}

/// The f16 nearest to `x`, ties to even, without branches: compiled for vectors where the caller is.
#[inline(always)]
fn f16_bits(x: f32) -> u16 {
    /// Smallest magnitudes that are normal as f16, and that round to infinity.
    const NORMAL: u32 = 113 << 23;
    const INFINITE: u32 = 0x477f_f000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    // The exponent's bias changes by 112; half a unit less one, and one more where the kept part is odd, rounds.
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    // A unit in the last place of 0.5 is one of subnormal f16: the sum rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let finite = if magnitude < NORMAL { subnormal } else { normal };
    let nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    let special = if magnitude > 0x7f80_0000 { nan } else { 0x7c00 };
    let bits = if magnitude < INFINITE { finite } else { special };
    (bits | x.to_bits() >> 16 & 0x8000) as u16
}

/// Writes features at `first + i * stride`; quantised types put scales, at the places of `scales`, after `n` integers.
///
/// # Safety
/// All indices lie inside a head's part of a page, which is aligned to 64 bytes.
#[inline(always)]
unsafe fn put(base: *mut u8, elem: KvElem, xs: &[f32], n: usize, (stride, first): (usize, usize), scales: (usize, usize)) {
    match elem {
        KvElem::F32 => {
            for (i, &x) in xs.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { base.cast::<f32>().add(first + i * stride).write(x) };
            }
        }
        KvElem::F16 => {
            let (blocks, rest) = xs.as_chunks::<16>();
            for (b, block) in blocks.iter().enumerate() {
                // All at once: vectors convert, whatever the stride.
                let mut halves = [0; 16];
                for (half, &x) in halves.iter_mut().zip(block) {
                    *half = f16_bits(x);
                }
                for (i, x) in halves.into_iter().enumerate() {
                    // SAFETY: the caller's promise.
                    unsafe { base.cast::<u16>().add(first + (16 * b + i) * stride).write(x) };
                }
            }
            for (i, &x) in rest.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { base.cast::<u16>().add(first + (16 * blocks.len() + i) * stride).write(f16_bits(x)) };
            }
        }
        KvElem::Q8_0 => {
            for (b, block) in xs.chunks_exact(KV_BLOCK).enumerate() {
                let scale = f16::from_f32(block.iter().fold(0.0_f32, |m, x| if x.abs() > m || x.is_nan() { x.abs() } else { m }) / 127.0);
                let inverse = 1.0 / scale.to_f32();
                let inverse = if inverse.is_finite() { inverse } else { 0.0 };
                for (i, &x) in block.iter().enumerate() {
                    // 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits of the sum.
                    let q = ((x * inverse + 12_582_912.0).to_bits() as i32 - 0x4b40_0000).clamp(-127, 127);
                    // SAFETY: the caller's promise.
                    unsafe { base.cast::<i8>().add(first + (b * KV_BLOCK + i) * stride).write(q as i8) };
                }
                // SAFETY: the scales follow the n integers, an even number.
                unsafe { base.add(n).cast::<u16>().add(scales.1 + b * scales.0).write(scale.to_bits()) };
            }
        }
    }
}

/// Reads the element at `idx`, whose scale is at `scale_idx` after `n` integers.
///
/// # Safety
/// As for `put`.
#[inline(always)]
unsafe fn get(base: *const u8, elem: KvElem, n: usize, idx: usize, scale_idx: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match elem {
            KvElem::F32 => base.cast::<f32>().add(idx).read(),
            KvElem::F16 => f16::from_bits(base.cast::<u16>().add(idx).read()).to_f32(),
            KvElem::Q8_0 => {
                let scale = f16::from_bits(base.add(n).cast::<u16>().add(scale_idx).read()).to_f32();
                f32::from(base.cast::<i8>().add(idx).read()) * scale
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_as_the_crate_rounds_them() {
        // All exponents and signs with what can decide the rounding, and a walk over the rest.
        let edges = (0..1_u32 << 9).flat_map(|high| {
            (0..1 << 14).map(move |low| (high << 23) | (low >> 3 << 12) | [0, 1, 2, 0x7ff, 0x800, 0x801, 0xffe, 0xfff][low as usize & 7])
        });
        let walk = (0..1_u32 << 22).map(|i| i.wrapping_mul(0x9e37_79b1));
        for bits in edges.chain(walk) {
            let x = f32::from_bits(bits);
            assert_eq!(f16_bits(x), f16::from_f32(x).to_bits(), "{bits:08x}");
        }
    }

    #[test]
    fn what_is_stored_is_loaded() {
        for (_, elem) in KvElem::ALL {
            let layout = LayerLayout::new(elem, 3, 64, 32);
            let mut page = vec![0_u64; layout.n_bytes() / 8];
            let base = page.as_mut_ptr().cast::<u8>();
            let vector =
                |head: usize, slot: usize, n: usize| (0..n).map(|d| ((head * 7 + slot * 3 + d) % 29) as f32 - 14.0).collect::<Vec<f32>>();
            for head in 0..3 {
                for slot in 0..PAGE {
                    // SAFETY: the page has the layout's size.
                    unsafe { layout.store(base, head, slot, &vector(head, slot, 64), &vector(head, slot, 32)) };
                }
            }
            let bound = if elem == KvElem::Q8_0 { 14.0 / 127.0 * 0.51 + 0.01 } else { 0.0 };
            for head in 0..3 {
                for slot in 0..PAGE {
                    let (mut k, mut v) = (vec![0.0; 64], vec![0.0; 32]);
                    // SAFETY: the page has the layout's size.
                    unsafe { layout.load(base, head, slot, &mut k, &mut v) };
                    let near = |got: &[f32], want: Vec<f32>| got.iter().zip(want).all(|(g, w)| (g - w).abs() <= bound);
                    assert!(near(&k, vector(head, slot, 64)) && near(&v, vector(head, slot, 32)), "{elem:?} {head} {slot}");
                }
            }
        }
    }
}
