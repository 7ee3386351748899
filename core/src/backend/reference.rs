//! The reference backend: f32 over dequantised weights, node by node through each op's `eval_ref`.
//!
//! It is what everything else is measured against and what runs a new op, architecture or block format on its first day.
//! It promises no bits, allocates as it likes, and is never chosen unless asked for by name.

use super::{Backend, BackendError, BackendInfo, BackendMemory, CacheShape, Instance, Loaded, PackBytes, StepIo, Support, TensorSource};
use crate::graph::{Fusions, NodeId, VerifiedGraph};
use crate::ops::{Op, ReadWeights, RefCx, RowsDim, Shape, WeightDecl, WeightId};
use crate::os::FloatEnv;
use crate::place::{Placement, StepShape};
use std::ops::Range;
use std::sync::Arc;

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceBackend {
    /// Threads.
    pub n_threads: usize,
}

#[derive(Debug)]
struct ReferenceModel {
    graph: Arc<VerifiedGraph>,
    weights: Arc<dyn TensorSource>,
    n_threads: usize,
}

#[derive(Debug)]
struct ReferenceInstance {
    model: Arc<ReferenceModel>,
    placements: Vec<Placement>,
    values: Vec<Vec<f32>>,
}

struct Decoded<'a> {
    decls: &'a [WeightDecl],
    weights: &'a dyn TensorSource,
}

impl ReadWeights for Decoded<'_> {
    fn row(&self, weight: WeightId, row: usize, out: &mut [f32]) {
        let decl = &self.decls[weight.0 as usize];
        let format = decl.ty.row();
        let row_bytes = decl.n_in / format.block_elems * format.block_bytes;
        let bytes = &self.weights.tensor(&decl.tensor)[row * row_bytes..][..row_bytes];
        if let Some(decode) = format.decode {
            decode(bytes, &mut out[..decl.n_in]);
        }
    }
}

impl Backend for ReferenceBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo { name: "reference", device: "f32".into(), n_threads: self.n_threads, remark: None }
    }

    fn supports(&self, graph: &VerifiedGraph, node: NodeId, n_rows: usize) -> Support {
        let node = &graph.nodes[node.0 as usize];
        let cost = graph.cost(node);
        Support::Yes { cost_ns: cost.weight_bytes + cost.ops_per_row * n_rows as f64, kernel: "eval_ref" }
    }

    fn fusions(&self) -> Fusions {
        Fusions { act8: |_| false, merge: false }
    }

    fn memory(&self, graph: &VerifiedGraph, _: Range<usize>, steps: &[StepShape], _: CacheShape) -> BackendMemory {
        // Every value of a step is kept until the next one.
        let n_rows = |s: &Shape, step: &StepShape| {
            if s.rows == RowsDim::Step { step.max_rows } else { step.max_wanted }
        };
        let of_step = |step: &StepShape| graph.values.iter().map(|v| v.shape.cols * n_rows(&v.shape, step) * 4).sum::<usize>();
        BackendMemory { scratch: steps.iter().map(of_step).max().unwrap_or(0), ..BackendMemory::default() }
    }

    fn load(
        &self,
        graph: Arc<VerifiedGraph>,
        nodes: Range<usize>,
        weights: Arc<dyn TensorSource>,
        _pack: PackBytes,
    ) -> Result<Arc<dyn Loaded>, BackendError> {
        for w in graph.nodes[nodes].iter().flat_map(|n| n.op.weights()) {
            let decl = &graph.weights[w.weight.0 as usize];
            if decl.ty.row().decode.is_none() {
                return Err(BackendError::UnsupportedType { tensor: decl.tensor.clone(), ty: decl.ty.to_string() });
            }
        }
        Ok(Arc::new(Model(Arc::new(ReferenceModel { graph, weights, n_threads: self.n_threads }))))
    }
}

#[derive(Debug)]
struct Model(Arc<ReferenceModel>);

impl Loaded for Model {
    fn instance(&self, placements: &[Placement], _cache: CacheShape) -> Result<Box<dyn Instance>, BackendError> {
        let values = vec![Vec::new(); self.0.graph.values.len()];
        Ok(Box::new(ReferenceInstance { model: self.0.clone(), placements: placements.to_vec(), values }))
    }
}

impl Instance for ReferenceInstance {
    fn run(&mut self, plan: usize, nodes: Range<usize>, io: &mut StepIo<'_>) -> Result<(), BackendError> {
        let _env = FloatEnv::default_here();
        let model = self.model.clone();
        let graph = &*model.graph;
        let weights = Decoded { decls: &graph.weights, weights: &*model.weights };
        for i in nodes {
            if io.cancel.is_cancelled() {
                return Err(BackendError::Cancelled);
            }
            let node = &graph.nodes[i];
            let mut outputs: Vec<Vec<f32>> = node
                .outputs
                .iter()
                .map(|&v| {
                    let shape = graph.shape(v);
                    let n_rows = if shape.rows == RowsDim::Step { io.rows.len() } else { io.wanted.len() };
                    vec![0.0; n_rows * shape.cols]
                })
                .collect();
            let inputs: Vec<&[f32]> = node.inputs.iter().map(|v| self.values[v.0 as usize].as_slice()).collect();
            let shapes: Vec<Shape> = node.inputs.iter().map(|&v| graph.shape(v)).collect();
            let mut cx = RefCx {
                rows: io.rows,
                wanted: io.wanted,
                inputs: &inputs,
                shapes: &shapes,
                outputs: &mut outputs,
                weights: &weights,
                decls: &graph.weights,
                kv: io.kv,
                n_threads: model.n_threads,
            };
            node.op.eval_ref(&mut cx);
            for (&v, out) in node.outputs.iter().zip(outputs) {
                if let Some(tap) = &mut io.tap {
                    tap(v, &out);
                }
                // A non-finite norm or product is where damage shows first.
                if matches!(node.op, Op::RmsNorm(_) | Op::MatMul(_)) && out.iter().any(|x| !x.is_finite()) {
                    return Err(BackendError::NonFinite { node: graph.node_name(node), layer: node.layer });
                }
                self.values[v.0 as usize] = out;
            }
        }
        // Values that leave the segment lie in the arena.
        let logits = graph.logits();
        if !io.wanted.is_empty() {
            let offset = self.placements[plan].offset(logits);
            let src = &self.values[logits.0 as usize];
            bytemuck::cast_slice_mut::<u8, f32>(&mut io.arena[offset..offset + src.len() * 4]).copy_from_slice(src);
        }
        Ok(())
    }
}
