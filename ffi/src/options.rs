//! Options by key. A new one is a row of a table; no struct of the interface ever changes.

use crate::error::{Failure, slv_status};
use crate::guard::guard;
use crate::value::{Out, free, given_mut, text};
use selvedge::{GenerateOptions, KvElem, MAX_THREADS, Mirostat, Model, ModelOptions, Overflow, Stage, TokenId, Weights};
use std::ffi::{c_char, c_void};

/// Options of a call: for a model those of `slv_options_model`, for a reply those of `slv_options_generate`.
#[derive(Debug)]
pub struct slv_options {
    pub(crate) log: Log,
    set: Set,
}

#[derive(Debug)]
enum Set {
    Model(Box<ModelOptions>),
    Generate(Box<Generate>),
}

/// Options of a reply that aren't the library's own yet.
#[derive(Debug, Clone, Default)]
struct Generate {
    options: GenerateOptions,
    dry_breakers: Vec<String>,
    shift: bool,
    n_keep: usize,
    n_discard: Option<usize>,
}

/// Told of what went otherwise than expected, a sentence in UTF-8 each, on the thread that made the call.
pub type slv_log_fn = Option<unsafe extern "C" fn(message: *const c_char, user: *mut c_void)>;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Log {
    on_log: slv_log_fn,
    user: *mut c_void,
}

impl Log {
    pub(crate) const NONE: Log = Log { on_log: None, user: std::ptr::null_mut() };

    pub(crate) fn tell(self, message: &str) {
        if let Some(on_log) = self.on_log {
            let message = crate::value::owned_text(message);
            // SAFETY: the caller's own function with the caller's own argument; the text lives during the call.
            unsafe { on_log(message.as_ptr(), self.user) }
        }
    }
}

/// A value that was set.
#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Int(i64),
    Float(f64),
    Text(&'a str),
}

/// Why a value isn't taken: what is expected.
type Refused = String;

impl<'a> Value<'a> {
    fn int<T: TryFrom<i64>>(self) -> Result<T, Refused> {
        let Value::Int(n) = self else { return Err("an integer".into()) };
        T::try_from(n).map_err(|_| if n < 0 { "a number of at least 0".to_owned() } else { "a smaller number".into() })
    }

    fn float(self) -> Result<f32, Refused> {
        match self {
            Value::Int(n) => Ok(n as f32),
            Value::Float(x) => Ok(x as f32),
            Value::Text(_) => Err("a number".into()),
        }
    }

    fn flag(self) -> Result<bool, Refused> {
        match self {
            Value::Int(n @ (0 | 1)) => Ok(n == 1),
            _ => Err("0 or 1".into()),
        }
    }

    fn text(self) -> Result<&'a str, Refused> {
        if let Value::Text(text) = self { Ok(text) } else { Err("a text".into()) }
    }
}

type Row<T> = (&'static str, fn(&mut T, Value<'_>) -> Result<(), Refused>);

/// `value` into `place`.
fn put<T>(place: &mut T, value: Result<T, Refused>) -> Result<(), Refused> {
    *place = value?;
    Ok(())
}

const MODEL: &[Row<ModelOptions>] = &[
    ("backend", |o, v| put(&mut o.backend.backend, v.text().map(|t| Some(t.to_owned())))),
    ("budget", |o, v| put(&mut o.plan.budget, v.int().map(Some))),
    ("chunk", |o, v| put(&mut o.plan.chunk, v.int())),
    ("cpu", |o, v| {
        let cpu: usize = v.int()?;
        if cpu >= 1024 {
            return Err("the number of a processor, below 1024".into());
        }
        o.backend.care.cpus.push(cpu);
        Ok(())
    }),
    ("duty", |o, v| put(&mut o.plan.duty, v.int())),
    ("isa", |o, v| put(&mut o.backend.isa, v.text().map(|t| Some(t.to_owned())))),
    ("kv", |o, v| {
        let known = || format!("one of {}", KvElem::ALL.map(|(name, _)| name).join(", "));
        put(&mut o.plan.kv, v.text().and_then(|name| KvElem::from_name(name).ok_or_else(known)))
    }),
    ("n_ctx", |o, v| put(&mut o.plan.n_ctx, v.int().map(Some))),
    ("nice", |o, v| {
        let nice = if let Value::Int(n) = v { i32::try_from(n).ok().filter(|n| (-20..=19).contains(n)) } else { None };
        put(&mut o.backend.care.niceness, nice.ok_or_else(|| "an integer from -20 to 19".into()))
    }),
    ("pack_dir", |o, v| put(&mut o.packs.dir, v.text().map(|dir| Some(dir.into()).filter(|_| !dir.is_empty())))),
    ("pack_limit", |o, v| put(&mut o.packs.limit, v.int().map(Some))),
    ("threads", |o, v| match v {
        Value::Text("auto") => {
            o.auto_threads = true;
            Ok(())
        }
        Value::Int(n) if (0..=MAX_THREADS as i64).contains(&n) => {
            (o.auto_threads, o.backend.n_threads) = (false, n as usize);
            Ok(())
        }
        _ => Err(format!("a number from 0 (one a fast core) to {MAX_THREADS}, or \"auto\"")),
    }),
    ("validate", |o, v| put(&mut o.validate, v.flag())),
    ("weights", |o, v| {
        let weights = match v {
            Value::Text("auto") => Ok(Weights::Auto),
            Value::Text("resident") => Ok(Weights::Resident),
            Value::Text("mapped") => Ok(Weights::Mapped),
            _ => Err("\"auto\", \"resident\" or \"mapped\"".into()),
        };
        put(&mut o.plan.weights, weights)
    }),
];

/// A text that may not be empty, added to a list.
fn add(list: &mut Vec<String>, v: Value<'_>) -> Result<(), Refused> {
    match v.text()? {
        "" => Err("a text that isn't empty".into()),
        text => {
            list.push(text.to_owned());
            Ok(())
        }
    }
}

fn mirostat(o: &mut Generate) -> &mut Mirostat {
    o.options.sampling.mirostat.get_or_insert_with(Mirostat::default)
}

const GENERATE: &[Row<Generate>] = &[
    ("dry_allowed_length", |o, v| put(&mut o.options.sampling.dry_allowed_length, v.int())),
    ("dry_base", |o, v| put(&mut o.options.sampling.dry_base, v.float())),
    ("dry_breaker", |o, v| add(&mut o.dry_breakers, v)),
    ("dry_last_n", |o, v| put(&mut o.options.sampling.dry_last_n, v.int())),
    ("dry_multiplier", |o, v| put(&mut o.options.sampling.dry_multiplier, v.float())),
    ("frequency_penalty", |o, v| put(&mut o.options.sampling.frequency_penalty, v.float())),
    ("ignore_stop_ids", |o, v| put(&mut o.options.ignore_stop_ids, v.flag())),
    ("logprobs", |o, v| put(&mut o.options.logprobs, v.flag())),
    ("max_tokens", |o, v| put(&mut o.options.max_tokens, v.int().map(Some))),
    ("min_p", |o, v| put(&mut o.options.sampling.min_p, v.float())),
    ("mirostat_eta", |o, v| v.float().map(|eta| mirostat(o).eta = eta)),
    ("mirostat_tau", |o, v| v.float().map(|tau| mirostat(o).tau = tau)),
    ("n_discard", |o, v| put(&mut o.n_discard, v.int().map(|n: usize| Some(n).filter(|&n| n > 0)))),
    ("n_keep", |o, v| put(&mut o.n_keep, v.int())),
    ("overflow", |o, v| {
        let shift = match v {
            Value::Text("stop") => Ok(false),
            Value::Text("shift") => Ok(true),
            _ => Err("\"stop\" or \"shift\"".into()),
        };
        put(&mut o.shift, shift)
    }),
    ("penalty_last_n", |o, v| put(&mut o.options.sampling.penalty_last_n, v.int())),
    ("presence_penalty", |o, v| put(&mut o.options.sampling.presence_penalty, v.float())),
    ("repeat_penalty", |o, v| put(&mut o.options.sampling.repeat_penalty, v.float())),
    ("samplers", |o, v| {
        let order: Result<Vec<Stage>, Refused> =
            v.text()?.split(',').filter(|s| !s.is_empty()).map(|s| Stage::from_name(s).map_err(|e| e.to_string())).collect();
        put(&mut o.options.sampling.order, order)
    }),
    // Any of the 2^64 seeds.
    ("seed", |o, v| put(&mut o.options.sampling.seed, if let Value::Int(n) = v { Ok(Some(n as u64)) } else { Err("an integer".into()) })),
    ("stop", |o, v| add(&mut o.options.stops, v)),
    ("temperature", |o, v| put(&mut o.options.sampling.temperature, v.float())),
    ("top_k", |o, v| put(&mut o.options.sampling.top_k, v.int())),
    ("top_logprobs", |o, v| put(&mut o.options.top_logprobs, v.int())),
    ("top_p", |o, v| put(&mut o.options.sampling.top_p, v.float())),
    ("typical_p", |o, v| put(&mut o.options.sampling.typical_p, v.float())),
    ("xtc_probability", |o, v| put(&mut o.options.sampling.xtc_probability, v.float())),
    ("xtc_threshold", |o, v| put(&mut o.options.sampling.xtc_threshold, v.float())),
];

/// Sets what a row of the table says.
fn set_in<T>(table: &[Row<T>], target: &mut T, key: &str, value: Value<'_>) -> Result<(), Failure> {
    let wrong = |message: String| Failure::new(slv_status::Option, message);
    let Some((_, set)) = table.iter().find(|(name, _)| *name == key) else {
        let known: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
        return Err(wrong(format!("there is no option {key:?}; those there are: {}", known.join(", "))));
    };
    set(target, value).map_err(|expected| {
        let found = match value {
            Value::Int(n) => n.to_string(),
            Value::Float(x) => x.to_string(),
            Value::Text(text) => format!("{text:?}"),
        };
        wrong(format!("option {key} is {found}, expected {expected}"))
    })
}

impl slv_options {
    fn set(&mut self, key: &str, value: Value<'_>) -> Result<(), Failure> {
        match &mut self.set {
            Set::Model(options) => set_in(MODEL, options, key, value),
            Set::Generate(options) => set_in(GENERATE, options, key, value),
        }
    }
}

/// Those of a model; the defaults where there are none.
pub(crate) fn for_model(options: Option<&slv_options>) -> Result<(ModelOptions, Log), Failure> {
    match options.map(|o| (&o.set, o.log)) {
        None => Ok((ModelOptions::default(), Log::NONE)),
        Some((Set::Model(options), log)) => Ok(((**options).clone(), log)),
        Some(_) => Err(Failure::new(slv_status::Option, "these are options of a reply, expected those of a model")),
    }
}

/// Texts that end a repeated run where none are named.
const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Those of a reply; the defaults where there are none.
pub(crate) fn for_reply(options: Option<&slv_options>, model: &Model) -> Result<GenerateOptions, Failure> {
    let set = match options.map(|o| &o.set) {
        None => return Ok(GenerateOptions::default()),
        Some(Set::Generate(set)) => set,
        Some(_) => return Err(Failure::new(slv_status::Option, "these are options of a model, expected those of a reply")),
    };
    let mut options = set.options.clone();
    if options.sampling.dry_multiplier > 0.0 {
        let named: Vec<&str> = set.dry_breakers.iter().map(String::as_str).collect();
        options.sampling.dry_breakers = model.tokens_with(if named.is_empty() { &DRY_BREAKERS } else { &named });
    }
    if set.shift {
        options.overflow = Overflow::Shift { n_keep: set.n_keep, n_discard: set.n_discard };
    }
    Ok(options)
}

/// Makes an object.
unsafe fn make(out: *mut *mut slv_options, set: impl FnOnce() -> Set) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(out, std::ptr::null_mut(), "out") }?;
        out.set(Box::into_raw(Box::new(slv_options { log: Log::NONE, set: set() })));
        Ok(())
    })
}

/// Options of a model, all at their defaults. Keys: "backend" (text), "budget" (bytes), "chunk", "cpu" (adds a processor to run
/// on), "duty" (percent), "isa" (text), "kv" ("f16", "f32", "q8_0"), "n_ctx", "nice", "pack_dir" (text), "pack_limit" (bytes),
/// "threads" (a number, or the text "auto"), "validate" (0 or 1), "weights" ("auto", "resident", "mapped").
///
/// # Safety
/// `out` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_options_model(out: *mut *mut slv_options) -> slv_status {
    // SAFETY: the caller's promise.
    unsafe { make(out, || Set::Model(Box::default())) }
}

/// Options of a reply, all at their defaults. Keys: "max_tokens", "stop" (adds a text), "ignore_stop_ids", "logprobs",
/// "top_logprobs", "overflow" ("stop", "shift"), "n_keep", "n_discard", "seed", "temperature", "top_k", "top_p", "min_p",
/// "typical_p", "xtc_probability", "xtc_threshold", "repeat_penalty", "frequency_penalty", "presence_penalty",
/// "penalty_last_n", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_last_n", "dry_breaker" (adds a text),
/// "mirostat_tau", "mirostat_eta", "samplers" (names with commas between them).
///
/// # Safety
/// `out` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_options_generate(out: *mut *mut slv_options) -> slv_status {
    // SAFETY: the caller's promise.
    unsafe { make(out, || Set::Generate(Box::default())) }
}

/// Sets an option to an integer, or 0 and 1 for no and yes. Numbers are compared with their ranges when they are used.
///
/// # Safety
/// `options` is NULL or an object that wasn't freed and that no other thread uses; `key` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_options_set_int(options: *mut slv_options, key: *const c_char, value: i64) -> slv_status {
    // SAFETY: the caller's promises.
    guard(|| unsafe { given_mut(options, "options")?.set(text(key, "key")?, Value::Int(value)) })
}

/// Sets an option to a number.
///
/// # Safety
/// As `slv_options_set_int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_options_set_float(options: *mut slv_options, key: *const c_char, value: f64) -> slv_status {
    // SAFETY: the caller's promises.
    guard(|| unsafe { given_mut(options, "options")?.set(text(key, "key")?, Value::Float(value)) })
}

/// Sets an option to a text, or adds one where the option is a list.
///
/// # Safety
/// As `slv_options_set_int`; `value` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_options_set_text(options: *mut slv_options, key: *const c_char, value: *const c_char) -> slv_status {
    // SAFETY: the caller's promises.
    guard(|| unsafe { given_mut(options, "options")?.set(text(key, "key")?, Value::Text(text(value, "value")?)) })
}

/// Adds a number to a token's logit in a reply: -100 bans it, 100 forces it.
///
/// # Safety
/// As `slv_options_set_int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_options_add_logit_bias(options: *mut slv_options, token: u32, bias: f32) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promise.
        match &mut unsafe { given_mut(options, "options") }?.set {
            Set::Generate(set) => set.options.sampling.logit_bias.push((TokenId(token), bias)),
            Set::Model(_) => return Err(Failure::new(slv_status::Option, "a model has no logit biases, a reply has")),
        }
        Ok(())
    })
}

/// Sets who is told of what goes otherwise than expected: a full disk, packed weights that had to be made again.
///
/// # Safety
/// As `slv_options_set_int`; `on_log` may be called with `user` in every call that the options are given to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_options_set_log(options: *mut slv_options, on_log: slv_log_fn, user: *mut c_void) -> slv_status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { given_mut(options, "options") }?.log = Log { on_log, user };
        Ok(())
    })
}

/// Frees options; calls that they were given to go on. NULL is allowed.
///
/// # Safety
/// `options` is NULL or an object that wasn't freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slv_options_free(options: *mut slv_options) {
    // SAFETY: `make` boxed it.
    unsafe { free(options) }
}
