//! `out = factor * x`

use super::{Cost, OpDef, RefCx, Shape, ShapeCx, ShapeError};

/// Product with a constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// The constant.
    pub factor: f32,
}

impl OpDef for Scale {
    const NAME: &'static str = "scale";
    const TOLERANCE: f64 = 1e-10;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(1)?;
        Ok(vec![Shape::f32(cx.inputs[0].rows, cx.inputs[0].cols)])
    }

    fn cost(&self, cx: &ShapeCx<'_>) -> Cost {
        Cost { weight_bytes: 0.0, ops_per_row: cx.inputs[0].cols as f64 }
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        for (o, &x) in cx.outputs[0].iter_mut().zip(cx.inputs[0]) {
            *o = x * self.factor;
        }
    }

    fn in_place(&self) -> bool {
        true
    }
}
