//! `f64` elementary functions for tables and per-token arithmetic: accurate, the same bits everywhere, not tuned.
//!
//! Series are Taylor series on a reduced argument, taken until the first dropped term is below 2^-57 of the result;
//! each coefficient is one correctly rounded division. Double-double pairs (hi + lo, |lo| <= ulp(hi)/2) carry what a
//! single `f64` can't.

use std::f64::consts::{self, FRAC_2_PI, LOG2_E};

/// 1.5 * 2^52: added to a float of magnitude below 2^51 it leaves the nearest integer in the low mantissa bits.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// ln 2 in two pieces.
const LN2: [f64; 2] = [consts::LN_2, 2.319_046_813_846_299_6e-17];
/// pi / 2 in three pieces, 160 bits together.
const FRAC_PI_2: [f64; 3] = [consts::FRAC_PI_2, 6.123_233_995_736_766e-17, -1.497_384_904_859_169_8e-33];

/// a + b and its rounding error, for any magnitudes.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}

/// a * b and its rounding error.
fn two_prod(a: f64, b: f64) -> (f64, f64) {
    let p = a * b;
    (p, a.mul_add(b, -p))
}

/// Sum of two pairs, relative error about 2^-104 where they don't cancel.
fn add_pair(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    let (s, e) = two_sum(a.0, b.0);
    two_sum(s, e + (a.1 + b.1))
}

/// Product of two pairs, relative error about 2^-103.
fn mul_pair(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    let (p, e) = two_prod(a.0, b.0);
    two_sum(p, e + a.0.mul_add(b.1, a.1 * b.0))
}

/// Quotient of two pairs, relative error about 2^-103.
fn div_pair(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    let q = a.0 / b.0;
    let (p, e) = mul_pair((q, 0.0), b);
    let rest = (a.0 - p) + (a.1 - e);
    two_sum(q, rest / b.0)
}

/// 2^n for n in [-1022, 1023].
fn exp2i(n: i64) -> f64 {
    f64::from_bits(((1023 + n) as u64) << 52)
}

/// e^(hi + lo) for |lo| far below |hi|; see [`exp`].
fn exp_pair(hi: f64, lo: f64) -> f64 {
    if hi.is_nan() {
        return hi;
    }
    if hi > 709.782_712_893_384 {
        return f64::INFINITY;
    }
    if hi < -745.133_219_101_942 {
        return 0.0;
    }
    let n = hi.mul_add(LOG2_E, ROUND) - ROUND;
    let (r, r_lo) = two_sum(n.mul_add(-LN2[0], hi), n.mul_add(-LN2[1], lo));
    // e^r = 1 + r + r^2 (1/2! + r/3! + ...); |r| <= 0.347, and r^14/14! is below 2^-57.
    let mut q = 0.0;
    let mut factorial = 6_227_020_800.0; // 13!
    let mut k = 13.0;
    while k > 1.0 {
        q = f64::mul_add(q, r, 1.0 / factorial);
        factorial /= k;
        k -= 1.0;
    }
    let (s, e) = two_sum(1.0, r);
    let y = s + (e + (r * r).mul_add(q, r_lo));
    // Two factors, since 2^n alone may be outside the normal range; only the second product can round.
    let n = n as i64;
    y * exp2i(n / 2) * exp2i(n - n / 2)
}

/// e^x, within 1 ulp; +inf above 709.78, subnormal results rounded once, 0 below -745.13, NaN for NaN.
#[must_use]
pub fn exp(x: f64) -> f64 {
    exp_pair(x, 0.0)
}

/// ln x as a pair, relative error about 2^-100; x finite and above 0.
fn ln_pair(x: f64) -> (f64, f64) {
    const SQRT_HALF_BITS: u64 = 0x3fe6_a09e_667f_3bcd;
    let (x, bias) = if x < f64::MIN_POSITIVE { (x * 18_014_398_509_481_984.0, -54.0) } else { (x, 0.0) };
    // x = 2^e m with m in [sqrt(1/2), sqrt(2)).
    let bits = x.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let e = (bits.cast_signed() >> 52) as f64 + bias;
    let m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(SQRT_HALF_BITS));
    // ln m = 2 atanh(s) = 2 s (1 + s^2/3 + s^4/5 + ...), s = (m - 1) / (m + 1), s^2 < 0.0295: term 20 is below 2^-106.
    let s = div_pair((m - 1.0, 0.0), two_sum(m, 1.0));
    let s2 = mul_pair(s, s);
    let mut q = (0.0, 0.0);
    let mut odd = 41.0;
    while odd > 1.0 {
        q = add_pair(mul_pair(q, s2), div_pair((1.0, 0.0), (odd, 0.0)));
        odd -= 2.0;
    }
    let s_twice = (2.0 * s.0, 2.0 * s.1);
    let ln_m = add_pair(s_twice, mul_pair(mul_pair(q, s2), s_twice));
    let (p, p_lo) = two_prod(e, LN2[0]);
    add_pair((p, e.mul_add(LN2[1], p_lo)), ln_m)
}

/// Natural logarithm, within 1 ulp; -inf for 0, NaN for negative numbers and NaN, inf for inf.
#[must_use]
pub fn ln(x: f64) -> f64 {
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == f64::INFINITY {
        return x;
    }
    ln_pair(x).0
}

/// x^y for x > 0, within 1 ulp where the result is a normal number.
///
/// x^0 = 1 and 1^y = 1 for all finite arguments. NaN where x is negative, zero or NaN, or y is NaN; infinite arguments
/// follow the limits (inf^y, x^inf), with 1^inf = 1.
#[must_use]
pub fn pow(x: f64, y: f64) -> f64 {
    if x.is_nan() || x <= 0.0 || y.is_nan() {
        return f64::NAN;
    }
    if x == 1.0 || y == 0.0 {
        return 1.0;
    }
    if x == f64::INFINITY || y.is_infinite() {
        return if (x > 1.0) == (y > 0.0) { f64::INFINITY } else { 0.0 };
    }
    let l = ln_pair(x);
    let p = y * l.0;
    // Past the range of exp the low part no longer matters, and an infinite p would make it NaN.
    if p.abs() > 1000.0 {
        return exp(p);
    }
    let p_lo = y.mul_add(l.0, -p);
    let (hi, lo) = two_sum(p, y.mul_add(l.1, p_lo));
    exp_pair(hi, lo)
}

/// sin x and cos x, within 1 ulp for |x| up to 2^32.
///
/// Beyond 2^32 the argument reduction runs out of digits of pi: the result is still deterministic and in [-1, 1], its
/// accuracy is not promised up to 2^51, and from there, as for infinities and NaN, both are NaN.
#[must_use]
pub fn sin_cos(x: f64) -> (f64, f64) {
    if x.is_nan() || x.abs() >= 2_251_799_813_685_248.0 {
        return (f64::NAN, f64::NAN);
    }
    let shifted = x.mul_add(FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    // Exact for |n| < 2^32: x and n * pi/2's first piece are multiples of 2^-53 and the difference is below 1.
    let r = n.mul_add(-FRAC_PI_2[0], x);
    let (p, p_lo) = two_prod(n, FRAC_PI_2[1]);
    let (r, r_lo) = two_sum(r, -p);
    let (r, r_lo) = two_sum(r, r_lo - p_lo - n * FRAC_PI_2[2]);
    let (sin, cos) = sin_cos_reduced(r, r_lo);
    match shifted.to_bits() & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// sin and cos of r + lo, |r| <= pi/4 and a bit, |lo| <= ulp(r)/2.
fn sin_cos_reduced(r: f64, lo: f64) -> (f64, f64) {
    let r2 = r * r;
    // sin r = r + r^3 (-1/3! + r^2/5! - ...) to r^17; cos r = 1 - r^2/2 + r^4 (1/4! - ...) to r^18.
    let mut s = 0.0;
    let mut c = 0.0;
    let mut factorial = 6_402_373_705_728_000.0; // 18!
    let mut k = 18.0;
    while k > 3.0 {
        c = f64::mul_add(-c, r2, 1.0 / factorial);
        factorial /= k;
        k -= 1.0;
        s = f64::mul_add(-s, r2, 1.0 / factorial);
        factorial /= k;
        k -= 1.0;
    }
    // The low part enters with the derivative: sin' = cos, cos' = -sin.
    let half = 0.5 * r2;
    let sin = r + (-s).mul_add(r2 * r, lo * (1.0 - half));
    let w = 1.0 - half;
    let cos = w + (((1.0 - w) - half) + c.mul_add(r2 * r2, -(r * lo)));
    (sin, cos)
}
