//! NEON rows: two registers of four floats count as one of eight, so that enough sums are in flight.

use super::vector::{self, Vector, vector_kernels};
use super::{AttentionKernels, BlockArgs, Query, finish_body, merge_body, scalar};
use selvedge_core::kv::KvElem;
use selvedge_core::math::N_LANE;
use std::arch::aarch64::*;
use std::ops::Range;

vector_kernels!(Neon, "neon", "attention_neon", 4 3 2 1);

struct Neon;

#[inline]
#[target_feature(enable = "neon")]
fn larger(acc: float32x4_t, x: float32x4_t) -> float32x4_t {
    // `fmax` would give NaN where one is NaN.
    vbslq_f32(vcgtq_f32(x, acc), x, acc)
}

/// [`selvedge_core::math`]'s tree: sixteen lanes to eight, four, two and one.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn tree(lanes: &[f32; N_LANE], op: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> f32 {
    let at = |i: usize| {
        // SAFETY: i + 4 <= 16.
        unsafe { vld1q_f32(lanes.as_ptr().add(i)) }
    };
    let x4 = op(op(at(0), at(8)), op(at(4), at(12)));
    let x2 = op(x4, vextq_f32::<2>(x4, x4));
    vgetq_lane_f32::<0>(op(x2, vextq_f32::<1>(x2, x2)))
}

#[inline]
#[target_feature(enable = "neon")]
fn halves(x: uint16x4_t) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(x))
}

impl Vector for Neon {
    type V = [float32x4_t; 2];
    const LANES: usize = 8;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn splat(x: f32) -> Self::V {
        [vdupq_n_f32(x); 2]
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])]
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])]
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])]
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn larger(acc: Self::V, x: Self::V) -> Self::V {
        [larger(acc[0], x[0]), larger(acc[1], x[1])]
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn within(x: Self::V, lo: isize, hi: isize, other: f32) -> Self::V {
        const LANE: [i32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
        let bound = |n: isize| vdupq_n_s32(n.clamp(0, 8) as i32);
        let (lo, hi) = (bound(lo), bound(hi));
        std::array::from_fn(|i| {
            // SAFETY: i < 2.
            let lane = unsafe { vld1q_s32(LANE.as_ptr().add(4 * i)) };
            vbslq_f32(vandq_u32(vcgeq_s32(lane, lo), vcltq_s32(lane, hi)), x[i], vdupq_n_f32(other))
        })
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn tree(lanes: &[f32; N_LANE]) -> f32 {
        // SAFETY: sixteen floats.
        unsafe { tree(lanes, |a, b| vaddq_f32(a, b)) }
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn tree_larger(lanes: &[f32; N_LANE]) -> f32 {
        // SAFETY: sixteen floats.
        unsafe { tree(lanes, |acc, x| larger(acc, x)) }
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn store(to: *mut f32, x: Self::V) {
        // SAFETY: the caller gives room for eight floats.
        unsafe {
            vst1q_f32(to, x[0]);
            vst1q_f32(to.add(4), x[1]);
        }
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load_f32(from: *const f32) -> Self::V {
        // SAFETY: the caller gives eight floats.
        unsafe { [vld1q_f32(from), vld1q_f32(from.add(4))] }
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load_f16(from: *const u16) -> Self::V {
        // SAFETY: the caller gives eight halves.
        let x = unsafe { vld1q_u16(from) };
        [halves(vget_low_u16(x)), halves(vget_high_u16(x))]
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn load_i8(from: *const i8, scales: *const u16, shared: bool) -> Self::V {
        // SAFETY: the caller gives eight integers, and one scale or eight.
        unsafe {
            let q = vmovl_s8(vld1_s8(from));
            let q = [vcvtq_f32_s32(vmovl_s16(vget_low_s16(q))), vcvtq_f32_s32(vmovl_high_s16(q))];
            Neon::mul(q, if shared { [halves(vdup_n_u16(*scales)); 2] } else { Neon::load_f16(scales) })
        }
    }
}
