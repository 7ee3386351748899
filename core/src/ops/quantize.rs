//! Activations to 8 bits, per 32 columns (DESIGN 3.1):
//!
//! ```text
//!   s = max |x| / 127        kept as f32
//!   q = clamp(round_to_even(x * (1 / s)), -127, 127), or 0 where 1 / s isn't finite
//! ```
//! A non-finite x is an error that the backend raises before quantising.

use super::{ACT_GROUP, Cost, Elem, OpDef, RefCx, Shape, ShapeCx, ShapeError, require};

/// Quantises its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantize;

impl OpDef for Quantize {
    const NAME: &'static str = "quantize";
    /// Half a step of 1/127 of a group's largest value, squared and averaged.
    const TOLERANCE: f64 = 1e-4;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(1)?;
        let x = cx.inputs[0];
        require("storage of the input", Elem::F32, x.elem)?;
        require("columns beyond whole groups of 32", 0, x.cols % ACT_GROUP)?;
        Ok(vec![Shape { elem: Elem::Act8, ..x }])
    }

    fn cost(&self, cx: &ShapeCx<'_>) -> Cost {
        Cost { weight_bytes: 0.0, ops_per_row: 3.0 * cx.inputs[0].cols as f64 }
    }

    /// The reference keeps full precision: it is what a quantised engine should come near.
    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        cx.outputs[0].copy_from_slice(cx.inputs[0]);
    }
}
