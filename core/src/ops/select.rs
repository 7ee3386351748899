//! `out[i] = x[wanted[i]]`

use super::{Cost, OpDef, RefCx, RowsDim, Shape, ShapeCx, ShapeError, require};

/// The rows that want logits: from here on a graph is its head, run once per tile of wanted rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Select;

impl OpDef for Select {
    const NAME: &'static str = "select";
    const TOLERANCE: f64 = 0.0;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(1)?;
        require("rows of the input", RowsDim::Step, cx.inputs[0].rows)?;
        Ok(vec![Shape::f32(RowsDim::Wanted, cx.inputs[0].cols)])
    }

    fn cost(&self, _cx: &ShapeCx<'_>) -> Cost {
        Cost::default()
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        let cols = cx.shapes[0].cols;
        for (&row, out) in cx.wanted.iter().zip(cx.outputs[0].chunks_exact_mut(cols)) {
            out.copy_from_slice(&cx.inputs[0][row as usize * cols..][..cols]);
        }
    }
}
