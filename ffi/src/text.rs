//! Tokenizer and chat template, usable without a weight.

use crate::error::{Failure, slv_status};
use crate::guard::guard;
use crate::model::slv_model;
use crate::source::slv_source;
use crate::value::{Out, fill, free, given, json, text, text_of, tokens};
use selvedge::{EncodeOptions, ParseSpecial, RenderRequest, Rendered, TextModel, TokenId, open_text_source};
use std::ffi::{c_char, c_int};

/// The words of a model: its tokenizer and its chat templates. Immutable, for any number of threads at once.
#[derive(Debug)]
pub struct slv_text(TextModel);

/// Opens the words of a file, also of one that holds nothing else.
///
/// # Safety
/// `source` is NULL or a source; `out` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_text_open(source: *const slv_source, out: *mut *mut slv_text) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (out, source) = unsafe { (Out::new(out, std::ptr::null_mut(), "out")?, given(source, "source")?) };
        out.set(Box::into_raw(Box::new(slv_text(open_text_source(&source.0)?))));
        Ok(())
    })
}

/// The words of an open model, which are shared with it.
///
/// # Safety
/// `model` is NULL or a model; `out` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_text_of_model(model: *const slv_model, out: *mut *mut slv_text) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (out, model) = unsafe { (Out::new(out, std::ptr::null_mut(), "out")?, given(model, "model")?) };
        out.set(Box::into_raw(Box::new(slv_text(model.0.text().clone()))));
        Ok(())
    })
}

/// Tokens in the vocabulary; 0 for NULL.
///
/// # Safety
/// `text` is NULL or one that wasn't freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_text_n_vocab(text: *const slv_text) -> usize {
    // SAFETY: the caller's promise.
    unsafe { text.as_ref() }.map_or(0, |text| text.0.tokenizer().n_vocab())
}

/// Ids as C has them.
fn raw(ids: &[TokenId]) -> Vec<u32> {
    ids.iter().map(|id| id.0).collect()
}

/// Tokens of a text. `add_special`: whether the start and end tokens that the model wants are added; `parse_special`: whether
/// control tokens that the text spells are meant. Never set it for what a person wrote. `n` is told how many tokens there are;
/// where they are more than `capacity`, the status is `SLV_STATUS_BUFFER` and nothing else is stored.
///
/// # Safety
/// `text` is NULL or one that wasn't freed; `bytes` points to `len` bytes; `ids` is a place for `capacity` ids, or NULL with a
/// capacity of 0; `n` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_text_tokenize(
    text: *const slv_text,
    bytes: *const c_char,
    len: usize,
    add_special: c_int,
    parse_special: c_int,
    ids: *mut u32,
    capacity: usize,
    n: *mut usize,
) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (n, text, words) = unsafe { (Out::new(n, 0, "n")?, given(text, "text")?, text_of(bytes, len, "bytes")?) };
        let parse_special = if parse_special == 0 { ParseSpecial::UserDefined } else { ParseSpecial::All };
        let found = text.0.tokenizer().encode(words, EncodeOptions { add_special: add_special != 0, parse_special })?;
        // SAFETY: the caller's promise.
        unsafe { fill(ids, capacity, &raw(&found), &n, "ids") }
    })
}

/// Text of tokens, as a new string; bytes that are no UTF-8 become replacement characters. `render_special`: whether control
/// tokens are shown as they are spelled. A NUL becomes a replacement character too.
///
/// # Safety
/// `text` is NULL or one that wasn't freed; `ids` points to `n` ids; `out` is a place for a pointer, freed by
/// `slv_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_text_detokenize(
    text: *const slv_text,
    ids: *const u32,
    n: usize,
    render_special: c_int,
    out: *mut *mut c_char,
) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (out, text) = unsafe { (Out::new(out, std::ptr::null_mut(), "out")?, given(text, "text")?) };
        let tokenizer = text.0.tokenizer();
        // SAFETY: the caller's promise.
        let ids = unsafe { tokens(ids, n, tokenizer.n_vocab()) }?;
        out.set_text(&tokenizer.decode(&ids, render_special != 0));
        Ok(())
    })
}

/// Renders a conversation.
unsafe fn render(text_model: &slv_text, messages: *const c_char, tools: *const c_char, open_turn: c_int) -> Result<Rendered, Failure> {
    // SAFETY: the caller's promise.
    let messages = json(unsafe { text(messages, "messages") }?, "messages")?;
    let tools = match tools.is_null() {
        true => None,
        // SAFETY: the caller's promise.
        false => Some(json(unsafe { text(tools, "tools") }?, "tools")?),
    };
    let request = RenderRequest { tools: tools.as_ref(), add_generation_prompt: open_turn != 0, ..RenderRequest::new(&messages) };
    Ok(text_model.0.render(&request)?)
}

/// The text of a conversation by the file's chat template, as a new string. `messages`: a JSON array of objects with "role" and
/// "content"; `tools`: a JSON array of tool definitions, or NULL; `open_turn`: whether the assistant's turn is opened at the
/// end.
///
/// # Safety
/// `text` is NULL or one that wasn't freed; `messages` and `tools` are NULL or end with NUL; `out` is a place for a pointer,
/// freed by `slv_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_text_render(
    text: *const slv_text,
    messages: *const c_char,
    tools: *const c_char,
    open_turn: c_int,
    out: *mut *mut c_char,
) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (out, rendered) =
            unsafe { (Out::new(out, std::ptr::null_mut(), "out")?, render(given(text, "text")?, messages, tools, open_turn)?) };
        out.set_text(&rendered.text);
        Ok(())
    })
}

/// Tokens of a conversation by the file's chat template: control tokens are found in the template's own words, never in what
/// people and tools wrote. Otherwise as `slv_text_render` and `slv_text_tokenize`.
///
/// # Safety
/// As those.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_text_chat(
    text: *const slv_text,
    messages: *const c_char,
    tools: *const c_char,
    open_turn: c_int,
    ids: *mut u32,
    capacity: usize,
    n: *mut usize,
) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (n, text) = unsafe { (Out::new(n, 0, "n")?, given(text, "text")?) };
        // SAFETY: the caller's promises.
        let rendered = unsafe { render(text, messages, tools, open_turn) }?;
        let found = text.0.encode_rendered(&rendered)?;
        // SAFETY: the caller's promise.
        unsafe { fill(ids, capacity, &raw(&found), &n, "ids") }
    })
}

/// Whether a token ends a turn.
///
/// # Safety
/// `text` is NULL or one that wasn't freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_text_is_stop(text: *const slv_text, token: u32) -> c_int {
    // SAFETY: the caller's promise.
    c_int::from(unsafe { text.as_ref() }.is_some_and(|text| text.0.tokenizer().is_stop(TokenId(token))))
}

/// Frees it. NULL is allowed.
///
/// # Safety
/// `text` is NULL or one that wasn't freed and that no call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_text_free(text: *mut slv_text) {
    // SAFETY: the functions above boxed it.
    unsafe { free(text) }
}
