//! CPU backend: W4A8 kernels over one packed layout, attention over pages, a thread pool that splits by rows. Every
//! instruction set and thread count gives the same bits (DESIGN 3.1).

#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod count;
mod instance;
mod isa;
mod kernels;
mod load;
mod pack;
mod pool;
#[cfg(any(test, feature = "bench"))]
mod random;

pub use count::best_thread_count;
pub use isa::Isa;
pub use pool::{MAX_THREADS, ThreadCare};

use instance::{CpuInstance, Model, Scratch};
use load::PackPlan;
use pack::pack_row;
use selvedge_core::backend::{
    Backend, BackendError, BackendInfo, BackendMemory, CacheShape, Instance, LoadControl, Loaded, PackBytes, PackLayout, PackSink, Support,
    TensorSource,
};
use selvedge_core::cancel::CancelToken;
use selvedge_core::graph::{Fusions, NodeId, VerifiedGraph};
use selvedge_core::ops::Op;
use selvedge_core::place::{Placement, StepShape};
use std::ops::Range;
use std::sync::Arc;

/// The backend with its options settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuBackend {
    isa: Isa,
    /// Whether the instruction set was chosen here.
    automatic: bool,
    n_threads: usize,
    care: ThreadCare,
}

impl CpuBackend {
    /// `isa`: `None` takes the best there is. `n_threads`: 0 takes one for each fast core; at most [`MAX_THREADS`].
    pub fn new(isa: Option<Isa>, n_threads: usize, care: ThreadCare) -> Result<CpuBackend, BackendError> {
        let automatic = isa.is_none();
        let isa = isa.unwrap_or_else(Isa::best);
        if !isa.enable() {
            let available = Isa::available().iter().map(|i| i.name()).collect::<Vec<_>>().join(", ");
            return Err(BackendError::Isa { wanted: isa.name().into(), available });
        }
        let n_threads = if n_threads == 0 { selvedge_core::os::default_threads() } else { n_threads };
        Ok(CpuBackend { isa, automatic, n_threads: n_threads.min(MAX_THREADS), care })
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

/// Bytes that an idle or working thread's stack really takes.
const STACK_TOUCHED: usize = 16 << 10;

impl Backend for CpuBackend {
    fn info(&self) -> BackendInfo {
        let remark = self.automatic.then(|| isa::remark(self.isa, &Isa::available())).flatten();
        BackendInfo { name: "cpu", device: self.isa.name().into(), n_threads: self.n_threads, remark }
    }

    fn supports(&self, graph: &VerifiedGraph, node: NodeId, n_rows: usize) -> Support {
        let node = &graph.nodes[node.0 as usize];
        let mut kernel = "element";
        for w in node.op.weights() {
            let Some(row) = pack_row(graph.weights[w.weight.0 as usize].ty) else {
                return Support::No("a weight is of a type that can't be decoded");
            };
            if let (Op::MatMul(_), true) = (&node.op, w.n > 1) {
                kernel = kernels::matmul::select(row.layout, self.isa, n_rows).name;
            }
        }
        if let Op::Attention(_) = node.op {
            kernel = kernels::attention::select(self.isa).name;
        }
        let cost = graph.cost(node);
        // About 10 GB/s of weights and 30 multiply-adds a nanosecond per thread with vectors, a tenth without.
        let per_ns = if self.isa == Isa::Scalar { 3.0 } else { 30.0 } * self.n_threads as f64;
        Support::Yes { cost_ns: (cost.weight_bytes / 10.0).max(cost.ops_per_row * n_rows as f64 / per_ns), kernel }
    }

    fn fusions(&self) -> Fusions {
        Fusions { act8: |ty| pack_row(ty).is_some_and(|row| row.layout.act8()), merge: true }
    }

    fn memory(&self, graph: &VerifiedGraph, nodes: Range<usize>, steps: &[StepShape], cache: CacheShape) -> BackendMemory {
        let pack = PackPlan::new(graph, nodes.clone()).n_bytes;
        let scratch = Scratch::new(graph, nodes, steps, cache.n_ctx, self.isa).n_bytes(self.n_threads);
        BackendMemory { pack, scratch: scratch + self.n_threads.saturating_sub(1) * STACK_TOUCHED, device: 0 }
    }

    fn pack_layout(&self, graph: &VerifiedGraph, nodes: Range<usize>) -> PackLayout {
        PackPlan::new(graph, nodes.clone()).layout(graph, nodes)
    }

    fn pack(
        &self,
        graph: &VerifiedGraph,
        nodes: Range<usize>,
        weights: &dyn TensorSource,
        sink: &dyn PackSink,
        control: &mut LoadControl<'_>,
    ) -> Result<(), BackendError> {
        load::pack(graph, &PackPlan::new(graph, nodes), weights, self.n_threads, sink, control)
    }

    fn check_pack(&self, graph: &VerifiedGraph, nodes: Range<usize>, pack: &[u8], cancel: &CancelToken) -> Result<(), BackendError> {
        load::check(graph, &PackPlan::new(graph, nodes), pack, cancel)
    }

    fn load(
        &self,
        graph: Arc<VerifiedGraph>,
        nodes: Range<usize>,
        weights: Arc<dyn TensorSource>,
        pack: PackBytes,
    ) -> Result<Arc<dyn Loaded>, BackendError> {
        for decl in &graph.weights {
            if pack_row(decl.ty).is_none() {
                return Err(BackendError::UnsupportedType { tensor: decl.tensor.clone(), ty: decl.ty.to_string() });
            }
        }
        let plan = PackPlan::new(&graph, nodes.clone());
        let model = Model::new(graph, nodes, weights, plan, pack, self)?;
        Ok(Arc::new(CpuModel(Arc::new(model))))
    }
}

#[derive(Debug)]
struct CpuModel(Arc<Model>);

impl Loaded for CpuModel {
    fn instance(&self, placements: &[Placement], cache: CacheShape) -> Result<Box<dyn Instance>, BackendError> {
        Ok(Box::new(CpuInstance::new(self.0.clone(), placements, cache)?))
    }
}
