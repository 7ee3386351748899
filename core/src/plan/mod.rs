//! What a model will take and where it will run, settled before any weight is read.

mod partition;

use crate::arch::Architecture;
use crate::backend::{Backend, BackendError, BackendMemory, CacheShape, PackLayout};
use crate::graph::{GraphError, VerifiedGraph, fuse};
use crate::kv::{KvElem, KvSpec};
use crate::model::{ModelError, ModelFile, PackStore};
use crate::os;
use crate::place::{Placement, StepShape};
use crate::tokenizer::{self, Tokenizer};
use std::path::PathBuf;
use std::sync::Arc;

pub use partition::{Segment, partition};

/// Context when none is asked for: the model's own, at most this.
pub const DEFAULT_CONTEXT: usize = 4096;

/// A context that nobody asked for shrinks to what fits, but not below this.
const SHORTEST_DEFAULT: usize = 512;

/// Rows of a prompt that are computed at once when nothing else is asked for.
pub const DEFAULT_CHUNK: usize = 512;

/// What a model is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanOptions {
    /// Positions of a sequence; `None`: the model's own context, at most [`DEFAULT_CONTEXT`] and what fits.
    pub n_ctx: Option<usize>,
    /// Sequences in one engine.
    pub n_seq: usize,
    /// Rows in one step.
    pub chunk: usize,
    /// Wanted rows in one tile of the head.
    pub max_wanted: usize,
    /// Element type of the KV cache.
    pub kv: KvElem,
    /// Anonymous bytes that must not be exceeded; `None`: what the system has free.
    pub budget: Option<u64>,
    /// How packed weights are to be held.
    pub weights: Weights,
    /// Share of the time that an engine may compute, percent; it rests between steps for the others. For devices that grow
    /// hot, and for work that nobody waits for.
    pub duty: u8,
}

/// How packed weights are to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weights {
    /// In memory where that is faster and memory is ample, else mapped.
    #[default]
    Auto,
    /// In memory, in huge pages where the system has them.
    Resident,
    /// In a mapped file, which the system may drop and read again.
    Mapped,
}

/// How packed weights will be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The backends use the file's own form.
    Plain,
    /// In anonymous memory.
    Resident,
    /// In a mapped file.
    Mapped,
}

impl Held {
    /// The word for it in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Held::Plain => "plain",
            Held::Resident => "resident",
            Held::Mapped => "mapped",
        }
    }
}

impl Default for PlanOptions {
    fn default() -> PlanOptions {
        PlanOptions {
            n_ctx: None,
            n_seq: 1,
            chunk: DEFAULT_CHUNK,
            max_wanted: 1,
            kv: KvElem::F16,
            budget: None,
            weights: Weights::Auto,
            duty: 100,
        }
    }
}

/// Anonymous memory by use, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Anonymous {
    /// Keys and values with the context full.
    pub kv: u64,
    /// Intermediate values and scratch of one engine.
    pub arena: u64,
    /// Weights in the backends' form, unless they are in a mapped file.
    pub pack: u64,
    /// Vocabulary and merges.
    pub tokenizer: u64,
    /// Tensor table, tables of the engine, the sampler's candidates, the text of a full context.
    pub other: u64,
}

impl Anonymous {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.kv + self.arena + self.pack + self.tokenizer + self.other
    }
}

/// The plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Bytes mapped from files, of packed weights too: spared by systems that kill on anonymous memory.
    pub mapped: u64,
    /// Anonymous bytes.
    pub anonymous: Anonymous,
    /// Bytes on devices of their own.
    pub gpu: u64,
    /// Context planned for.
    pub n_ctx: usize,
    /// The largest context that fits the limit; at most the one that the model was trained for.
    pub max_ctx: usize,
    /// What the anonymous memory must not exceed.
    pub limit: Limit,
    /// How packed weights will be held.
    pub held: Held,
    /// Why so, and where.
    pub held_why: String,
    /// Which backend runs what, and why.
    pub segments: Vec<Segment>,
}

/// Anonymous memory that a plan must not exceed, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The budget that was set.
    Budget(u64),
    /// What the system said a program may still take.
    Free(u64),
    /// Unknown: no budget, and a system that says nothing.
    None,
}

impl Limit {
    /// The limit of a budget, or of the system where there is none.
    fn of(budget: Option<u64>) -> Limit {
        budget.map(Limit::Budget).or_else(|| os::available_memory().map(Limit::Free)).unwrap_or(Limit::None)
    }

    /// Whether that many bytes keep to it.
    fn allows(self, n_bytes: u64) -> bool {
        match self {
            Limit::Budget(limit) | Limit::Free(limit) => n_bytes <= limit,
            Limit::None => true,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::Budget(n) => write!(f, "the budget is {n}"),
            Limit::Free(n) => write!(f, "the system has {n} free"),
            Limit::None => f.write_str("nothing limits it"),
        }
    }
}

/// Why no plan could be made or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The file isn't a model that can be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its tokenizer can't be used.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
    /// The graph is inconsistent.
    #[error("the model's graph is inconsistent: {0}")]
    Graph(#[from] GraphError),
    /// A backend refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// No backend runs a node.
    #[error("no backend can run {node} ({op}): {reason}")]
    NoBackend {
        /// The node.
        node: String,
        /// Its op.
        op: &'static str,
        /// What the backends say.
        reason: String,
    },
    /// An option makes no sense.
    #[error("{option} is {found}, expected {expected}")]
    Option {
        /// Which.
        option: &'static str,
        /// What is allowed.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The token list and the embedding matrix don't fit.
    #[error("the vocabulary has {tokens} tokens and the embedding matrix {rows} rows: the file is inconsistent")]
    Vocabulary {
        /// Tokens in the list.
        tokens: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// Head sizes that a quantised cache can't hold.
    #[error("a {kv} cache keeps blocks of {block} features and layer {layer} has heads of {d_head}: use --kv f16")]
    KvHead {
        /// Type of the cache.
        kv: &'static str,
        /// Features in its blocks.
        block: usize,
        /// The layer.
        layer: usize,
        /// Its head size.
        d_head: usize,
    },
    /// A file with packed weights that this backend can't use.
    #[error("{} holds weights packed for something else ({reason}): use the model that it was packed from", path.display())]
    Packed {
        /// The file.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// More memory than the budget allows, or than the system has.
    #[error("a context of {n_ctx} needs {need} bytes and {limit}: {advice}")]
    Memory {
        /// Context asked for.
        n_ctx: usize,
        /// Anonymous bytes it takes.
        need: u64,
        /// What must not be exceeded.
        limit: Limit,
        /// What would fit.
        advice: String,
    },
}

/// A model with its graph and plan, nothing of its weights read yet.
#[derive(Debug)]
pub struct Planned {
    /// The file.
    pub file: Arc<ModelFile>,
    /// The architecture.
    pub arch: Architecture,
    /// The graph as its backend wants it.
    pub graph: Arc<VerifiedGraph>,
    /// The options, the context settled.
    pub options: PlanOptions,
    /// The plan.
    pub plan: Plan,
    /// Backends that the segments name, by index.
    pub backends: Vec<Arc<dyn Backend>>,
    /// Where packed weights are kept, if anywhere.
    pub store: Option<PackStore>,
}

/// Steps that an engine is prepared for: decode, then prompt chunks.
pub fn step_shapes(options: &PlanOptions) -> Vec<StepShape> {
    let decode = StepShape { max_rows: options.n_seq, max_wanted: options.n_seq };
    let chunk = StepShape { max_rows: options.chunk.max(options.n_seq), max_wanted: options.max_wanted.max(options.n_seq) };
    if chunk == decode { vec![decode] } else { vec![decode, chunk] }
}

/// The cache that a graph needs.
pub fn kv_spec(graph: &VerifiedGraph, options: &PlanOptions, n_ctx: usize) -> KvSpec {
    KvSpec { layers: graph.kv_layers.clone(), elem: options.kv, n_ctx, n_seq: options.n_seq, max_chunk: options.chunk.min(n_ctx).max(1) }
}

/// Bytes that a sampler and a session's buffers take per token of the vocabulary: candidates with their logits.
const SAMPLER_BYTES_PER_TOKEN: usize = 16;
/// Bytes that a position of text takes between a prompt and its tokens: the text itself some five times over while it is
/// rendered and cut, five bytes a token, and its ids.
const TEXT_BYTES_PER_POSITION: usize = 64;
/// Stacks, tables and buffers that don't depend on the model.
const FIXED_BYTES: usize = 1 << 20;

fn check_options(options: &PlanOptions, n_ctx: usize) -> Result<(), PlanError> {
    let bound = |option: &'static str, found: usize, most: usize| {
        if found == 0 || found > most {
            return Err(PlanError::Option { option, expected: format!("1 to {most}"), found: found.to_string() });
        }
        Ok(())
    };
    bound("the context", n_ctx, 1 << 24)?;
    bound("the number of sequences", options.n_seq, 1024)?;
    bound("the share of the time", usize::from(options.duty), 100)?;
    bound("the chunk", options.chunk, 1 << 16)?;
    bound("the number of wanted rows", options.max_wanted, 1 << 16)
}

/// Plans a model on backends, best first. Reads metadata only. A plan that exceeds its limit is made all the same, so that
/// it can be shown: see [`Planned::check_memory`].
///
/// `store`: where packed weights are kept, if anywhere.
pub fn plan(
    file: Arc<ModelFile>,
    options: &PlanOptions,
    backends: Vec<Arc<dyn Backend>>,
    store: Option<PackStore>,
) -> Result<Planned, PlanError> {
    let planned = plan_at(options.n_ctx, file.clone(), options, backends.clone(), store.clone())?;
    let Plan { limit, anonymous, max_ctx, .. } = planned.plan;
    if options.n_ctx.is_none() && !limit.allows(anonymous.total()) && max_ctx >= SHORTEST_DEFAULT {
        return plan_at(Some(max_ctx), file, options, backends, store);
    }
    Ok(planned)
}

/// Free memory that resident weights must leave: a copy of them takes a fourth of it at most.
const AMPLE: u64 = 4;

/// How packed weights are held, and why.
fn hold(wanted: Weights, file: &ModelFile, layouts: &[PackLayout], store: Option<&PackStore>) -> (Held, String) {
    let n_bytes: usize = layouts.iter().map(|l| l.n_bytes).sum();
    if n_bytes == 0 {
        return (Held::Plain, "used in the file's own form".into());
    }
    if file.packed().is_some() && !file.packed_is_aligned() {
        return (Held::Resident, format!("copied from {}: they don't lie there as kernels need them", file.path().display()));
    }
    if !file.is_identifiable() && file.packed().is_none() {
        return (Held::Resident, format!("packed in memory at every load: {} can't be known again", file.path().display()));
    }
    let there = |layout: &PackLayout| store.and_then(|store| store.expects(file, layout));
    let place = match (file.packed(), store) {
        (Some(_), _) => format!("from {}", file.path().display()),
        (None, Some(store)) => match layouts.iter().find_map(there) {
            Some(path) => format!("from {}", path.display()),
            None => format!("packed when first loaded, kept in {}", store.dir().display()),
        },
        (None, None) => return (Held::Resident, "packed in memory at every load: there is no folder to keep them in".into()),
    };
    let phone = cfg!(any(target_os = "android", target_os = "ios"));
    let ample = os::available_memory().is_some_and(|free| free / AMPLE > n_bytes as u64);
    match wanted {
        Weights::Mapped => (Held::Mapped, format!("mapped {place}")),
        Weights::Resident => (Held::Resident, format!("copied {place}")),
        Weights::Auto if phone => (Held::Mapped, format!("mapped {place}: this system kills what holds memory")),
        Weights::Auto if !ample => (Held::Mapped, format!("mapped {place}: a copy would take more than a fourth of the free memory")),
        Weights::Auto if store.is_some_and(|s| file.packed().is_none() && s.has_huge_pages()) => {
            (Held::Mapped, format!("mapped {place}: files there come in huge pages, a copy would be no faster"))
        }
        Weights::Auto => (Held::Resident, format!("copied {place}: memory is ample, and huge pages are faster")),
    }
}

fn plan_at(
    n_ctx: Option<usize>,
    file: Arc<ModelFile>,
    options: &PlanOptions,
    backends: Vec<Arc<dyn Backend>>,
    store: Option<PackStore>,
) -> Result<Planned, PlanError> {
    let gguf = file.gguf()?;
    let arch = Architecture::read(&file, &gguf)?;
    let n_ctx_train = arch.config.n_ctx_train.max(1);
    let n_ctx = n_ctx.unwrap_or(n_ctx_train.min(DEFAULT_CONTEXT));
    check_options(options, n_ctx)?;
    let options = PlanOptions { n_ctx: Some(n_ctx), chunk: options.chunk.min(n_ctx), ..*options };
    let tokens = gguf.metadata.array("tokenizer.ggml.tokens").map_err(ModelError::from)?.map_or(0, |a| a.len());
    if tokens > 0 && tokens != arch.config.n_vocab {
        return Err(PlanError::Vocabulary { tokens, rows: arch.config.n_vocab });
    }
    let tokenizer_bytes = Tokenizer::planned_bytes(&gguf.metadata)?;
    drop(gguf);
    let plain = arch.build(&file, n_ctx)?;
    let block = options.kv.block();
    for (layer, l) in plain.kv_layers.iter().enumerate() {
        if let Some(d_head) = [l.d_k, l.d_v].into_iter().find(|d| d % block != 0) {
            return Err(PlanError::KvHead { kv: options.kv.name(), block, layer, d_head });
        }
    }
    let Some(first) = backends.first() else {
        return Err(PlanError::Option { option: "the list of backends", expected: "at least one".into(), found: "none".into() });
    };
    let graph = Arc::new(fuse(&plain, &first.fusions())?);
    let shapes = step_shapes(&options);
    let segments = partition(&graph, &backends, options.chunk)?;
    let layouts: Vec<PackLayout> = segments.iter().map(|s| backends[s.backend_idx].pack_layout(&graph, s.nodes.clone())).collect();
    if let Some(reason) = file.packed().and_then(|pack| layouts.iter().find_map(|layout| pack.mismatch(layout))) {
        return Err(PlanError::Packed { path: file.path().to_owned(), reason });
    }
    // What no later load would know again isn't kept.
    let store = store.filter(|_| file.is_identifiable());
    let (held, held_why) = hold(options.weights, &file, &layouts, store.as_ref());
    let memory_at = |n_ctx: usize| {
        let cache = CacheShape { elem: options.kv, n_ctx };
        segments.iter().fold(BackendMemory::default(), |sum, s| {
            let m = backends[s.backend_idx].memory(&graph, s.nodes.clone(), &shapes, cache);
            BackendMemory { pack: sum.pack + m.pack, scratch: sum.scratch + m.scratch, device: sum.device + m.device }
        })
    };
    let arena = shapes.iter().map(|&s| Placement::new(&graph, s).n_bytes).max().unwrap_or(0);
    let other = file.anonymous_bytes() + graph.n_vocab() * SAMPLER_BYTES_PER_TOKEN + FIXED_BYTES;
    let anonymous_at = |n_ctx: usize| {
        let memory = memory_at(n_ctx);
        Anonymous {
            kv: kv_spec(&graph, &options, n_ctx).sizes().n_bytes as u64,
            arena: (arena + memory.scratch) as u64,
            pack: if held == Held::Mapped { 0 } else { memory.pack as u64 },
            tokenizer: tokenizer_bytes as u64,
            other: (other + n_ctx * TEXT_BYTES_PER_POSITION) as u64,
        }
    };
    let limit = Limit::of(options.budget);
    let max_ctx = largest(n_ctx_train, |n| limit.allows(anonymous_at(n).total()));
    let anonymous = anonymous_at(n_ctx);
    let memory = memory_at(n_ctx);
    let mapped_pack = if held == Held::Mapped && file.packed().is_none() { memory.pack } else { 0 };
    let (mapped, gpu) = ((file.mapped_bytes() + mapped_pack) as u64, memory.device as u64);
    let plan = Plan { mapped, anonymous, gpu, n_ctx, max_ctx, limit, held, held_why, segments };
    Ok(Planned { file, arch, graph, options, plan, backends, store })
}

impl Planned {
    /// Weights can't be kept in a file, for that reason: they are to be packed in memory, if the limit allows it.
    pub(crate) fn pack_in_memory(&mut self, reason: &str) -> Result<(), PlanError> {
        let again = plan_at(Some(self.plan.n_ctx), self.file.clone(), &self.options, self.backends.clone(), None)?;
        self.plan = Plan { held_why: format!("packed in memory at every load: {reason}"), ..again.plan };
        self.check_memory().map_err(|error| match error {
            PlanError::Memory { n_ctx, need, limit, advice } => {
                let advice = format!("{advice} (packed weights lie in memory because they can't be kept in a file: {reason})");
                PlanError::Memory { n_ctx, need, limit, advice }
            }
            other => other,
        })
    }

    /// Refuses what the budget doesn't allow, or without one what the system can't give, and says what would fit.
    pub fn check_memory(&self) -> Result<(), PlanError> {
        let (need, plan) = (self.plan.anonymous.total(), &self.plan);
        if plan.limit.allows(need) {
            return Ok(());
        }
        let advice = if plan.max_ctx > 0 {
            format!("a context of {} fits", plan.max_ctx)
        } else {
            format!("even the shortest context takes {} bytes without its keys and values", need - plan.anonymous.kv)
        };
        Err(PlanError::Memory { n_ctx: plan.n_ctx, need, limit: plan.limit, advice })
    }
}

/// The largest of `1..=most` that fits, 0 where none does. What fits only shrinks as the context grows.
fn largest(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut lo, mut hi) = (0, most.min(1 << 24));
    while lo < hi {
        let mid = lo + (hi - lo).div_ceil(2);
        if fits(mid) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    lo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_is_exact() {
        for limit in [0, 1, 2, 99, 100, 101] {
            assert_eq!(largest(100, |n| n <= limit), limit.min(100));
        }
    }
}
