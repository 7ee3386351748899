//! Opening models: options settled once, backends chosen by name.

use selvedge_backends::{BackendOptions, RegistryError, backends};
use selvedge_core::cancel::CancelToken;
use selvedge_core::engine::{LoadError, LoadOptions, LoadStage, LoadedModel, StepError};
use selvedge_core::ids::TokenId;
use selvedge_core::model::{ModelError, ModelFile};
use selvedge_core::plan::{self, PlanError, PlanOptions, Planned};
use selvedge_core::session::{Session, SessionError};
use selvedge_core::template::RenderRequest;
use selvedge_core::text::{TextError, TextModel};
use selvedge_core::tokenizer;
use std::path::Path;
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
    /// Loading.
    #[error(transparent)]
    Load(#[from] LoadError),
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
}

/// A model in memory. Cheap to clone; any number of sessions may run on it at once, each on a thread of its own.
#[derive(Debug, Clone)]
pub struct Model(Arc<LoadedModel>);

/// Plans a model: what it will take and where it will run. Reads metadata only.
pub fn plan(path: &Path, options: &ModelOptions) -> Result<Planned, Error> {
    let file = Arc::new(ModelFile::open(path)?);
    Ok(plan::plan(file, &options.plan, backends(&options.backend)?)?)
}

/// Opens the tokenizer and the templates of a file, also of one that holds nothing else.
pub fn open_text(path: &Path) -> Result<TextModel, Error> {
    let file = ModelFile::open(path)?;
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
        let load = LoadOptions { plan: options.plan, validate: options.validate };
        let model = LoadedModel::open(path, &load, backends(&options.backend)?, cancel, progress)?;
        Ok(Model(Arc::new(model)))
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
