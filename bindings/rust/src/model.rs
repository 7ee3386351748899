//! Opening models: options settled once, backends chosen by name.

use selvedge_backends::{BackendOptions, RegistryError, backends, measure_threads};
use selvedge_core::backend::{Backend, LoadControl};
use selvedge_core::cancel::CancelToken;
use selvedge_core::engine::{Kept, LoadError, LoadOptions, LoadStage, LoadedModel, StepError, keep_packed};
use selvedge_core::ids::TokenId;
use selvedge_core::model::{Memo, ModelError, ModelFile, ModelSource, PackStore, StoreError};
use selvedge_core::os;
use selvedge_core::plan::{self, Held, PlanError, PlanOptions, Planned};
use selvedge_core::session::{Session, SessionError};
use selvedge_core::template::RenderRequest;
use selvedge_core::text::{TextError, TextModel};
use selvedge_core::tokenizer;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a model is opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelOptions {
    /// Context, chunk, KV type, budget.
    pub plan: PlanOptions,
    /// Backend, instruction set, threads.
    pub backend: BackendOptions,
    /// Whether every number of the file is checked.
    pub validate: bool,
    /// Where packed weights are kept.
    pub packs: PackOptions,
    /// Whether the number of threads is the one that decodes fastest, found by a measurement of a tenth of a second that is
    /// remembered where packed weights are kept. Instead of the backend options' number.
    pub auto_threads: bool,
}

/// Where packed weights are kept. A folder that can't be used is no error: the weights are packed in memory, and
/// [`LoadedModel::notes`] says so.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PackOptions {
    /// The folder; `None`: nothing is written, weights are packed in memory at every load.
    pub dir: Option<PathBuf>,
    /// The most bytes that all packs in it may take; those used longest ago go first.
    pub limit: Option<u64>,
}

impl PackOptions {
    /// The store, or why there is none though one was asked for.
    fn store(&self) -> Result<Option<PackStore>, StoreError> {
        // An empty name would be the folder that the process happens to be in.
        self.dir.as_deref().filter(|dir| !dir.as_os_str().is_empty()).map(|dir| PackStore::open(dir, self.limit)).transpose()
    }
}

/// Whatever can go wrong: one sentence each.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The backend asked for.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Loading, apart from what file, plan and tokenizer refuse.
    #[error(transparent)]
    Load(LoadError),
    /// A step.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A reply.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Template or tokenizer.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
    /// A folder for packed weights that can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A model that can't be written in packed form.
    #[error("the model can't be packed: {0}")]
    CannotPack(&'static str),
    /// The context that was asked for doesn't hold what is to be computed.
    #[error("{n_positions} positions are needed and the context was set to {n_ctx}: set a longer one, or none")]
    ContextTooShort {
        /// Positions needed.
        n_positions: usize,
        /// The context.
        n_ctx: usize,
    },
}

impl From<LoadError> for Error {
    /// What a step of loading refuses is the same error as where that step is called alone.
    fn from(error: LoadError) -> Error {
        match error {
            LoadError::Model(e) => Error::Model(e),
            LoadError::Plan(e) => Error::Plan(e),
            LoadError::Tokenizer(e) => Error::Tokenizer(e),
            other => Error::Load(other),
        }
    }
}

impl Error {
    /// Whether the caller asked for it, by its cancel token.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Error::Load(e) => e.is_cancelled(),
            Error::Step(e) | Error::Session(SessionError::Step(e)) => e.is_cancelled(),
            _ => false,
        }
    }
}

impl ModelOptions {
    /// The backends, with the number of threads settled.
    fn backends(&self) -> Result<Vec<Arc<dyn Backend>>, Error> {
        if !self.auto_threads {
            return Ok(backends(&self.backend)?);
        }
        let measured = || measure_threads(&self.backend);
        let isa = self.backend.isa.as_deref().unwrap_or("auto");
        let key = format!("{} {} {isa}", os::processor(), os::allowed_cpus().len());
        let n_threads = match self.packs.store() {
            Ok(Some(store)) => {
                let recalled = store.recall(Memo::Threads, &key).and_then(|n| n.parse().ok());
                match recalled {
                    Some(n) => n,
                    None => {
                        let n = measured()?;
                        store.remember(Memo::Threads, &key, &n.to_string());
                        n
                    }
                }
            }
            _ => measured()?,
        };
        Ok(backends(&BackendOptions { n_threads, ..self.backend.clone() })?)
    }
}

/// A model in memory. Cheap to clone; any number of sessions may run on it at once, each on a thread of its own.
#[derive(Debug, Clone)]
pub struct Model(Arc<LoadedModel>);

/// Plans a model: what it will take and where it will run. Reads metadata only, and refuses whatever [`Model::open`]
/// would refuse before it reads weights, apart from memory that doesn't suffice: see [`Planned::check_memory`].
pub fn plan(path: &Path, options: &ModelOptions) -> Result<Planned, Error> {
    plan_source(&path.into(), options)
}

/// As [`plan`], from wherever the model's bytes are.
pub fn plan_source(source: &ModelSource, options: &ModelOptions) -> Result<Planned, Error> {
    let file = Arc::new(ModelFile::open_source(source)?);
    let (store, unusable) = match options.packs.store() {
        Ok(store) => (store, None),
        Err(e) => (None, Some(e)),
    };
    let mut planned = plan::plan(file, &options.plan, options.backends()?, store)?;
    if let (Some(e), true) = (unusable, planned.plan.held == Held::Resident && planned.file.packed().is_none()) {
        planned.plan.held_why = format!("packed in memory at every load: {e}");
    }
    TextModel::from_metadata(&planned.file.gguf()?.metadata)?;
    Ok(planned)
}

/// Makes the folder that the options name hold a model's weights in packed form, so that later loads find them there.
/// `progress` as in [`Model::open_with`].
///
/// # Errors
/// A file that is packed already, a folder that can't be used, whatever packing refuses.
pub fn pack(
    path: &Path,
    options: &ModelOptions,
    cancel: &CancelToken,
    progress: &mut dyn FnMut(LoadStage, u64, u64),
) -> Result<Kept, Error> {
    let store = options.packs.store()?;
    let planned = plan::plan(Arc::new(ModelFile::open(path)?), &options.plan, backends(&options.backend)?, store)?;
    if planned.file.packed().is_some() {
        return Err(Error::CannotPack("it is packed already"));
    }
    keep_packed(&planned, cancel, progress).map_err(|e| Error::Load(e.into()))
}

/// Writes a model's weights in packed form to a file that ships instead of the model's and loads with nothing to prepare.
/// `progress` as in [`Model::open_with`]. The bytes of the file.
///
/// # Errors
/// A file that is packed already, one that can't be written, whatever packing refuses.
pub fn pack_to(
    path: &Path,
    out: &Path,
    options: &ModelOptions,
    cancel: &CancelToken,
    progress: &mut dyn FnMut(LoadStage, u64, u64),
) -> Result<u64, Error> {
    let planned = plan(path, options)?;
    let [segment] = &planned.plan.segments[..] else { return Err(Error::CannotPack("it runs on several backends")) };
    let backend = planned.backends[segment.backend_idx].clone();
    let layout = backend.pack_layout(&planned.graph, segment.nodes.clone());
    if planned.file.packed().is_some() {
        return Err(Error::CannotPack("it is packed already"));
    }
    if layout.n_bytes == 0 {
        return Err(Error::CannotPack("the backend uses weights as they are"));
    }
    let mut tell = |done, total| progress(LoadStage::Pack, done, total);
    let mut control = LoadControl { progress: &mut tell, cancel, memory: u64::MAX };
    let file = planned.file.clone();
    file.write_packed(out, &layout, &mut control, &mut |sink, control| {
        backend.pack(&planned.graph, segment.nodes.clone(), &*planned.file, sink, control)
    })
    .map_err(|e| Error::Load(e.into()))?;
    Ok(ModelFile::open(out)?.mapped_bytes() as u64)
}

/// Opens the tokenizer and the templates of a file, also of one that holds nothing else.
pub fn open_text(path: &Path) -> Result<TextModel, Error> {
    open_text_source(&path.into())
}

/// As [`open_text`], from wherever the file's bytes are.
pub fn open_text_source(source: &ModelSource) -> Result<TextModel, Error> {
    let file = ModelFile::open_source(source)?;
    let gguf = file.gguf()?;
    Ok(TextModel::from_metadata(&gguf.metadata)?)
}

impl Model {
    /// Opens a model.
    pub fn open(path: &Path, options: &ModelOptions) -> Result<Model, Error> {
        Model::open_with(path, options, &CancelToken::new(), &mut |_, _, _| {})
    }

    /// Opens a model, telling how far it is: stage, bytes done, bytes in all.
    pub fn open_with(
        path: &Path,
        options: &ModelOptions,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(LoadStage, u64, u64),
    ) -> Result<Model, Error> {
        Model::open_source(&path.into(), options, cancel, progress)
    }

    /// As [`Model::open_with`], from wherever the model's bytes are.
    pub fn open_source(
        source: &ModelSource,
        options: &ModelOptions,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(LoadStage, u64, u64),
    ) -> Result<Model, Error> {
        let (store, note) = match options.packs.store() {
            Ok(store) => (store, None),
            Err(e) => (None, Some(format!("{e}; they are packed in memory at every load"))),
        };
        let load = LoadOptions { plan: options.plan, validate: options.validate, store };
        let mut model = LoadedModel::open(source, &load, options.backends()?, cancel, progress)?;
        note.into_iter().for_each(|note| model.add_note(note));
        Ok(Model(Arc::new(model)))
    }

    /// Opens a model for `n_positions` and no more, where the options set no context. One that they set is kept, and
    /// refused where it is shorter.
    pub fn open_for(
        path: &Path,
        options: &ModelOptions,
        n_positions: usize,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(LoadStage, u64, u64),
    ) -> Result<Model, Error> {
        let n_ctx = options.plan.n_ctx.unwrap_or(n_positions.max(1));
        if n_ctx < n_positions {
            return Err(Error::ContextTooShort { n_positions, n_ctx });
        }
        let options = ModelOptions { plan: PlanOptions { n_ctx: Some(n_ctx), ..options.plan }, ..options.clone() };
        Model::open_with(path, &options, cancel, progress)
    }

    /// Bytes that decoding one token at position `depth` must read: every weight of the graph once, the output matrix
    /// included, and the keys and values that its attention sees.
    pub fn bytes_per_token(&self, depth: usize) -> u64 {
        let graph = self.0.graph();
        let weights: f64 = graph.nodes.iter().map(|node| graph.cost(node).weight_bytes).sum();
        let kv = self.0.options().kv;
        let cache = graph.kv_layers.iter().map(|layer| {
            let seen = layer.window.map_or(depth, |window| depth.min(window as usize));
            seen * layer.n_head_kv * (kv.head_bytes(layer.d_k) + kv.head_bytes(layer.d_v))
        });
        weights as u64 + cache.sum::<usize>() as u64
    }

    /// A session on the model.
    pub fn session(&self) -> Result<Session, Error> {
        Ok(Session::new(self.0.clone())?)
    }

    /// Tokens of a conversation: an array of messages, rendered by the file's template to be answered.
    pub fn chat(&self, messages: &serde_json::Value) -> Result<Vec<TokenId>, Error> {
        let rendered = self.0.text().render(&RenderRequest::new(messages))?;
        Ok(self.0.text().encode_rendered(&rendered)?)
    }

    /// Tokens whose text holds one of the given texts: breakers of DRY, tokens to ban.
    pub fn tokens_with(&self, texts: &[&str]) -> Vec<TokenId> {
        let tokenizer = self.0.tokenizer();
        let holds = |bytes: &[u8], text: &str| !text.is_empty() && bytes.windows(text.len()).any(|w| w == text.as_bytes());
        let ids = (0..tokenizer.n_vocab() as u32).map(TokenId);
        ids.filter(|&id| texts.iter().any(|text| holds(tokenizer.piece(id, true), text))).collect()
    }

    /// The shared model.
    pub fn inner(&self) -> &Arc<LoadedModel> {
        &self.0
    }
}

impl std::ops::Deref for Model {
    type Target = LoadedModel;
    fn deref(&self) -> &LoadedModel {
        &self.0
    }
}
