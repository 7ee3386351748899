//! `out[r] = scale * W[token(r)]`

use super::{Cost, OpDef, RefCx, RowsDim, Shape, ShapeCx, ShapeError, WeightId, WeightRows};
use crate::step::Input;

/// Token embedding: no inputs, one output `[rows, d_model]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Embed {
    /// `[n_vocab, d_model]`
    pub weight: WeightId,
    /// Rows of the weight.
    pub n_vocab: usize,
    /// Factor of every element.
    pub scale: f32,
}

impl OpDef for Embed {
    const NAME: &'static str = "embed";
    const TOLERANCE: f64 = 1e-10;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        cx.n_inputs(0)?;
        Ok(vec![Shape::f32(RowsDim::Step, cx.weight(self.weight)?.n_in)])
    }

    fn cost(&self, cx: &ShapeCx<'_>) -> Cost {
        Cost { weight_bytes: 0.0, ops_per_row: cx.weight(self.weight).map_or(0.0, |w| w.n_in as f64) }
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        let d_model = cx.decls[self.weight.0 as usize].n_in;
        for (row, out) in cx.rows.iter().zip(cx.outputs[0].chunks_exact_mut(d_model)) {
            // The engine refuses other inputs before a step runs.
            if let Input::Token(token) = row.input {
                cx.weights.row(self.weight, token.0 as usize, out);
            }
            out.iter_mut().for_each(|x| *x *= self.scale);
        }
    }

    fn weights(&self) -> Vec<WeightRows> {
        vec![WeightRows { weight: self.weight, first: 0, n: self.n_vocab }]
    }
}
