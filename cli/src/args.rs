//! Options that several commands share, and how they become the library's.

use crate::error::{CliError, Result};
use crate::models;
use crate::os;
use crate::output;
use crate::progress::{Progress, Unit};
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args, ValueEnum};
use selvedge::{
    BackendOptions, CancelToken, GenerateOptions, KvElem, LoadStage, LoadedModel, MAX_THREADS, Mirostat, Model, ModelOptions, PackOptions,
    PlanOptions, REGISTRY, SamplerError, SamplingParams, Stage, ThreadCare, TokenId, Tokenizer, Weights,
};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Options of every command that loads a model.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    pub(crate) file: FileArgs,
    /// Positions of a sequence [default: the model's own, at most 4096]
    #[arg(short = 'c', long = "ctx", value_name = "CTX")]
    pub(crate) n_ctx: Option<usize>,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Instruction set: scalar, avx2, neon, ... [default: the best there is]
    #[arg(long)]
    isa: Option<String>,
    /// Element type of the KV cache
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_elem)]
    kv: KvElem,
    /// What computes: auto, cpu, reference, ... [default: auto]
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Anonymous memory that must not be exceeded: 512M, 2G, 1.5GiB, or plain bytes
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    budget: Option<u64>,
    /// How packed weights are held: in memory, in a mapped file, or what fits the machine
    #[arg(long, value_name = "MODE", default_value = "auto")]
    weights: WeightsMode,
    #[command(flatten)]
    packs: PackArgs,
    /// Look at every number in the file before use
    #[arg(long)]
    validate: bool,
}

/// The model's file.
#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// A GGUF file, the first part of a split set, or the short name of a pulled model [default: smollm2]
    #[arg(short, long)]
    model: Option<PathBuf>,
}

impl FileArgs {
    /// The file that is meant.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        models::resolve(self.model.as_deref())
    }

    /// Whether a model was named.
    pub(crate) fn is_named(&self) -> bool {
        self.model.is_some()
    }
}

/// Threads that compute, and how they are treated.
#[derive(Debug, Args)]
pub(crate) struct ThreadArgs {
    /// Threads that compute: a number, or auto to find the best one by measurement, once [default: one a fast core]
    #[arg(short = 't', long, value_name = "THREADS", value_parser = threads)]
    threads: Option<Threads>,
    /// Processors to run on, one a thread: 4,5,6-7 [default: the system chooses]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    cpus: Option<Cpus>,
    /// Priority of the threads as nice counts it, from -20 (first) to 19 (last)
    #[arg(long, value_name = "NICE", value_parser = clap::value_parser!(i32).range(-20..=19))]
    nice: Option<i32>,
    /// Share of the time to compute in, percent: a device that grows hot rests for the others
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) duty: u8,
}

/// What `--threads` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Threads {
    Auto,
    Count(usize),
}

/// A list of processors.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cpus(Vec<usize>);

impl ThreadArgs {
    fn is_auto(&self) -> bool {
        self.threads == Some(Threads::Auto)
    }

    /// The number; 0 where none was given. More than there may be are cut to that, with a note.
    pub(crate) fn count(&self) -> usize {
        let Some(Threads::Count(n)) = self.threads else { return self.cpus.as_ref().map_or(0, |cpus| cpus.0.len()) };
        if n > MAX_THREADS {
            output::note(&format!("{n} threads are more than the {MAX_THREADS} that there may be: {MAX_THREADS} are used"));
        }
        n.min(MAX_THREADS)
    }

    /// Processors and priority.
    pub(crate) fn care(&self) -> ThreadCare {
        ThreadCare { cpus: self.cpus.clone().map_or_else(Vec::new, |cpus| cpus.0), niceness: self.nice.unwrap_or(0) }
    }
}

fn threads(text: &str) -> std::result::Result<Threads, String> {
    match text {
        "auto" => Ok(Threads::Auto),
        _ => text.parse().map(Threads::Count).map_err(|_| "expected a number of threads, or auto".into()),
    }
}

fn cpus(text: &str) -> std::result::Result<Cpus, String> {
    const MOST: usize = 1024;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        (first <= last && last < MOST).then_some(first..=last)
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    let ranges = ranges.ok_or_else(|| format!("expected numbers of processors below {MOST} like 0,2-5"))?;
    Ok(Cpus(ranges.into_iter().flatten().collect()))
}

/// Where packed weights are kept.
#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// Where packed weights are kept; an empty name: nowhere [default: a folder of the user's cache]
    #[arg(long, value_name = "DIR", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pack_dir: Option<PathBuf>,
}

impl PackArgs {
    /// The folder.
    pub(crate) fn dir(&self) -> Option<PathBuf> {
        match &self.pack_dir {
            Some(dir) => Some(dir.clone()).filter(|dir| !dir.as_os_str().is_empty()),
            None => os::packs_dir(),
        }
    }
}

/// How packed weights are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WeightsMode {
    /// What fits the machine
    Auto,
    /// In memory, in huge pages where there are any
    Resident,
    /// In a mapped file
    Mapped,
}

impl ModelArgs {
    /// The library's options.
    pub(crate) fn options(&self) -> Result<ModelOptions> {
        let weights = match self.weights {
            WeightsMode::Auto => Weights::Auto,
            WeightsMode::Resident => Weights::Resident,
            WeightsMode::Mapped => Weights::Mapped,
        };
        Ok(ModelOptions {
            auto_threads: self.threads.is_auto(),
            plan: PlanOptions {
                n_ctx: self.n_ctx,
                kv: self.kv,
                budget: self.budget,
                weights,
                duty: self.threads.duty,
                ..PlanOptions::default()
            },
            backend: BackendOptions {
                backend: self.backend.clone(),
                isa: self.isa.clone(),
                n_threads: self.threads.count(),
                care: self.threads.care(),
            },
            validate: self.validate,
            packs: PackOptions { dir: self.packs.dir(), limit: None },
        })
    }

    /// Whether a backend was named.
    pub(crate) fn names_backend(&self) -> bool {
        self.backend.is_some()
    }

    /// Opens the model. `n_positions`: what is to be computed needs so many, and unless another context was asked for no
    /// more are planned.
    pub(crate) fn open(&self, options: &ModelOptions, n_positions: Option<usize>, cancel: &CancelToken) -> Result<Model> {
        let path = self.file.path()?;
        let mut progress = Progress::new("loading", Unit::Bytes);
        let mut tell = |stage, done, total| {
            if matches!(stage, LoadStage::Hash | LoadStage::Pack | LoadStage::Weights) {
                progress.update(done, total);
            }
        };
        let model = match n_positions {
            Some(n) => Model::open_for(&path, options, n, cancel, &mut tell),
            None => Model::open_with(&path, options, cancel, &mut tell),
        };
        progress.finish();
        let model = model?;
        model.notes().iter().for_each(|note| output::note(note));
        if model.n_ctx() > model.n_ctx_train() && self.n_ctx.is_some() {
            output::note(&format!("the model was trained for {} positions, the context has {}", model.n_ctx_train(), model.n_ctx()));
        }
        Ok(model)
    }
}

/// Tells what the vocabulary's reader had to mend.
pub(crate) fn warn(tokenizer: &Tokenizer) {
    tokenizer.warnings().iter().for_each(|w| output::note(&w.to_string()));
}

/// Names of the backends that compute a model.
pub(crate) fn backend_names(model: &LoadedModel) -> String {
    let mut names: Vec<&str> = model.plan().segments.iter().map(|s| s.backend).collect();
    names.dedup();
    names.join("+")
}

/// A text from the command line or a file.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct TextArgs {
    /// The text
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// A file with the text; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl TextArgs {
    /// The text.
    pub(crate) fn read(self) -> Result<String> {
        match (self.prompt, self.file) {
            (Some(prompt), _) => Ok(prompt),
            (None, Some(file)) => read_text(&file),
            (None, None) => Err(CliError::Usage("a text is needed: -p TEXT or -f FILE".into())),
        }
    }
}

/// The bytes of a file; `-` is standard input.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map_err(CliError::file("read", Path::new("standard input")))?;
        return Ok(bytes);
    }
    std::fs::read(path).map_err(CliError::file("read", path))
}

/// The text of a file, as it stands.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_bytes(path)?).map_err(|e| CliError::Content {
        path: path.to_owned(),
        what: format!("byte {} isn't UTF-8, expected text in UTF-8", e.utf8_error().valid_up_to()),
    })
}

/// The JSON value in a file. A byte order mark before it, which some editors write, is no part of it (RFC 8259, section 8.1).
pub(crate) fn read_json(path: &Path) -> Result<serde_json::Value> {
    let bytes = read_bytes(path)?;
    serde_json::from_slice(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes))
        .map_err(|e| CliError::Content { path: path.to_owned(), what: format!("expected JSON, but {e}") })
}

/// The token ids in a file: a JSON array of integers below `n_vocab`, or an object with such an array as `ids`, which is
/// what `tokenize` prints.
pub(crate) fn read_ids(path: &Path, n_vocab: usize) -> Result<Vec<TokenId>> {
    let wrong = |what: String| CliError::Content { path: path.to_owned(), what };
    let value = read_json(path)?;
    let list = value.get("ids").unwrap_or(&value);
    let list = list.as_array().ok_or_else(|| wrong(format!("expected a JSON array of token ids, found {}", brief(list))))?;
    let id = |(i, value): (usize, &serde_json::Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < n_vocab);
        id.map(TokenId)
            .ok_or_else(|| wrong(format!("element {i} is {}, expected a token id from 0 to {}", brief(value), n_vocab.saturating_sub(1))))
    };
    list.iter().enumerate().map(id).collect()
}

/// A JSON value in a message: short ones as they are.
fn brief(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Array(_) => "an array".into(),
        serde_json::Value::Object(_) => "an object".into(),
        serde_json::Value::String(_) => "a string".into(),
        other => other.to_string(),
    }
}

fn kv_elem(name: &str) -> std::result::Result<KvElem, String> {
    KvElem::from_name(name).ok_or_else(|| format!("expected one of {}", KvElem::ALL.map(|(name, _)| name).join(", ")))
}

/// Sizes with a unit. K, M, G, T and KiB to TiB are powers of 1024, kB to TB powers of 1000.
pub(crate) fn bytes(text: &str) -> std::result::Result<u64, String> {
    const UNITS: [(&str, u64); 14] = [
        ("", 1),
        ("b", 1),
        ("k", 1 << 10),
        ("kib", 1 << 10),
        ("kb", 1_000),
        ("m", 1 << 20),
        ("mib", 1 << 20),
        ("mb", 1_000_000),
        ("g", 1 << 30),
        ("gib", 1 << 30),
        ("gb", 1_000_000_000),
        ("t", 1 << 40),
        ("tib", 1 << 40),
        ("tb", 1_000_000_000_000),
    ];
    let wrong = || "expected bytes, as 512M, 2G, 1.5GiB or 4000000000".to_owned();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| "is more than any machine has".to_owned());
    }
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Ok((number * factor as f64) as u64)
}

/// How replies are made.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// At most this many tokens [default: until the context ends]
    #[arg(short = 'n', long, value_name = "N", help_heading = None)]
    max_tokens: Option<usize>,
    /// End the reply before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = None, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    stop: Vec<String>,
    /// Temperature; 0 always takes the most probable token [default: 0.8]
    #[arg(long, value_name = "T")]
    temp: Option<f32>,
    /// Keep the K most probable; 0 is off [default: 40]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Keep the most probable up to this mass; 1 is off [default: 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Keep those of at least this share of the largest probability; 0 is off [default: 0.05]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Locally typical mass; 1 is off [default: 1]
    #[arg(long, value_name = "P")]
    typical: Option<f32>,
    /// Probability of excluding top choices; 0 is off [default: 0]
    #[arg(long, value_name = "P")]
    xtc_probability: Option<f32>,
    /// Probability from which a token is a top choice [default: 0.1]
    #[arg(long, value_name = "P")]
    xtc_threshold: Option<f32>,
    /// Divides logits of tokens seen lately; 1 is off [default: 1]
    #[arg(long, value_name = "X")]
    repeat_penalty: Option<f32>,
    /// Subtracted per occurrence; 0 is off [default: 0]
    #[arg(long, value_name = "X")]
    frequency_penalty: Option<f32>,
    /// Subtracted once where a token was seen; 0 is off [default: 0]
    #[arg(long, value_name = "X")]
    presence_penalty: Option<f32>,
    /// Tokens that the three penalties look back on [default: 64]
    #[arg(long, value_name = "N")]
    penalty_last_n: Option<usize>,
    /// Strength of DRY; 0 is off [default: 0]
    #[arg(long, value_name = "X")]
    dry_multiplier: Option<f32>,
    /// Growth of DRY per repeated token [default: 1.75]
    #[arg(long, value_name = "X")]
    dry_base: Option<f32>,
    /// Repeated runs up to this length are free [default: 2]
    #[arg(long, value_name = "N")]
    dry_allowed_length: Option<u32>,
    /// Tokens that DRY looks back on [default: 1024]
    #[arg(long, value_name = "N")]
    dry_last_n: Option<usize>,
    /// A text that ends a repeated run; may be given several times [default: line break, colon, quote, star]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    dry_breaker: Vec<String>,
    /// Mirostat 2 instead of the filters: target surprise in bits, rate of correction
    #[arg(long, value_name = "TAU,ETA", value_parser = mirostat)]
    mirostat: Option<Mirostat>,
    /// Added to a token's logit, -100 bans, 100 forces; may be given several times
    #[arg(long, value_name = "ID=BIAS", value_parser = logit_bias)]
    logit_bias: Vec<(TokenId, f32)>,
    /// Order of the stages [default: penalties,dry,top_k,typ_p,top_p,min_p,xtc,temperature]
    #[arg(long, value_name = "STAGE,...", value_delimiter = ',', value_parser = stage)]
    samplers: Option<Vec<Stage>>,
    /// Seed of the random generator [default: one of the operating system's]
    #[arg(long)]
    seed: Option<u64>,
}

fn mirostat(text: &str) -> std::result::Result<Mirostat, String> {
    let numbers = text.split_once(',').map(|(tau, eta)| (tau.trim().parse(), eta.trim().parse()));
    match numbers {
        Some((Ok(tau), Ok(eta))) => Ok(Mirostat { tau, eta }),
        _ => Err("expected two numbers, as 5,0.1".into()),
    }
}

fn logit_bias(text: &str) -> std::result::Result<(TokenId, f32), String> {
    let parts = text.split_once('=').map(|(id, bias)| (id.trim().parse(), bias.trim().parse()));
    match parts {
        Some((Ok(id), Ok(bias))) => Ok((TokenId(id), bias)),
        _ => Err("expected a token id and a number, as 42=-1.5".into()),
    }
}

fn stage(name: &str) -> std::result::Result<Stage, String> {
    Stage::from_name(name).map_err(|e| e.to_string())
}

/// The option that sets a field of the sampling parameters.
fn option_of(field: &str) -> String {
    match field {
        "temperature" => "--temp".into(),
        "typical_p" => "--typical".into(),
        field => format!("--{}", field.replace('_', "-")),
    }
}

/// Texts that end a repeated run where none are named.
const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

impl SamplingArgs {
    /// Refuses numbers out of range before anything is loaded.
    pub(crate) fn check(&self) -> Result<()> {
        let params = SamplingParams { logit_bias: Vec::new(), ..self.params() };
        params.validate(u32::MAX as usize).map_err(|e| match e {
            SamplerError::Param { name, expected, found } => {
                CliError::Usage(format!("{} is {}, expected {expected}", option_of(name), found as f32))
            }
            other => CliError::Usage(other.to_string()),
        })
    }

    fn params(&self) -> SamplingParams {
        let base = SamplingParams::default();
        SamplingParams {
            seed: self.seed,
            temperature: self.temp.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            typical_p: self.typical.unwrap_or(base.typical_p),
            xtc_probability: self.xtc_probability.unwrap_or(base.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(base.xtc_threshold),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            penalty_last_n: self.penalty_last_n.unwrap_or(base.penalty_last_n),
            dry_multiplier: self.dry_multiplier.unwrap_or(base.dry_multiplier),
            dry_base: self.dry_base.unwrap_or(base.dry_base),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(base.dry_allowed_length),
            dry_last_n: self.dry_last_n.unwrap_or(base.dry_last_n),
            dry_breakers: Vec::new(),
            mirostat: self.mirostat,
            logit_bias: self.logit_bias.clone(),
            order: self.samplers.clone().unwrap_or(base.order),
        }
    }

    /// What replies of `model` are made by. `logprobs`: whether somebody reads them.
    pub(crate) fn options(&self, model: &Model, logprobs: bool, top_logprobs: usize) -> GenerateOptions {
        let mut sampling = self.params();
        if sampling.dry_multiplier > 0.0 {
            let named: Vec<&str> = self.dry_breaker.iter().map(String::as_str).collect();
            sampling.dry_breakers = model.tokens_with(if named.is_empty() { &DRY_BREAKERS } else { &named });
        }
        GenerateOptions {
            max_tokens: self.max_tokens,
            sampling,
            stops: self.stop.clone(),
            logprobs,
            top_logprobs,
            ..GenerateOptions::default()
        }
    }
}

/// Refuses a backend's name that no row of the registry has, with those that there are.
pub(crate) fn check_backend(name: &str) -> std::result::Result<String, String> {
    if REGISTRY.iter().any(|row| row.name == name) {
        return Ok(name.to_owned());
    }
    Err(format!("expected one of {}", REGISTRY.iter().map(|row| row.name).collect::<Vec<_>>().join(", ")))
}

/// Where a file named by an option is a folder of the models, for messages.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

/// Most alternatives that are reported with a token: their number times the positions is held in memory.
const MOST_ALTERNATIVES: usize = 1000;

/// A number of alternatives.
pub(crate) fn alternatives(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(n) if n <= MOST_ALTERNATIVES => Ok(n),
        _ => Err(format!("expected a number from 0 to {MOST_ALTERNATIVES}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in
            [("0", 0), ("512M", 512 << 20), ("2G", 2 << 30), ("1.5GiB", 3 << 29), ("4 kb", 4000), ("1KB", 1000), ("7b", 7)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "M", "1X", "-1", "1e3", "99999999999T", "1..2", "NaN"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pairs_are_read() {
        assert_eq!(logit_bias("7=-1.5"), Ok((TokenId(7), -1.5)));
        assert!(logit_bias("7").is_err() && logit_bias("x=1").is_err() && logit_bias("-1=1").is_err());
        assert_eq!(mirostat("5,0.1"), Ok(Mirostat { tau: 5.0, eta: 0.1 }));
        assert!(mirostat("5").is_err());
    }
}
