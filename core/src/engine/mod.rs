//! The engine: a loaded model, a KV cache, and the step that runs rows of any sequences through them.
//!
//! `Engine::step` runs on whichever thread calls it. It is: check the rows, reserve pages, run the body, run the head on
//! tiles of wanted rows, commit. A step that fails or is cancelled commits nothing: every sequence stays at its last
//! committed position.

mod load;
mod weights;

pub use load::{LoadError, LoadOptions, LoadStage, LoadedModel};

use crate::backend::{BackendError, CacheShape, Instance, StepIo, Tap};
use crate::cancel::CancelToken;
use crate::graph::VerifiedGraph;
use crate::ids::SeqId;
use crate::kv::{KvCache, KvError};
use crate::math;
use crate::model::ModelError;
use crate::os::{OutOfMemory, Region};
use crate::place::Placement;
use crate::plan::{kv_spec, step_shapes};
use crate::step::{Input, Row, Want};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use crate::math::NUMERICS;

/// Why a step failed. Nothing was committed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The backend: cancelled, a damaged number, a lost device.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// No room.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// The file changed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// No memory for the engine.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A row makes no sense.
    #[error("row {row} of the step: {what} is {found}, expected {expected}")]
    Row {
        /// Which row.
        row: usize,
        /// What of it.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
}

impl StepError {
    /// Whether the caller asked for it.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, StepError::Backend(BackendError::Cancelled))
    }
}

/// A part of the graph on one backend.
#[derive(Debug)]
struct Part {
    nodes: Range<usize>,
    instance: Box<dyn Instance>,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    model: Arc<LoadedModel>,
    parts: Vec<Part>,
    placements: Vec<Placement>,
    arena: Region,
    kv: KvCache,
    /// Rows by sequence of the current step.
    counts: Vec<usize>,
    wanted: Vec<u32>,
}

/// A rest between two looks at the cancel token.
const REST: Duration = Duration::from_millis(20);

/// Where logits go: `(index of the row, its logits)`. The logits may be changed at will.
pub type OnLogits<'a> = &'a mut dyn FnMut(usize, &mut [f32]);

impl Engine {
    /// Makes what one engine needs beside the weights: threads, arena, KV cache.
    pub fn new(model: Arc<LoadedModel>) -> Result<Engine, StepError> {
        let options = *model.options();
        let graph = model.graph().clone();
        let placements: Vec<Placement> = step_shapes(&options).into_iter().map(|s| Placement::new(&graph, s)).collect();
        let n_ctx = model.n_ctx();
        let cache = CacheShape { elem: options.kv, n_ctx };
        let parts = model
            .segments()
            .map(|(nodes, loaded)| Ok(Part { nodes, instance: loaded.instance(&placements, cache)? }))
            .collect::<Result<Vec<_>, BackendError>>()?;
        let arena = Region::new(placements.iter().map(|p| p.n_bytes).max().unwrap_or(0), false)?;
        let kv = KvCache::new(&kv_spec(&graph, &options, n_ctx))?;
        let max_rows = placements.iter().map(|p| p.shape.max_rows).max().unwrap_or(0);
        Ok(Engine { parts, placements, arena, kv, counts: vec![0; options.n_seq], wanted: Vec::with_capacity(max_rows), model })
    }

    /// The model.
    pub fn model(&self) -> &Arc<LoadedModel> {
        &self.model
    }

    /// The graph that runs.
    pub fn graph(&self) -> &VerifiedGraph {
        self.model.graph()
    }

    /// Most rows in one step.
    pub fn max_rows(&self) -> usize {
        self.placements.iter().map(|p| p.shape.max_rows).max().unwrap_or(0)
    }

    /// Positions that one sequence may reach.
    pub fn n_ctx(&self) -> usize {
        self.kv.n_ctx()
    }

    /// Committed positions of a sequence.
    pub fn len(&self, seq: SeqId) -> usize {
        self.kv.len(seq)
    }

    /// Whether a sequence has no committed position.
    pub fn is_empty(&self, seq: SeqId) -> bool {
        self.len(seq) == 0
    }

    /// Forgets positions from `to` on; see [`KvCache::rollback`].
    pub fn rollback(&mut self, seq: SeqId, to: usize) -> usize {
        self.kv.rollback(seq, to)
    }

    /// Runs one step. `on_logits` gets the logits of every row that wants them, in the order of the rows.
    pub fn step(&mut self, rows: &[Row], cancel: &CancelToken, on_logits: OnLogits<'_>) -> Result<(), StepError> {
        self.step_tapped(rows, cancel, on_logits, None)
    }

    /// As [`Engine::step`], showing every intermediate value to `tap`.
    pub fn step_tapped(
        &mut self,
        rows: &[Row],
        cancel: &CancelToken,
        on_logits: OnLogits<'_>,
        mut tap: Option<Tap<'_>>,
    ) -> Result<(), StepError> {
        if rows.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        self.check(rows)?;
        self.model.check_unchanged()?;
        for (seq, &n) in self.counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            self.kv.reserve(SeqId(seq as u32), n)?;
        }
        let plan = self.placements.iter().position(|p| p.shape.max_rows >= rows.len()).unwrap_or(self.placements.len() - 1);
        match self.compute(plan, rows, cancel, on_logits, &mut tap) {
            Ok(()) => {}
            Err(BackendError::NonFinite { node, layer }) if tap.is_none() => {
                let (node, layer) = self.first_non_finite(plan, rows, cancel).unwrap_or((node, layer));
                return Err(BackendError::NonFinite { node, layer }.into());
            }
            Err(e) => return Err(e.into()),
        }
        for (seq, &n) in self.counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            self.kv.commit(SeqId(seq as u32), n);
        }
        self.rest(start.elapsed(), cancel);
        Ok(())
    }

    /// Rests after a step that took so long, as the share of the time demands. No thread spins meanwhile, and a cancel ends
    /// the rest.
    fn rest(&self, step: Duration, cancel: &CancelToken) {
        let duty = u32::from(self.model.options().duty);
        let end = Instant::now() + step * (100 - duty) / duty;
        while duty < 100 && !cancel.is_cancelled() {
            match end.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => std::thread::sleep(left.min(REST)),
                _ => return,
            }
        }
    }

    /// The step itself: the body, then the head on tiles of wanted rows. Commits nothing.
    fn compute(
        &mut self,
        plan: usize,
        rows: &[Row],
        cancel: &CancelToken,
        on_logits: OnLogits<'_>,
        tap: &mut Option<Tap<'_>>,
    ) -> Result<(), BackendError> {
        let graph = self.model.graph().clone();
        self.run(plan, 0..graph.head_start(), rows, 0..0, cancel, tap)?;
        self.wanted.clear();
        self.wanted.extend((0..rows.len() as u32).filter(|&i| rows[i as usize].want == Want::Logits));
        let placement = &self.placements[plan];
        let (offset, tile, n_vocab) = (placement.offset(graph.logits()), placement.shape.max_wanted, graph.n_vocab());
        for start in (0..self.wanted.len()).step_by(tile) {
            let range = start..(start + tile).min(self.wanted.len());
            self.run(plan, graph.head_start()..graph.nodes.len(), rows, range.clone(), cancel, tap)?;
            let bytes = &mut self.arena.bytes_mut()[offset..offset + range.len() * n_vocab * 4];
            let logits: &mut [f32] = bytemuck::cast_slice_mut(bytes);
            for (i, logits) in range.zip(logits.chunks_exact_mut(n_vocab)) {
                if !math::all_finite(logits) {
                    let node = graph.values[graph.logits().0 as usize].name.clone();
                    return Err(BackendError::NonFinite { node, layer: None });
                }
                on_logits(self.wanted[i] as usize, logits);
            }
        }
        Ok(())
    }

    /// Where a step's numbers went wrong first, by name and layer. A backend looks at few values, so what it reports may
    /// lie layers behind the cause: the step is run again, watched. `None` where no value is shown that isn't finite.
    fn first_non_finite(&mut self, plan: usize, rows: &[Row], cancel: &CancelToken) -> Option<(String, Option<u32>)> {
        let mut first = None;
        let mut watch = |value, numbers: &[f32]| {
            if first.is_none() && !math::all_finite(numbers) {
                first = Some(value);
            }
        };
        // It fails again, or is cancelled: either way what was seen is all there is to know.
        let _ = self.compute(plan, rows, cancel, &mut |_, _| {}, &mut Some(&mut watch));
        let (value, graph) = (first?, self.model.graph());
        let node = graph.nodes.iter().find(|n| n.outputs.contains(&value))?;
        Some((graph.values[value.0 as usize].name.clone(), node.layer))
    }

    /// Runs nodes, part by part; `wanted` indexes `self.wanted`.
    fn run(
        &mut self,
        plan: usize,
        nodes: Range<usize>,
        rows: &[Row],
        wanted: Range<usize>,
        cancel: &CancelToken,
        tap: &mut Option<Tap<'_>>,
    ) -> Result<(), BackendError> {
        for part in &mut self.parts {
            let range = part.nodes.start.max(nodes.start)..part.nodes.end.min(nodes.end);
            if range.is_empty() {
                continue;
            }
            let mut io = StepIo {
                rows,
                wanted: &self.wanted[wanted.clone()],
                arena: self.arena.bytes_mut(),
                kv: self.kv.pages(),
                cancel,
                tap: match tap {
                    Some(tap) => Some(&mut **tap),
                    None => None,
                },
            };
            part.instance.run(plan, range, &mut io)?;
        }
        Ok(())
    }

    /// Checks what backends rely on, and counts rows by sequence.
    fn check(&mut self, rows: &[Row]) -> Result<(), StepError> {
        let bad = |row, what, expected: String, found: String| Err(StepError::Row { row, what, expected, found });
        let most = self.max_rows();
        if rows.len() > most {
            return bad(most, "the number of rows", format!("at most {most}"), rows.len().to_string());
        }
        self.counts.fill(0);
        let n_vocab = self.model.n_vocab();
        for (i, row) in rows.iter().enumerate() {
            let Some(count) = self.counts.get_mut(row.seq.0 as usize) else {
                return bad(i, "the sequence", format!("below {}", self.counts.len()), row.seq.0.to_string());
            };
            let next = self.kv.len(row.seq) + *count;
            if row.pos != [next as u32; 4] {
                return bad(i, "the position", next.to_string(), format!("{:?}", row.pos));
            }
            *count += 1;
            match row.input {
                Input::Token(t) if (t.0 as usize) < n_vocab => {}
                Input::Token(t) => return bad(i, "the token", format!("below {n_vocab}"), t.0.to_string()),
                Input::Embedding(_) => return bad(i, "the input", "a token: this model takes no embeddings".into(), "an embedding".into()),
            }
            if !matches!(row.want, Want::Nothing | Want::Logits) {
                return bad(i, "what is wanted", "nothing or logits".into(), format!("{:?}", row.want));
            }
            if let Some(adapter) = row.adapter {
                return bad(i, "the adapter", "none: none is loaded".into(), adapter.to_string());
            }
        }
        Ok(())
    }
}
