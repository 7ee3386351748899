//! A tile whose integers are whole bytes and whose scales are floats: what kernels for many rows of activations make of it
//! once for all of them, in the thread's scratch.
//!
//! ```text
//! weights   [k / 4][16][4] bytes       scales   [k / group][16] f32       minima   [k / group][16] f32, negated
//! ```

use super::TileArgs;
use super::avx512::{ScaleKind, Weights};
use crate::pack::{STEP, SUPER, TILE};
use std::arch::x86_64::*;

/// Bytes of `k` columns: their weights, a scale and a minimum of each output for every 16.
pub(super) const fn unpacked_bytes(k: usize) -> usize {
    k * TILE + 2 * (k / 16) * TILE * 4
}

/// Where the parts of an unpacked tile lie in the scratch.
#[derive(Clone, Copy)]
pub(super) struct Unpacked {
    pub weights: *mut u8,
    pub scales: *mut f32,
    pub minima: *mut f32,
}

impl Unpacked {
    /// # Safety
    /// The scratch is at least [`unpacked_bytes`] long.
    pub(super) unsafe fn new(args: &TileArgs) -> Unpacked {
        // SAFETY: `unpacked_bytes` counts these parts.
        unsafe {
            let scales = args.scratch.add(args.k * TILE).cast::<f32>();
            Unpacked { weights: args.scratch, scales, minima: scales.add(args.k / 16 * TILE) }
        }
    }

    /// Unpacks the tile, less `shift` each of its integers, where that isn't done yet.
    ///
    /// # Safety
    /// As [`TileArgs`] says; the scratch is at least [`unpacked_bytes`] long.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    pub(super) unsafe fn fill<W: Weights, S: ScaleKind>(&self, args: &TileArgs, shift: i32) -> Ahead {
        if args.unpacked {
            return Ahead { at: args.w, left: 0 };
        }
        let shift = _mm512_set1_epi8(shift as i8);
        let groups = S::SCALES.groups();
        let (mut w, mut sup) = (args.w, args.w);
        for step in 0..args.k / STEP {
            if S::SCALES.super_bytes() > 0 && step % (SUPER / STEP) == 0 {
                sup = w;
                // SAFETY: the tile holds the super scales before every eighth step.
                w = unsafe { w.add(S::SCALES.super_bytes()) };
            }
            // SAFETY: the tile holds the step; the scratch takes 512 bytes a step and 16 floats a group.
            unsafe {
                for (j, quad) in W::quads(w).into_iter().enumerate() {
                    _mm512_store_si512(self.weights.add(step * STEP * TILE + j * 64).cast(), _mm512_sub_epi8(quad, shift));
                }
                for g in 0..groups {
                    let (scale, minus_min) = S::load(sup, w.add(W::STEP_BYTES), g);
                    _mm512_store_ps(self.scales.add((step * groups + g) * TILE), scale);
                    if S::SCALES.has_min() {
                        _mm512_store_ps(self.minima.add((step * groups + g) * TILE), minus_min);
                    }
                }
                w = w.add(W::STEP_BYTES + S::SCALES.step_bytes());
            }
        }
        Ahead { at: w, left: (w.addr() - args.w.addr()).div_ceil(64) }
    }
}

/// The next tile, fetched into the second-level cache line by line while this one is worked on: unpacking it would wait
/// for memory.
pub(super) struct Ahead {
    at: *const u8,
    left: usize,
}

impl Ahead {
    /// Fetches a line.
    #[inline(always)]
    pub(super) fn fetch(&mut self) {
        if self.left > 0 {
            // SAFETY: a fetch of an address that isn't there does nothing; whoever unpacks has the instruction.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.cast()) };
            self.at = self.at.wrapping_add(64);
            self.left -= 1;
        }
    }
}
