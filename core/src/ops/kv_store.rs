//! Keys, turned by their position where the layer has rotary embedding, and values go into the cache.

use super::{Cost, OpDef, RefCx, Rope, Shape, ShapeCx, ShapeError, mismatch, require};
use crate::kv::PAGE;

/// Stores a layer's keys and values. Inputs: k `[rows, n_head_kv * d_k]`, v `[rows, n_head_kv * d_v]`, and the table where
/// `rope` is given. No output: the cache is state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvStore {
    /// Layer in the cache.
    pub layer: usize,
    /// Rotation fused into the store.
    pub rope: Option<Rope>,
}

impl OpDef for KvStore {
    const NAME: &'static str = "kv_store";
    const TOLERANCE: f64 = 1e-6;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(2 + usize::from(self.rope.is_some()))?;
        let n_layer = cx.kv_layers.len();
        let layer = cx.kv_layers.get(self.layer).ok_or_else(|| mismatch("layer", format!("fewer than {n_layer}"), self.layer))?;
        require("columns of the keys", layer.n_head_kv * layer.d_k, cx.inputs[0].cols)?;
        require("columns of the values", layer.n_head_kv * layer.d_v, cx.inputs[1].cols)?;
        if let Some(rope) = self.rope {
            rope.check(cx.inputs[0], cx.inputs[2])?;
        }
        Ok(Vec::new())
    }

    fn cost(&self, cx: &ShapeCx<'_>) -> Cost {
        Cost { weight_bytes: 0.0, ops_per_row: 2.0 * (cx.inputs[0].cols + cx.inputs[1].cols) as f64 }
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        let layout = cx.kv.layout(self.layer);
        let (nk, nv) = (layout.n_head_kv * layout.d_k, layout.n_head_kv * layout.d_v);
        let mut k = vec![0.0; nk];
        for (i, row) in cx.rows.iter().enumerate() {
            k.copy_from_slice(&cx.inputs[0][i * nk..][..nk]);
            if let Some(rope) = self.rope {
                rope.eval_row(&mut k, &cx.inputs[2][i * rope.n_rot..][..rope.n_rot]);
            }
            let v = &cx.inputs[1][i * nv..][..nv];
            let pos = row.pos[0] as usize;
            let Some(base) = cx.kv.block(self.layer, row.seq, pos / PAGE) else {
                continue;
            };
            for head in 0..layout.n_head_kv {
                let (k, v) = (&k[head * layout.d_k..][..layout.d_k], &v[head * layout.d_v..][..layout.d_v]);
                // SAFETY: `base` comes from `block`, and this thread alone runs the step.
                unsafe { layout.store(base, head, pos % PAGE, k, v) };
            }
        }
    }
}
