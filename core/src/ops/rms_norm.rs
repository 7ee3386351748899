//! `out = [residual +] x / sqrt(mean(x^2) + eps) * w`, per group of columns (Zhang and Sennrich 2019)

use super::{ACT_GROUP, Cost, Elem, OpDef, RefCx, Shape, ShapeCx, ShapeError, WeightId, WeightRows, mismatch, require};
use crate::math;

/// Root mean square norm. Inputs: x, and the residual where there is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsNorm {
    /// `[group]`
    pub weight: WeightId,
    /// Columns normalised together: all of them, or a head's.
    pub group: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether input 1 is added to the result.
    pub residual: bool,
    /// Storage of the result: fused with the quantisation for the products that follow, or plain.
    pub out: Elem,
}

impl RmsNorm {
    /// Factor of a group: `1 / sqrt(sum_sq / n + eps)`, by true division and square root.
    #[inline(always)]
    pub fn factor(sum_sq: f32, n: usize, eps: f32) -> f32 {
        1.0 / (sum_sq / n as f32 + eps).sqrt()
    }
}

impl OpDef for RmsNorm {
    const NAME: &'static str = "rms_norm";
    /// Order of the sum; the 8-bit result adds what `quantize` may.
    const TOLERANCE: f64 = 1e-4;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(1 + usize::from(self.residual))?;
        let x = cx.inputs[0];
        require("storage of the input", Elem::F32, x.elem)?;
        if self.residual {
            require("shape of the residual", x, cx.inputs[1])?;
        }
        if self.group == 0 || !x.cols.is_multiple_of(self.group) {
            return Err(mismatch("columns", format!("a multiple of the group of {}", self.group), x.cols));
        }
        if self.out == Elem::Act8 {
            require("columns beyond whole groups of 32", 0, x.cols % ACT_GROUP)?;
        }
        cx.vector(self.weight, self.group)?;
        Ok(vec![Shape { elem: self.out, ..x }])
    }

    fn cost(&self, cx: &ShapeCx<'_>) -> Cost {
        Cost { weight_bytes: 4.0 * self.group as f64, ops_per_row: 3.0 * cx.inputs[0].cols as f64 }
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        let mut w = vec![0.0; self.group];
        cx.weights.row(self.weight, 0, &mut w);
        for (i, (out, x)) in cx.outputs[0].chunks_exact_mut(self.group).zip(cx.inputs[0].chunks_exact(self.group)).enumerate() {
            let factor = RmsNorm::factor(math::sum_sq16(x), self.group, self.eps);
            for ((o, &x), &w) in out.iter_mut().zip(x).zip(&w) {
                *o = x * factor * w;
            }
            if self.residual {
                for (o, &r) in out.iter_mut().zip(&cx.inputs[1][i * self.group..]) {
                    *o += r;
                }
            }
        }
    }

    fn weights(&self) -> Vec<WeightRows> {
        vec![WeightRows { weight: self.weight, first: 0, n: 1 }]
    }

    fn in_place(&self) -> bool {
        self.out == Elem::F32
    }
}
