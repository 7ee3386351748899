//! `out = softmax(scale * q . K [soft-capped]) V` over the positions that the mask shows (Vaswani et al. 2017), grouped
//! heads (Ainslie et al. 2023).

use super::matmul::dot;
use super::{Cost, OpDef, RefCx, Shape, ShapeCx, ShapeError, SoftCap, mismatch, require};
use crate::kv::{KvPages, PAGE};
use crate::math;
use crate::step::Row;

/// Which positions a row at `pos` sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mask {
    /// `0..=pos`
    Causal,
    /// The last `n` up to and with `pos`.
    Window(u32),
}

impl Mask {
    /// First position that a row at `pos` sees.
    #[inline(always)]
    pub fn first(self, pos: usize) -> usize {
        match self {
            Mask::Causal => 0,
            Mask::Window(n) => (pos + 1).saturating_sub(n as usize),
        }
    }
}

/// Attention of the step's rows over the cache, their own positions included. Input: q `[rows, n_head * d_k]`; output
/// `[rows, n_head * d_v]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Layer in the cache.
    pub layer: usize,
    /// Query heads.
    pub n_head: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Soft cap of the scaled scores.
    pub soft_cap: Option<f32>,
    /// What is seen.
    pub mask: Mask,
}

impl OpDef for Attention {
    const NAME: &'static str = "attention";
    /// Order of the softmax's sums, and a device's own exp.
    const TOLERANCE: f64 = 1e-5;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(1)?;
        let n_layer = cx.kv_layers.len();
        let layer = cx.kv_layers.get(self.layer).ok_or_else(|| mismatch("layer", format!("fewer than {n_layer}"), self.layer))?;
        require("columns of the queries", self.n_head * layer.d_k, cx.inputs[0].cols)?;
        if layer.n_head_kv == 0 || !self.n_head.is_multiple_of(layer.n_head_kv) {
            return Err(mismatch("query heads", format!("a multiple of {} key heads", layer.n_head_kv), self.n_head));
        }
        let held = layer.window.map_or(Mask::Causal, Mask::Window);
        require("mask, as far as the cache holds positions", held, self.mask)?;
        Ok(vec![Shape::f32(cx.inputs[0].rows, self.n_head * layer.d_v)])
    }

    fn cost(&self, cx: &ShapeCx<'_>) -> Cost {
        // A middling depth: the true one is known only when a step runs.
        Cost { weight_bytes: 0.0, ops_per_row: 2.0 * 512.0 * cx.inputs[0].cols as f64 }
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        let layout = cx.kv.layout(self.layer);
        let (rows, q, kv) = (cx.rows, cx.inputs[0], cx.kv);
        let out_cols = self.n_head * layout.d_v;
        let rows_per_thread = rows.len().div_ceil(cx.n_threads.max(1)).max(1);
        std::thread::scope(|scope| {
            for (i, out) in cx.outputs[0].chunks_mut(rows_per_thread * out_cols).enumerate() {
                let rows = &rows[i * rows_per_thread..][..out.len() / out_cols];
                let q = &q[i * rows_per_thread * self.n_head * layout.d_k..];
                scope.spawn(move || {
                    // Rows of one sequence read its keys and values once.
                    let mut done = 0;
                    for run in rows.chunk_by(|a, b| a.seq == b.seq) {
                        let q = &q[done * self.n_head * layout.d_k..];
                        self.eval_run(run, q, kv, &mut out[done * out_cols..][..run.len() * out_cols]);
                        done += run.len();
                    }
                });
            }
        });
    }
}

impl Attention {
    /// Rows of one sequence, at ascending positions.
    fn eval_run(&self, rows: &[Row], q: &[f32], kv: KvPages<'_>, out: &mut [f32]) {
        let layout = kv.layout(self.layer);
        let (d_k, d_v) = (layout.d_k, layout.d_v);
        let group = self.n_head / layout.n_head_kv;
        let pos = |row: &Row| row.pos[0] as usize;
        let (Some(first_row), Some(last_row)) = (rows.first(), rows.last()) else { return };
        let first = self.mask.first(pos(first_row));
        let n = pos(last_row) + 1 - first;
        let (mut keys, mut values) = (vec![0.0; n * d_k], vec![0.0; n * d_v]);
        let mut scores = Vec::with_capacity(n);
        for head_kv in 0..layout.n_head_kv {
            for (i, (k, v)) in keys.chunks_exact_mut(d_k).zip(values.chunks_exact_mut(d_v)).enumerate() {
                if let Some(base) = kv.block(self.layer, first_row.seq, (first + i) / PAGE) {
                    // SAFETY: `base` comes from `block`; the position was stored by this step or an earlier one.
                    unsafe { layout.load(base, head_kv, (first + i) % PAGE, k, v) };
                }
            }
            for (r, row) in rows.iter().enumerate() {
                let seen = self.mask.first(pos(row)) - first..pos(row) + 1 - first;
                for head in head_kv * group..(head_kv + 1) * group {
                    let q = &q[(r * self.n_head + head) * d_k..][..d_k];
                    scores.clear();
                    scores.extend(keys[seen.start * d_k..seen.end * d_k].chunks_exact(d_k).map(|k| {
                        let s = dot(q, k) * self.scale;
                        self.soft_cap.map_or(s, |cap| SoftCap::eval(s, cap))
                    }));
                    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let mut sum = 0.0;
                    let o = &mut out[(r * self.n_head + head) * d_v..][..d_v];
                    o.fill(0.0);
                    for (v, s) in values[seen.start * d_v..].chunks_exact(d_v).zip(&scores) {
                        let e = math::exp(s - max);
                        sum += e;
                        o.iter_mut().zip(v).for_each(|(o, &v)| *o += v * e);
                    }
                    o.iter_mut().for_each(|o| *o /= sum);
                }
            }
        }
    }
}
