//! Fusion: passes that rewrite a graph into one with fewer, larger nodes, without changing the bits that the CPU computes.
//!
//! To add one: write a pass `fn(&mut Graph)` and add a row to [`PASSES`]. A pass keeps the names of the values that
//! remain, so that a fused graph can be compared with an unfused one.

use super::{Graph, GraphError, Node, ValueId, VerifiedGraph};
use crate::ops::{Add, Elem, Epilogue, MatMul, Op, Quantize, Rope};
use selvedge_gguf::TensorType;

/// What a backend wants done to a graph before it compiles it.
#[derive(Debug, Clone, Copy)]
pub struct Fusions {
    /// Whether products with weights of this type take 8-bit activations.
    pub act8: fn(TensorType) -> bool,
    /// Whether nodes are merged at all.
    pub merge: bool,
}

type Pass = (&'static str, fn(&mut Graph));

/// The passes in order.
const PASSES: &[Pass] = &[
    ("rotated keys are stored by one node", rope_into_store),
    ("gate, up and activation in one product", glu),
    ("residual added by the product", residual_into_matmul),
    ("residual added by the norm", residual_into_norm),
    ("products of one input in one node", siblings),
    ("norm quantises its result", quantize_into_norm),
];

/// Rewrites the graph as the backend asks and verifies the result.
pub fn fuse(graph: &VerifiedGraph, fusions: &Fusions) -> Result<VerifiedGraph, GraphError> {
    let mut g = graph.to_graph();
    insert_quantize(&mut g, fusions.act8)?;
    if fusions.merge {
        for (_, pass) in PASSES {
            pass(&mut g);
        }
    }
    g.verify()
}

impl Graph {
    /// Nodes that use a value.
    fn n_uses(&self, v: ValueId) -> usize {
        self.nodes.iter().map(|n| n.inputs.iter().filter(|&&i| i == v).count()).sum::<usize>() + usize::from(self.logits == Some(v))
    }

    /// Node that makes a value.
    fn maker(&self, v: ValueId) -> Option<usize> {
        self.nodes.iter().position(|n| n.outputs.contains(&v))
    }
}

/// Puts a `Quantize` before products whose weights take 8-bit activations; one per value.
fn insert_quantize(g: &mut Graph, act8: fn(TensorType) -> bool) -> Result<(), GraphError> {
    let mut i = 0;
    while i < g.nodes.len() {
        if let Op::MatMul(m) = &g.nodes[i].op
            && m.parts.iter().all(|p| act8(g.weights[p.rows.weight.0 as usize].ty))
            && g.shape(g.nodes[i].inputs[0]).elem == Elem::F32
        {
            let x = g.nodes[i].inputs[0];
            let quantized = g.nodes[..i].iter().find(|n| matches!(n.op, Op::Quantize(_)) && n.inputs[0] == x).map(|n| n.outputs[0]);
            let q = match quantized {
                Some(q) => q,
                None => {
                    let name = format!("{}.q8", g.values[x.0 as usize].name);
                    let layer = g.nodes[i].layer;
                    let q = g.push1(None, Quantize, &[x], &name)?;
                    let mut node = g.nodes.pop().unwrap_or_else(|| unreachable!("a node was just pushed"));
                    node.layer = layer;
                    g.nodes.insert(i, node);
                    i += 1;
                    q
                }
            };
            g.nodes[i].inputs[0] = q;
        }
        i += 1;
    }
    Ok(())
}

/// `KvStore(Rope(k), v)` becomes one node.
fn rope_into_store(g: &mut Graph) {
    let mut i = 0;
    while i < g.nodes.len() {
        let Node { op: Op::KvStore(store), inputs, .. } = &g.nodes[i] else {
            i += 1;
            continue;
        };
        let (mut store, k) = (*store, inputs[0]);
        if let (None, 1, Some(r)) = (store.rope, g.n_uses(k), g.maker(k))
            && let Op::Rope(rope @ Rope { .. }) = g.nodes[r].op
        {
            store.rope = Some(rope);
            let (plain, table) = (g.nodes[r].inputs[0], g.nodes[r].inputs[1]);
            g.nodes[i].op = store.into();
            g.nodes[i].inputs[0] = plain;
            g.nodes[i].inputs.push(table);
            g.nodes.remove(r);
            i -= 1;
        }
        i += 1;
    }
}

/// `Glu(W1 x, W2 x)` becomes one product with an epilogue.
fn glu(g: &mut Graph) {
    let mut i = 0;
    while i < g.nodes.len() {
        if let Op::Glu(op) = g.nodes[i].op
            && let [gate, up] = g.nodes[i].inputs[..]
            && let (Some(a), Some(b)) = (g.maker(gate), g.maker(up))
            && let (Op::MatMul(ma), Op::MatMul(mb)) = (&g.nodes[a].op, &g.nodes[b].op)
            && (ma.epilogue, mb.epilogue) == (Epilogue::None, Epilogue::None)
            && g.nodes[a].inputs == g.nodes[b].inputs
            && (g.n_uses(gate), g.n_uses(up)) == (1, 1)
            && ma.parts.len() == 1
            && mb.parts.len() == 1
        {
            let parts = vec![ma.parts[0], mb.parts[0]];
            g.nodes[i].op = MatMul { parts, epilogue: Epilogue::Glu(op.act) }.into();
            g.nodes[i].inputs = g.nodes[a].inputs.clone();
            g.nodes.remove(a.max(b));
            g.nodes.remove(a.min(b));
            i -= 2;
        }
        i += 1;
    }
}

/// `Add(r, s * (W x))` becomes the product's epilogue.
fn residual_into_matmul(g: &mut Graph) {
    let mut i = 0;
    while i < g.nodes.len() {
        if let Op::Add(Add { scale }) = g.nodes[i].op
            && let [residual, y] = g.nodes[i].inputs[..]
            && let Some(m) = g.maker(y)
            && g.n_uses(y) == 1
            && let Op::MatMul(matmul) = &g.nodes[m].op
            && matmul.epilogue == Epilogue::None
            && matmul.parts.len() == 1
        {
            let op = MatMul { parts: matmul.parts.clone(), epilogue: Epilogue::Residual { scale } };
            let x = g.nodes[m].inputs[0];
            g.nodes[i].op = op.into();
            g.nodes[i].inputs = vec![x, residual];
            g.nodes.remove(m);
            i -= 1;
        }
        i += 1;
    }
}

/// `Add(r, norm(x))` becomes a norm with a residual.
fn residual_into_norm(g: &mut Graph) {
    let mut i = 0;
    while i < g.nodes.len() {
        if let Op::Add(Add { scale: 1.0 }) = g.nodes[i].op
            && let [residual, y] = g.nodes[i].inputs[..]
            && let Some(n) = g.maker(y)
            && g.n_uses(y) == 1
            && let Op::RmsNorm(mut norm) = g.nodes[n].op
            && !norm.residual
            && norm.out == Elem::F32
        {
            norm.residual = true;
            let x = g.nodes[n].inputs[0];
            g.nodes[i].op = norm.into();
            g.nodes[i].inputs = vec![x, residual];
            g.nodes.remove(n);
            i -= 1;
        }
        i += 1;
    }
}

/// Neighbouring plain products of one input become one node with several outputs, so that all threads meet once.
fn siblings(g: &mut Graph) {
    let mut i = 0;
    while i + 1 < g.nodes.len() {
        if let (Op::MatMul(a), Op::MatMul(b)) = (&g.nodes[i].op, &g.nodes[i + 1].op)
            && (a.epilogue, b.epilogue) == (Epilogue::None, Epilogue::None)
            && g.nodes[i].inputs == g.nodes[i + 1].inputs
        {
            let parts = a.parts.iter().chain(&b.parts).copied().collect();
            g.nodes[i].op = MatMul { parts, epilogue: Epilogue::None }.into();
            let outputs = g.nodes.remove(i + 1).outputs;
            g.nodes[i].outputs.extend(outputs);
        } else {
            i += 1;
        }
    }
}

/// A norm whose result is only quantised gives the quantised value itself.
fn quantize_into_norm(g: &mut Graph) {
    let mut i = 0;
    while i < g.nodes.len() {
        if let Op::Quantize(_) = g.nodes[i].op
            && let Some(n) = g.maker(g.nodes[i].inputs[0])
            && g.n_uses(g.nodes[i].inputs[0]) == 1
            && let Op::RmsNorm(mut norm) = g.nodes[n].op
            && !norm.residual
            && norm.group == g.shape(g.nodes[i].inputs[0]).cols
        {
            norm.out = Elem::Act8;
            g.nodes[n].op = norm.into();
            g.nodes[n].outputs = g.nodes[i].outputs.clone();
            g.nodes.remove(i);
            i -= 1;
        }
        i += 1;
    }
}
