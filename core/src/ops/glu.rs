//! `out = act(gate) * up` (Shazeer 2020, "GLU Variants Improve Transformer")

use super::{Act, Cost, OpDef, RefCx, Shape, ShapeCx, ShapeError, require};

/// Gated activation. Inputs: gate, up, of one shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Glu {
    /// Activation of the gate.
    pub act: Act,
}

impl OpDef for Glu {
    const NAME: &'static str = "glu";
    /// A device's own exp or tanh may differ in its last bits.
    const TOLERANCE: f64 = 1e-8;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(2)?;
        require("shape of the up value", cx.inputs[0], cx.inputs[1])?;
        Ok(vec![Shape::f32(cx.inputs[0].rows, cx.inputs[0].cols)])
    }

    fn cost(&self, cx: &ShapeCx<'_>) -> Cost {
        Cost { weight_bytes: 0.0, ops_per_row: 20.0 * cx.inputs[0].cols as f64 }
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        for ((o, &g), &u) in cx.outputs[0].iter_mut().zip(cx.inputs[0]).zip(cx.inputs[1]) {
            *o = self.act.eval(g) * u;
        }
    }

    fn in_place(&self) -> bool {
        true
    }
}
