//! The search behind the encoders of Q4_K, Q5_K, Q6_K.
//!
//! A group's scale (and minimum) is sought in two steps. First in real numbers: for a few stretches of the grid over the
//! values, round, then solve the weighted least squares for scale and minimum at these integers, and keep the best. Then,
//! once the block's f16 scales are known, in the stored integers: the rounded ones and their neighbours, each with the
//! integers that suit it best. The error is weighted by `rms + |x|`, since large weights matter more to a sum of products.

/// Weighted squares: what a candidate is judged by.
fn weights<const N: usize>(x: &[f32]) -> [f32; N] {
    let rms = (x.iter().map(|v| v * v).sum::<f32>() / N as f32).sqrt();
    std::array::from_fn(|i| rms + x[i].abs())
}

/// Stretches of the grid that are tried, in steps added to the number of levels.
fn stretches() -> impl Iterator<Item = f32> {
    (-10..=10).map(|i| i as f32 * 0.1)
}

/// Scale and minimum, both at least 0, such that `scale * q - min` with `q` from 0 to `top` is close to `x`.
pub(super) fn fit_affine<const N: usize>(x: &[f32], top: u8) -> (f32, f32) {
    let low = x.iter().copied().fold(0.0, f32::min);
    let high = x.iter().copied().fold(low, f32::max);
    let w: [f32; N] = weights(x);
    let mut best = (0.0, -low);
    let mut best_error = affine_error(x, &w, top, best.0, best.1);
    if high > low {
        for stretch in stretches() {
            let inverse = (f32::from(top) + stretch) / (high - low);
            let mut sums = Sums::default();
            for i in 0..N {
                sums.add(
                    w[i],
                    nearest((x[i] - low) * inverse, 0.0, f32::from(top)),
                    x[i],
                );
            }
            let (scale, min) = sums.solve();
            let error = affine_error(x, &w, top, scale, min);
            if error < best_error {
                (best, best_error) = ((scale, min), error);
            }
        }
    }
    best
}

/// Weighted sums over integers q and values x.
#[derive(Default)]
struct Sums {
    w: f32,
    q: f32,
    qq: f32,
    x: f32,
    qx: f32,
}

impl Sums {
    fn add(&mut self, w: f32, q: f32, x: f32) {
        self.w += w;
        self.q += w * q;
        self.qq += w * q * q;
        self.x += w * x;
        self.qx += w * q * x;
    }

    /// Least squares of `scale * q - min = x`; where that makes the minimum negative, with a minimum of 0.
    fn solve(&self) -> (f32, f32) {
        let det = self.w * self.qq - self.q * self.q;
        if det > 0.0 {
            let scale = (self.w * self.qx - self.q * self.x) / det;
            let min = (self.q * self.qx - self.qq * self.x) / det;
            if min >= 0.0 && scale >= 0.0 {
                return (scale, min);
            }
        }
        (
            if self.qq > 0.0 {
                (self.qx / self.qq).max(0.0)
            } else {
                0.0
            },
            0.0,
        )
    }
}

fn nearest(v: f32, low: f32, high: f32) -> f32 {
    v.round().max(low).min(high)
}

/// The integer from 0 to `top` for which `scale * q - min` is nearest to `v`.
fn affine_level(v: f32, top: u8, inverse: f32, min: f32) -> f32 {
    nearest((v + min) * inverse, 0.0, f32::from(top))
}

fn affine_error(x: &[f32], w: &[f32], top: u8, scale: f32, min: f32) -> f32 {
    let inverse = super::legacy_encode::inverse(scale);
    let error = |v: f32| affine_level(v, top, inverse, min) * scale - min - v;
    x.iter()
        .zip(w)
        .map(|(&v, &w)| w * error(v) * error(v))
        .sum()
}

/// A block of 256 with 8 groups of 32: f16 scales as f32, 6-bit scales and minima, integers from 0 to `top`.
pub(super) struct AffineBlock {
    pub(super) d: f32,
    pub(super) dmin: f32,
    pub(super) scales: [u8; 8],
    pub(super) mins: [u8; 8],
    pub(super) q: [u8; 256],
}

/// Encodes 256 values for Q4_K (`top` 15) or Q5_K (`top` 31).
pub(super) fn affine_block(values: &[f32], top: u8) -> AffineBlock {
    const LARGEST: f32 = 63.0;
    let mut fits = [(0f32, 0f32); 8];
    for (x, fit) in values.chunks_exact(32).zip(&mut fits) {
        *fit = fit_affine::<32>(x, top);
    }
    let d = round_to_f16(fits.iter().map(|f| f.0).fold(0.0, f32::max) / LARGEST);
    let dmin = round_to_f16(fits.iter().map(|f| f.1).fold(0.0, f32::max) / LARGEST);
    let (inverse_d, inverse_dmin) = (
        super::legacy_encode::inverse(d),
        super::legacy_encode::inverse(dmin),
    );

    let mut block = AffineBlock {
        d,
        dmin,
        scales: [0; 8],
        mins: [0; 8],
        q: [0; 256],
    };
    let groups = values.chunks_exact(32).zip(block.q.chunks_exact_mut(32));
    for (g, (x, q)) in groups.enumerate() {
        let w: [f32; 32] = weights(x);
        let s = nearest(fits[g].0 * inverse_d, 0.0, LARGEST);
        let m = nearest(fits[g].1 * inverse_dmin, 0.0, LARGEST);
        let mut best_error = f32::INFINITY;
        for (ds, dm) in NEIGHBOURS {
            let (s, m) = (nearest(s + ds, 0.0, LARGEST), nearest(m + dm, 0.0, LARGEST));
            let error = affine_error(x, &w, top, d * s, dmin * m);
            if error < best_error {
                best_error = error;
                (block.scales[g], block.mins[g]) = (s as u8, m as u8);
            }
        }
        let (scale, min) = (
            d * f32::from(block.scales[g]),
            dmin * f32::from(block.mins[g]),
        );
        let inverse = super::legacy_encode::inverse(scale);
        for (&v, q) in x.iter().zip(q) {
            *q = affine_level(v, top, inverse, min) as u8;
        }
    }
    block
}

/// Steps from the rounded scale and minimum; the rounded pair comes first, so it wins ties.
const NEIGHBOURS: [(f32, f32); 9] = [
    (0., 0.),
    (-1., 0.),
    (1., 0.),
    (0., -1.),
    (0., 1.),
    (-1., -1.),
    (-1., 1.),
    (1., -1.),
    (1., 1.),
];

/// Scale of either sign such that `scale * q` with `q` from `-half` to `half - 1` is close to the 16 values `x`.
fn fit_symmetric(x: &[f32], half: f32) -> f32 {
    let w: [f32; 16] = weights(x);
    let largest = x
        .iter()
        .fold(0f32, |best, &v| if v.abs() > best.abs() { v } else { best });
    let mut best = 0.0;
    let mut best_error = symmetric_error(x, &w, half, best);
    if largest != 0.0 {
        for stretch in stretches() {
            let inverse = -(half + stretch) / largest;
            let mut sums = Sums::default();
            for i in 0..16 {
                sums.add(w[i], nearest(x[i] * inverse, -half, half - 1.0), x[i]);
            }
            let scale = if sums.qq > 0.0 {
                sums.qx / sums.qq
            } else {
                0.0
            };
            let error = symmetric_error(x, &w, half, scale);
            if error < best_error {
                (best, best_error) = (scale, error);
            }
        }
    }
    best
}

fn symmetric_error(x: &[f32], w: &[f32], half: f32, scale: f32) -> f32 {
    let inverse = super::legacy_encode::inverse(scale);
    let error = |v: f32| nearest(v * inverse, -half, half - 1.0) * scale - v;
    x.iter()
        .zip(w)
        .map(|(&v, &w)| w * error(v) * error(v))
        .sum()
}

/// A block of 256 with 16 groups of 16: f16 scale as f32, 8-bit scales, integers from -32 to 31.
pub(super) struct SymmetricBlock {
    pub(super) d: f32,
    pub(super) scales: [i8; 16],
    pub(super) q: [i8; 256],
}

/// Encodes 256 values for Q6_K.
pub(super) fn symmetric_block(values: &[f32]) -> SymmetricBlock {
    const HALF: f32 = 32.0;
    let mut fits = [0f32; 16];
    for (x, fit) in values.chunks_exact(16).zip(&mut fits) {
        *fit = fit_symmetric(x, HALF);
    }
    // The scale largest in magnitude becomes -128, the one value without a counterpart.
    let largest = fits
        .iter()
        .fold(0f32, |best, &v| if v.abs() > best.abs() { v } else { best });
    let d = round_to_f16(largest / -128.0);
    let inverse_d = super::legacy_encode::inverse(d);

    let mut block = SymmetricBlock {
        d,
        scales: [0; 16],
        q: [0; 256],
    };
    let groups = values.chunks_exact(16).zip(block.q.chunks_exact_mut(16));
    for (g, (x, q)) in groups.enumerate() {
        let w: [f32; 16] = weights(x);
        let s = nearest(fits[g] * inverse_d, -128.0, 127.0);
        let mut best_error = f32::INFINITY;
        for step in [0.0, -1.0, 1.0] {
            let s = nearest(s + step, -128.0, 127.0);
            let error = symmetric_error(x, &w, HALF, d * s);
            if error < best_error {
                best_error = error;
                block.scales[g] = s as i8;
            }
        }
        let inverse = super::legacy_encode::inverse(d * f32::from(block.scales[g]));
        for (&v, q) in x.iter().zip(q) {
            *q = nearest(v * inverse, -HALF, HALF - 1.0) as i8;
        }
    }
    block
}

fn round_to_f16(v: f32) -> f32 {
    half::f16::from_f32(v).to_f32()
}
