//! Which backend runs which nodes: the cheapest way through the graph, where changing the backend costs the bytes of the
//! values that must cross.

use super::PlanError;
use crate::backend::{Backend, Support};
use crate::graph::{NodeId, VerifiedGraph};
use crate::ops::RowsDim;
use std::ops::Range;
use std::sync::Arc;

/// Nodes that run on one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Name of the backend.
    pub backend: &'static str,
    /// Its index in the list that was given.
    pub backend_idx: usize,
    /// The nodes.
    pub nodes: Range<usize>,
    /// Why there, and with which kernels.
    pub reason: String,
}

/// Nanoseconds to hand a segment over, apart from its bytes.
const SWITCH_NS: f64 = 20_000.0;
/// Bytes that cross between two memories in a nanosecond.
const CROSS_BYTES_PER_NS: f64 = 8.0;

/// Bytes of values made before node `i` and used from it on, for a step of `n_rows`.
fn crossing(graph: &VerifiedGraph, i: usize, n_rows: usize) -> f64 {
    let made_before = |v: u32| graph.nodes[..i].iter().any(|n| n.outputs.iter().any(|o| o.0 == v));
    let mut used: Vec<u32> = graph.nodes[i..].iter().flat_map(|n| n.inputs.iter().map(|v| v.0)).collect();
    used.sort_unstable();
    used.dedup();
    used.iter()
        .filter(|&&v| made_before(v))
        .map(|&v| {
            let shape = graph.values[v as usize].shape;
            shape.n_bytes(if shape.rows == RowsDim::Step { n_rows } else { 1 }) as f64
        })
        .sum()
}

/// Cuts the graph into segments. With one backend there is one segment.
pub fn partition(graph: &VerifiedGraph, backends: &[Arc<dyn Backend>], n_rows: usize) -> Result<Vec<Segment>, PlanError> {
    // cost[b]: the cheapest way to have run all nodes so far with the last one on b; from[i][b]: where node i - 1 ran on it.
    let mut cost = vec![0.0_f64; backends.len()];
    let mut from: Vec<Vec<usize>> = Vec::with_capacity(graph.nodes.len());
    for (i, node) in graph.nodes.iter().enumerate() {
        let cross = if i == 0 || backends.len() == 1 { 0.0 } else { SWITCH_NS + crossing(graph, i, n_rows) / CROSS_BYTES_PER_NS };
        let mut next = vec![f64::INFINITY; backends.len()];
        let mut came = vec![0; backends.len()];
        let mut reasons = Vec::new();
        for (b, backend) in backends.iter().enumerate() {
            match backend.supports(graph, NodeId(i as u32), n_rows) {
                Support::No(why) => reasons.push(format!("{}: {why}", backend.info().name)),
                Support::Yes { cost_ns, .. } => {
                    for (prev, &so_far) in cost.iter().enumerate() {
                        let total = so_far + cost_ns + if prev == b || i == 0 { 0.0 } else { cross };
                        if total < next[b] {
                            (next[b], came[b]) = (total, prev);
                        }
                    }
                }
            }
        }
        if next.iter().all(|c| c.is_infinite()) {
            return Err(PlanError::NoBackend { node: graph.node_name(node), op: node.op.name(), reason: reasons.join("; ") });
        }
        cost = next;
        from.push(came);
    }
    let best = |cost: &[f64]| (0..cost.len()).min_by(|&a, &b| cost[a].total_cmp(&cost[b])).unwrap_or(0);
    let mut chosen = vec![0; graph.nodes.len()];
    let mut b = best(&cost);
    for i in (0..graph.nodes.len()).rev() {
        chosen[i] = b;
        b = from[i][b];
    }
    let mut segments: Vec<Segment> = Vec::new();
    for (i, &b) in chosen.iter().enumerate() {
        match segments.last_mut() {
            Some(s) if s.backend_idx == b => s.nodes.end = i + 1,
            _ => segments.push(Segment { backend: backends[b].info().name, backend_idx: b, nodes: i..i + 1, reason: String::new() }),
        }
    }
    for s in &mut segments {
        s.reason = explain(graph, &*backends[s.backend_idx], s.nodes.clone(), n_rows, backends.len());
    }
    Ok(segments)
}

fn explain(graph: &VerifiedGraph, backend: &dyn Backend, nodes: Range<usize>, n_rows: usize, n_backends: usize) -> String {
    let mut kernels: Vec<&str> = nodes
        .filter_map(|i| match backend.supports(graph, NodeId(i as u32), n_rows) {
            Support::Yes { kernel, .. } => Some(kernel),
            Support::No(_) => None,
        })
        .collect();
    kernels.sort_unstable();
    kernels.dedup();
    let info = backend.info();
    let why = if n_backends == 1 { "the only backend asked for" } else { "cheapest by the backends' own estimates" };
    format!("{why}; {} on {} threads, kernels {}", info.device, info.n_threads, kernels.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{BackendError, BackendInfo, BackendMemory, CacheShape, Loaded, NullBackend, PackBytes, TensorSource};
    use crate::graph::{Fusions, Graph};
    use crate::ops::{Add, Embed, MatMul, Op, Select, WeightDecl};
    use crate::place::StepShape;
    use selvedge_gguf::TensorType;

    /// A backend with prices: of products, and of everything else where it runs that.
    #[derive(Debug)]
    struct Priced {
        name: &'static str,
        product: f64,
        other: Option<f64>,
    }

    const fn products_only(product: f64) -> Priced {
        Priced { name: "products", product, other: None }
    }

    impl Backend for Priced {
        fn info(&self) -> BackendInfo {
            BackendInfo { name: self.name, device: "test".into(), n_threads: 1, remark: None }
        }
        fn supports(&self, graph: &VerifiedGraph, node: NodeId, _n_rows: usize) -> Support {
            let product = matches!(graph.nodes[node.0 as usize].op, Op::MatMul(_));
            match if product { Some(self.product) } else { self.other } {
                Some(cost_ns) => Support::Yes { cost_ns, kernel: "test" },
                None => Support::No("only products"),
            }
        }
        fn fusions(&self) -> Fusions {
            Fusions { act8: |_| false, merge: false }
        }
        fn memory(&self, _: &VerifiedGraph, _: Range<usize>, _: &[StepShape], _: CacheShape) -> BackendMemory {
            BackendMemory::default()
        }
        fn load(
            &self,
            _: Arc<VerifiedGraph>,
            _: Range<usize>,
            _: Arc<dyn TensorSource>,
            _: PackBytes,
        ) -> Result<Arc<dyn Loaded>, BackendError> {
            Ok(Arc::new(NullBackend))
        }
    }

    fn graph() -> VerifiedGraph {
        let mut g = Graph::default();
        let w = g.weight(WeightDecl { tensor: "w".into(), ty: TensorType::F32, n_in: 32, n_out: 32 });
        let x = g.push1(None, Embed { weight: w, n_vocab: 32, scale: 1.0 }, &[], "x").unwrap();
        let y = g.push1(None, MatMul::new(w, 32, None), &[x], "y").unwrap();
        let z = g.push1(None, Add { scale: 1.0 }, &[x, y], "z").unwrap();
        let s = g.push1(None, Select, &[z], "s").unwrap();
        g.logits = Some(g.push1(None, MatMul::new(w, 32, None), &[s], "logits").unwrap());
        g.verify().unwrap()
    }

    #[test]
    fn one_backend_is_one_segment() {
        let segments = partition(&graph(), &[Arc::new(NullBackend)], 8).unwrap();
        assert_eq!(segments.len(), 1);
        assert_eq!((segments[0].nodes.clone(), segments[0].backend), (0..5, "null"));
    }

    #[test]
    fn a_cut_is_made_only_where_it_pays() {
        let names = |price: f64| {
            let backends: [Arc<dyn Backend>; 2] =
                [Arc::new(products_only(1.0)), Arc::new(Priced { name: "slow", product: price, other: Some(1.0) })];
            partition(&graph(), &backends, 8).unwrap().iter().map(|s| s.backend).collect::<Vec<_>>()
        };
        assert_eq!(names(1_000.0), ["slow"]);
        assert_eq!(names(30_000.0), ["slow", "products"], "the last product needs one crossing, the inner one two");
        assert_eq!(names(1e6), ["slow", "products", "slow", "products"]);
    }

    #[test]
    fn a_node_that_nobody_runs_is_named() {
        let error = partition(&graph(), &[Arc::new(products_only(1.0))], 8).unwrap_err();
        assert_eq!(error.to_string(), "no backend can run x (embed): products: only products");
    }
}
