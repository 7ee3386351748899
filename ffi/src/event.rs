//! What a caller is told while a call runs.

use selvedge::{CancelToken, Event, LoadStage, TokenId};
use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;

/// What an event tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum slv_event_kind {
    /// No event: what a NULL is.
    None = 0,
    /// A model is being opened: `slv_event_stage`, `slv_event_done` of `slv_event_total` bytes.
    Load = 1,
    /// A prompt is being computed: `slv_event_done` of `slv_event_total` positions.
    Prefill = 2,
    /// A token of the reply: `slv_event_token`, `slv_event_logprob`, alternatives, and the text that can be shown now.
    Token = 3,
    /// Text that was held back, at the end of a reply.
    Text = 4,
}

/// An event; valid during the call that is told of it.
#[derive(Debug)]
pub struct slv_event {
    kind: slv_event_kind,
    stage: *const c_char,
    done: u64,
    total: u64,
    /// With a NUL after it.
    text: *const c_char,
    text_len: usize,
    token: u32,
    logprob: f32,
    top: *const (TokenId, f32),
    n_top: usize,
}

/// Told of events, on the thread that made the call. An answer other than 0 ends the call with `SLV_STATUS_CANCELLED`. It must
/// return: no C++ exception may leave it, and no longjmp. It may make any call of this library; one on the handle that the
/// event comes from answers `SLV_STATUS_BUSY`, apart from freeing it, which is done when the call ends.
pub type slv_event_fn = Option<unsafe extern "C" fn(event: *const slv_event, user: *mut c_void) -> c_int>;

impl slv_event {
    const NONE: slv_event = slv_event {
        kind: slv_event_kind::None,
        stage: c"".as_ptr(),
        done: 0,
        total: 0,
        text: c"".as_ptr(),
        text_len: 0,
        token: 0,
        logprob: f32::NAN,
        top: std::ptr::null(),
        n_top: 0,
    };
}

/// A caller's function with its argument.
#[derive(Debug)]
pub(crate) struct Listener {
    on_event: slv_event_fn,
    user: *mut c_void,
    /// The text of the event, ended by NUL; kept, so that an event allocates nothing.
    text: Vec<u8>,
}

impl Listener {
    pub(crate) fn new(on_event: slv_event_fn, user: *mut c_void) -> Listener {
        Listener { on_event, user, text: Vec::with_capacity(4096) }
    }

    fn tell(&self, event: &slv_event) -> ControlFlow<()> {
        // SAFETY: the caller's own function with the caller's own argument; the event lives during the call.
        match self.on_event.map_or(0, |on_event| unsafe { on_event(event, self.user) }) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }

    fn text(&mut self, text: &str) -> (*const c_char, usize) {
        self.text.clear();
        self.text.extend_from_slice(text.as_bytes());
        self.text.push(0);
        (self.text.as_ptr().cast(), text.len())
    }

    /// Tells of a load; a caller who wants no more of it cancels the call's token.
    pub(crate) fn load(&self, stage: LoadStage, done: u64, total: u64, cancel: &CancelToken) {
        let stage = match stage {
            LoadStage::Tokenizer => c"tokenizer",
            LoadStage::Hash => c"hash",
            LoadStage::Pack => c"pack",
            LoadStage::Weights => c"weights",
            LoadStage::Ready => c"ready",
            _ => c"other",
        };
        let event = slv_event { kind: slv_event_kind::Load, stage: stage.as_ptr(), done, total, ..slv_event::NONE };
        if self.tell(&event).is_break() {
            cancel.cancel();
        }
    }

    /// Tells of a reply.
    pub(crate) fn reply(&mut self, event: Event<'_>) -> ControlFlow<()> {
        if self.on_event.is_none() {
            return ControlFlow::Continue(());
        }
        let event = match event {
            Event::Prefill { done, total } => {
                slv_event { kind: slv_event_kind::Prefill, done: done as u64, total: total as u64, ..slv_event::NONE }
            }
            Event::Token { id, logprob, top, text } => {
                let (text, text_len) = self.text(text);
                let (kind, logprob) = (slv_event_kind::Token, logprob.unwrap_or(f32::NAN));
                slv_event { kind, token: id.0, logprob, top: top.as_ptr(), n_top: top.len(), text, text_len, ..slv_event::NONE }
            }
            Event::Text(text) => {
                let (text, text_len) = self.text(text);
                slv_event { kind: slv_event_kind::Text, text, text_len, ..slv_event::NONE }
            }
            _ => return ControlFlow::Continue(()),
        };
        self.tell(&event)
    }
}

/// The event, or one that says nothing where there is none.
///
/// # Safety
/// `event` is NULL or the event of the call in progress.
unsafe fn or_none<'a>(event: *const slv_event) -> &'a slv_event {
    // SAFETY: the caller's promise.
    unsafe { event.as_ref() }.unwrap_or(&slv_event::NONE)
}

/// What it tells of.
///
/// # Safety
/// `event` is NULL or the event of the call in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_event_kind_of(event: *const slv_event) -> slv_event_kind {
    // SAFETY: the caller's promise.
    unsafe { or_none(event) }.kind
}

/// What a load is at: "tokenizer", "hash", "pack", "weights", "ready"; others may come. Empty for other events.
///
/// # Safety
/// As `slv_event_kind_of`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_event_stage(event: *const slv_event) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { or_none(event) }.stage
}

/// Bytes of a stage, or positions of a prompt, that are done.
///
/// # Safety
/// As `slv_event_kind_of`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_event_done(event: *const slv_event) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { or_none(event) }.done
}

/// Bytes of a stage, or positions of a prompt, in all.
///
/// # Safety
/// As `slv_event_kind_of`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_event_total(event: *const slv_event) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { or_none(event) }.total
}

/// Text that can be shown now: whole characters of UTF-8, possibly none, with a NUL after them. `len`, which may be NULL, is
/// told their bytes: a model can write a NUL too.
///
/// # Safety
/// As `slv_event_kind_of`; `len` is NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_event_text(event: *const slv_event, len: *mut usize) -> *const c_char {
    // SAFETY: the caller's promise.
    let event = unsafe { or_none(event) };
    if !len.is_null() {
        // SAFETY: not NULL, and the caller's promise.
        unsafe { len.write(event.text_len) };
    }
    event.text
}

/// The token's id.
///
/// # Safety
/// As `slv_event_kind_of`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_event_token(event: *const slv_event) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { or_none(event) }.token
}

/// The token's natural log-probability before any sampler changed the logits; not a number where the options ask for none.
///
/// # Safety
/// As `slv_event_kind_of`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_event_logprob(event: *const slv_event) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { or_none(event) }.logprob
}

/// Number of alternatives, as many as the option `top_logprobs` asks for.
///
/// # Safety
/// As `slv_event_kind_of`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_event_n_top(event: *const slv_event) -> usize {
    // SAFETY: the caller's promise.
    unsafe { or_none(event) }.n_top
}

/// An alternative, best first: its id is returned, its log-probability stored where `logprob` isn't NULL. One that isn't
/// there is `UINT32_MAX`.
///
/// # Safety
/// As `slv_event_kind_of`; `logprob` is NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_event_top(event: *const slv_event, index: usize, logprob: *mut f32) -> u32 {
    // SAFETY: the caller's promise.
    let event = unsafe { or_none(event) };
    if index >= event.n_top {
        return u32::MAX;
    }
    // SAFETY: `Listener::reply` took pointer and length from one slice, which lives during the call.
    let (id, found) = unsafe { *event.top.add(index) };
    if !logprob.is_null() {
        // SAFETY: not NULL, and the caller's promise.
        unsafe { logprob.write(found) };
    }
    id.0
}
