//! The contract between the engine and what computes: a backend is asked what it can run and what that costs, loads its
//! weights once, and makes instances that run steps without allocating.
//!
//! A backend sees only verified graphs and placements made by [`Placement::new`]; it does not check them again.
//! To add one: a crate under `backends/` that implements [`Backend`], and a row in `backends/registry`.

mod null;
mod pack;
mod reference;

use crate::cancel::CancelToken;
use crate::graph::{Fusions, NodeId, ValueId, VerifiedGraph};
use crate::kv::{KvElem, KvPages};
use crate::os::OutOfMemory;
use crate::place::{Placement, StepShape};
use crate::step::Row;
use std::ops::Range;
use std::sync::Arc;

pub use null::NullBackend;
pub use pack::{HoldBytes, PACK_CHUNK, PackBytes, PackLayout, PackPiece, PackSink, no_pack, pack_chunks};
pub use reference::ReferenceBackend;

/// What a backend says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendInfo {
    /// Name in options and explanations.
    pub name: &'static str,
    /// Instruction set or device in use.
    pub device: String,
    /// Threads that run a step.
    pub n_threads: usize,
    /// Why it isn't as fast as one might expect, where there is a reason.
    pub remark: Option<String>,
}

/// Answer to whether a backend can run a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Support {
    /// It can, in about this time.
    Yes {
        /// Nanoseconds for a step of the asked rows.
        cost_ns: f64,
        /// Kernel that would run, for explanations.
        kernel: &'static str,
    },
    /// It can't, and why.
    No(&'static str),
}

/// Memory that a backend takes, known before any weight is read. Bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BackendMemory {
    /// Weights in the backend's own form; anonymous unless they are held in a mapped file.
    pub pack: usize,
    /// Per-instance scratch and thread stacks.
    pub scratch: usize,
    /// On a device of its own.
    pub device: usize,
}

/// The cache that an instance will work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Element type of keys and values.
    pub elem: KvElem,
    /// Positions that one sequence may reach.
    pub n_ctx: usize,
}

/// What went wrong in a backend.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The caller cancelled; what was committed stays valid.
    #[error("cancelled")]
    Cancelled,
    /// A value that is infinite or not a number reached a node.
    #[error("{node} has a value that is infinite or not a number: the model's weights are damaged or its numbers overflow")]
    NonFinite {
        /// Name of the value.
        node: String,
        /// Layer, where it belongs to one.
        layer: Option<u32>,
    },
    /// A tensor has an infinite or undefined number.
    #[error("tensor {tensor} holds a number that is infinite or undefined: the file is damaged")]
    DamagedTensor {
        /// Name of the tensor.
        tensor: String,
    },
    /// A tensor of a type that can't be decoded.
    #[error("tensor {tensor} is stored as {ty}, which nothing here can decode yet")]
    UnsupportedType {
        /// Name of the tensor.
        tensor: String,
        /// Storage type.
        ty: String,
    },
    /// Packed weights that don't fit the model.
    #[error("the packed weights are {found}, expected {expected}: pack the model again")]
    Pack {
        /// What the model needs.
        expected: String,
        /// What there is.
        found: String,
    },
    /// Packed weights could not be written.
    #[error("packed weights can't be written: {reason}")]
    PackWrite {
        /// The system's answer.
        reason: String,
    },
    /// The option asks for what the machine lacks.
    #[error("instruction set {wanted} isn't available on this machine, which has {available}")]
    Isa {
        /// What was asked for.
        wanted: String,
        /// What there is.
        available: String,
    },
    /// No memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The system gave no thread.
    #[error("the system refused to start thread {index} of {wanted}")]
    Thread {
        /// Which one.
        index: usize,
        /// How many were wanted.
        wanted: usize,
    },
}

/// The model's tensors, in the file or copied, little endian as this machine.
pub trait TensorSource: Send + Sync + std::fmt::Debug {
    /// Bytes of a tensor; its existence and size were checked against the graph's declarations. Empty for a tensor that the
    /// file holds in packed form alone.
    fn tensor(&self, name: &str) -> &[u8];
}

/// Progress, cancel and bounds of a load.
pub struct LoadControl<'a> {
    /// Called with bytes done and in all.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// Stops the load between two tiles.
    pub cancel: &'a CancelToken,
    /// Anonymous bytes that the work itself may take for a while; the least that it can do with is always allowed.
    pub memory: u64,
}

impl std::fmt::Debug for LoadControl<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadControl").field("cancel", &self.cancel).finish_non_exhaustive()
    }
}

/// A processor with its kernels.
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// What it is.
    fn info(&self) -> BackendInfo;
    /// Whether it can run a node, for a step of `n_rows`.
    fn supports(&self, graph: &VerifiedGraph, node: NodeId, n_rows: usize) -> Support;
    /// How graphs are rewritten for it.
    fn fusions(&self) -> Fusions;
    /// Memory for the nodes, with instances for these steps.
    fn memory(&self, graph: &VerifiedGraph, nodes: Range<usize>, steps: &[StepShape], cache: CacheShape) -> BackendMemory;
    /// How it lays out the weights of the nodes in its own form. Empty where it uses them as they are.
    fn pack_layout(&self, _graph: &VerifiedGraph, _nodes: Range<usize>) -> PackLayout {
        PackLayout::default()
    }
    /// Brings the weights of the nodes into that form, chunk by chunk as [`pack_chunks`] cuts it, in any order and from any
    /// thread. Refuses numbers that are infinite or undefined.
    fn pack(
        &self,
        _graph: &VerifiedGraph,
        _nodes: Range<usize>,
        _weights: &dyn TensorSource,
        _sink: &dyn PackSink,
        _control: &mut LoadControl<'_>,
    ) -> Result<(), BackendError> {
        Ok(())
    }
    /// Refuses numbers that are infinite or undefined in weights of that form, which may be shorter than its layout says.
    fn check_pack(&self, _graph: &VerifiedGraph, _nodes: Range<usize>, _pack: &[u8], _cancel: &CancelToken) -> Result<(), BackendError> {
        Ok(())
    }
    /// Makes the weights of the nodes ready: those packed as its layout says, and from the file what isn't.
    fn load(
        &self,
        graph: Arc<VerifiedGraph>,
        nodes: Range<usize>,
        weights: Arc<dyn TensorSource>,
        pack: PackBytes,
    ) -> Result<Arc<dyn Loaded>, BackendError>;
}

/// Weights in a backend's form: immutable, shared by all engines on the model.
pub trait Loaded: Send + Sync + std::fmt::Debug {
    /// What one engine needs to run steps: threads, scratch, chosen kernels; one plan per placement.
    fn instance(&self, placements: &[Placement], cache: CacheShape) -> Result<Box<dyn Instance>, BackendError>;
}

/// Sees every value after its node ran: `(value, rows x cols)`.
pub type Tap<'a> = &'a mut dyn FnMut(ValueId, &[f32]);

/// One step's data.
pub struct StepIo<'a> {
    /// Rows.
    pub rows: &'a [Row],
    /// Indices of the tile's wanted rows; empty while the body runs.
    pub wanted: &'a [u32],
    /// Arena of at least the placement's size, aligned to [`crate::os::ALIGN`].
    pub arena: &'a mut [u8],
    /// KV cache, with pages reserved for all rows.
    pub kv: KvPages<'a>,
    /// Looked at between two nodes.
    pub cancel: &'a CancelToken,
    /// Looks at values, in `diff`.
    pub tap: Option<Tap<'a>>,
}

impl std::fmt::Debug for StepIo<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepIo").field("rows", &self.rows.len()).field("wanted", &self.wanted.len()).finish_non_exhaustive()
    }
}

/// A backend ready to run steps of one engine.
pub trait Instance: Send + std::fmt::Debug {
    /// Runs some nodes of the graph with the given plan. Allocates nothing.
    fn run(&mut self, plan: usize, nodes: Range<usize>, io: &mut StepIo<'_>) -> Result<(), BackendError>;
}

/// The f32 values of a placed value in an arena.
pub fn f32_value<'a>(graph: &VerifiedGraph, placement: &Placement, arena: &'a [u8], v: ValueId, n_rows: usize) -> &'a [f32] {
    let shape = graph.shape(v);
    let offset = placement.offset(v);
    bytemuck::cast_slice(&arena[offset..offset + n_rows * shape.cols * 4])
}
