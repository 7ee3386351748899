//! Helpers shared by the suites that cross crates: where test data lies, how models are opened, how logits are hashed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use selvedge::{
    BackendOptions, CancelToken, Engine, KvElem, Model, ModelError, ModelFile, ModelOptions, PlanOptions, Row, SeqId, TokenId, Want,
};
use selvedge_core::arch::Architecture;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The real models' files.
pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// See [`SMOLLM2`].
pub const GEMMA: &str = "gemma-3-270m-q4_k_m.gguf";

fn found(path: PathBuf, what: &str) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("SELVEDGE_REQUIRE_CASES").is_none_or(|v| v != "1"), "no {what} at {}", path.display());
    println!("skipped: no {what}");
    None
}

fn root(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(default), PathBuf::from)
}

/// A folder or file of the cases, or `None` after saying so.
///
/// # Panics
/// Where the environment demands the cases and they are missing.
pub fn case(name: &str) -> Option<PathBuf> {
    found(root("SELVEDGE_CASES", "../../shared/cases").join(name), "cases folder")
}

/// A file of the golden results, or `None` after saying so.
///
/// # Panics
/// Where the environment demands them and they are missing.
pub fn golden_path(name: &str) -> Option<PathBuf> {
    found(root("SELVEDGE_GOLDEN", "../../shared/golden").join(name), "golden results")
}

/// What such a file says.
///
/// # Panics
/// As [`golden_path`], and where it isn't JSON.
pub fn golden(name: &str) -> Option<Value> {
    let path = golden_path(name)?;
    Some(serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
}

/// A real model's file, or `None` after saying so.
///
/// # Panics
/// Where the environment demands it and it is missing.
pub fn real_model(name: &str) -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map_or_else(PathBuf::new, PathBuf::from).join(".cache/selvedge/models");
    found(std::env::var_os("SELVEDGE_MODELS").map_or_else(home, PathBuf::from).join(name), &format!("model {name}"))
}

/// The tiny models of `cases/arch` whose architecture can be run, in the order of their names.
///
/// # Panics
/// Where the environment demands the cases and they are missing.
pub fn tiny_models() -> Option<Vec<PathBuf>> {
    let folder = case("arch")?;
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "gguf"));
    paths.sort();
    paths.retain(|p| match Architecture::of(&ModelFile::open(p).unwrap()) {
        Ok(_) => true,
        Err(ModelError::UnknownArchitecture { .. } | ModelError::Unsupported { .. }) => false,
        Err(e) => panic!("{}: {e}", p.display()),
    });
    assert!(paths.len() >= 20, "only {} tiny models can be run", paths.len());
    Some(paths)
}

/// Name of a file without its extension.
pub fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

/// How a test opens a model.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Backend by name.
    pub backend: &'static str,
    /// Instruction set by name; `None`: the best.
    pub isa: Option<&'static str>,
    /// Threads.
    pub n_threads: usize,
    /// Context.
    pub n_ctx: usize,
    /// Sequences in an engine.
    pub n_seq: usize,
    /// Rows of a step.
    pub chunk: usize,
    /// Rows of a tile of the head.
    pub max_wanted: usize,
    /// Element type of the cache.
    pub kv: KvElem,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { backend: "cpu", isa: None, n_threads: 2, n_ctx: 512, n_seq: 1, chunk: 512, max_wanted: 16, kv: KvElem::F16 }
    }
}

impl Setup {
    /// The options that it stands for.
    pub fn options(self) -> ModelOptions {
        let (n_ctx, n_seq, chunk, max_wanted, kv) = (Some(self.n_ctx), self.n_seq, self.chunk, self.max_wanted, self.kv);
        ModelOptions {
            plan: PlanOptions { n_ctx, n_seq, chunk, max_wanted, kv, ..PlanOptions::default() },
            backend: BackendOptions {
                backend: Some(self.backend.into()),
                isa: self.isa.map(str::to_owned),
                n_threads: self.n_threads,
                ..BackendOptions::default()
            },
            ..ModelOptions::default()
        }
    }

    /// Opens a model.
    ///
    /// # Panics
    /// When it can't be opened.
    pub fn open(self, path: &Path) -> Model {
        Model::open(path, &self.options()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Opens a model and makes an engine on it.
    ///
    /// # Panics
    /// When it can't be opened.
    pub fn engine(self, path: &Path) -> Engine {
        Engine::new(self.open(path).inner().clone()).unwrap()
    }
}

/// The tokens of the table R1 in CASES.md: `id[0]` is BOS where there is one, `id[i] = 1000 + (7919 i mod 40000)`.
pub fn synthetic(n: usize, bos: Option<u32>) -> Vec<TokenId> {
    let mut ids: Vec<TokenId> = (0..n as u32).map(|i| TokenId(1000 + 7919 * i % 40000)).collect();
    if let (Some(first), Some(bos)) = (ids.first_mut(), bos) {
        *first = TokenId(bos);
    }
    ids
}

/// Tokens of a vocabulary of 320, no two neighbours alike.
pub fn tiny_tokens(n: usize, seed: u32) -> Vec<TokenId> {
    (0..n as u32).map(|i| TokenId(3 + (i * 37 + i * i % 11 + seed * 101) % 317)).collect()
}

/// Token ids of a JSON array.
pub fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|x| TokenId(x.as_u64().unwrap() as u32)).collect()
}

/// Rows of `tokens` of a sequence from position `first` on; those of `wanted` positions want logits.
pub fn rows(seq: u32, first: usize, tokens: &[TokenId], wanted: &Range<usize>) -> Vec<Row> {
    let row = |(i, &t): (usize, &TokenId)| {
        let want = if wanted.contains(&(first + i)) { Want::Logits } else { Want::Nothing };
        Row::token(SeqId(seq), (first + i) as u32, t, want)
    };
    tokens.iter().enumerate().map(row).collect()
}

/// Feeds tokens after what sequence 0 holds, `chunk` rows a step, and shows the logits of the wanted positions.
///
/// # Panics
/// When a step fails.
pub fn feed(engine: &mut Engine, tokens: &[TokenId], chunk: usize, wanted: &Range<usize>, on_logits: &mut dyn FnMut(usize, &mut [f32])) {
    for part in tokens.chunks(chunk) {
        let first = engine.len(SeqId(0));
        engine.step(&rows(0, first, part, wanted), &CancelToken::new(), &mut |i, l| on_logits(first + i, l)).unwrap();
    }
}

/// SHA-256 of rows of logits, f32 little endian.
#[derive(Debug, Clone, Default)]
pub struct LogitsHash(Sha256);

impl LogitsHash {
    /// Adds a row.
    pub fn row(&mut self, logits: &[f32]) {
        for part in logits.chunks(1024) {
            let mut bytes = [0; 4096];
            for (to, x) in bytes.chunks_exact_mut(4).zip(part) {
                to.copy_from_slice(&x.to_le_bytes());
            }
            self.0.update(&bytes[..part.len() * 4]);
        }
    }

    /// The hash in hexadecimal.
    pub fn hex(self) -> String {
        self.0.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// Hash of the logits of positions `wanted` of `tokens`, fed to an empty sequence 0 in steps of `chunk`.
///
/// # Panics
/// When a step fails.
pub fn hash(engine: &mut Engine, tokens: &[TokenId], chunk: usize, wanted: &Range<usize>) -> String {
    engine.rollback(SeqId(0), 0);
    let mut hash = LogitsHash::default();
    feed(engine, tokens, chunk, wanted, &mut |_, l| hash.row(l));
    hash.hex()
}

/// Index of the largest, the lowest of equals.
pub fn argmax(xs: &[f32]) -> usize {
    (0..xs.len()).fold(0, |best, i| if xs[i] > xs[best] { i } else { best })
}

/// `ln sum exp`.
pub fn logsumexp(xs: &[f32]) -> f64 {
    let max = xs[argmax(xs)];
    f64::from(max) + xs.iter().map(|&x| f64::from((x - max).exp())).sum::<f64>().ln()
}

/// A figure of this process in `/proc/self/status`, bytes: `RssAnon`, `VmRSS` and the like. `None` where there is none.
pub fn status_bytes(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Processor time of all threads of this process. `None` where the system doesn't tell.
pub fn cpu_time() -> Option<std::time::Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Fields after the name in brackets: state is the first, user and system time the 12th and 13th, in hundredths.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(std::time::Duration::from_millis(ticks * 10))
}

/// Runs the test of this name alone in a process of its own, where nothing else allocates or computes. True in that
/// process: the caller is to go on. False in the parent, after the child passed.
///
/// # Panics
/// Where the child fails.
pub fn in_own_process(test: &str) -> bool {
    const VARIABLE: &str = "SELVEDGE_TEST_ALONE";
    if std::env::var_os(VARIABLE).is_some_and(|v| v == *test) {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output =
        command.args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"]).env(VARIABLE, test).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // What the child found out, and what it skipped, is the parent's to tell.
    let told = |l: &str| l.find("skipped:").or_else(|| l.find("found:")).map(|at| l[at..].to_owned());
    text.lines().filter_map(told).for_each(|l| println!("{l}"));
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {}\n{text}", output.status);
    false
}
