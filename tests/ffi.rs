//! The C ABI as C calls it: what it gives equals the Rust API's, and whatever a caller does wrong short of using freed
//! memory is a status with a sentence.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use selvedge::{CancelToken, GenerateOptions, Logprobs, Model, SamplingParams};
use selvedge_ffi::cancel::*;
use selvedge_ffi::error::{slv_status, slv_status_name};
use selvedge_ffi::event::*;
use selvedge_ffi::guard::slv_last_error;
use selvedge_ffi::model::*;
use selvedge_ffi::options::*;
use selvedge_ffi::session::*;
use selvedge_ffi::source::*;
use selvedge_ffi::text::*;
use selvedge_ffi::value::slv_string_free;
use selvedge_ffi::version::{slv_abi_version, slv_build_info, slv_version};
use selvedge_tests::{SMOLLM2, Setup, case, real_model, tiny_tokens};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

// ---------------------------------------------------------------------------------------------------------------------
// C's side of it, with frees at the end of a scope.

/// A handle, freed when it goes.
struct Handle<T>(*mut T, unsafe extern "C" fn(*mut T));

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: made by the library, freed here only.
        unsafe { (self.1)(self.0) }
    }
}

fn read(text: *const c_char) -> String {
    // SAFETY: texts of the library end with NUL.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

fn taken(text: *mut c_char) -> String {
    let copy = read(text);
    // SAFETY: given away by the library, freed once.
    unsafe { slv_string_free(text) };
    copy
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn source(path: &Path) -> Handle<slv_source> {
    let (mut out, path) = (null_mut(), c(path.to_str().unwrap()));
    // SAFETY: a text that ends with NUL, and a place.
    assert_eq!(unsafe { slv_source_path(path.as_ptr(), &mut out) }, slv_status::Ok);
    Handle(out, slv_source_free)
}

fn new_options(make: unsafe extern "C" fn(*mut *mut slv_options) -> slv_status) -> Handle<slv_options> {
    let mut out = null_mut();
    // SAFETY: a place.
    assert_eq!(unsafe { make(&mut out) }, slv_status::Ok);
    Handle(out, slv_options_free)
}

#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Int(i64),
    Float(f64),
    Text(&'a str),
}

fn try_set(options: &Handle<slv_options>, key: &str, value: Value<'_>) -> slv_status {
    let key = c(key);
    // SAFETY: an object that lives, texts that end with NUL.
    unsafe {
        match value {
            Value::Int(n) => slv_options_set_int(options.0, key.as_ptr(), n),
            Value::Float(x) => slv_options_set_float(options.0, key.as_ptr(), x),
            Value::Text(text) => slv_options_set_text(options.0, key.as_ptr(), c(text).as_ptr()),
        }
    }
}

fn set(options: &Handle<slv_options>, key: &str, value: Value<'_>) {
    assert_eq!(try_set(options, key, value), slv_status::Ok, "{key} {value:?}: {}", read(slv_last_error()));
}

fn small() -> Handle<slv_options> {
    let options = new_options(slv_options_model);
    set(&options, "n_ctx", Value::Int(128));
    set(&options, "chunk", Value::Int(16));
    set(&options, "threads", Value::Int(2));
    options
}

fn open(source: &Handle<slv_source>, options: &Handle<slv_options>) -> Result<Handle<slv_model>, (slv_status, String)> {
    let mut out = null_mut();
    // SAFETY: handles that live, and a place.
    match unsafe { slv_model_open(source.0, options.0, null(), None, null_mut(), &mut out) } {
        slv_status::Ok => Ok(Handle(out, slv_model_free)),
        status => {
            assert!(out.is_null());
            Err((status, read(slv_last_error())))
        }
    }
}

fn session(model: &Handle<slv_model>) -> Handle<slv_session> {
    let mut out = null_mut();
    // SAFETY: a handle that lives, and a place.
    assert_eq!(unsafe { slv_session_new(model.0, &mut out) }, slv_status::Ok);
    Handle(out, slv_session_free)
}

fn tiny() -> Option<PathBuf> {
    Some(case("arch")?.join("llama_q4.q4.gguf"))
}

fn tiny_session() -> Option<Handle<slv_session>> {
    Some(session(&open(&source(&tiny()?), &small()).ok().unwrap()))
}

fn prompt() -> Vec<u32> {
    tiny_tokens(40, 0).iter().map(|t| t.0).collect()
}

/// Options of a reply that says the same every time.
fn greedy(n: i64) -> Handle<slv_options> {
    let options = new_options(slv_options_generate);
    set(&options, "temperature", Value::Int(0));
    set(&options, "max_tokens", Value::Int(n));
    set(&options, "ignore_stop_ids", Value::Int(1));
    options
}

/// What a reply told.
#[derive(Debug, Default, Clone, PartialEq)]
struct Told {
    events: Vec<slv_event_kind>,
    ids: Vec<u32>,
    logprobs: Vec<u32>,
    text: String,
    /// The event at which it is ended.
    end_at: Option<usize>,
}

unsafe extern "C" fn listen(event: *const slv_event, user: *mut c_void) -> c_int {
    // SAFETY: `generate` hands in a `Told`.
    let told = unsafe { &mut *user.cast::<Told>() };
    // SAFETY: the event of this call.
    unsafe {
        let kind = slv_event_kind_of(event);
        if kind == slv_event_kind::Token {
            told.ids.push(slv_event_token(event));
            told.logprobs.push(slv_event_logprob(event).to_bits());
        }
        let mut len = 0;
        let text = read(slv_event_text(event, &mut len));
        assert_eq!(text.len(), len);
        told.text.push_str(&text);
        told.events.push(kind);
    }
    c_int::from(told.end_at == Some(told.events.len() - 1))
}

fn generate(session: &Handle<slv_session>, ids: &[u32], options: &Handle<slv_options>, end_at: Option<usize>) -> (slv_status, Told) {
    let mut told = Told { end_at, ..Told::default() };
    let user = (&raw mut told).cast();
    // SAFETY: handles that live, ids with their number, and a listener with its argument.
    let status = unsafe { slv_session_generate(session.0, ids.as_ptr(), ids.len(), options.0, null(), Some(listen), user) };
    told.end_at = None;
    (status, told)
}

// ---------------------------------------------------------------------------------------------------------------------
// The same as the Rust API.

#[test]
fn a_reply_is_the_rust_apis() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let options = new_options(slv_options_model);
    set(&options, "n_ctx", Value::Int(256));
    set(&options, "pack_dir", Value::Text(""));
    let model = open(&source(&path), &options).ok().unwrap();
    let session = session(&model);
    drop(model);
    let generate_options = new_options(slv_options_generate);
    for (key, value) in
        [("seed", Value::Int(11)), ("max_tokens", Value::Int(24)), ("temperature", Value::Float(0.7)), ("top_logprobs", Value::Int(2))]
    {
        set(&generate_options, key, value);
    }
    let messages = r#"[{"role":"user","content":"Name three colours."}]"#;
    let mut told = Told::default();
    // SAFETY: handles that live, a text that ends with NUL, a listener with its argument.
    let status =
        unsafe { slv_session_chat(session.0, c(messages).as_ptr(), generate_options.0, null(), Some(listen), (&raw mut told).cast()) };
    assert_eq!(status, slv_status::Ok, "{}", read(slv_last_error()));
    let rust = Model::open(&path, &Setup { n_ctx: 256, ..Setup::default() }.options()).unwrap();
    let sampling = SamplingParams { seed: Some(11), temperature: 0.7, ..SamplingParams::default() };
    let options = GenerateOptions { max_tokens: Some(24), sampling, top_logprobs: 2, ..GenerateOptions::default() };
    let prompt = rust.chat(&serde_json::from_str(messages).unwrap()).unwrap();
    let reply = rust.session().unwrap().complete(&prompt, &options, &CancelToken::new()).unwrap();
    assert_eq!(told.text, reply.text);
    assert_eq!(told.ids, reply.ids.iter().map(|id| id.0).collect::<Vec<_>>());
    assert_eq!(told.logprobs, reply.logprobs.iter().map(|p| p.to_bits()).collect::<Vec<_>>());
    let mut stats = null_mut();
    // SAFETY: a handle that lives, and a place.
    assert_eq!(unsafe { slv_session_stats(session.0, &mut stats) }, slv_status::Ok);
    let stats: serde_json::Value = serde_json::from_str(&taken(stats)).unwrap();
    assert_eq!((stats["n_tokens"].as_u64(), stats["seed"].as_u64()), (Some(reply.stats.n_tokens as u64), Some(11)));
    assert_eq!(stats["finish"], reply.stats.finish.name());

    // The words alone: both ways, and a buffer that is too small says what is needed.
    let mut text = null_mut();
    // SAFETY: handles that live, texts with their lengths, buffers with theirs.
    unsafe {
        assert_eq!(slv_text_open(source(&path).0, &mut text), slv_status::Ok);
        let text = Handle(text, slv_text_free);
        let (mut n, mut ids) = (0, vec![0_u32; 512]);
        let messages = c(messages);
        assert_eq!(slv_text_chat(text.0, messages.as_ptr(), null(), 1, ids.as_mut_ptr(), 3, &mut n), slv_status::Buffer);
        assert_eq!(n, prompt.len());
        assert_eq!(slv_text_chat(text.0, messages.as_ptr(), null(), 1, null_mut(), 0, &mut n), slv_status::Buffer);
        assert_eq!(slv_text_chat(text.0, messages.as_ptr(), null(), 1, ids.as_mut_ptr(), n, &mut n), slv_status::Ok);
        assert_eq!(ids[..n], prompt.iter().map(|id| id.0).collect::<Vec<_>>());
        let mut rendered = null_mut();
        assert_eq!(slv_text_render(text.0, messages.as_ptr(), null(), 1, &mut rendered), slv_status::Ok);
        let mut spelled = null_mut();
        assert_eq!(slv_text_detokenize(text.0, ids.as_ptr(), n, 1, &mut spelled), slv_status::Ok);
        assert_eq!(taken(rendered), taken(spelled));
        let words = "caf\u{e9}\0<|im_end|>";
        assert_eq!(slv_text_tokenize(text.0, words.as_ptr().cast(), words.len(), 0, 0, ids.as_mut_ptr(), 512, &mut n), slv_status::Ok);
        assert!(ids[..n].iter().all(|&id| slv_text_is_stop(text.0, id) == 0), "what a person wrote ends no turn");
        assert_eq!(slv_text_tokenize(text.0, words.as_ptr().cast(), words.len(), 0, 1, ids.as_mut_ptr(), 512, &mut n), slv_status::Ok);
        assert!(slv_text_is_stop(text.0, ids[n - 1]) == 1);
        assert_eq!(slv_text_n_vocab(text.0), rust.n_vocab());
    }
}

#[test]
fn scores_are_the_rust_apis() {
    let (Some(path), Some(session)) = (tiny(), tiny_session()) else { return };
    let ids = prompt();
    let mut found = vec![0.0; ids.len()];
    // SAFETY: a handle that lives, ids and places with their number.
    let status = unsafe { slv_session_score(session.0, ids.as_ptr(), ids.len(), null(), found.as_mut_ptr()) };
    assert_eq!(status, slv_status::Ok);
    let mut rust = Model::open(&path, &Setup { n_ctx: 128, ..Setup::default() }.options()).unwrap().session().unwrap();
    let tokens = tiny_tokens(40, 0);
    let mut expected = vec![f64::NAN; 40];
    rust.logits(&tokens[..39], 7, &CancelToken::new(), &mut |i, logits| expected[i + 1] = Logprobs::new(logits).of(tokens[i + 1]).unwrap())
        .unwrap();
    assert!(found[0].is_nan());
    assert_eq!(found[1..], expected[1..]);
}

#[test]
fn a_plan_is_told_before_anything_is_opened() {
    let Some(path) = tiny() else { return };
    let (source, options) = (source(&path), small());
    let mut out = null_mut();
    // SAFETY: handles that live, and a place.
    assert_eq!(unsafe { slv_model_plan(source.0, options.0, &mut out) }, slv_status::Ok);
    let plan: serde_json::Value = serde_json::from_str(&taken(out)).unwrap();
    assert_eq!(plan["n_ctx"], 128);
    let model = open(&source, &options).ok().unwrap();
    // SAFETY: handles that live, and a place.
    assert_eq!(unsafe { slv_model_info(model.0, &mut out) }, slv_status::Ok);
    let info: serde_json::Value = serde_json::from_str(&taken(out)).unwrap();
    assert_eq!(info["plan"]["anonymous"], plan["anonymous"]);
    // SAFETY: a handle that lives.
    unsafe { assert_eq!((slv_model_n_ctx(model.0), info["n_vocab"].as_u64()), (128, Some(slv_model_n_vocab(model.0) as u64))) };
}

#[test]
fn budgets_and_contexts_at_their_ends() {
    let Some(path) = tiny() else { return };
    let source = source(&path);
    for (key, value, expected) in [
        ("budget", 0, slv_status::Budget),
        ("budget", 1, slv_status::Budget),
        ("budget", i64::MAX, slv_status::Ok),
        ("n_ctx", 0, slv_status::Option),
        ("n_ctx", 1, slv_status::Ok),
        ("n_ctx", 100_000, slv_status::Ok),
        ("n_ctx", i64::MAX, slv_status::Option),
        ("chunk", 0, slv_status::Option),
        ("duty", 0, slv_status::Option),
    ] {
        let options = small();
        set(&options, key, Value::Int(value));
        let found = open(&source, &options).err();
        assert_eq!(found.as_ref().map_or(slv_status::Ok, |f| f.0), expected, "{key} {value}: {found:?}");
        if expected == slv_status::Budget {
            // The plan is given all the same.
            let mut out = null_mut();
            // SAFETY: handles that live, and a place.
            assert_eq!(unsafe { slv_model_plan(source.0, options.0, &mut out) }, slv_status::Budget);
            assert!(taken(out).contains("max_ctx"));
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Sources.

unsafe extern "C" fn count(user: *mut c_void) {
    // SAFETY: the tests hand in a counter that outlives the source.
    unsafe { &*user.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn bytes_are_released_once_when_nothing_uses_them() {
    let Some(path) = tiny() else { return };
    let bytes = std::fs::read(&path).unwrap();
    let released = AtomicUsize::new(0);
    let user = (&raw const released).cast_mut().cast();
    let mut out = null_mut();
    // SAFETY: bytes that stay to the end of the test, a listener with its argument, a place.
    assert_eq!(unsafe { slv_source_bytes(bytes.as_ptr().cast(), bytes.len(), Some(count), user, &mut out) }, slv_status::Ok);
    let source = Handle(out, slv_source_free);
    let model = open(&source, &small()).ok().unwrap();
    drop(source);
    let session = session(&model);
    drop(model);
    assert_eq!(released.load(Ordering::SeqCst), 0, "the session still uses them");
    assert_eq!(generate(&session, &prompt(), &greedy(3), None).0, slv_status::Ok);
    drop(session);
    assert_eq!(released.load(Ordering::SeqCst), 1);
    // A call that fails releases nothing.
    // SAFETY: as above, without a place.
    assert_eq!(unsafe { slv_source_bytes(bytes.as_ptr().cast(), bytes.len(), Some(count), user, null_mut()) }, slv_status::Null);
    // SAFETY: as above, without bytes.
    assert_eq!(unsafe { slv_source_bytes(null(), 5, Some(count), user, &mut out) }, slv_status::Null);
    assert_eq!(released.load(Ordering::SeqCst), 1);
}

#[cfg(unix)]
#[test]
fn a_descriptor_is_duplicated() {
    use std::os::fd::AsRawFd;
    let Some(path) = tiny() else { return };
    let file = std::fs::File::open(&path).unwrap();
    let mut out = null_mut();
    // SAFETY: a place.
    assert_eq!(unsafe { slv_source_fd(file.as_raw_fd(), 0, 0, &mut out) }, slv_status::Ok);
    drop(file);
    let source = Handle(out, slv_source_free);
    assert!(open(&source, &small()).is_ok());
    for (fd, expected) in [(-1, slv_status::Argument), (i32::MIN, slv_status::Argument), (99_999, slv_status::System)] {
        // SAFETY: a place.
        assert_eq!(unsafe { slv_source_fd(fd, 0, 0, &mut out) }, expected);
        assert!(out.is_null());
    }
    let file = std::fs::File::open(&path).unwrap();
    // SAFETY: a place.
    assert_eq!(unsafe { slv_source_fd(file.as_raw_fd(), u64::MAX, 1, &mut out) }, slv_status::Ok);
    let (status, message) = open(&Handle(out, slv_source_free), &small()).err().unwrap();
    assert_eq!(status, slv_status::Argument, "{message}");
}

#[test]
fn what_cannot_be_opened_says_why() {
    let (Some(hostile), Some(tiny)) = (case("hostile"), tiny()) else { return };
    for (path, expected) in [
        (hostile.join("no such file"), slv_status::System),
        (hostile.clone(), slv_status::System),
        (hostile.join("h01_empty.gguf"), slv_status::Format),
        (hostile.join("m05_arch_unknown.gguf"), slv_status::Unsupported),
        (hostile.join("m13_missing_ffn_down.gguf"), slv_status::Format),
        (tiny.with_file_name("mamba2.f32.gguf"), slv_status::Unsupported),
    ] {
        let (status, message) = open(&source(&path), &small()).err().unwrap();
        assert_eq!(status, expected, "{}: {message}", path.display());
        assert!(message.len() > 10 && !message.contains('\n'), "{message}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Callbacks and cancels.

#[test]
fn an_end_at_any_event_leaves_a_session_that_goes_on_with_the_same_bits() {
    let Some(session) = tiny_session() else { return };
    let (ids, options) = (prompt(), greedy(12));
    let (status, whole) = generate(&session, &ids, &options, None);
    assert_eq!(status, slv_status::Ok);
    assert!(whole.ids.len() == 12 && whole.events.len() > 12, "{whole:?}");
    for end_at in 0..whole.events.len() {
        // From an empty cache, so that the prompt has its events too.
        // SAFETY: a handle that lives.
        assert_eq!(unsafe { slv_session_keep(session.0, 0, null_mut()) }, slv_status::Ok);
        let (status, part) = generate(&session, &ids, &options, Some(end_at));
        // The last event tells what was held back: there is nothing left to end.
        let held_back = whole.events[end_at] == slv_event_kind::Text;
        assert_eq!(status, if held_back { slv_status::Ok } else { slv_status::Cancelled }, "event {end_at}");
        assert!(whole.ids.starts_with(&part.ids));
        let mut longer = ids.clone();
        longer.extend_from_slice(&part.ids);
        let rest = greedy(12 - part.ids.len() as i64);
        let (status, rest) = generate(&session, &longer, &rest, None);
        assert_eq!(status, slv_status::Ok);
        assert_eq!([part.ids, rest.ids].concat(), whole.ids, "after an end at event {end_at}");
        assert_eq!([part.logprobs, rest.logprobs].concat(), whole.logprobs, "after an end at event {end_at}");
    }
}

/// Counts load events, and ends at one.
unsafe extern "C" fn end_load(event: *const slv_event, user: *mut c_void) -> c_int {
    // SAFETY: the test hands in two numbers; the event of this call.
    let (at, seen) = unsafe { &mut *user.cast::<(usize, usize)>() };
    // SAFETY: the event of this call.
    assert!(!read(unsafe { slv_event_stage(event) }).is_empty());
    *seen += 1;
    c_int::from(*seen - 1 == *at)
}

#[test]
fn a_load_can_be_ended_at_any_event() {
    let Some(path) = tiny() else { return };
    let (source, options) = (source(&path), small());
    let run = |at: usize| {
        let (mut state, mut out) = ((at, 0), null_mut());
        // SAFETY: handles that live, a listener with its argument, a place.
        let status = unsafe { slv_model_open(source.0, options.0, null(), Some(end_load), (&raw mut state).cast(), &mut out) };
        drop(Handle(out, slv_model_free));
        (status, out.is_null(), state.1)
    };
    let (status, _, n) = run(usize::MAX);
    assert_eq!(status, slv_status::Ok);
    assert!(n > 2);
    for at in 0..n {
        let (status, is_null, _) = run(at);
        assert_eq!((status, is_null), (slv_status::Cancelled, true), "event {at} of {n}");
    }
}

/// Calls back into the session that the event comes from, and frees it.
unsafe extern "C" fn call_back(_event: *const slv_event, user: *mut c_void) -> c_int {
    // SAFETY: the test hands in the session and a counter; the session is in use by the call that tells.
    unsafe {
        let (session, calls) = &mut *user.cast::<(*mut slv_session, usize)>();
        let (mut n, id) = (0, 1_u32);
        assert_eq!(slv_session_len(*session, &mut n), slv_status::Busy);
        assert_eq!(slv_session_keep(*session, 0, null_mut()), slv_status::Busy);
        assert_eq!(slv_session_generate(*session, &id, 1, null(), null(), None, null_mut()), slv_status::Busy);
        assert_eq!(read(slv_session_error(*session)), "");
        if *calls == 0 {
            slv_session_free(*session);
        }
        *calls += 1;
    }
    0
}

#[test]
fn a_callback_that_calls_back_in_is_told_that_the_session_is_busy_and_may_free_it() {
    let Some(session) = tiny_session() else { return };
    let raw = session.0;
    std::mem::forget(session);
    let (mut state, ids, options) = ((raw, 0_usize), prompt(), greedy(4));
    // SAFETY: a session that the callback frees, so that this doesn't.
    let status = unsafe { slv_session_generate(raw, ids.as_ptr(), ids.len(), options.0, null(), Some(call_back), (&raw mut state).cast()) };
    assert_eq!(status, slv_status::Ok);
    assert!(state.1 > 4);
}

/// A pointer that tests hand to other threads.
struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: the library says which of its handles may be used from several threads.
unsafe impl<T> Send for Shared<T> {}

impl<T> Shared<T> {
    fn get(self) -> *mut T {
        self.0
    }
}

#[test]
fn a_cancel_from_another_thread_ends_a_reply_and_a_token_serves_again() {
    let Some(session) = tiny_session() else { return };
    let mut out = null_mut();
    // SAFETY: a place.
    assert_eq!(unsafe { slv_cancel_new(&mut out) }, slv_status::Ok);
    let cancel = Handle(out, slv_cancel_free);
    let options = greedy(1_000_000);
    set(&options, "overflow", Value::Text("shift"));
    let ids = prompt();
    for _ in 0..3 {
        let shared = Shared(cancel.0);
        let canceller = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            // SAFETY: the token lives to the end of the test.
            assert_eq!(unsafe { slv_cancel_cancel(shared.get()) }, slv_status::Ok);
        });
        // SAFETY: handles that live, ids with their number.
        let status = unsafe { slv_session_generate(session.0, ids.as_ptr(), ids.len(), options.0, cancel.0, None, null_mut()) };
        canceller.join().unwrap();
        assert_eq!(status, slv_status::Cancelled);
        // A token that is cancelled already ends a call at once.
        // SAFETY: as above.
        let status = unsafe { slv_session_generate(session.0, ids.as_ptr(), ids.len(), options.0, cancel.0, None, null_mut()) };
        assert_eq!(status, slv_status::Cancelled);
        // SAFETY: a token that lives.
        assert_eq!(unsafe { slv_cancel_reset(cancel.0) }, slv_status::Ok);
    }
    assert_eq!(generate(&session, &ids, &greedy(3), None).0, slv_status::Ok);
}

#[test]
fn two_threads_on_one_session_get_replies_or_are_told_that_it_is_busy() {
    let Some(session) = tiny_session() else { return };
    let (ids, options) = (prompt(), greedy(6));
    let (_, expected) = generate(&session, &ids, &options, None);
    let (shared, options) = (Shared(session.0), Shared(options.0));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (ids, expected) = (ids.clone(), expected.clone());
            std::thread::spawn(move || {
                let session = std::mem::ManuallyDrop::new(Handle(shared.get(), slv_session_free));
                let options = std::mem::ManuallyDrop::new(Handle(options.get(), slv_options_free));
                let mut done = 0;
                for _ in 0..200 {
                    match generate(&session, &ids, &options, None) {
                        (slv_status::Ok, told) => {
                            assert_eq!(told.ids, expected.ids);
                            done += 1;
                        }
                        (status, _) => assert_eq!(status, slv_status::Busy),
                    }
                }
                done
            })
        })
        .collect();
    let done: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
    assert!(done > 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// Bad input.

#[test]
fn null_everywhere_is_an_error_or_nothing() {
    let n = slv_status::Null;
    // SAFETY: NULL is what every function takes.
    unsafe {
        assert_eq!(slv_source_path(null(), null_mut()), n);
        assert_eq!(slv_source_fd(0, 0, 0, null_mut()), n);
        assert_eq!(slv_source_bytes(null(), 0, None, null_mut(), null_mut()), n);
        assert_eq!(slv_cancel_new(null_mut()), n);
        assert_eq!(slv_cancel_cancel(null()), n);
        assert_eq!(slv_cancel_reset(null()), n);
        assert_eq!(slv_options_model(null_mut()), n);
        assert_eq!(slv_options_generate(null_mut()), n);
        assert_eq!(slv_options_set_int(null_mut(), null(), 0), n);
        assert_eq!(slv_options_set_float(null_mut(), null(), 0.0), n);
        assert_eq!(slv_options_set_text(null_mut(), null(), null()), n);
        assert_eq!(slv_options_add_logit_bias(null_mut(), 0, 0.0), n);
        assert_eq!(slv_options_set_log(null_mut(), None, null_mut()), n);
        assert_eq!(slv_model_plan(null(), null(), null_mut()), n);
        assert_eq!(slv_model_open(null(), null(), null(), None, null_mut(), null_mut()), n);
        assert_eq!(slv_model_info(null(), null_mut()), n);
        assert_eq!((slv_model_n_ctx(null()), slv_model_n_vocab(null()), slv_text_n_vocab(null())), (0, 0, 0));
        assert_eq!(slv_text_open(null(), null_mut()), n);
        assert_eq!(slv_text_of_model(null(), null_mut()), n);
        assert_eq!(slv_text_tokenize(null(), null(), 0, 0, 0, null_mut(), 0, null_mut()), n);
        assert_eq!(slv_text_detokenize(null(), null(), 0, 0, null_mut()), n);
        assert_eq!(slv_text_render(null(), null(), null(), 0, null_mut()), n);
        assert_eq!(slv_text_chat(null(), null(), null(), 0, null_mut(), 0, null_mut()), n);
        assert_eq!(slv_text_is_stop(null(), 0), 0);
        assert_eq!(slv_session_new(null(), null_mut()), n);
        assert_eq!(slv_session_generate(null_mut(), null(), 0, null(), null(), None, null_mut()), n);
        assert_eq!(slv_session_chat(null_mut(), null(), null(), null(), None, null_mut()), n);
        assert_eq!(slv_session_score(null_mut(), null(), 0, null(), null_mut()), n);
        assert_eq!(slv_session_len(null(), null_mut()), n);
        assert_eq!(slv_session_keep(null_mut(), 0, null_mut()), n);
        assert_eq!(slv_session_stats(null(), null_mut()), n);
        assert_eq!(read(slv_session_error(null())), "");
        assert_eq!(slv_event_kind_of(null()), slv_event_kind::None);
        assert_eq!((slv_event_done(null()), slv_event_total(null()), slv_event_token(null())), (0, 0, 0));
        assert!(slv_event_logprob(null()).is_nan());
        assert_eq!((slv_event_n_top(null()), slv_event_top(null(), 0, null_mut())), (0, u32::MAX));
        assert_eq!((read(slv_event_text(null(), null_mut())), read(slv_event_stage(null()))), (String::new(), String::new()));
        slv_source_free(null_mut());
        slv_options_free(null_mut());
        slv_cancel_free(null_mut());
        slv_model_free(null_mut());
        slv_text_free(null_mut());
        slv_session_free(null_mut());
        slv_string_free(null_mut());
    }
    assert!(read(slv_last_error()).contains("NULL"));
}

#[test]
fn arguments_of_a_session_are_checked() {
    let Some(session) = tiny_session() else { return };
    let (options, ids) = (greedy(2), prompt());
    let long: Vec<u32> = ids.iter().copied().cycle().take(129).collect();
    for (ids, expected) in [(vec![], slv_status::Prompt), (vec![1, u32::MAX], slv_status::Argument), (long, slv_status::Prompt)] {
        let (status, told) = generate(&session, &ids, &options, None);
        assert_eq!((status, told.events.len()), (expected, 0));
        // SAFETY: a handle that lives.
        assert_eq!(read(unsafe { slv_session_error(session.0) }), read(slv_last_error()));
        assert!(!read(slv_last_error()).is_empty());
    }
    // SAFETY: a handle that lives; what is wrong is refused before it is used.
    unsafe {
        assert_eq!(slv_session_generate(session.0, null(), 3, null(), null(), None, null_mut()), slv_status::Null);
        assert_eq!(slv_session_generate(session.0, ids.as_ptr(), usize::MAX, null(), null(), None, null_mut()), slv_status::Argument);
        assert_eq!(slv_session_chat(session.0, c("[{").as_ptr(), null(), null(), None, null_mut()), slv_status::Json);
        assert_eq!(slv_session_chat(session.0, c"\xff".as_ptr(), null(), null(), None, null_mut()), slv_status::Utf8);
        assert_eq!(slv_session_score(session.0, ids.as_ptr(), 0, null(), null_mut()), slv_status::Prompt);
        assert_eq!(slv_session_score(session.0, ids.as_ptr(), 2, null(), null_mut()), slv_status::Null);
        let model_options = small();
        let status = slv_session_generate(session.0, ids.as_ptr(), ids.len(), model_options.0, null(), None, null_mut());
        assert_eq!(status, slv_status::Option, "options of a model for a reply");
    }
    let (status, told) = generate(&session, &ids, &options, None);
    assert_eq!((status, told.ids.len()), (slv_status::Ok, 2));
    // SAFETY: a handle that lives.
    assert_eq!(read(unsafe { slv_session_error(session.0) }), "");
}

#[test]
fn options_that_are_not_there_or_of_another_type_are_told() {
    let model = new_options(slv_options_model);
    let reply = new_options(slv_options_generate);
    for (options, key, value) in [
        (&model, "n_contexts", Value::Int(1)),
        (&model, "", Value::Int(1)),
        (&model, "temperature", Value::Int(1)),
        (&model, "n_ctx", Value::Text("many")),
        (&model, "n_ctx", Value::Float(1.0)),
        (&model, "n_ctx", Value::Int(-1)),
        (&model, "kv", Value::Text("q9")),
        (&model, "kv", Value::Int(8)),
        (&model, "threads", Value::Int(1 << 40)),
        (&model, "threads", Value::Text("many")),
        (&model, "weights", Value::Text("")),
        (&model, "validate", Value::Int(2)),
        (&model, "nice", Value::Int(20)),
        (&model, "cpu", Value::Int(1 << 20)),
        (&model, "duty", Value::Int(256)),
        (&reply, "n_ctx", Value::Int(1)),
        (&reply, "stop", Value::Text("")),
        (&reply, "stop", Value::Int(3)),
        (&reply, "temperature", Value::Text("hot")),
        (&reply, "top_k", Value::Int(-1)),
        (&reply, "samplers", Value::Text("top_k,bottom_k")),
        (&reply, "overflow", Value::Text("loop")),
        (&reply, "logprobs", Value::Float(1.0)),
    ] {
        assert_eq!(try_set(options, key, value), slv_status::Option, "{key} {value:?}");
        let message = read(slv_last_error());
        assert!(message.contains(if key.is_empty() { "\"\"" } else { key }), "{message}");
    }
    // SAFETY: objects that live, a key that isn't UTF-8.
    unsafe {
        assert_eq!(slv_options_set_int(model.0, c"\xc3\x28".as_ptr(), 1), slv_status::Utf8);
        assert_eq!(slv_options_add_logit_bias(model.0, 1, 1.0), slv_status::Option);
    }
    // Ranges are looked at in use.
    let Some(session) = tiny_session() else { return };
    for (key, value) in [("temperature", Value::Float(f64::NAN)), ("top_p", Value::Float(2.0)), ("mirostat_tau", Value::Int(0))] {
        let options = greedy(1);
        set(&options, "temperature", Value::Int(1));
        set(&options, key, value);
        assert_eq!(generate(&session, &prompt(), &options, None).0, slv_status::Option, "{key}");
    }
}

#[test]
fn every_option_that_the_header_names_can_be_set() {
    let header = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../ffi/include/selvedge.h")).unwrap();
    for (make, name) in
        [(slv_options_model as unsafe extern "C" fn(_) -> _, "slv_options_model(slv"), (slv_options_generate, "slv_options_generate(slv")]
    {
        let before = &header[..header.find(name).unwrap()];
        let words = before[before.rfind("/**").unwrap()..].split_once("Keys: ").unwrap().1.to_owned();
        let options = new_options(make);
        // The table, as its own refusal lists it, against the comment.
        assert_eq!(try_set(&options, "?", Value::Int(1)), slv_status::Option);
        let message = read(slv_last_error());
        let keys: Vec<&str> = message.split_once("those there are: ").unwrap().1.split(", ").collect();
        assert!(keys.len() > 10 && keys.is_sorted());
        for key in keys {
            assert!(words.contains(&format!("\"{key}\"")), "{key} isn't in the header");
        }
    }
}

#[test]
fn what_the_library_is() {
    assert_eq!(slv_abi_version(), 0);
    assert_eq!(read(slv_version()), env!("CARGO_PKG_VERSION"));
    let info: serde_json::Value = serde_json::from_str(&read(slv_build_info())).unwrap();
    assert_eq!(info["numerics"], selvedge::NUMERICS);
    assert_eq!(
        (read(slv_status_name(0)), read(slv_status_name(0x20)), read(slv_status_name(-7))),
        ("ok".into(), "budget".into(), "unknown".into())
    );
}

unsafe extern "C" fn note(message: *const c_char, user: *mut c_void) {
    // SAFETY: the test hands in a list.
    unsafe { &mut *user.cast::<Vec<String>>() }.push(read(message));
}

#[test]
fn notes_are_told() {
    let Some(path) = tiny() else { return };
    let (options, mut notes) = (small(), Vec::<String>::new());
    // A folder inside a file can't be made.
    set(&options, "pack_dir", Value::Text(path.join("packs").to_str().unwrap()));
    // SAFETY: an object that lives, a listener with its argument.
    assert_eq!(unsafe { slv_options_set_log(options.0, Some(note), (&raw mut notes).cast()) }, slv_status::Ok);
    assert!(open(&source(&path), &options).is_ok());
    assert!(notes.len() == 1 && notes[0].contains("packed in memory"), "{notes:?}");
}

// ---------------------------------------------------------------------------------------------------------------------
// Sequences of calls.

/// A generator that is the same everywhere (xorshift, Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

impl Random {
    /// A token, now and then one that isn't there.
    fn token(&mut self) -> u32 {
        let below = if self.below(40) == 0 { 1 << 30 } else { 40 };
        self.below(below) as u32
    }
}

/// Calls in any order on handles in any number, right and wrong; every status is one that the call may have.
fn random_sequences(n_sequences: usize, seed: u64) {
    let Some(path) = tiny() else { return };
    let mut random = Random(seed);
    let (source, bad) = (source(&path), source(Path::new("/no/such/model.gguf")));
    let model_options = small();
    let model = open(&source, &model_options).ok().unwrap();
    let expected = generate(&session(&model), &prompt(), &greedy(4), None).1.ids;
    for _ in 0..n_sequences {
        let mut sessions: Vec<Handle<slv_session>> = Vec::new();
        let options = new_options(slv_options_generate);
        let mut out = null_mut();
        // SAFETY: a place.
        assert_eq!(unsafe { slv_cancel_new(&mut out) }, slv_status::Ok);
        let cancel = Handle(out, slv_cancel_free);
        for _ in 0..1 + random.below(6) {
            let at = random.below(sessions.len() + 1);
            let current = sessions.get(at).map_or(null_mut(), |s| s.0);
            let ids: Vec<u32> = (0..random.below(24)).map(|_| random.token()).collect();
            // SAFETY: handles that live or NULL, buffers with their lengths.
            unsafe {
                match random.below(12) {
                    0 if sessions.len() < 3 => sessions.push(session(&model)),
                    1 if at < sessions.len() => drop(sessions.remove(at)),
                    2 => {
                        slv_cancel_cancel(cancel.0);
                    }
                    3 => {
                        slv_cancel_reset(cancel.0);
                    }
                    4 => {
                        let keys = ["temperature", "top_k", "top_p", "stop", "seed", "max_tokens", "n_keep", "nonsense", "overflow"];
                        let key = c(keys[random.below(keys.len())]);
                        match random.below(3) {
                            0 => slv_options_set_int(options.0, key.as_ptr(), random.below(50) as i64 - 5),
                            1 => slv_options_set_float(options.0, key.as_ptr(), random.below(300) as f64 / 100.0 - 0.5),
                            _ => slv_options_set_text(options.0, key.as_ptr(), c(["shift", "a", ""][random.below(3)]).as_ptr()),
                        };
                    }
                    5 => {
                        let mut kept = 0;
                        slv_session_keep(current, random.below(60), &mut kept);
                    }
                    6 => {
                        let mut scores = vec![0.0; ids.len()];
                        slv_session_score(current, ids.as_ptr(), ids.len(), cancel.0, scores.as_mut_ptr());
                    }
                    7 => {
                        let mut text = null_mut();
                        slv_session_stats(current, &mut text);
                        slv_string_free(text);
                    }
                    8 if random.below(30) == 0 => {
                        let mut model = null_mut();
                        let from = if random.below(2) == 0 { source.0 } else { bad.0 };
                        slv_model_open(from, model_options.0, cancel.0, None, null_mut(), &mut model);
                        slv_model_free(model);
                    }
                    _ => {
                        let mut told = Told { end_at: Some(random.below(20)), ..Told::default() };
                        let status = slv_session_generate(
                            current,
                            ids.as_ptr(),
                            ids.len(),
                            options.0,
                            cancel.0,
                            Some(listen),
                            (&raw mut told).cast(),
                        );
                        use slv_status as S;
                        assert!(matches!(status, S::Ok | S::Cancelled | S::Null | S::Prompt | S::Argument | S::Option), "{status:?}");
                    }
                }
            }
        }
        // Whatever came before, a session answers as a new one does.
        if let Some(session) = sessions.first() {
            let (status, told) = generate(session, &prompt(), &greedy(4), None);
            assert_eq!((status, told.ids), (slv_status::Ok, expected.clone()));
        }
    }
}

#[test]
fn calls_in_any_order_leave_sessions_that_answer_right() {
    random_sequences(1_000, 0x5e1);
}

#[test]
#[ignore = "long: 100 000 sequences of calls"]
fn a_hundred_thousand_sequences_of_calls() {
    random_sequences(100_000, 0x5e2);
}
