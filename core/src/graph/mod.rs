//! The graph of a model: ops in the order in which they run, over named values whose number of rows is symbolic.
//!
//! A graph has a body, run once a step, and a head (from its `Select` node on), run once per tile of wanted rows.

mod fuse;

use crate::kv::KvLayer;
use crate::ops::{Cost, Elem, Op, RowsDim, Select, Shape, ShapeCx, ShapeError, WeightDecl, WeightId};
use std::fmt::Write as _;

pub use fuse::{Fusions, fuse};

/// Index of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// Index of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// What a node makes and others take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Unique name, `blk.3.attn_out` and the like: the same in fused and unfused graphs, so that backends can be compared.
    pub name: String,
    /// Shape.
    pub shape: Shape,
}

/// One op with its operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What is done.
    pub op: Op,
    /// Operands.
    pub inputs: Vec<ValueId>,
    /// Results.
    pub outputs: Vec<ValueId>,
    /// Layer of the model, where it belongs to one.
    pub layer: Option<u32>,
}

/// A graph that may still be wrong; see [`Graph::verify`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Graph {
    /// Values.
    pub values: Vec<Value>,
    /// Nodes in order of execution.
    pub nodes: Vec<Node>,
    /// Weights.
    pub weights: Vec<WeightDecl>,
    /// Layers of the KV cache.
    pub kv_layers: Vec<KvLayer>,
    /// The logits, `[wanted, n_vocab]`.
    pub logits: Option<ValueId>,
}

/// What makes a graph unfit to run. Each is a fault of the code that built it, or of a file whose tensors don't fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// Shapes don't fit.
    #[error("{node} ({op}): {source}")]
    Shape {
        /// Name of the node's first output.
        node: String,
        /// The op.
        op: &'static str,
        /// What doesn't fit.
        source: ShapeError,
    },
    /// A value is used before it is made, made twice, or never made.
    #[error("value {value} is {what}")]
    Order {
        /// The value.
        value: String,
        /// What is wrong.
        what: &'static str,
    },
    /// Attention runs before its layer's keys are stored.
    #[error("layer {layer}: attention runs before the layer's keys and values are stored")]
    KvOrder {
        /// The layer.
        layer: usize,
    },
    /// No logits, or of a wrong shape.
    #[error("the graph ends in no logits of wanted rows")]
    NoLogits,
}

impl Graph {
    /// A new value and its id.
    fn value(&mut self, name: String, shape: Shape) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.values.push(Value { name, shape });
        id
    }

    /// Declares a weight, once per tensor.
    pub fn weight(&mut self, decl: WeightDecl) -> WeightId {
        let idx = self.weights.iter().position(|w| w.tensor == decl.tensor).unwrap_or_else(|| {
            self.weights.push(decl);
            self.weights.len() - 1
        });
        WeightId(idx as u32)
    }

    /// Adds a node; its outputs get the shapes of the op's rule and the given names.
    pub fn push(&mut self, layer: Option<u32>, op: impl Into<Op>, inputs: &[ValueId], names: &[&str]) -> Result<Vec<ValueId>, GraphError> {
        let op = op.into();
        let shapes = self.infer(&op, inputs, names.first().unwrap_or(&op.name()))?;
        let name = |n: &str| layer.map_or_else(|| n.to_string(), |l| format!("blk.{l}.{n}"));
        let outputs: Vec<ValueId> = shapes.into_iter().zip(names).map(|(s, n)| self.value(name(n), s)).collect();
        self.nodes.push(Node { op, inputs: inputs.to_vec(), outputs: outputs.clone(), layer });
        Ok(outputs)
    }

    /// Adds a node of one output.
    pub fn push1(&mut self, layer: Option<u32>, op: impl Into<Op>, inputs: &[ValueId], name: &str) -> Result<ValueId, GraphError> {
        let outputs = self.push(layer, op, inputs, &[name])?;
        outputs.first().copied().ok_or_else(|| GraphError::Order { value: name.to_string(), what: "not made by its op" })
    }

    fn infer(&self, op: &Op, inputs: &[ValueId], node: &str) -> Result<Vec<Shape>, GraphError> {
        let inputs: Vec<Shape> = inputs.iter().map(|v| self.values[v.0 as usize].shape).collect();
        let cx = ShapeCx { inputs: &inputs, weights: &self.weights, kv_layers: &self.kv_layers };
        op.shapes(&cx).map_err(|source| GraphError::Shape { node: node.to_string(), op: op.name(), source })
    }

    /// Cost of a node.
    pub fn cost(&self, node: &Node) -> Cost {
        let inputs: Vec<Shape> = node.inputs.iter().map(|v| self.values[v.0 as usize].shape).collect();
        node.op.cost(&ShapeCx { inputs: &inputs, weights: &self.weights, kv_layers: &self.kv_layers })
    }

    /// A value.
    pub fn shape(&self, id: ValueId) -> Shape {
        self.values[id.0 as usize].shape
    }

    /// Name of a node in messages: its first output, or its op and layer.
    pub fn node_name(&self, node: &Node) -> String {
        match (node.outputs.first(), node.layer) {
            (Some(v), _) => self.values[v.0 as usize].name.clone(),
            (None, Some(layer)) => format!("blk.{layer}.{}", node.op.name()),
            (None, None) => node.op.name().to_string(),
        }
    }

    /// Checks everything that a backend relies on. Backends accept only what comes out of here.
    pub fn verify(self) -> Result<VerifiedGraph, GraphError> {
        let order = |v: ValueId, what| GraphError::Order { value: self.values[v.0 as usize].name.clone(), what };
        let mut made = vec![false; self.values.len()];
        let mut stored = vec![false; self.kv_layers.len()];
        let mut head_start = None;
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some(&v) = node.inputs.iter().find(|v| !made.get(v.0 as usize).copied().unwrap_or(false)) {
                return Err(order(v, "used before it is made"));
            }
            let shapes = self.infer(&node.op, &node.inputs, &self.node_name(node))?;
            if shapes.len() != node.outputs.len() {
                return Err(GraphError::Order { value: self.node_name(node), what: "not the op's number of outputs" });
            }
            for (&v, shape) in node.outputs.iter().zip(shapes) {
                if std::mem::replace(&mut made[v.0 as usize], true) {
                    return Err(order(v, "made twice"));
                }
                if self.shape(v) != shape {
                    return Err(order(v, "not of the shape that its op gives"));
                }
            }
            match &node.op {
                Op::KvStore(store) => stored[store.layer] = true,
                Op::Attention(a) if !stored[a.layer] => {
                    return Err(GraphError::KvOrder { layer: a.layer });
                }
                Op::Select(Select) if head_start.is_none() => head_start = Some(i),
                _ => {}
            }
        }
        let logits =
            self.logits.filter(|&v| self.shape(v).rows == RowsDim::Wanted && self.shape(v).elem == Elem::F32 && made[v.0 as usize]);
        let (Some(logits), Some(head_start)) = (logits, head_start) else {
            return Err(GraphError::NoLogits);
        };
        let in_head = |n: &Node| n.outputs.iter().all(|&v| self.shape(v).rows == RowsDim::Wanted);
        if !self.nodes[head_start..].iter().all(in_head) {
            return Err(GraphError::NoLogits);
        }
        Ok(VerifiedGraph { graph: self, head_start, logits })
    }
}

/// A graph that was verified: every value is made once before it is used, shapes and weights fit, keys are stored before
/// they are read, and the head follows the body.
#[derive(Debug, Clone)]
pub struct VerifiedGraph {
    graph: Graph,
    head_start: usize,
    logits: ValueId,
}

impl std::ops::Deref for VerifiedGraph {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        &self.graph
    }
}

impl VerifiedGraph {
    /// Index of the first node of the head.
    pub fn head_start(&self) -> usize {
        self.head_start
    }

    /// The logits.
    pub fn logits(&self) -> ValueId {
        self.logits
    }

    /// Columns of the logits.
    pub fn n_vocab(&self) -> usize {
        self.shape(self.logits).cols
    }

    /// A copy to change and verify again.
    pub fn to_graph(&self) -> Graph {
        self.graph.clone()
    }

    /// A text that shows every node: for people, snapshots and comparisons.
    pub fn dump(&self) -> String {
        let mut out = String::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if i == self.head_start {
                out.push_str("head:\n");
            }
            let list = |ids: &[ValueId]| ids.iter().map(|v| self.values[v.0 as usize].name.as_str()).collect::<Vec<_>>().join(", ");
            let shapes = node.outputs.iter().map(|&v| format!(" {:?}[{}]", self.shape(v).elem, self.shape(v).cols)).collect::<String>();
            let weights = node
                .op
                .weights()
                .iter()
                .map(|w| {
                    let decl = &self.weights[w.weight.0 as usize];
                    let part = if w.n == decl.n_out { String::new() } else { format!("[{}..{}]", w.first, w.first + w.n) };
                    format!(" {}{part}:{}", decl.tensor, decl.ty)
                })
                .collect::<String>();
            let _ = writeln!(out, "{i:4} {} = {}({}){weights}{shapes}", list(&node.outputs), node.op.name(), list(&node.inputs));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Add, Embed, MatMul};
    use selvedge_gguf::TensorType;

    fn tiny() -> Graph {
        let mut g = Graph::default();
        let w = g.weight(WeightDecl { tensor: "token_embd.weight".into(), ty: TensorType::F32, n_in: 8, n_out: 4 });
        let x = g.push1(None, Embed { weight: w, n_vocab: 4, scale: 1.0 }, &[], "inp_embd").unwrap();
        let y = g.push1(None, Add { scale: 1.0 }, &[x, x], "twice").unwrap();
        let s = g.push1(None, Select, &[y], "wanted").unwrap();
        g.logits = Some(g.push1(None, MatMul::new(w, 4, None), &[s], "logits").unwrap());
        g
    }

    #[test]
    fn a_right_graph_passes_and_dumps() {
        let g = tiny().verify().unwrap();
        assert_eq!((g.head_start(), g.n_vocab()), (2, 4));
        assert_eq!(g.dump().lines().count(), 5);
    }

    #[test]
    fn faults_are_found() {
        let mut g = tiny();
        g.nodes.swap(0, 1);
        assert!(matches!(g.verify(), Err(GraphError::Order { what: "used before it is made", .. })));
        let mut g = tiny();
        g.logits = None;
        assert_eq!(g.verify().unwrap_err(), GraphError::NoLogits);
        let mut g = tiny();
        g.values[1].shape.cols = 9;
        assert!(g.verify().is_err());
        let mut g = tiny();
        assert!(matches!(g.push1(None, MatMul::new(WeightId(0), 5, None), &[ValueId(0)], "x"), Err(GraphError::Shape { .. })));
    }
}
