//! Selvedge: language models at the edge, from Rust.
//!
//! ```no_run
//! use selvedge::{CancelToken, GenerateOptions, Model, ModelOptions};
//!
//! let model = Model::open("model.gguf".as_ref(), &ModelOptions::default())?;
//! let mut session = model.session()?;
//! let prompt = model.chat(&serde_json::json!([{ "role": "user", "content": "What is the capital of France?" }]))?;
//! let reply = session.complete(&prompt, &GenerateOptions::default(), &CancelToken::new())?;
//! println!("{}", reply.text);
//! # Ok::<(), selvedge::Error>(())
//! ```
#![forbid(unsafe_code)]

mod json;
mod logprobs;
mod model;

pub use json::plan_json;
pub use logprobs::Logprobs;
pub use model::{Error, Model, ModelOptions, PackOptions, open_text, open_text_source, pack, pack_to, plan, plan_source};
pub use selvedge_backends::{BackendOptions, MAX_THREADS, REGISTRY, RegistryError, ThreadCare};
pub use selvedge_core::backend::{Backend, BackendError, BackendInfo, HoldBytes, Tap};
pub use selvedge_core::cancel::CancelToken;
pub use selvedge_core::engine::{Engine, Kept, LoadError, LoadStage, LoadedModel, NUMERICS, StepError};
pub use selvedge_core::graph::{ValueId, VerifiedGraph};
pub use selvedge_core::ids::{SeqId, TokenId};
pub use selvedge_core::kv::KvElem;
pub use selvedge_core::model::{Cleaned, ModelError, ModelFile, ModelSource, PackStore, StoreError};
pub use selvedge_core::plan::{
    Anonymous, DEFAULT_CHUNK, DEFAULT_CONTEXT, Held, Limit, Plan, PlanError, PlanOptions, Planned, Segment, Weights,
};
pub use selvedge_core::sampler::{Error as SamplerError, Mirostat, Sampler, SamplingParams, Stage};
pub use selvedge_core::session::{Completion, Event, Finish, GenerateOptions, Overflow, Session, SessionError, Sink, Stats};
pub use selvedge_core::step::{Input, Row, Want};
pub use selvedge_core::template::{ChatTemplate, CivilTime, Clock, Error as TemplateError, RenderRequest, Rendered, TemplateOptions};
pub use selvedge_core::text::{TextError, TextModel};
pub use selvedge_core::tokenizer::{Detokenizer, EncodeOptions, Error as TokenizerError, ParseSpecial, Span, TokenType, Tokenizer};
pub use selvedge_gguf as gguf;
