//! Accuracy, special values and golden bits of `selvedge_core::math`.
//!
//! The f64 functions are held to correctly rounded results made with mpmath (`data/math_f64.txt`), the f32 functions to
//! the f64 ones: so no test leans on the platform's C library.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use selvedge_core::math::{self, double};

/// FNV-1a over result bits, every NaN counted as the same one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Hash(0xcbf2_9ce4_8422_2325)
    }
    fn bytes(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = (self.0 ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    fn f32(&mut self, x: f32) {
        let x = if x.is_nan() { f32::NAN } else { x };
        self.bytes(&x.to_bits().to_le_bytes());
    }
    fn f64(&mut self, x: f64) {
        let x = if x.is_nan() { f64::NAN } else { x };
        self.bytes(&x.to_bits().to_le_bytes());
    }
}

/// Distance of `y` from `want` in units in the last place of the f32 nearest `want` (subnormals: of the smallest).
fn ulp_error(y: f32, want: f64) -> f64 {
    let nearest = want as f32;
    if nearest.is_nan() || nearest.is_infinite() || !y.is_finite() {
        let same = y == nearest || (y.is_nan() && nearest.is_nan());
        return if same { 0.0 } else { f64::INFINITY };
    }
    let exponent = ((want.abs() as f32).to_bits() >> 23).max(1) as i32;
    let rounded_up = f64::from(nearest.abs()) > want.abs() && nearest.to_bits() & 0x007f_ffff == 0;
    let ulp = f64::from_bits(((1023 - 150 + exponent - i32::from(rounded_up && exponent > 1)) as u64) << 52);
    (f64::from(y) - want).abs() / ulp
}

fn ref_tanh(x: f64) -> f64 {
    let a = x.abs();
    let y = if a < 0.05 {
        // x - x^3/3 + 2x^5/15 - 17x^7/315: the next term is below 2^-53 of the first there.
        let q = a * a;
        let tail = q * (1.0 / 3.0 - q * (2.0 / 15.0 - q * (17.0 / 315.0 - q * (62.0 / 2835.0 - q * 1382.0 / 155_925.0))));
        a - a * tail
    } else {
        1.0 - 2.0 / (double::exp(2.0 * a) + 1.0)
    };
    y.copysign(x)
}

fn ref_gelu(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x / (1.0 + double::exp(-2.0 * u))
}

struct Function {
    name: &'static str,
    run: fn(f32) -> f32,
    reference: fn(f64) -> f64,
    /// Its value where that needs no computation: where it is 1, x, x / 2 or infinite to well within the bound. A result
    /// that is this one needs no comparison, which spares two thirds of all inputs.
    plain: fn(f32) -> Option<f32>,
    /// The stated bound in ulp, for inputs of at least `from`.
    bound: f64,
    from: f32,
    golden: u64,
}

const FUNCTIONS: [Function; 6] = [
    Function {
        name: "exp",
        run: |x| math::exp(x),
        reference: double::exp,
        plain: |x| if x.abs() < 2e-8 { Some(1.0) } else { (x > 88.8).then_some(f32::INFINITY) },
        bound: 1.1,
        from: -87.336_54,
        golden: 0x5075_842a_29ba_d2ab,
    },
    Function {
        name: "tanh",
        run: |x| math::tanh(x),
        reference: ref_tanh,
        plain: |x| if x.abs() < 1e-4 { Some(x) } else { (x.abs() > 10.0).then_some(1.0_f32.copysign(x)) },
        bound: 3.0,
        from: f32::NEG_INFINITY,
        golden: 0x1c24_558b_21b3_0f9c,
    },
    Function {
        name: "ln",
        run: |x| math::ln(x),
        reference: double::ln,
        plain: |_| None,
        bound: 1.0,
        from: f32::NEG_INFINITY,
        golden: 0xff75_4230_9c9c_420d,
    },
    Function {
        name: "sigmoid",
        run: |x| math::sigmoid(x),
        reference: |x| 1.0 / (1.0 + double::exp(-x)),
        plain: |x| if x.abs() < 2e-8 { Some(0.5) } else { (x > 20.0).then_some(1.0) },
        bound: 2.5,
        from: -87.3,
        golden: 0x09f4_d331_2f9a_d742,
    },
    Function {
        name: "silu",
        run: |x| math::silu(x),
        reference: |x| x / (1.0 + double::exp(-x)),
        plain: |x| if x.abs() < 1e-8 { Some(x * 0.5) } else { (x > 20.0).then_some(x) },
        bound: 2.5,
        from: -87.3,
        golden: 0x8868_cf72_5749_a1d2,
    },
    Function {
        name: "gelu_tanh",
        run: |x| math::gelu_tanh(x),
        reference: ref_gelu,
        plain: |x| if x.abs() < 1e-8 { Some(x * 0.5) } else { (x > 8.0).then_some(x) },
        bound: 3.0,
        from: -1.0,
        golden: 0x2c48_bd80_85dd_88fb,
    },
];

/// Worst error of one function over the inputs whose bit patterns are `first, first + step, ...`, and where it is.
fn worst_error(f: &Function, first: u32, step: u32) -> (f64, f32) {
    let mut worst = (0.0, 0.0f32);
    let mut bits = Some(first);
    while let Some(b) = bits {
        let x = f32::from_bits(b);
        // NaN is no smaller than the bound, so it is checked too.
        if x.is_nan() || x >= f.from {
            let y = (f.run)(x);
            let is_plain = (f.plain)(x).is_some_and(|plain| plain.to_bits() == y.to_bits());
            let error = if is_plain { 0.0 } else { ulp_error(y, (f.reference)(f64::from(x))) };
            if error > worst.0 {
                worst = (error, x);
            }
        }
        bits = b.checked_add(step);
    }
    worst
}

/// Worst error of each function over the inputs whose bit patterns are `0, step, 2 * step, ...`, on all cores.
fn check_all(step: u32) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    for f in &FUNCTIONS {
        let worst = std::thread::scope(|scope| {
            let parts: Vec<_> = (0..threads).map(|t| scope.spawn(move || worst_error(f, t * step, threads * step))).collect();
            parts.into_iter().map(|part| part.join().unwrap()).fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
        });
        println!("{}: worst error {:.4} ulp at {:e}", f.name, worst.0, worst.1);
        assert!(worst.0 <= f.bound, "{} errs by {} ulp at {:e}", f.name, worst.0, worst.1);
    }
}

#[test]
fn f32_functions_keep_their_bounds_over_all_exponents() {
    // A prime step: every exponent of either sign gets over 2000 mantissas.
    check_all(4093);
}

#[test]
#[ignore = "long: a quarter of an hour of one core, shared among all"]
fn f32_functions_keep_their_bounds_on_every_input() {
    check_all(1);
}

#[test]
fn f32_exp_near_its_limits() {
    let around = |x: f32| (-2000i32..=2000).map(move |d| f32::from_bits(x.to_bits().wrapping_add_signed(d)));
    for x in around(88.722_83).chain(around(-87.336_54)).chain(around(1e-40)).chain(around(-1e-40)) {
        let y = math::exp(x);
        if x < -87.336_54 {
            assert_eq!(y.to_bits(), 0, "exp({x:e}) is flushed to zero");
        } else {
            assert!(ulp_error(y, double::exp(f64::from(x))) <= 1.1, "exp({x:e}) = {y:e}");
            assert!(y >= f32::MIN_POSITIVE, "exp({x:e}) = {y:e} is normal");
        }
    }
}

#[test]
fn f32_special_values() {
    let inf = f32::INFINITY;
    /// Name, function, input, result.
    type Case = (&'static str, fn(f32) -> f32, f32, f32);
    let cases: &[Case] = &[
        ("exp", |x| math::exp(x), 0.0, 1.0),
        ("exp", |x| math::exp(x), -0.0, 1.0),
        ("exp", |x| math::exp(x), inf, inf),
        ("exp", |x| math::exp(x), -inf, 0.0),
        ("exp", |x| math::exp(x), f32::MAX, inf),
        ("exp", |x| math::exp(x), f32::MIN, 0.0),
        ("tanh", |x| math::tanh(x), 0.0, 0.0),
        ("tanh", |x| math::tanh(x), -0.0, -0.0),
        ("tanh", |x| math::tanh(x), inf, 1.0),
        ("tanh", |x| math::tanh(x), -inf, -1.0),
        ("tanh", |x| math::tanh(x), 1e-42, 1e-42),
        ("ln", |x| math::ln(x), 0.0, -inf),
        ("ln", |x| math::ln(x), -0.0, -inf),
        ("ln", |x| math::ln(x), -1.0, f32::NAN),
        ("ln", |x| math::ln(x), -1e-45, f32::NAN),
        ("ln", |x| math::ln(x), -inf, f32::NAN),
        ("ln", |x| math::ln(x), inf, inf),
        ("ln", |x| math::ln(x), 1.0, 0.0),
        ("sigmoid", |x| math::sigmoid(x), 0.0, 0.5),
        ("sigmoid", |x| math::sigmoid(x), inf, 1.0),
        ("sigmoid", |x| math::sigmoid(x), -inf, 0.0),
        ("sigmoid", |x| math::sigmoid(x), -89.0, 0.0),
        ("silu", |x| math::silu(x), 0.0, 0.0),
        ("silu", |x| math::silu(x), -0.0, -0.0),
        ("silu", |x| math::silu(x), -200.0, -0.0),
        ("silu", |x| math::silu(x), inf, inf),
        ("silu", |x| math::silu(x), -inf, f32::NAN),
        ("gelu_tanh", |x| math::gelu_tanh(x), -0.0, -0.0),
        ("gelu_tanh", |x| math::gelu_tanh(x), 1e30, 1e30),
        ("gelu_tanh", |x| math::gelu_tanh(x), -1e30, -0.0),
        ("gelu_tanh", |x| math::gelu_tanh(x), inf, inf),
        ("gelu_tanh", |x| math::gelu_tanh(x), -inf, f32::NAN),
    ];
    for &(name, f, x, want) in cases {
        let y = f(x);
        assert!(y.to_bits() == want.to_bits() || (y.is_nan() && want.is_nan()), "{name}({x:e}) = {y:e}, not {want:e}");
    }
    // Any payload and either sign of NaN stays a NaN.
    for bits in [0x7fc0_0000u32, 0xffc0_0000, 0x7f80_0001, 0x7fff_ffff, 0xffff_ffff, 0x7f80_01ff, 0xffaa_aaaa] {
        for f in &FUNCTIONS {
            assert!((f.run)(f32::from_bits(bits)).is_nan(), "{} of NaN {bits:08x}", f.name);
        }
    }
}

#[test]
fn f32_gelu_keeps_its_bound_in_the_negative_tail() {
    let mut x = -1.0f32;
    while x > -10.05 {
        let want = ref_gelu(f64::from(x));
        let two_u = 2.0 * 0.797_884_56 * f64::from(x).abs() * (1.0 + 0.044715 * f64::from(x) * f64::from(x));
        let error = ulp_error(math::gelu_tanh(x), want);
        assert!(error <= 3.0 + 3.0 * two_u, "gelu_tanh({x:e}) errs by {error} ulp");
        x = f32::from_bits(x.to_bits() + 41);
    }
}

/// Bit patterns that meet every exponent, both signs, and the range that kernels live in.
fn golden_inputs() -> Vec<f32> {
    let wide = (0..1u32 << 16).map(|i| f32::from_bits(i * 65_521));
    let near = (0..20_000).map(|i| (i - 10_000) as f32 * (1.0 / 512.0));
    wide.chain(near).collect()
}

#[test]
fn f32_golden_bits() {
    let mut changed = false;
    for f in &FUNCTIONS {
        let mut hash = Hash::new();
        golden_inputs().iter().for_each(|&x| hash.f32((f.run)(x)));
        println!("golden {} {:#018x}", f.name, hash.0);
        changed |= hash.0 != f.golden;
    }
    assert!(!changed, "the bits of an f32 function changed: compare the hashes printed above");
}

#[cfg(target_arch = "x86_64")]
mod vector {
    use super::*;

    macro_rules! vectorised {
        ($($name:ident),*) => {
            $(#[target_feature(enable = "avx2,fma")]
            fn $name(xs: &[f32], out: &mut [f32]) {
                for (y, &x) in out.iter_mut().zip(xs) {
                    *y = math::$name(x);
                }
            })*
            /// Function and its vectorised loop.
            const LOOPS: &[(&str, fn(f32) -> f32, unsafe fn(&[f32], &mut [f32]))] =
                &[$((stringify!($name), |x| math::$name(x), $name)),*];
        };
    }
    vectorised!(exp, tanh, ln, sigmoid, silu, gelu_tanh);

    #[target_feature(enable = "avx2,fma")]
    fn reductions(xs: &[f32], ys: &[f32]) -> [f32; 4] {
        [math::sum16(xs), math::dot16(xs, ys), math::sum_sq16(xs), math::max16(xs)]
    }

    fn available() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }

    #[test]
    fn vector_code_gives_the_scalar_bits() {
        if !available() {
            println!("skipped: no AVX2 with FMA here");
            return;
        }
        let xs = golden_inputs();
        let mut out = vec![0.0; xs.len()];
        for &(name, scalar, vector) in LOOPS {
            // SAFETY: `available` found avx2 and fma.
            unsafe { vector(&xs, &mut out) };
            for (&x, &y) in xs.iter().zip(&out) {
                let want = scalar(x);
                assert!(y.to_bits() == want.to_bits() || (y.is_nan() && want.is_nan()), "{name}({x:e}): {y:e}, {want:e}");
            }
        }
    }

    #[test]
    fn vector_reductions_give_the_scalar_bits() {
        if !available() {
            println!("skipped: no AVX2 with FMA here");
            return;
        }
        for n in (0..70).chain([255, 256, 1000, 4097]) {
            let xs = noise(n, 1);
            let ys = noise(n, 2);
            // SAFETY: `available` found avx2 and fma.
            let got = unsafe { reductions(&xs, &ys) };
            let want = [math::sum16(&xs), math::dot16(&xs, &ys), math::sum_sq16(&xs), math::max16(&xs)];
            assert_eq!(got.map(f32::to_bits), want.map(f32::to_bits), "{n} elements");
        }
    }
}

/// Floats of mixed magnitude from a fixed sequence.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..n)
        .map(|_| {
            let r = next();
            ((r >> 40) as f32 / 8_388_608.0 - 1.0) * [0.01, 1.0, 30.0, 1e4][(r & 3) as usize]
        })
        .collect()
}

/// The order that the module states, written out naively.
fn lanes_by_the_book(xs: &[f32], init: f32, step: impl Fn(f32, f32) -> f32, op: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes: Vec<f32> = (0..16).map(|lane| xs.iter().skip(lane).step_by(16).fold(init, |a, &x| step(a, x))).collect();
    while lanes.len() > 1 {
        let upper = lanes.split_off(lanes.len() / 2);
        lanes = lanes.iter().zip(&upper).map(|(&a, &b)| op(a, b)).collect();
    }
    lanes[0]
}

#[test]
fn lanes_follow_the_stated_order() {
    let mut hash = Hash::new();
    for n in (0..70).chain([255, 256, 1000, 4097]) {
        let xs = noise(n, 3);
        let ys = noise(n, 4);
        let sum = lanes_by_the_book(&xs, 0.0, |a, x| a + x, |a, b| a + b);
        let sum_sq = lanes_by_the_book(&xs, 0.0, |a, x| x.mul_add(x, a), |a, b| a + b);
        assert_eq!(math::sum16(&xs).to_bits(), sum.to_bits(), "sum of {n}");
        assert_eq!(math::sum_sq16(&xs).to_bits(), sum_sq.to_bits(), "sum of squares of {n}");
        let mut lanes = [0.0f32; 16];
        for (i, (x, y)) in xs.iter().zip(&ys).enumerate() {
            lanes[i % 16] = x.mul_add(*y, lanes[i % 16]);
        }
        let dot = lanes_by_the_book(&lanes, 0.0, |_, x| x, |a, b| a + b);
        assert_eq!(math::dot16(&xs, &ys).to_bits(), dot.to_bits(), "dot of {n}");
        let max = xs.iter().copied().fold(f32::NEG_INFINITY, |a, x| if x > a { x } else { a });
        assert_eq!(math::max16(&xs).to_bits(), max.to_bits(), "maximum of {n}");
        for y in [sum, sum_sq, dot, max] {
            hash.f32(y);
        }
    }
    assert_eq!(hash.0, 0xc4db_eac5_a2fa_8857, "the bits of the lane reductions changed: {:#018x}", hash.0);
}

#[test]
fn lanes_special_values() {
    assert_eq!(math::sum16(&[]), 0.0);
    assert_eq!(math::max16(&[]), f32::NEG_INFINITY);
    assert!(math::all_finite(&[]));
    for n in [1, 15, 16, 17, 40] {
        for at in 0..n {
            let mut xs = vec![-1.0f32; n];
            xs[at] = f32::NAN;
            assert!(math::sum16(&xs).is_nan() && math::sum_sq16(&xs).is_nan() && math::dot16(&xs, &xs).is_nan());
            assert_eq!(math::max16(&xs), if n == 1 { f32::NEG_INFINITY } else { -1.0 });
            assert!(!math::all_finite(&xs));
            xs[at] = f32::NEG_INFINITY;
            assert!(!math::all_finite(&xs));
            xs[at] = 2.0;
            assert!(math::all_finite(&xs));
            assert_eq!(math::max16(&xs), 2.0);
        }
    }
}

/// Distance of two finite f64 in representable numbers.
fn steps(a: f64, b: f64) -> u64 {
    let key = |x: f64| {
        let bits = x.to_bits().cast_signed();
        if bits < 0 { i64::MIN - bits } else { bits }
    };
    key(a).abs_diff(key(b))
}

#[test]
fn f64_functions_are_within_one_ulp_of_correctly_rounded() {
    let mut hash = Hash::new();
    let mut n = 0;
    let mut off = 0;
    for line in include_str!("data/math_f64.txt").lines() {
        let mut fields = line.split(' ');
        let name = fields.next().unwrap();
        let numbers: Vec<f64> = fields.map(|f| f64::from_bits(u64::from_str_radix(f, 16).unwrap())).collect();
        let (want, args) = numbers.split_last().unwrap();
        let got = match name {
            "exp" => double::exp(args[0]),
            "ln" => double::ln(args[0]),
            "pow" => double::pow(args[0], args[1]),
            "sin" => double::sin_cos(args[0]).0,
            "cos" => double::sin_cos(args[0]).1,
            other => panic!("no function {other}"),
        };
        assert!(steps(got, *want) <= 1, "{name}{args:?} = {got:e}, not {want:e}");
        n += 1;
        off += steps(got, *want);
        hash.f64(got);
    }
    println!("{n} results, {off} of them one step off");
    assert!(n > 2000, "only {n} results read");
    assert_eq!(hash.0, 0x9823_897a_a81a_d027, "the bits of an f64 function changed: {:#018x}", hash.0);
}

#[test]
fn f64_special_values() {
    let inf = f64::INFINITY;
    let cases: &[(&str, f64, f64)] = &[
        ("exp inf", double::exp(inf), inf),
        ("exp -inf", double::exp(-inf), 0.0),
        ("exp 710", double::exp(710.0), inf),
        ("exp -746", double::exp(-746.0), 0.0),
        ("exp -0", double::exp(-0.0), 1.0),
        ("exp nan", double::exp(f64::NAN), f64::NAN),
        ("ln 0", double::ln(0.0), -inf),
        ("ln -0", double::ln(-0.0), -inf),
        ("ln -1", double::ln(-1.0), f64::NAN),
        ("ln inf", double::ln(inf), inf),
        ("ln nan", double::ln(f64::NAN), f64::NAN),
        ("ln 1", double::ln(1.0), 0.0),
        ("pow 2 10", double::pow(2.0, 10.0), 1024.0),
        ("pow 10000 0", double::pow(10_000.0, 0.0), 1.0),
        ("pow 10000 1", double::pow(10_000.0, 1.0), 10_000.0),
        ("pow 4 -0.5", double::pow(4.0, -0.5), 0.5),
        ("pow 2 2000", double::pow(2.0, 2000.0), inf),
        ("pow 2 -2000", double::pow(2.0, -2000.0), 0.0),
        ("pow 0.5 inf", double::pow(0.5, inf), 0.0),
        ("pow 2 inf", double::pow(2.0, inf), inf),
        ("pow inf -1", double::pow(inf, -1.0), 0.0),
        ("pow 1 inf", double::pow(1.0, inf), 1.0),
        ("pow 0 1", double::pow(0.0, 1.0), f64::NAN),
        ("pow -1 2", double::pow(-1.0, 2.0), f64::NAN),
        ("pow 2 1e308", double::pow(2.0, 1e308), inf),
        ("pow 1e-300 1e308", double::pow(1e-300, 1e308), 0.0),
        ("sin inf", double::sin_cos(inf).0, f64::NAN),
        ("cos nan", double::sin_cos(f64::NAN).1, f64::NAN),
        ("sin 2^52", double::sin_cos(4_503_599_627_370_496.0).0, f64::NAN),
        ("sin 0", double::sin_cos(0.0).0, 0.0),
        ("cos 0", double::sin_cos(0.0).1, 1.0),
        ("sin 5e-324", double::sin_cos(5e-324).0, 5e-324),
    ];
    for &(name, got, want) in cases {
        assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{name} = {got:e}, not {want:e}");
    }
    for e in 32..51 {
        let (sin, cos) = double::sin_cos(f64::from_bits((1023 + e) << 52) * 1.37);
        assert!(sin.abs() <= 1.0 && cos.abs() <= 1.0, "2^{e}");
    }
}

#[test]
fn half_precision_conversions_round_to_nearest_even() {
    use half::f16;
    for bits in 0..=u16::MAX {
        let h = f16::from_bits(bits);
        assert!(h.is_nan() || f16::from_f32(h.to_f32()).to_bits() == bits, "{bits:04x}");
    }
    // Midpoints between neighbours go to the even one, their neighbours in f32 to the nearer; all magnitudes, subnormals
    // included. 65520 is the midpoint between the largest f16 and the overflow.
    for bits in 0..0x7bffu16 {
        let (lo, hi) = (f16::from_bits(bits), f16::from_bits(bits + 1));
        let mid = (lo.to_f32() + hi.to_f32()) / 2.0;
        let even = if bits & 1 == 0 { lo } else { hi };
        assert_eq!(f16::from_f32(mid), even, "midpoint above {bits:04x}");
        assert_eq!(f16::from_f32(-mid), -even, "midpoint below -{bits:04x}");
        assert_eq!(f16::from_f32(f32::from_bits(mid.to_bits() - 1)), lo);
        assert_eq!(f16::from_f32(f32::from_bits(mid.to_bits() + 1)), hi);
    }
    assert_eq!(f16::from_f32(65_519.996), f16::MAX);
    assert_eq!(f16::from_f32(65_520.0), f16::INFINITY);
}
