//! Sessions: one conversation each.
//!
//! ```text
//!            call               end of the call
//!   IDLE ───────────▶ BUSY ──────────────────────▶ IDLE
//!     │                 │ free, from the callback or another thread
//!     │ free            ▼                            a panic: BROKEN, every later call answers so
//!     ▼               DOOMED ─────▶ freed at the end of the call
//!   freed
//! ```

use crate::cancel::{of_call, slv_cancel};
use crate::error::{Failure, slv_status};
use crate::event::{Listener, slv_event_fn};
use crate::guard::{caught, guard};
use crate::model::slv_model;
use crate::options::{for_reply, slv_options};
use crate::value::{Out, free, given, json, text, tokens};
use selvedge::{Finish, Logprobs, Model, RenderRequest, Session, SessionError, Stats, TokenId};
use std::cell::UnsafeCell;
use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const DOOMED: u8 = 2;
const BROKEN: u8 = 3;

/// A conversation on a model. One call at a time, from any thread; a second one at the same time answers `SLV_STATUS_BUSY`.
#[derive(Debug)]
pub struct slv_session {
    state: AtomicU8,
    inner: UnsafeCell<Inner>,
}

#[derive(Debug)]
struct Inner {
    model: Model,
    session: Session,
    error: CString,
    stats: Option<Stats>,
}

/// Makes a session. It keeps what it needs of the model, which may be freed before it.
///
/// # Safety
/// `model` is NULL or a model; `out` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_session_new(model: *const slv_model, out: *mut *mut slv_session) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (out, model) = unsafe { (Out::new(out, std::ptr::null_mut(), "out")?, &given(model, "model")?.0) };
        let inner = Inner { session: model.session()?, model: model.clone(), error: CString::default(), stats: None };
        let session = slv_session { state: AtomicU8::new(IDLE), inner: UnsafeCell::new(inner) };
        out.set(Box::into_raw(Box::new(session)));
        Ok(())
    })
}

/// Runs a call on a session that nobody else uses meanwhile.
///
/// # Safety
/// `session` is NULL or a session that wasn't freed.
unsafe fn with(session: *const slv_session, call: impl FnOnce(&mut Inner) -> Result<(), Failure>) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let handle = unsafe { given(session, "session") }?;
        match handle.state.compare_exchange(IDLE, BUSY, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {}
            Err(BROKEN) => return Err(Failure::new(slv_status::Internal, "an earlier call on the session failed of a fault: free it")),
            Err(_) => return Err(Failure::new(slv_status::Busy, "the session is in use, by another thread or by this call's caller")),
        }
        // SAFETY: the state was idle and is busy now: nobody else passes the line above until it is set back.
        let inner = unsafe { &mut *handle.inner.get() };
        let mut panicked = true;
        let result = caught(|| {
            let result = call(inner);
            panicked = false;
            result
        });
        inner.error = result.as_ref().err().map(Failure::c_message).unwrap_or_default();
        let next = if panicked { BROKEN } else { IDLE };
        if handle.state.compare_exchange(BUSY, next, Ordering::Release, Ordering::Acquire).is_err() {
            // SAFETY: whoever frees a busy session leaves it to the call that uses it, which is this one.
            unsafe { free(session.cast_mut()) };
        }
        result
    })
}

/// Makes a reply.
fn reply(
    inner: &mut Inner,
    prompt: &[TokenId],
    options: Option<&slv_options>,
    cancel: &selvedge::CancelToken,
    listener: &mut Listener,
) -> Result<(), Failure> {
    let options = for_reply(options, &inner.model)?;
    inner.stats = None;
    let stats = inner.session.generate(prompt, &options, cancel, &mut |event| listener.reply(event))?;
    inner.stats = Some(stats);
    match stats.finish {
        Finish::Cancelled => Err(Failure::new(slv_status::Cancelled, "cancelled")),
        _ => Ok(()),
    }
}

/// Makes a reply to a prompt of `n` tokens. Their common prefix with what the session holds isn't computed again. `options`,
/// `cancel` and `on_event` may be NULL. A reply that is cancelled leaves the session as valid as any other.
///
/// # Safety
/// `session` is NULL or a session that wasn't freed; `ids` points to `n` ids; `options` is NULL or an object, `cancel` is NULL
/// or a token; `on_event` may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_session_generate(
    session: *mut slv_session,
    ids: *const u32,
    n: usize,
    options: *const slv_options,
    cancel: *const slv_cancel,
    on_event: slv_event_fn,
    user: *mut c_void,
) -> slv_status {
    // SAFETY: the caller's promises.
    unsafe {
        with(session, |inner| {
            let prompt = tokens(ids, n, inner.model.n_vocab())?;
            reply(inner, &prompt, options.as_ref(), &of_call(cancel)?, &mut Listener::new(on_event, user))
        })
    }
}

/// Makes a reply to a conversation, rendered by the file's chat template: as `slv_text_chat` and `slv_session_generate`.
///
/// # Safety
/// As `slv_session_generate`; `messages` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_session_chat(
    session: *mut slv_session,
    messages: *const c_char,
    options: *const slv_options,
    cancel: *const slv_cancel,
    on_event: slv_event_fn,
    user: *mut c_void,
) -> slv_status {
    // SAFETY: the caller's promises.
    unsafe {
        with(session, |inner| {
            let messages = json(text(messages, "messages")?, "messages")?;
            let words = inner.model.text();
            let rendered = words.render(&RenderRequest::new(&messages))?;
            let prompt = words.encode_rendered(&rendered)?;
            reply(inner, &prompt, options.as_ref(), &of_call(cancel)?, &mut Listener::new(on_event, user))
        })
    }
}

/// Natural log-probabilities of tokens, each after those before it, from an empty session: `logprobs` gets `n` numbers, the first
/// not a number. `cancel` may be NULL.
///
/// # Safety
/// As `slv_session_generate`; `logprobs` is a place for `n` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_session_score(
    session: *mut slv_session,
    ids: *const u32,
    n: usize,
    cancel: *const slv_cancel,
    logprobs: *mut f64,
) -> slv_status {
    // SAFETY: the caller's promises.
    unsafe {
        with(session, |inner| {
            let ids = tokens(ids, n, inner.model.n_vocab())?;
            if n == 0 {
                return Err(SessionError::EmptyPrompt.into());
            }
            if logprobs.is_null() {
                return Err(Failure::new(slv_status::Null, "logprobs is NULL"));
            }
            let cancel = of_call(cancel)?;
            let mut found = vec![f64::NAN; n];
            // The logits of the last position aren't needed, its token is.
            inner.session.logits(&ids[..n - 1], usize::MAX, &cancel, &mut |i, logits| {
                found[i + 1] = Logprobs::new(logits).of(ids[i + 1]).unwrap_or(f64::NAN);
            })?;
            std::ptr::copy_nonoverlapping(found.as_ptr(), logprobs, n);
            Ok(())
        })
    }
}

/// Positions that the session holds, stored in `n`.
///
/// # Safety
/// `session` is NULL or a session that wasn't freed; `n` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_session_len(session: *const slv_session, n: *mut usize) -> slv_status {
    // SAFETY: the caller's promises.
    unsafe {
        with(session, |inner| {
            Out::new(n, 0, "n")?.set(inner.session.tokens().len());
            Ok(())
        })
    }
}

/// Keeps the first `to` positions and forgets the others. `kept`, which may be NULL, is told how many are kept: none where a
/// window of attention was lost.
///
/// # Safety
/// `session` is NULL or a session that wasn't freed; `kept` is NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_session_keep(session: *mut slv_session, to: usize, kept: *mut usize) -> slv_status {
    // SAFETY: the caller's promises.
    unsafe {
        with(session, |inner| {
            let n = inner.session.keep(to);
            if !kept.is_null() {
                kept.write(n);
            }
            Ok(())
        })
    }
}

/// What the last reply took, as a JSON object: "finish" ("stop", "length", "context", "cancelled"), "prompt_tokens",
/// "reused_tokens", "n_tokens", "first_token_ms", "decode_ms", "n_decode_steps", "seed". "null" where there is none.
///
/// # Safety
/// `session` is NULL or a session that wasn't freed; `out` is a place for a pointer, freed by `slv_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_session_stats(session: *const slv_session, out: *mut *mut c_char) -> slv_status {
    // SAFETY: the caller's promises.
    unsafe {
        with(session, |inner| {
            let out = Out::new(out, std::ptr::null_mut(), "out")?;
            let stats = inner.stats.map(|s| {
                serde_json::json!({
                    "finish": s.finish.name(),
                    "prompt_tokens": s.prompt_tokens,
                    "reused_tokens": s.reused_tokens,
                    "n_tokens": s.n_tokens,
                    "first_token_ms": s.first_token.as_secs_f64() * 1e3,
                    "decode_ms": s.decode.as_secs_f64() * 1e3,
                    "n_decode_steps": s.n_decode_steps,
                    "seed": s.seed,
                })
            });
            out.set_text(&serde_json::Value::from(stats).to_string());
            Ok(())
        })
    }
}

/// The sentence of the session's last call, empty where it succeeded. Valid until the next call on the session; empty too while
/// one runs.
///
/// # Safety
/// `session` is NULL or a session that wasn't freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_session_error(session: *const slv_session) -> *const c_char {
    // SAFETY: the caller's promise.
    match unsafe { session.as_ref() } {
        Some(handle) if matches!(handle.state.load(Ordering::Acquire), IDLE | BROKEN) => {
            // SAFETY: no call runs, and one at a time is the caller's promise.
            unsafe { &*handle.inner.get() }.error.as_ptr()
        }
        _ => c"".as_ptr(),
    }
}

/// Frees a session; one that a call uses is freed when that call ends, which a callback may ask for. NULL is allowed.
///
/// # Safety
/// `session` is NULL or a session that wasn't freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_session_free(session: *mut slv_session) {
    // SAFETY: the caller's promise.
    if let Some(handle) = unsafe { session.as_ref() }
        && handle.state.swap(DOOMED, Ordering::AcqRel) != BUSY
    {
        // SAFETY: no call uses it, and `slv_session_new` boxed it.
        unsafe { free(session) };
    }
}
