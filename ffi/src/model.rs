//! Models: planned, opened, asked.

use crate::cancel::{of_call, slv_cancel};
use crate::error::{Failure, slv_status};
use crate::event::{Listener, slv_event_fn};
use crate::guard::guard;
use crate::options::{for_model, slv_options};
use crate::source::slv_source;
use crate::value::{Out, free, given};
use selvedge::{Model, plan_json, plan_source};
use std::ffi::{c_char, c_void};

/// A model: immutable, for any number of threads at once. What is made from it keeps what it needs of it.
#[derive(Debug)]
pub struct slv_model(pub(crate) Model);

/// What opening would take, as a JSON object: "mapped", "anonymous" with "kv", "arena", "pack", "tokenizer", "other", "gpu", all
/// bytes; "n_ctx", "max_ctx", "weights", "weights_why", "segments". Nothing of the weights is read. A plan that exceeds its
/// budget is given all the same, with the status `SLV_STATUS_BUDGET`. `options` may be NULL.
///
/// # Safety
/// `source` is NULL or a source, `options` is NULL or an object; `out` is a place for a pointer, freed by `slv_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_model_plan(source: *const slv_source, options: *const slv_options, out: *mut *mut c_char) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (out, source, options) = unsafe { (Out::new(out, std::ptr::null_mut(), "out")?, given(source, "source")?, options.as_ref()) };
        let planned = plan_source(&source.0, &for_model(options)?.0)?;
        out.set_text(&plan_json(&planned.plan).to_string());
        Ok(planned.check_memory()?)
    })
}

/// Opens a model. `options`, `cancel` and `on_event` may be NULL; `on_event` is told of the stages.
///
/// # Safety
/// As `slv_model_plan`; `cancel` is NULL or a token; `on_event` may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_model_open(
    source: *const slv_source,
    options: *const slv_options,
    cancel: *const slv_cancel,
    on_event: slv_event_fn,
    user: *mut c_void,
    out: *mut *mut slv_model,
) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (out, source, options, cancel) =
            unsafe { (Out::new(out, std::ptr::null_mut(), "out")?, given(source, "source")?, options.as_ref(), of_call(cancel)?) };
        let (options, log) = for_model(options)?;
        let listener = Listener::new(on_event, user);
        let mut progress = |stage, done, total| listener.load(stage, done, total, &cancel);
        let model = Model::open_source(&source.0, &options, &cancel, &mut progress)?;
        // Also one that came too late to end it: whoever cancels gets no model.
        if cancel.is_cancelled() {
            return Err(Failure::new(slv_status::Cancelled, "cancelled"));
        }
        model.notes().iter().for_each(|note| log.tell(note));
        out.set(Box::into_raw(Box::new(slv_model(model))));
        Ok(())
    })
}

/// What a model is, as a JSON object: "architecture", "n_ctx", "n_ctx_train", "n_vocab", "backends", "notes", "plan".
///
/// # Safety
/// `model` is NULL or a model; `out` is a place for a pointer, freed by `slv_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_model_info(model: *const slv_model, out: *mut *mut c_char) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (out, model) = unsafe { (Out::new(out, std::ptr::null_mut(), "out")?, &given(model, "model")?.0) };
        let backends: Vec<serde_json::Value> = model
            .backends()
            .iter()
            .map(|backend| backend.info())
            .map(|info| serde_json::json!({ "name": info.name, "device": info.device, "threads": info.n_threads, "remark": info.remark }))
            .collect();
        let info = serde_json::json!({
            "architecture": model.architecture(),
            "n_ctx": model.n_ctx(),
            "n_ctx_train": model.n_ctx_train(),
            "n_vocab": model.n_vocab(),
            "backends": backends,
            "notes": model.notes(),
            "plan": plan_json(model.plan()),
        });
        out.set_text(&info.to_string());
        Ok(())
    })
}

/// Positions that a session on the model may reach; 0 for NULL.
///
/// # Safety
/// `model` is NULL or a model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_model_n_ctx(model: *const slv_model) -> usize {
    // SAFETY: the caller's promise.
    unsafe { model.as_ref() }.map_or(0, |model| model.0.n_ctx())
}

/// Tokens in the model's vocabulary; 0 for NULL.
///
/// # Safety
/// `model` is NULL or a model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_model_n_vocab(model: *const slv_model) -> usize {
    // SAFETY: the caller's promise.
    unsafe { model.as_ref() }.map_or(0, |model| model.0.n_vocab())
}

/// Frees a model; sessions and texts made from it go on. NULL is allowed.
///
/// # Safety
/// `model` is NULL or a model that wasn't freed and that no call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_model_free(model: *mut slv_model) {
    // SAFETY: `slv_model_open` boxed it.
    unsafe { free(model) }
}
