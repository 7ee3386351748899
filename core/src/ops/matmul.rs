//! `y[r, m] = sum_k W[m, k] x[r, k]`, for one or more weights over one input, with what follows fused in.

use super::{ACT_GROUP, Act, Add, Cost, Elem, OpDef, RefCx, Shape, ShapeCx, ShapeError, WeightId, WeightRows, mismatch, require};

/// One weight of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatMulPart {
    /// Rows of the weight.
    pub rows: WeightRows,
    /// `[n]` added to the product; read from `bias_first` on.
    pub bias: Option<WeightId>,
    /// First element of the bias.
    pub bias_first: usize,
}

/// What is done with the products before they are written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Epilogue {
    /// Nothing: one output per part.
    None,
    /// Two parts, gate and up: one output `act(gate) * up`.
    Glu(Act),
    /// One part: `residual + scale * y`, the residual being input 1.
    Residual {
        /// Factor of the product.
        scale: f32,
    },
}

/// Products of one input with the rows of weights. Inputs: x `[rows, k]`, F32 or Act8, and the residual.
#[derive(Debug, Clone, PartialEq)]
pub struct MatMul {
    /// The weights.
    pub parts: Vec<MatMulPart>,
    /// What follows.
    pub epilogue: Epilogue,
}

impl MatMul {
    /// A plain product with all rows of a weight.
    pub fn new(weight: WeightId, n_out: usize, bias: Option<WeightId>) -> MatMul {
        MatMul::of_rows(WeightRows { weight, first: 0, n: n_out }, bias, 0)
    }

    /// A plain product with some rows of a weight.
    pub fn of_rows(rows: WeightRows, bias: Option<WeightId>, bias_first: usize) -> MatMul {
        MatMul { parts: vec![MatMulPart { rows, bias, bias_first }], epilogue: Epilogue::None }
    }
}

impl OpDef for MatMul {
    const NAME: &'static str = "matmul";
    /// Activations rounded to 8 bits.
    const TOLERANCE: f64 = 5e-4;

    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> {
        let residual = matches!(self.epilogue, Epilogue::Residual { .. });
        cx.n_inputs(1 + usize::from(residual))?;
        let x = cx.inputs[0];
        if x.elem == Elem::Act8 {
            require("columns beyond whole groups of 32", 0, x.cols % ACT_GROUP)?;
        }
        for part in &self.parts {
            let w = cx.weight(part.rows.weight)?;
            require("columns of the weight", x.cols, w.n_in)?;
            if part.rows.n == 0 || part.rows.first.checked_add(part.rows.n).is_none_or(|end| end > w.n_out) {
                return Err(mismatch(
                    "rows of the weight",
                    format!("within {}", w.n_out),
                    format!("{} at {}", part.rows.n, part.rows.first),
                ));
            }
            if let Some(bias) = part.bias {
                let b = cx.weight(bias)?;
                if b.n_out != 1 || part.bias_first + part.rows.n > b.n_in {
                    return Err(mismatch("length of the bias", part.bias_first + part.rows.n, b.n_in));
                }
            }
        }
        let out = |n: usize| Shape::f32(x.rows, n);
        match (self.epilogue, self.parts.as_slice()) {
            (Epilogue::None, parts) if !parts.is_empty() => Ok(parts.iter().map(|p| out(p.rows.n)).collect()),
            (Epilogue::Glu(_), [gate, up]) => {
                require("rows of the up weight", gate.rows.n, up.rows.n)?;
                Ok(vec![out(gate.rows.n)])
            }
            (Epilogue::Residual { .. }, [part]) => {
                require("shape of the residual", out(part.rows.n), cx.inputs[1])?;
                Ok(vec![out(part.rows.n)])
            }
            (epilogue, parts) => Err(mismatch("parts", format!("what {epilogue:?} takes"), parts.len())),
        }
    }

    fn cost(&self, cx: &ShapeCx<'_>) -> Cost {
        let mut cost = Cost::default();
        for part in &self.parts {
            if let Ok(w) = cx.weight(part.rows.weight) {
                let row = w.ty.row();
                cost.weight_bytes += (part.rows.n * w.n_in / row.block_elems * row.block_bytes) as f64;
                cost.ops_per_row += (part.rows.n * w.n_in) as f64;
            }
        }
        cost
    }

    fn eval_ref(&self, cx: &mut RefCx<'_>) {
        let k = cx.shapes[0].cols;
        let x = cx.inputs[0];
        let n_rows = x.len() / k;
        let mut products: Vec<Vec<f32>> = Vec::new();
        for part in &self.parts {
            let n = part.rows.n;
            let bias = part.bias.map(|b| {
                let mut all = vec![0.0; cx.decls[b.0 as usize].n_in];
                cx.weights.row(b, 0, &mut all);
                all.drain(..part.bias_first);
                all
            });
            // Transposed while being filled, so that each thread owns the outputs of its weight rows.
            let mut yt = vec![0.0; n * n_rows];
            let per_thread = n.div_ceil(cx.n_threads.max(1)).max(1);
            let (weights, bias) = (cx.weights, bias.as_deref());
            std::thread::scope(|scope| {
                for (t, yt) in yt.chunks_mut(per_thread * n_rows.max(1)).enumerate() {
                    scope.spawn(move || {
                        let mut w = vec![0.0; k];
                        for (m, y) in yt.chunks_exact_mut(n_rows).enumerate() {
                            let m = t * per_thread + m;
                            weights.row(part.rows.weight, part.rows.first + m, &mut w);
                            for (y, x) in y.iter_mut().zip(x.chunks_exact(k)) {
                                *y = dot(&w, x) + bias.map_or(0.0, |b| b[m]);
                            }
                        }
                    });
                }
            });
            let mut y = vec![0.0; n * n_rows];
            for m in 0..n {
                for r in 0..n_rows {
                    y[r * n + m] = yt[m * n_rows + r];
                }
            }
            products.push(y);
        }
        match self.epilogue {
            Epilogue::None => cx.outputs.iter_mut().zip(products).for_each(|(o, y)| o.copy_from_slice(&y)),
            Epilogue::Glu(act) => {
                for ((o, &g), &u) in cx.outputs[0].iter_mut().zip(&products[0]).zip(&products[1]) {
                    *o = act.eval(g) * u;
                }
            }
            Epilogue::Residual { scale } => {
                for ((o, &y), &r) in cx.outputs[0].iter_mut().zip(&products[0]).zip(cx.inputs[1]) {
                    *o = Add::eval(r, y, scale);
                }
            }
        }
    }

    fn weights(&self) -> Vec<WeightRows> {
        let bias = |p: &MatMulPart| p.bias.map(|weight| WeightRows { weight, first: 0, n: 1 });
        self.parts.iter().map(|p| p.rows).chain(self.parts.iter().filter_map(bias)).collect()
    }
}

/// The reference's dot product: 16 partial sums, which is nearer the exact value than one chain, and vectorises.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    let (a_chunks, b_chunks) = (a.chunks_exact(16), b.chunks_exact(16));
    let tail: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a_chunks.zip(b_chunks) {
        for i in 0..16 {
            lanes[i] += x[i] * y[i];
        }
    }
    lanes.iter().sum::<f32>() + tail
}
