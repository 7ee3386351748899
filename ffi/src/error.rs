//! Statuses, and which of them an error is.

use selvedge::{BackendError, Error, LoadError, ModelError, PlanError, RegistryError, SessionError, StepError, TemplateError, TextError};
use std::ffi::CString;

/// How a call ended. The band tells what to do: 0x0x look at the system, 0x1x correct the input, 0x2x free or ask for less,
/// 0x3x choose another backend or file. Numbers never change; new ones may come, in these bands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum slv_status {
    /// Done.
    Ok = 0x00,
    /// A fault of the library itself.
    Internal = 0x01,
    /// The system refused: a file, a thread.
    System = 0x02,
    /// The caller asked for it, by its token or by its answer to an event. Whatever was in use is as valid as before.
    Cancelled = 0x03,
    /// The handle is in use, by another thread or by the call that this one was made from.
    Busy = 0x04,
    /// A file changed while it was in use: close the model and open it again.
    Changed = 0x05,
    /// A pointer that must not be NULL is.
    Null = 0x10,
    /// An argument outside its range.
    Argument = 0x11,
    /// A text that isn't UTF-8.
    Utf8 = 0x12,
    /// An option that isn't there, of another type, or outside its range.
    Option = 0x13,
    /// A text that isn't the JSON that is expected.
    Json = 0x14,
    /// The file is no model, or a damaged one.
    Format = 0x15,
    /// The model needs what this version hasn't.
    Unsupported = 0x16,
    /// The chat template refuses the conversation, or can't be used.
    Template = 0x17,
    /// A buffer that is too small; what it must hold was stored.
    Buffer = 0x18,
    /// A prompt that is empty or longer than the context.
    Prompt = 0x19,
    /// The plan exceeds the budget, or what the system has free; the message says what would fit.
    Budget = 0x20,
    /// The system gave no memory.
    Memory = 0x21,
    /// The context is full.
    Context = 0x22,
    /// The backend failed, or there is none of that name.
    Backend = 0x30,
    /// A number that is infinite or undefined: the weights are damaged.
    Damaged = 0x31,
}

impl slv_status {
    /// Its name, as in the header without the prefix.
    fn name(self) -> &'static std::ffi::CStr {
        match self {
            slv_status::Ok => c"ok",
            slv_status::Internal => c"internal",
            slv_status::System => c"system",
            slv_status::Cancelled => c"cancelled",
            slv_status::Busy => c"busy",
            slv_status::Changed => c"changed",
            slv_status::Null => c"null",
            slv_status::Argument => c"argument",
            slv_status::Utf8 => c"utf8",
            slv_status::Option => c"option",
            slv_status::Json => c"json",
            slv_status::Format => c"format",
            slv_status::Unsupported => c"unsupported",
            slv_status::Template => c"template",
            slv_status::Buffer => c"buffer",
            slv_status::Prompt => c"prompt",
            slv_status::Budget => c"budget",
            slv_status::Memory => c"memory",
            slv_status::Context => c"context",
            slv_status::Backend => c"backend",
            slv_status::Damaged => c"damaged",
        }
    }

    const ALL: [slv_status; 21] = [
        slv_status::Ok,
        slv_status::Internal,
        slv_status::System,
        slv_status::Cancelled,
        slv_status::Busy,
        slv_status::Changed,
        slv_status::Null,
        slv_status::Argument,
        slv_status::Utf8,
        slv_status::Option,
        slv_status::Json,
        slv_status::Format,
        slv_status::Unsupported,
        slv_status::Template,
        slv_status::Buffer,
        slv_status::Prompt,
        slv_status::Budget,
        slv_status::Memory,
        slv_status::Context,
        slv_status::Backend,
        slv_status::Damaged,
    ];
}

/// The name of a status in lower case, "unknown" for a number that is none. Never freed.
#[unsafe(no_mangle)]
pub extern "C" fn slv_status_name(status: i32) -> *const std::ffi::c_char {
    slv_status::ALL.iter().find(|s| **s as i32 == status).map_or(c"unknown", |s| s.name()).as_ptr()
}

/// What a call failed of: a status and a sentence.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: slv_status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: slv_status, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into() }
    }

    /// The sentence as C reads it: a NUL inside, from a file's own words, would end it early.
    pub(crate) fn c_message(&self) -> CString {
        CString::new(self.message.replace('\0', "\u{fffd}")).unwrap_or_default()
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        let error = error.into();
        let status = if error.is_cancelled() { slv_status::Cancelled } else { of(&error) };
        Failure::new(status, error.to_string())
    }
}

fn of(error: &Error) -> slv_status {
    match error {
        Error::Model(e) => of_model(e),
        Error::Registry(e) => of_registry(e),
        Error::Plan(e) => of_plan(e),
        Error::Load(LoadError::Backend(e)) => of_backend(e),
        Error::Load(LoadError::Model(e)) => of_model(e),
        Error::Load(LoadError::Plan(e)) => of_plan(e),
        Error::Load(LoadError::Tokenizer(_)) | Error::Tokenizer(_) | Error::Text(TextError::Tokenizer(_)) => slv_status::Format,
        Error::Step(e) | Error::Session(SessionError::Step(e)) => of_step(e),
        Error::Session(SessionError::EmptyPrompt | SessionError::PromptTooLong { .. }) => slv_status::Prompt,
        Error::Session(SessionError::Sampler(_) | SessionError::Stop(_) | SessionError::Overflow { .. }) => slv_status::Option,
        Error::Session(_) => slv_status::Argument,
        Error::Text(TextError::Template(TemplateError::Request { .. })) => slv_status::Json,
        Error::Text(TextError::Template(TemplateError::Thread { .. })) | Error::Store(_) => slv_status::System,
        Error::Text(_) => slv_status::Template,
        Error::ContextTooShort { .. } => slv_status::Option,
        Error::CannotPack(_) => slv_status::Unsupported,
        _ => slv_status::Internal,
    }
}

fn of_model(error: &ModelError) -> slv_status {
    match error {
        ModelError::Io { .. } | ModelError::NotAFile { .. } | ModelError::PartMissing { .. } => slv_status::System,
        ModelError::NoSuchPart { .. } => slv_status::Argument,
        ModelError::Changed { .. } => slv_status::Changed,
        ModelError::UnknownArchitecture { .. } | ModelError::Unsupported { .. } | ModelError::TensorType { .. } => slv_status::Unsupported,
        ModelError::SplitWithoutPath { .. } => slv_status::Unsupported,
        ModelError::OutOfMemory(_) => slv_status::Memory,
        _ => slv_status::Format,
    }
}

fn of_registry(error: &RegistryError) -> slv_status {
    match error {
        RegistryError::UnknownBackend { .. } | RegistryError::UnknownIsa { .. } => slv_status::Option,
        RegistryError::Backend(e) => of_backend(e),
        _ => slv_status::Backend,
    }
}

fn of_plan(error: &PlanError) -> slv_status {
    match error {
        PlanError::Model(e) => of_model(e),
        PlanError::Option { .. } | PlanError::KvHead { .. } => slv_status::Option,
        PlanError::Memory { .. } => slv_status::Budget,
        PlanError::Backend(e) => of_backend(e),
        PlanError::NoBackend { .. } | PlanError::Packed { .. } => slv_status::Backend,
        _ => slv_status::Format,
    }
}

fn of_step(error: &StepError) -> slv_status {
    match error {
        StepError::Backend(e) => of_backend(e),
        StepError::Kv(_) => slv_status::Context,
        StepError::Model(e) => of_model(e),
        StepError::OutOfMemory(_) => slv_status::Memory,
        StepError::Row { .. } => slv_status::Argument,
        _ => slv_status::Internal,
    }
}

fn of_backend(error: &BackendError) -> slv_status {
    match error {
        BackendError::Cancelled => slv_status::Cancelled,
        BackendError::NonFinite { .. } | BackendError::DamagedTensor { .. } => slv_status::Damaged,
        BackendError::UnsupportedType { .. } => slv_status::Unsupported,
        BackendError::OutOfMemory(_) => slv_status::Memory,
        BackendError::Thread { .. } | BackendError::PackWrite { .. } => slv_status::System,
        _ => slv_status::Backend,
    }
}
