//! How one layer's keys and values of [`PAGE`] positions lie in memory.
//!
//! ```text
//!   K, per head: [d_k][PAGE]     a feature of all positions is contiguous: scores are computed with positions in lanes
//!   V, per head: [PAGE][d_v]     a position is contiguous: the weighted sum runs over positions with features in lanes
//! ```
//! First all K heads, then all V heads.

use super::PAGE;
use half::f16;

/// Element type of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvElem {
    /// 32-bit floats: for comparisons with other implementations.
    F32,
    /// 16-bit floats.
    F16,
}

impl KvElem {
    /// All types, with the names used on the command line.
    pub const ALL: [(&'static str, KvElem); 2] = [("f16", KvElem::F16), ("f32", KvElem::F32)];

    /// Bytes of one element.
    pub const fn n_bytes(self) -> usize {
        match self {
            KvElem::F32 => 4,
            KvElem::F16 => 2,
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
        head * self.d_k * PAGE * self.elem.n_bytes()
    }

    /// Start of a head's values, `[PAGE][d_v]`.
    pub const fn v_offset(&self, head: usize) -> usize {
        (self.n_head_kv * self.d_k + head * self.d_v) * PAGE * self.elem.n_bytes()
    }

    /// Size of all heads, a multiple of 128 bytes.
    pub const fn n_bytes(&self) -> usize {
        self.n_head_kv * (self.d_k + self.d_v) * PAGE * self.elem.n_bytes()
    }

    /// Writes one position of one head: the scalar reference of every store kernel.
    ///
    /// # Safety
    /// `base` is the start of this layer's part of a page (`KvPages::block`), and no other thread touches the position.
    pub unsafe fn store(&self, base: *mut u8, head: usize, slot: usize, k: &[f32], v: &[f32]) {
        debug_assert!(k.len() == self.d_k && v.len() == self.d_v && slot < PAGE && head < self.n_head_kv);
        for (d, &x) in k.iter().enumerate() {
            // SAFETY: head, d < d_k and slot < PAGE keep the element inside n_bytes.
            unsafe { self.put(base, self.k_offset(head) / self.elem.n_bytes() + d * PAGE + slot, x) };
        }
        for (d, &x) in v.iter().enumerate() {
            // SAFETY: likewise with d < d_v.
            unsafe { self.put(base, self.v_offset(head) / self.elem.n_bytes() + slot * self.d_v + d, x) };
        }
    }

    /// Reads one position of one head.
    ///
    /// # Safety
    /// As for `store`, and the position was written.
    pub unsafe fn load(&self, base: *const u8, head: usize, slot: usize, k: &mut [f32], v: &mut [f32]) {
        debug_assert!(k.len() == self.d_k && v.len() == self.d_v && slot < PAGE && head < self.n_head_kv);
        for (d, x) in k.iter_mut().enumerate() {
            // SAFETY: inside n_bytes, as in `store`.
            *x = unsafe { self.get(base, self.k_offset(head) / self.elem.n_bytes() + d * PAGE + slot) };
        }
        for (d, x) in v.iter_mut().enumerate() {
            // SAFETY: likewise.
            *x = unsafe { self.get(base, self.v_offset(head) / self.elem.n_bytes() + slot * self.d_v + d) };
        }
    }

    unsafe fn put(&self, base: *mut u8, idx: usize, x: f32) {
        match self.elem {
            // SAFETY: the caller keeps idx inside the page, whose base is aligned to a cache line.
            KvElem::F32 => unsafe { base.cast::<f32>().add(idx).write(x) },
            // SAFETY: likewise.
            KvElem::F16 => unsafe { base.cast::<u16>().add(idx).write(f16::from_f32(x).to_bits()) },
        }
    }

    unsafe fn get(&self, base: *const u8, idx: usize) -> f32 {
        match self.elem {
            // SAFETY: the caller keeps idx inside the page, whose base is aligned to a cache line.
            KvElem::F32 => unsafe { base.cast::<f32>().add(idx).read() },
            // SAFETY: likewise.
            KvElem::F16 => f16::from_bits(unsafe { base.cast::<u16>().add(idx).read() }).to_f32(),
        }
    }
}
