//! `out = a + scale * b`

use super::{Cost, OpDef, RefCx, Shape, ShapeCx, ShapeError, require};

/// Sum of two values of one shape, the second scaled. Inputs: a, b.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Add {
    /// Factor of the second input; 1 for a plain sum.
    pub scale: f32,
}

impl Add {
    /// One element. A factor of 1 adds exactly `b`.
    #[inline(always)]
    pub fn eval(a: f32, b: f32, scale: f32) -> f32 {
        a + b * scale
    }
}

impl OpDef for Add {
    const NAME: &'static str = "add";
    const TOLERANCE: f64 = 1e-10;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(2)?;
        require("shape of the second term", cx.inputs[0], cx.inputs[1])?;
        Ok(vec![Shape::f32(cx.inputs[0].rows, cx.inputs[0].cols)])
    }

    fn cost(&self, cx: &ShapeCx<'_>) -> Cost {
        Cost { weight_bytes: 0.0, ops_per_row: cx.inputs[0].cols as f64 }
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        for ((o, &a), &b) in cx.outputs[0].iter_mut().zip(cx.inputs[0]).zip(cx.inputs[1]) {
            *o = Add::eval(a, b, self.scale);
        }
    }

    fn in_place(&self) -> bool {
        true
    }
}
