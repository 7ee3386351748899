//! `out = cap * tanh(x / cap)` (Gemma 2, section 2 of its report)

use super::{Cost, OpDef, RefCx, Shape, ShapeCx, ShapeError};
use crate::math;

/// Soft cap of every element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoftCap {
    /// Bound of the result's magnitude.
    pub cap: f32,
}

impl SoftCap {
    /// One element.
    #[inline(always)]
    pub fn eval(x: f32, cap: f32) -> f32 {
        math::tanh(x / cap) * cap
    }
}

impl OpDef for SoftCap {
    const NAME: &'static str = "soft_cap";
    /// A device's own tanh may differ in its last bits.
    const TOLERANCE: f64 = 1e-8;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(1)?;
        Ok(vec![Shape::f32(cx.inputs[0].rows, cx.inputs[0].cols)])
    }

    fn cost(&self, cx: &ShapeCx<'_>) -> Cost {
        Cost { weight_bytes: 0.0, ops_per_row: 20.0 * cx.inputs[0].cols as f64 }
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        for (o, &x) in cx.outputs[0].iter_mut().zip(cx.inputs[0]) {
            *o = SoftCap::eval(x, self.cap);
        }
    }

    fn in_place(&self) -> bool {
        true
    }
}
