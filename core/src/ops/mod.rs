//! The operations of a graph: parameters, shape rule, cost and reference evaluation of each, one file an op.
//!
//! To add one: write `ops/x.rs` with a parameter struct that implements [`OpDef`], and add a row to the `ops!` table.
//! It then runs on the reference backend, is verified, costed, listed and diffed; a backend claims it when it has a kernel.

mod act;
mod add;
mod attention;
mod embed;
mod glu;
mod kv_store;
mod matmul;
mod quantize;
mod rms_norm;
mod rope;
mod scale;
mod select;
mod soft_cap;

pub use act::Act;
pub use add::Add;
pub use attention::{Attention, Mask};
pub use embed::Embed;
pub use glu::Glu;
pub use kv_store::KvStore;
pub use matmul::{Epilogue, MatMul, MatMulPart};
pub use quantize::Quantize;
pub use rms_norm::RmsNorm;
pub use rope::{Pairing, Rope, RopeTable, rope_head};
pub use scale::Scale;
pub use select::Select;
pub use soft_cap::SoftCap;

use crate::kv::{KvLayer, KvPages};
use crate::step::Row;
use selvedge_gguf::TensorType;

/// How many rows a value has: known only when a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowsDim {
    /// One per row of the step.
    Step,
    /// One per row that wants logits, in tiles.
    Wanted,
}

/// How a value's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Elem {
    /// 32-bit floats, `[rows, cols]`.
    F32,
    /// 8-bit activations with a scale per 32 columns (DESIGN 3.1); see [`Act8Layout`].
    Act8,
}

/// Shape and storage of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Leading dimension.
    pub rows: RowsDim,
    /// Columns.
    pub cols: usize,
    /// Storage.
    pub elem: Elem,
}

impl Shape {
    /// A float value.
    pub const fn f32(rows: RowsDim, cols: usize) -> Shape {
        Shape { rows, cols, elem: Elem::F32 }
    }

    /// Bytes of `n_rows` rows.
    pub const fn n_bytes(&self, n_rows: usize) -> usize {
        match self.elem {
            Elem::F32 => n_rows * self.cols * 4,
            Elem::Act8 => Act8Layout::new(n_rows, self.cols).n_bytes,
        }
    }
}

/// Columns that share an activation scale.
pub const ACT_GROUP: usize = 32;

/// Where the parts of an `Act8` value of given rows lie, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Act8Layout {
    /// `[rows, cols]` i8; at 0.
    pub q: usize,
    /// `[cols / 32, rows]` f32: like the sums, rows beside each other, as kernels take several rows at once.
    pub scale: usize,
    /// `[cols / 16, rows]` i32: sums of q over 16 columns, for weights with an offset.
    pub sum: usize,
    /// `[cols / 32, rows]` f32: scale times the sum of q over 32 columns, for weights with a minimum per 32.
    pub sum32: usize,
    /// `[cols / 16, rows]` f32: scale times the sum of q over 16 columns, for weights with a minimum per 16.
    pub sum16: usize,
    /// Rows.
    pub n_rows: usize,
    /// Whole size.
    pub n_bytes: usize,
}

impl Act8Layout {
    /// The layout of a value of `n_rows` by `n_cols`, the columns a multiple of [`ACT_GROUP`].
    pub const fn new(n_rows: usize, n_cols: usize) -> Act8Layout {
        let scale = crate::os::align_up(n_rows * n_cols);
        let per_32 = crate::os::align_up(n_rows * (n_cols / ACT_GROUP) * 4);
        let per_16 = crate::os::align_up(n_rows * (n_cols / 16) * 4);
        let (sum, sum32) = (scale + per_32, scale + per_32 + per_16);
        Act8Layout { q: 0, scale, sum, sum32, sum16: sum32 + per_32, n_rows, n_bytes: sum32 + per_32 + per_16 }
    }
}

/// Index of a weight in the graph's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeightId(pub u32);

/// A weight that the graph reads: a tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightDecl {
    /// Name in the file.
    pub tensor: String,
    /// Storage type in the file.
    pub ty: TensorType,
    /// Columns: the file's first dimension, contiguous.
    pub n_in: usize,
    /// Rows.
    pub n_out: usize,
}

/// A run of rows of a weight: files that fuse several matrices into one tensor are read by parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WeightRows {
    /// Whose rows.
    pub weight: WeightId,
    /// The first.
    pub first: usize,
    /// How many.
    pub n: usize,
}

/// What a shape rule may look at.
#[derive(Debug)]
pub struct ShapeCx<'a> {
    /// Shapes of the inputs.
    pub inputs: &'a [Shape],
    /// The graph's weights.
    pub weights: &'a [WeightDecl],
    /// The graph's KV layers.
    pub kv_layers: &'a [KvLayer],
}

/// A node's inputs don't fit its parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: expected {expected}, found {found}")]
pub struct ShapeError {
    /// What was looked at.
    pub what: &'static str,
    /// What the op needs.
    pub expected: String,
    /// What the graph has.
    pub found: String,
}

impl ShapeCx<'_> {
    /// A weight's declaration.
    pub fn weight(&self, id: WeightId) -> Result<&WeightDecl, ShapeError> {
        self.weights.get(id.0 as usize).ok_or_else(|| mismatch("weight", format!("fewer than {}", self.weights.len()), id.0))
    }

    /// Requires exactly `n` inputs.
    pub fn n_inputs(&self, n: usize) -> Result<(), ShapeError> {
        require("number of inputs", n, self.inputs.len())
    }

    /// Requires a vector weight of that length.
    pub fn vector(&self, id: WeightId, len: usize) -> Result<(), ShapeError> {
        let w = self.weight(id)?;
        require("length of a vector weight", len, w.n_in)?;
        require("rows of a vector weight", 1, w.n_out)
    }
}

/// An error unless the two are equal.
pub(crate) fn require<T: PartialEq + std::fmt::Debug>(what: &'static str, expected: T, found: T) -> Result<(), ShapeError> {
    if expected == found { Ok(()) } else { Err(mismatch(what, format!("{expected:?}"), format!("{found:?}"))) }
}

pub(crate) fn mismatch(what: &'static str, expected: impl ToString, found: impl ToString) -> ShapeError {
    ShapeError { what, expected: expected.to_string(), found: found.to_string() }
}

/// What running a node costs, apart from its fixed part.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Bytes of weights read, whatever the number of rows.
    pub weight_bytes: f64,
    /// Multiply-adds and the like per row.
    pub ops_per_row: f64,
}

/// Weights as the reference backend reads them.
pub trait ReadWeights: Sync {
    /// Dequantises row `row` of the weight into `out` (`n_in` floats).
    fn row(&self, weight: WeightId, row: usize, out: &mut [f32]);
}

/// What the reference evaluation of a node works on. `Act8` values are held as plain floats here.
pub struct RefCx<'a> {
    /// The step's rows.
    pub rows: &'a [Row],
    /// Indices into `rows` of the current tile of wanted rows.
    pub wanted: &'a [u32],
    /// Input values, `[rows, cols]`.
    pub inputs: &'a [&'a [f32]],
    /// Shapes of the inputs.
    pub shapes: &'a [Shape],
    /// Output values to fill.
    pub outputs: &'a mut [Vec<f32>],
    /// Weights.
    pub weights: &'a dyn ReadWeights,
    /// Declarations of the weights.
    pub decls: &'a [WeightDecl],
    /// KV cache.
    pub kv: KvPages<'a>,
    /// Threads that the evaluation may use.
    pub n_threads: usize,
}

impl std::fmt::Debug for RefCx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RefCx").field("rows", &self.rows.len()).field("shapes", &self.shapes).finish_non_exhaustive()
    }
}

/// An op: its parameters and what is known of it.
pub trait OpDef {
    /// Name in dumps and explanations.
    const NAME: &'static str;
    /// Largest normalised mean square error that a backend without exact arithmetic may make against the reference.
    const TOLERANCE: f64;
    /// Shape rule: checks inputs and weights, gives the outputs.
    fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError>;
    /// What it costs.
    fn cost(&self, cx: &ShapeCx<'_>) -> Cost;
    /// Reference evaluation in f32.
    fn eval_ref(&self, cx: &mut RefCx<'_>);
    /// Weights that it reads.
    fn weights(&self) -> Vec<WeightRows> {
        Vec::new()
    }
    /// Whether output 0 may take the place of input 0 when that dies here and has the same size.
    fn in_place(&self) -> bool {
        false
    }
}

macro_rules! ops {
    ($($(#[$doc:meta])* $op:ident,)*) => {
        /// An operation with its parameters.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum Op { $($(#[$doc])* $op($op),)* }

        impl Op {
            /// Name in dumps and explanations.
            pub fn name(&self) -> &'static str { match self { $(Op::$op(_) => $op::NAME,)* } }
            /// See [`OpDef::TOLERANCE`].
            pub fn tolerance(&self) -> f64 { match self { $(Op::$op(_) => $op::TOLERANCE,)* } }
            /// See [`OpDef::shapes`].
            pub fn shapes(&self, cx: &ShapeCx<'_>) -> Result<Vec<Shape>, ShapeError> { match self { $(Op::$op(p) => p.shapes(cx),)* } }
            /// See [`OpDef::cost`].
            pub fn cost(&self, cx: &ShapeCx<'_>) -> Cost { match self { $(Op::$op(p) => p.cost(cx),)* } }
            /// See [`OpDef::eval_ref`].
            pub fn eval_ref(&self, cx: &mut RefCx<'_>) { match self { $(Op::$op(p) => p.eval_ref(cx),)* } }
            /// See [`OpDef::weights`].
            pub fn weights(&self) -> Vec<WeightRows> { match self { $(Op::$op(p) => p.weights(),)* } }
            /// See [`OpDef::in_place`].
            pub fn in_place(&self) -> bool { match self { $(Op::$op(p) => p.in_place(),)* } }
        }

        $(impl From<$op> for Op { fn from(p: $op) -> Op { Op::$op(p) } })*
    };
}

ops! {
    /// Token embedding.
    Embed,
    /// Root mean square norm.
    RmsNorm,
    /// Activations to 8 bits.
    Quantize,
    /// Matrix products.
    MatMul,
    /// Cosines and sines of the step's positions.
    RopeTable,
    /// Rotary position embedding.
    Rope,
    /// Keys and values into the cache.
    KvStore,
    /// Attention over the cache.
    Attention,
    /// Gated activation.
    Glu,
    /// Sum.
    Add,
    /// Product with a constant.
    Scale,
    /// Soft cap.
    SoftCap,
    /// The wanted rows.
    Select,
}
