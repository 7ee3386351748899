//! Rotary position embedding (Su et al. 2021): pairs of features turn by `pos * inv_freq[i]`.
//!
//! All scaling rules (linear, llama3, YaRN, LongRoPE) are settled when the graph is built: they end up in `inv_freq` and
//! `magnitude` (see `arch::rope`).

use super::{Cost, OpDef, RefCx, RowsDim, Shape, ShapeCx, ShapeError, mismatch, require};
use crate::math;
use std::sync::Arc;

/// Cosines and sines of the step's positions: no inputs, output `[rows, 2 n]` with n cosines, then n sines.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// `[n]` angle per position, radians.
    pub inv_freq: Arc<[f64]>,
    /// Factor of every cosine and sine.
    pub magnitude: f32,
}

impl RopeTable {
    /// Cosine and sine of pair `i` at `pos`. The angle is taken in f64 and rounded once, at the end.
    pub fn eval(&self, pos: u32, i: usize) -> (f32, f32) {
        let (sin, cos) = math::double::sin_cos(f64::from(pos) * self.inv_freq[i]);
        let m = f64::from(self.magnitude);
        ((cos * m) as f32, (sin * m) as f32)
    }
}

impl OpDef for RopeTable {
    const NAME: &'static str = "rope_table";
    /// Angles of large positions need more than f32.
    const TOLERANCE: f64 = 1e-6;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(0)?;
        Ok(vec![Shape::f32(RowsDim::Step, 2 * self.inv_freq.len())])
    }

    fn cost(&self, _cx: &ShapeCx<'_>) -> Cost {
        Cost { weight_bytes: 0.0, ops_per_row: 60.0 * self.inv_freq.len() as f64 }
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        let n = self.inv_freq.len();
        for (row, out) in cx.rows.iter().zip(cx.outputs[0].chunks_exact_mut(2 * n)) {
            for i in 0..n {
                (out[i], out[n + i]) = self.eval(row.pos[0], i);
            }
        }
    }
}

/// Which features form a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// Neighbours: (0, 1), (2, 3), ... ("norm": files of the llama architecture, whose rows are permuted for it).
    Interleaved,
    /// First half with second half of the rotated part: (0, n), (1, n + 1), ... ("neox").
    Halves,
}

/// Turns each head of its input. Inputs: x `[rows, n_head * d_head]`, table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rope {
    /// Heads.
    pub n_head: usize,
    /// Head size.
    pub d_head: usize,
    /// Features that turn, from the first; the rest pass.
    pub n_rot: usize,
    /// Which features form a pair.
    pub pairing: Pairing,
}

/// Turns one head in place. `cos`, `sin`: `[n_rot / 2]`. Two products and a sum, each rounded, in this order everywhere.
#[inline(always)]
pub fn rope_head(x: &mut [f32], cos: &[f32], sin: &[f32], pairing: Pairing) {
    let n = cos.len();
    match pairing {
        Pairing::Interleaved => {
            for ((pair, &c), &s) in x[..2 * n].chunks_exact_mut(2).zip(cos).zip(sin) {
                let (a, b) = (pair[0], pair[1]);
                pair[0] = a * c - b * s;
                pair[1] = a * s + b * c;
            }
        }
        Pairing::Halves => {
            let (lo, hi) = x[..2 * n].split_at_mut(n);
            for (((a, b), &c), &s) in lo.iter_mut().zip(hi).zip(cos).zip(sin) {
                let (va, vb) = (*a, *b);
                *a = va * c - vb * s;
                *b = va * s + vb * c;
            }
        }
    }
}

impl Rope {
    /// Checks the shapes of a value and its table.
    pub(super) fn check(&self, x: Shape, table: Shape) -> Result<(), ShapeError> {
        require("columns", self.n_head * self.d_head, x.cols)?;
        require("columns of the table", self.n_rot, table.cols)?;
        if self.n_rot > self.d_head || !self.n_rot.is_multiple_of(2) {
            return Err(mismatch("rotated features", format!("an even number up to {}", self.d_head), self.n_rot));
        }
        Ok(())
    }

    /// Turns all heads of a row. `table`: cosines, then sines.
    #[inline(always)]
    pub fn eval_row(&self, x: &mut [f32], table: &[f32]) {
        let (cos, sin) = table.split_at(self.n_rot / 2);
        for head in x.chunks_exact_mut(self.d_head) {
            rope_head(head, cos, sin, self.pairing);
        }
    }
}

impl OpDef for Rope {
    const NAME: &'static str = "rope";
    const TOLERANCE: f64 = 1e-6;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(2)?;
        self.check(cx.inputs[0], cx.inputs[1])?;
        Ok(vec![cx.inputs[0]])
    }

    fn cost(&self, cx: &ShapeCx<'_>) -> Cost {
        Cost { weight_bytes: 0.0, ops_per_row: 3.0 * cx.inputs[0].cols as f64 }
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        cx.outputs[0].copy_from_slice(cx.inputs[0]);
        for (x, table) in cx.outputs[0].chunks_exact_mut(self.n_head * self.d_head).zip(cx.inputs[1].chunks_exact(self.n_rot)) {
            self.eval_row(x, table);
        }
    }

    fn in_place(&self) -> bool {
        true
    }
}
