//! `f32` elementary functions: branch-free, vectorisable, the same bits everywhere.
//!
//! Accuracy is stated in units in the last place (ulp) against the exact result, and tested over all exponents by default,
//! over all 2^32 inputs in the full suite. Coefficients are minimax fits (Remez exchange) of the quotient that each comment names,
//! rounded to `f32`.

use std::f32::consts::{LN_2, LOG2_E};

/// 1.5 * 2^23: added to a float of magnitude below 2^22 it leaves the nearest integer in the low mantissa bits.
/// Cheaper than a float-to-int cast, which saturates and therefore costs compares and selects.
const ROUND: f32 = 12_582_912.0;
/// ln 2 rounded to 24 bits, and what is missing. For |n| < 2^8, `x - n * LN2_HI` is exact: both are multiples of 2^-25
/// and the difference is below 2^-1.
const LN2_HI: f32 = LN_2;
const LN2_LO: f32 = -1.904_654_2e-9;

/// (e^r - 1 - r) / r^2 on |r| <= ln(2)/2, relative error of e^r 2^-28.3; lowest degree first.
const EXP_Q: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_393, 0.008_368_781, 0.001_381_446_5];

/// (ln(1+f) - f + f^2/2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1], relative error of ln(1+f) 2^-27.3; lowest degree first.
const LN_Q: [f32; 8] = [0.333_333_16, -0.250_008_1, 0.200_022_86, -0.166_245_54, 0.141_811_92, -0.131_287_54, 0.128_816_49, -0.078_596_16];

/// The largest input whose exponential is finite.
const EXP_MAX: f32 = 88.722_83;
/// The smallest input whose exponential is a normal number (at least 2^-126).
const EXP_MIN: f32 = -87.336_54;

/// n, r and e^r - 1 for x = n ln 2 + r, |r| <= ln(2)/2 and a bit: n comes as the bit pattern of `ROUND + n`.
#[inline(always)]
fn reduce_expm1(x: f32) -> (u32, f32) {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_HI, x);
    let r = n.mul_add(-LN2_LO, r);
    let mut q = EXP_Q[4];
    q = q.mul_add(r, EXP_Q[3]);
    q = q.mul_add(r, EXP_Q[2]);
    q = q.mul_add(r, EXP_Q[1]);
    q = q.mul_add(r, EXP_Q[0]);
    (shifted.to_bits(), (q * r).mul_add(r, r))
}

/// e^x, within 1.1 ulp.
///
/// Results that would be subnormal (x < -87.33654) are 0, so that no instruction set's handling of subnormals shows;
/// x > 88.72283 gives +inf, NaN gives NaN.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    let (n_bits, p) = reduce_expm1(x);
    // 1 + p lies in [0.7, 1.42], so adding n to its exponent field can't leave the normal range for x in
    // [EXP_MIN, EXP_MAX]; outside it the selects below replace whatever came out.
    let y = f32::from_bits((1.0 + p).to_bits().wrapping_add(n_bits << 23));
    // The comparison is false for NaN too, and NaN + inf is NaN.
    let y = if x <= EXP_MAX { y } else { x + f32::INFINITY };
    if x < EXP_MIN { 0.0 } else { y }
}

/// Hyperbolic tangent, within 3 ulp; odd, signed zeros kept, NaN gives NaN.
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    // tanh |x| = e / (e + 2) with e = exp(2|x|) - 1: one formula without cancellation. From 9.02 on the result is 1.
    let a = x.abs();
    let z = if a < 9.02 { a + a } else { 18.04 };
    let (n_bits, p) = reduce_expm1(z);
    let scale = f32::from_bits((n_bits << 23).wrapping_add(1.0f32.to_bits()));
    let e = scale.mul_add(p, scale - 1.0);
    let y = (e / (e + 2.0)).copysign(x);
    if x.is_nan() { x } else { y }
}

/// Natural logarithm, within 1 ulp, subnormal inputs included.
///
/// ln 0 = -inf (either sign of zero), ln of a negative number and of NaN = NaN, ln inf = inf.
#[inline(always)]
#[must_use]
pub fn ln(x: f32) -> f32 {
    const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    let bias = if subnormal { -23.0 } else { 0.0 };
    // x = 2^e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
    let bits = scaled.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let e = (bits.cast_signed() >> 23) as f32 + bias;
    let f = f32::from_bits((bits & 0x007f_ffff).wrapping_add(SQRT_HALF_BITS)) - 1.0;
    let mut q = LN_Q[7];
    q = q.mul_add(f, LN_Q[6]);
    q = q.mul_add(f, LN_Q[5]);
    q = q.mul_add(f, LN_Q[4]);
    q = q.mul_add(f, LN_Q[3]);
    q = q.mul_add(f, LN_Q[2]);
    q = q.mul_add(f, LN_Q[1]);
    q = q.mul_add(f, LN_Q[0]);
    let f2 = f * f;
    // Smallest terms first: f^3 q, e * ln2_lo, -f^2/2, f, e * ln2_hi.
    let tail = (q * f).mul_add(f2, e * LN2_LO);
    let tail = f2.mul_add(-0.5, tail);
    let y = e.mul_add(LN2_HI, f + tail);
    let y = if x < f32::INFINITY { y } else { x };
    let y = if x > 0.0 { y } else { f32::NAN };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x.is_nan() { x } else { y }
}

/// 1 / (1 + e^-x), within 2.5 ulp for x >= -87.3, a true division; 0 for x below -88.72, NaN for NaN.
///
/// The relative bound ends where e^-x overflows: the result there would be subnormal.
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x * sigmoid(x), computed as x / (1 + e^-x); within 2.5 ulp for x >= -87.3, -0 below -88.72.
///
/// NaN for NaN and for -inf (inf / inf).
#[inline(always)]
#[must_use]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// The tanh form of GELU, 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3).
///
/// Computed as x / (1 + e^(-2u)), which is the same function without the cancellation in 1 + tanh(u).
/// Within 3 ulp for x >= -1; below, rounding of u is amplified by |2u|: within 3 + 3|2u| ulp down to the point where
/// e^(-2u) overflows (x < -10.06), from where the result is -0. NaN for NaN and for -inf.
#[inline(always)]
#[must_use]
pub fn gelu_tanh(x: f32) -> f32 {
    /// 2 sqrt(2/pi).
    const A: f32 = 1.595_769_2;
    /// 2 sqrt(2/pi) * 0.044715.
    const B: f32 = 0.071_354_814;
    let u2 = x * (x * x).mul_add(B, A);
    x / (1.0 + exp(-u2))
}
