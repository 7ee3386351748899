//! `out = softmax(scale * q . K [soft-capped]) V` over the positions that the mask shows (Vaswani et al. 2017), grouped
//! heads (Ainslie et al. 2023).

use super::{Cost, OpDef, RefCx, Shape, ShapeCx, ShapeError, SoftCap, mismatch, require};
use crate::kv::PAGE;
use crate::math;

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
        let (d_k, d_v) = (layout.d_k, layout.d_v);
        let group = self.n_head / layout.n_head_kv;
        let (rows, q, kv) = (cx.rows, cx.inputs[0], cx.kv);
        let out_cols = self.n_head * d_v;
        let rows_per_thread = rows.len().div_ceil(cx.n_threads.max(1)).max(1);
        std::thread::scope(|scope| {
            for (chunk_idx, out) in cx.outputs[0].chunks_mut(rows_per_thread * out_cols).enumerate() {
                let run = move || {
                    let (mut k, mut v) = (vec![0.0; d_k], vec![0.0; d_v]);
                    let mut scores = Vec::new();
                    for (i, out) in out.chunks_exact_mut(out_cols).enumerate() {
                        let i = chunk_idx * rows_per_thread + i;
                        let pos = rows[i].pos[0] as usize;
                        let first = self.mask.first(pos);
                        for head in 0..self.n_head {
                            let q = &q[(i * self.n_head + head) * d_k..][..d_k];
                            let load = |p: usize, k: &mut [f32], v: &mut [f32]| {
                                if let Some(base) = kv.block(self.layer, rows[i].seq, p / PAGE) {
                                    // SAFETY: `base` comes from `block`; the position was stored by this step or an earlier one.
                                    unsafe { layout.load(base, head / group, p % PAGE, k, v) };
                                }
                            };
                            scores.clear();
                            for p in first..=pos {
                                load(p, &mut k, &mut v);
                                let s = math::dot16(q, &k) * self.scale;
                                scores.push(self.soft_cap.map_or(s, |cap| SoftCap::eval(s, cap)));
                            }
                            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                            let mut sum = 0.0;
                            let o = &mut out[head * d_v..][..d_v];
                            o.fill(0.0);
                            for (p, s) in (first..=pos).zip(&scores) {
                                load(p, &mut k, &mut v);
                                let e = math::exp(s - max);
                                sum += e;
                                o.iter_mut().zip(&v).for_each(|(o, &v)| *o = v.mul_add(e, *o));
                            }
                            o.iter_mut().for_each(|o| *o /= sum);
                        }
                    }
                };
                scope.spawn(run);
            }
        });
    }
}
