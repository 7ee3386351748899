//! A model in memory: immutable, shared by all engines on it.

use super::weights;
use crate::backend::{Backend, BackendError, Loaded};
use crate::cancel::CancelToken;
use crate::graph::VerifiedGraph;
use crate::math;
use crate::model::{Access, ModelFile, ModelSource, PackFile, PackStore};
use crate::plan::{Plan, PlanError, PlanOptions, Planned, plan};
use crate::text::TextModel;
use crate::tokenizer::Tokenizer;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// How a model is opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// What it is planned for.
    pub plan: PlanOptions,
    /// Whether every number of the file is checked.
    pub validate: bool,
    /// Where packed weights are kept, if anywhere.
    pub store: Option<PackStore>,
}

/// Where a load stands. Stages come in this order, each at most once for every backend; the bytes of a stage only grow and
/// reach those in all. Which of them come depends on what is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadStage {
    /// The vocabulary is being read.
    Tokenizer,
    /// The model's file is hashed, once, so that its packed weights are found again.
    Hash,
    /// Weights are being brought into the backend's form.
    Pack,
    /// Weights in that form are being read.
    Weights,
    /// Done.
    Ready,
}

/// Why a model couldn't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The backend failed while loading.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] crate::tokenizer::Error),
    /// The file.
    #[error(transparent)]
    Model(#[from] crate::model::ModelError),
}

impl LoadError {
    /// Whether the caller asked for it.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, LoadError::Backend(BackendError::Cancelled))
    }
}

/// The model.
pub struct LoadedModel {
    planned: Planned,
    parts: Vec<(Range<usize>, Arc<dyn Loaded>)>,
    text: TextModel,
    /// Packs that are mapped.
    packs: Vec<Arc<PackFile>>,
    notes: Vec<String>,
}

impl std::fmt::Debug for LoadedModel {
    /// Which model it is; its graph has a dump of its own.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("LoadedModel");
        out.field("path", &self.file().path()).field("architecture", &self.architecture());
        out.field("options", self.options()).finish_non_exhaustive()
    }
}

impl LoadedModel {
    /// Opens, plans and loads. `progress`: stage, bytes done, bytes in all.
    pub fn open(
        source: &ModelSource,
        options: &LoadOptions,
        backends: Vec<Arc<dyn Backend>>,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(LoadStage, u64, u64),
    ) -> Result<LoadedModel, LoadError> {
        let file = Arc::new(ModelFile::open_source(source)?);
        let planned = plan(file, &options.plan, backends, options.store.clone())?;
        planned.check_memory()?;
        LoadedModel::load(planned, options.validate, cancel, progress)
    }

    /// Loads what was planned.
    pub fn load(
        mut planned: Planned,
        validate: bool,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(LoadStage, u64, u64),
    ) -> Result<LoadedModel, LoadError> {
        if cancel.is_cancelled() {
            return Err(BackendError::Cancelled.into());
        }
        progress(LoadStage::Tokenizer, 0, 1);
        let file = planned.file.clone();
        let read_text = || -> Result<TextModel, LoadError> { Ok(TextModel::from_metadata(&file.gguf()?.metadata)?) };
        // Words and weights don't meet: where both are at hand, the one takes as long as the other.
        let (text, weights) = std::thread::scope(|scope| {
            let text = std::thread::Builder::new().spawn_scoped(scope, read_text);
            let mut weights = || {
                if validate {
                    planned.file.advise(Access::Sequential);
                    check_numbers(&planned.file, cancel)?;
                }
                weights::bring(&mut planned, validate, cancel, progress)
            };
            let weights = weights();
            // Where the system gives no thread, or the thread ended early, this one reads the text.
            (text.ok().and_then(|thread| thread.join().ok()).unwrap_or_else(read_text), weights)
        });
        let (text, weights) = (text?, weights?);
        let mut parts = Vec::with_capacity(planned.plan.segments.len());
        for (segment, pack) in planned.plan.segments.iter().zip(weights.packs) {
            let loaded =
                planned.backends[segment.backend_idx].load(planned.graph.clone(), segment.nodes.clone(), planned.file.clone(), pack)?;
            parts.push((segment.nodes.clone(), loaded));
        }
        progress(LoadStage::Ready, 1, 1);
        Ok(LoadedModel { planned, parts, text, packs: weights.mapped, notes: weights.notes })
    }

    /// What went otherwise than one might expect, a sentence each: packed weights that had to be made again, a full disk.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Adds a note.
    pub fn add_note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// The files of packed weights that are mapped beside the model's.
    pub fn packs(&self) -> impl Iterator<Item = &Path> {
        self.packs.iter().map(|pack| pack.path())
    }

    /// Compares what the system says of every mapped file with what it said at open.
    ///
    /// # Errors
    /// [`ModelError::Changed`](crate::model::ModelError::Changed).
    pub fn check_unchanged(&self) -> Result<(), crate::model::ModelError> {
        self.planned.file.check_unchanged()?;
        self.packs.iter().try_for_each(|pack| pack.check_unchanged())
    }

    /// The options, the context settled.
    pub fn options(&self) -> &PlanOptions {
        &self.planned.options
    }

    /// The plan that was kept.
    pub fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    /// The graph.
    pub fn graph(&self) -> &Arc<VerifiedGraph> {
        &self.planned.graph
    }

    /// Context planned for.
    pub fn n_ctx(&self) -> usize {
        self.planned.plan.n_ctx
    }

    /// Tokens in the vocabulary, rows of the logits.
    pub fn n_vocab(&self) -> usize {
        self.planned.arch.config.n_vocab
    }

    /// Name of the architecture.
    pub fn architecture(&self) -> &str {
        self.planned.arch.spec.gguf_name
    }

    /// Context that the model was trained for.
    pub fn n_ctx_train(&self) -> usize {
        self.planned.arch.config.n_ctx_train
    }

    /// The file.
    pub fn file(&self) -> &Arc<ModelFile> {
        &self.planned.file
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.text.tokenizer()
    }

    /// Tokenizer and chat templates.
    pub fn text(&self) -> &TextModel {
        &self.text
    }

    /// Parts of the graph with their weights.
    pub(super) fn segments(&self) -> impl Iterator<Item = (Range<usize>, &Arc<dyn Loaded>)> {
        self.parts.iter().map(|(nodes, loaded)| (nodes.clone(), loaded))
    }

    /// The backends in use.
    pub fn backends(&self) -> &[Arc<dyn Backend>] {
        &self.planned.backends
    }
}

/// Values that are decoded at once while a file is checked: they stay in the second-level cache.
const CHECKED_AT_ONCE: usize = 16 << 10;

/// Refuses a file in which any tensor holds a number that is infinite or undefined, also one that no backend packs.
fn check_numbers(file: &ModelFile, cancel: &CancelToken) -> Result<(), BackendError> {
    let mut values = vec![0.0_f32; CHECKED_AT_ONCE];
    for (name, tensor) in file.tensors() {
        let row = tensor.ty.row();
        let Some(decode) = row.decode else { continue };
        let blocks = CHECKED_AT_ONCE / row.block_elems;
        for part in tensor.bytes.chunks(blocks * row.block_bytes) {
            let values = &mut values[..part.len() / row.block_bytes * row.block_elems];
            decode(part, values);
            if !math::all_finite(values) {
                return Err(BackendError::DamagedTensor { tensor: name.to_owned() });
            }
            if cancel.is_cancelled() {
                return Err(BackendError::Cancelled);
            }
        }
    }
    Ok(())
}
