//! How positions become angles: base, rotated part, and the rules by which contexts were stretched. All of them end in
//! one frequency per pair and one magnitude; nothing is left to compute per token but `position * frequency`.
//!
//! ```text
//!   plain       f[i] = base^(-2 i / n_rot)
//!   divisors    f[i] / d[i]            llama3: `rope_freqs.weight`;  LongRoPE: `rope_factors_long.weight` or `_short`
//!   linear      f[i] / factor          (Chen et al. 2023)
//!   YaRN        f[i] (1 - r[i]) / factor + f[i] r[i]   with a ramp r from 1, fast pairs, to 0, slow ones (Peng et al. 2023)
//! ```

use crate::math::double;
use crate::model::{Keys, ModelError, ModelFile};
use crate::ops::{Pairing, RopeTable};
use selvedge_gguf::decode_row;
use std::sync::Arc;

/// How a context longer than the trained one is reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// All pairs turn slower.
    Linear {
        /// How much slower.
        factor: f64,
    },
    /// Slow pairs turn slower, fast ones don't.
    Yarn(Yarn),
}

/// Parameters of YaRN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// How much slower the slow pairs turn.
    pub factor: f64,
    /// Context before the stretch, positions.
    pub n_ctx_orig: f64,
    /// Turns within `n_ctx_orig` above which a pair is fast.
    pub beta_fast: f64,
    /// Turns within `n_ctx_orig` below which a pair is slow.
    pub beta_slow: f64,
    /// Weight of the unscaled frequency in fast pairs, 1 unless a file says otherwise.
    pub mix: f64,
    /// Where a file gives one, the magnitude is divided by that of this multiplier.
    pub log_multiplier: f64,
}

/// Which tensor divides the frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Divisors {
    /// None.
    None,
    /// One for all contexts: llama3.
    Fixed,
    /// One for contexts up to the original, one for longer ones: LongRoPE. The configured context decides, so that a
    /// conversation doesn't change its own past when it grows.
    ByContext {
        /// The original context, positions.
        n_ctx_orig: usize,
    },
}

/// Rotary embedding of some of a model's layers.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Name of its table's value in the graph.
    pub name: &'static str,
    /// Features of a head that turn.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub base: f64,
    /// Which features form a pair.
    pub pairing: Pairing,
    /// Stretch.
    pub scaling: Scaling,
    /// Divisors.
    pub divisors: Divisors,
    /// Factor of every cosine and sine, apart from YaRN's own.
    pub magnitude: f64,
}

/// Tensor of llama3's divisors.
pub const FREQS: &str = "rope_freqs.weight";
/// Tensors of LongRoPE's divisors: for long contexts, for short ones.
pub const FACTORS: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];

/// Names of `rope.scaling.type`.
const SCALING_TYPES: [&str; 4] = ["none", "linear", "yarn", "longrope"];

impl RopeConfig {
    /// Reads the keys of an architecture whose heads have `d_head` features.
    ///
    /// # Errors
    /// Keys of other types, numbers that make no sense, a scaling rule that isn't known.
    pub fn from_keys(keys: &Keys<'_>, file: &ModelFile, d_head: usize, pairing: Pairing) -> Result<RopeConfig, ModelError> {
        let n_rot = keys.usize("rope.dimension_count")?.unwrap_or(d_head);
        if n_rot == 0 || n_rot > d_head || !n_rot.is_multiple_of(2) {
            return Err(keys.wrong("rope.dimension_count", format!("an even number from 2 to the head size, {d_head}"), n_rot));
        }
        let base = base(keys, "rope.freq_base")?.unwrap_or(10_000.0);
        let ty = keys.str("rope.scaling.type")?;
        if let Some(ty) = ty.filter(|ty| !SCALING_TYPES.contains(ty)) {
            return Err(keys.wrong("rope.scaling.type", format!("one of {}", SCALING_TYPES.join(", ")), ty));
        }
        let factor = match keys.positive_or_off("rope.scaling.factor")? {
            None => keys.positive_or_off("rope.scale_linear")?,
            factor => factor,
        };
        let factor = f64::from(factor.unwrap_or(1.0));
        let n_ctx_train = keys.require_usize("context_length")?;
        let n_ctx_orig = keys.usize("rope.scaling.original_context_length")?.filter(|&n| n > 0).unwrap_or(n_ctx_train);
        let scaling = match ty {
            Some("yarn") => Scaling::Yarn(Yarn {
                factor,
                n_ctx_orig: n_ctx_orig as f64,
                beta_fast: f64::from(keys.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0)),
                beta_slow: f64::from(keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0)),
                mix: f64::from(keys.f32("rope.scaling.yarn_ext_factor")?.filter(|&m| m >= 0.0).unwrap_or(1.0)),
                log_multiplier: f64::from(keys.f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0)),
            }),
            None | Some("linear") if factor != 1.0 => Scaling::Linear { factor },
            // LongRoPE's factors hold the stretch of every pair already.
            _ => Scaling::None,
        };
        let by_context = FACTORS.iter().all(|name| file.tensor(name).is_some());
        if ty == Some("longrope") && !by_context {
            let name = FACTORS.iter().find(|name| file.tensor(name).is_none()).map_or("", |n| n);
            return Err(ModelError::TensorMissing { name: name.into(), architecture: keys.architecture().into() });
        }
        let divisors = if by_context {
            Divisors::ByContext { n_ctx_orig }
        } else if file.tensor(FREQS).is_some() {
            Divisors::Fixed
        } else {
            Divisors::None
        };
        let magnitude = match keys.positive("rope.scaling.attn_factor")?.or(keys.positive("rope.scaling.yarn_attn_factor")?) {
            Some(m) => f64::from(m),
            None if by_context => long_rope_magnitude(n_ctx_train, n_ctx_orig),
            None => 1.0,
        };
        Ok(RopeConfig { name: "rope_table", n_rot, base, pairing, scaling, divisors, magnitude })
    }

    /// The same rotation with another base and no stretch: what windowed layers use, as they never look far.
    ///
    /// # Errors
    /// A base that makes no sense.
    pub fn local(&self, keys: &Keys<'_>, key: &str, default: f64) -> Result<RopeConfig, ModelError> {
        let base = base(keys, key)?.unwrap_or(default);
        let name = "rope_table_local";
        Ok(RopeConfig { name, base, scaling: Scaling::None, divisors: Divisors::None, magnitude: 1.0, ..self.clone() })
    }

    /// The table's op, for a context of `n_ctx` positions.
    ///
    /// # Errors
    /// Divisors of another length, or that make no sense.
    pub fn table(&self, file: &ModelFile, n_ctx: usize) -> Result<RopeTable, ModelError> {
        let n = self.n_rot / 2;
        let divisors = match self.divisors {
            Divisors::None => vec![1.0; n],
            Divisors::Fixed => read_divisors(file, FREQS, n)?,
            Divisors::ByContext { n_ctx_orig } => read_divisors(file, FACTORS[usize::from(n_ctx <= n_ctx_orig)], n)?,
        };
        let exponent = |i: usize| -2.0 * i as f64 / self.n_rot as f64;
        let plain = (0..n).zip(&divisors).map(|(i, &d)| double::pow(self.base, exponent(i)) / f64::from(d));
        let inv_freq: Arc<[f64]> = match self.scaling {
            Scaling::None => plain.collect(),
            Scaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            Scaling::Yarn(yarn) => plain.enumerate().map(|(i, f)| yarn.blend(i, f, self.n_rot, self.base)).collect(),
        };
        let magnitude = match self.scaling {
            Scaling::Yarn(yarn) => self.magnitude * yarn.magnitude(),
            _ => self.magnitude,
        };
        Ok(RopeTable { inv_freq, magnitude: magnitude as f32 })
    }
}

impl Yarn {
    /// Frequency of pair `i`, plainly `f`.
    fn blend(&self, i: usize, f: f64, n_rot: usize, base: f64) -> f64 {
        // The pair that makes `turns` turns within the original context, from base^(-2 i / n_rot) n_ctx_orig = 2 pi turns.
        let pair = |turns: f64| {
            let ratio = self.n_ctx_orig / (turns * 2.0 * std::f64::consts::PI);
            n_rot as f64 * double::ln(ratio) / (2.0 * double::ln(base))
        };
        let low = pair(self.beta_fast).floor().max(0.0);
        let high = pair(self.beta_slow).ceil().min(n_rot as f64 - 1.0);
        let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let fast = (1.0 - ramp) * self.mix;
        f / self.factor * (1.0 - fast) + f * fast
    }

    /// Longer contexts spread attention; turned features grow a little to counter that.
    fn magnitude(&self) -> f64 {
        let m = |multiplier: f64| if self.factor <= 1.0 { 1.0 } else { 0.1 * multiplier * double::ln(self.factor) + 1.0 };
        if self.mix == 0.0 { 1.0 } else { m(1.0) / m(self.log_multiplier) }
    }
}

/// `sqrt(1 + ln(s) / ln(original))` for a stretch of s (Ding et al. 2024), where the file names none.
fn long_rope_magnitude(n_ctx_train: usize, n_ctx_orig: usize) -> f64 {
    let stretch = n_ctx_train as f64 / n_ctx_orig as f64;
    if stretch <= 1.0 || n_ctx_orig <= 1 { 1.0 } else { (1.0 + double::ln(stretch) / double::ln(n_ctx_orig as f64)).sqrt() }
}

fn base(keys: &Keys<'_>, key: &str) -> Result<Option<f64>, ModelError> {
    match keys.f32(key)? {
        Some(b) if b <= 1.0 => Err(keys.wrong(key, "a number above 1", b)),
        b => Ok(b.map(f64::from)),
    }
}

fn read_divisors(file: &ModelFile, name: &str, n: usize) -> Result<Vec<f32>, ModelError> {
    let missing = || ModelError::TensorMissing { name: name.into(), architecture: "rope scaling".into() };
    let t = file.tensor(name).ok_or_else(missing)?;
    if (t.n_in, t.n_out) != (n, 1) {
        let found = if t.n_out == 1 { vec![t.n_in as u64] } else { vec![t.n_in as u64, t.n_out as u64] };
        return Err(ModelError::TensorShape { name: name.into(), expected: vec![n as u64], found });
    }
    let mut values = vec![0.0; n];
    decode_row(t.ty, t.bytes, &mut values).map_err(|_| ModelError::TensorType { name: name.into(), ty: t.ty })?;
    match values.iter().position(|v| !v.is_finite() || *v <= 0.0) {
        Some(index) => Err(ModelError::TensorValue { name: name.into(), index, expected: "numbers above 0", found: values[index] }),
        None => Ok(values),
    }
}
