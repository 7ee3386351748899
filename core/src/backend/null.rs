//! The backend that computes nothing: plans, partitions and engines are tested on it without weights.

use super::{Backend, BackendError, BackendInfo, BackendMemory, CacheShape, Instance, Loaded, PackBytes, StepIo, Support, TensorSource};
use crate::graph::{Fusions, NodeId, VerifiedGraph};
use crate::place::{Placement, StepShape};
use std::ops::Range;
use std::sync::Arc;

/// Runs every node by doing nothing; values keep what the arena holds, at first zeros.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullBackend;

impl Backend for NullBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo { name: "null", device: "none".into(), n_threads: 0, remark: None }
    }

    fn supports(&self, _graph: &VerifiedGraph, _node: NodeId, _n_rows: usize) -> Support {
        Support::Yes { cost_ns: 0.0, kernel: "none" }
    }

    fn fusions(&self) -> Fusions {
        Fusions { act8: |_| false, merge: false }
    }

    fn memory(&self, _: &VerifiedGraph, _: Range<usize>, _: &[StepShape], _: CacheShape) -> BackendMemory {
        BackendMemory::default()
    }

    fn load(
        &self,
        _graph: Arc<VerifiedGraph>,
        _nodes: Range<usize>,
        _weights: Arc<dyn TensorSource>,
        _pack: PackBytes,
    ) -> Result<Arc<dyn Loaded>, BackendError> {
        Ok(Arc::new(NullBackend))
    }
}

impl Loaded for NullBackend {
    fn instance(&self, _placements: &[Placement], _cache: CacheShape) -> Result<Box<dyn Instance>, BackendError> {
        Ok(Box::new(NullBackend))
    }
}

impl Instance for NullBackend {
    fn run(&mut self, _plan: usize, nodes: Range<usize>, io: &mut StepIo<'_>) -> Result<(), BackendError> {
        if !nodes.is_empty() && io.cancel.is_cancelled() { Err(BackendError::Cancelled) } else { Ok(()) }
    }
}
