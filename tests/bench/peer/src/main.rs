//! Measures llama.cpp's prefill and decode on a GGUF file and prints one JSON object, in the form of `selvedge bench --json`.
//!
//! usage: `peer -m MODEL [-p 512] [-n 64] [-d 0] [-r 5] [-t 2] [-v]`, or `peer --info`
//!
//! llama.cpp runs as its own tools run it: default parameters (the file mapped, f16 KV, flash attention as it chooses,
//! weights repacked where it has a faster form), a persistent thread pool, one warm-up before the first measurement,
//! logits of the last position only, and no sampling between decoded tokens. A build or run with AMX is refused:
//! it would be another peer than the one that the figures name (see `.cargo/config.toml`).

use llama_cpp_sys_2 as llama;
use std::ffi::{CStr, CString, c_char, c_void};
use std::process::ExitCode;
use std::ptr;
use std::time::Instant;

/// What to measure.
struct Options {
    model: String,
    n_prompt: usize,
    n_gen: usize,
    depth: usize,
    repetitions: usize,
    threads: i32,
    verbose: bool,
    info: bool,
}

fn parse_args() -> Result<Options, String> {
    let mut options =
        Options { model: String::new(), n_prompt: 512, n_gen: 64, depth: 0, repetitions: 5, threads: 2, verbose: false, info: false };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        match flag.as_str() {
            "-v" => options.verbose = true,
            "--info" => options.info = true,
            "-m" => options.model = args.next().ok_or("-m needs a file")?,
            "-p" | "-n" | "-d" | "-r" | "-t" => {
                let text = args.next().ok_or_else(|| format!("{flag} needs a number"))?;
                let value: usize = text.parse().map_err(|_| format!("{flag} needs a number, got {text:?}"))?;
                match flag.as_str() {
                    "-p" => options.n_prompt = value,
                    "-n" => options.n_gen = value,
                    "-d" => options.depth = value,
                    "-r" => options.repetitions = value.max(1),
                    _ => options.threads = i32::try_from(value.max(1)).map_err(|_| "too many threads")?,
                }
            }
            _ => return Err(format!("unknown argument {flag:?}; peer -m MODEL [-p N] [-n N] [-d N] [-r N] [-t N] [-v], or --info")),
        }
    }
    if options.model.is_empty() && !options.info {
        return Err("peer needs -m MODEL".into());
    }
    Ok(options)
}

unsafe extern "C" fn quiet(_level: llama::ggml_log_level, _text: *const c_char, _data: *mut c_void) {}

/// Instruction sets of this build, as llama.cpp names them, that are on.
fn features() -> Vec<&'static str> {
    type Probe = unsafe extern "C" fn() -> std::ffi::c_int;
    const PROBES: &[(&str, Probe)] = &[
        ("avx2", llama::ggml_cpu_has_avx2),
        ("fma", llama::ggml_cpu_has_fma),
        ("f16c", llama::ggml_cpu_has_f16c),
        ("avx_vnni", llama::ggml_cpu_has_avx_vnni),
        ("avx512", llama::ggml_cpu_has_avx512),
        ("avx512_vbmi", llama::ggml_cpu_has_avx512_vbmi),
        ("avx512_vnni", llama::ggml_cpu_has_avx512_vnni),
        ("avx512_bf16", llama::ggml_cpu_has_avx512_bf16),
        ("amx_int8", llama::ggml_cpu_has_amx_int8),
        ("neon", llama::ggml_cpu_has_neon),
        ("dotprod", llama::ggml_cpu_has_dotprod),
        ("matmul_int8", llama::ggml_cpu_has_matmul_int8),
    ];
    // SAFETY: the probes read constants of the build.
    PROBES.iter().filter(|(_, probe)| unsafe { probe() } != 0).map(|(name, _)| *name).collect()
}

/// A loaded model with a context and its thread pool; all are freed at the end of the program only.
struct Peer {
    context: *mut llama::llama_context,
    memory: llama::llama_memory_t,
    n_vocab: u64,
    /// State of a small generator for token ids; which ids does not matter, only that they differ.
    random: u64,
}

impl Peer {
    fn open(options: &Options) -> Result<Peer, String> {
        let path = CString::new(options.model.as_str()).map_err(|_| "the model's path has a zero byte")?;
        // SAFETY: plain calls of the C API in its documented order; pointers are checked before use.
        unsafe {
            let model = llama::llama_model_load_from_file(path.as_ptr(), llama::llama_model_default_params());
            if model.is_null() {
                return Err(format!("llama.cpp can't load {}", options.model));
            }
            let mut params = llama::llama_context_default_params();
            let n_ctx = options.depth + options.n_prompt.max(options.n_gen);
            params.n_ctx = u32::try_from(n_ctx.max(1)).map_err(|_| "context too long")?;
            params.n_threads = options.threads;
            params.n_threads_batch = options.threads;
            // As its tools set it: windowed layers keep their window only.
            params.swa_full = false;
            let context = llama::llama_init_from_model(model, params);
            if context.is_null() {
                return Err("llama.cpp can't make a context".into());
            }
            let mut pool_params = llama::ggml_threadpool_params_default(options.threads);
            let pool = llama::ggml_threadpool_new(&mut pool_params);
            if pool.is_null() {
                return Err("llama.cpp can't make a thread pool".into());
            }
            llama::llama_attach_threadpool(context, pool, ptr::null_mut());
            let n_vocab = llama::llama_vocab_n_tokens(llama::llama_model_get_vocab(model));
            let n_vocab = u64::try_from(n_vocab).ok().filter(|&n| n > 0).ok_or("the model has no vocabulary")?;
            Ok(Peer { context, memory: llama::llama_get_memory(context), n_vocab, random: 1 })
        }
    }

    fn token(&mut self) -> llama::llama_token {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.random >> 33) % self.n_vocab) as llama::llama_token
    }

    fn clear(&mut self) {
        // SAFETY: the memory belongs to the open context.
        unsafe { llama::llama_memory_clear(self.memory, false) };
    }

    fn decode(&mut self, tokens: &mut [llama::llama_token]) -> Result<(), String> {
        let n_tokens = i32::try_from(tokens.len()).map_err(|_| "batch too long")?;
        // SAFETY: the batch borrows `tokens`, which outlives both calls.
        let status = unsafe {
            let status = llama::llama_decode(self.context, llama::llama_batch_get_one(tokens.as_mut_ptr(), n_tokens));
            llama::llama_synchronize(self.context);
            status
        };
        if status == 0 { Ok(()) } else { Err(format!("llama_decode gave {status}")) }
    }

    /// `n` tokens in batches of at most 2048, the size that llama.cpp's tools use.
    fn prefill(&mut self, n: usize) -> Result<(), String> {
        let mut left = n;
        while left > 0 {
            let mut tokens: Vec<_> = (0..left.min(2048)).map(|_| self.token()).collect();
            self.decode(&mut tokens)?;
            left -= tokens.len();
        }
        Ok(())
    }

    fn generate(&mut self, n: usize) -> Result<(), String> {
        for _ in 0..n {
            let token = self.token();
            self.decode(&mut [token])?;
        }
        Ok(())
    }

    /// Tokens a second of `run` on `n` tokens after `depth` others, once a repetition.
    fn rates(&mut self, options: &Options, n: usize, run: fn(&mut Peer, usize) -> Result<(), String>) -> Result<Vec<f64>, String> {
        let mut rates = Vec::new();
        for _ in 0..options.repetitions {
            self.clear();
            self.prefill(options.depth)?;
            let start = Instant::now();
            run(self, n)?;
            rates.push(n as f64 / start.elapsed().as_secs_f64());
        }
        Ok(rates)
    }
}

/// `{"median":..,"min":..,"max":..}` of the rates, or null where nothing was measured.
fn spread(mut rates: Vec<f64>) -> String {
    if rates.is_empty() {
        return "null".into();
    }
    rates.sort_by(f64::total_cmp);
    let middle = rates.len() / 2;
    let median = if rates.len() % 2 == 1 { rates[middle] } else { (rates[middle - 1] + rates[middle]) / 2.0 };
    format!("{{\"tok_s\":{{\"median\":{median:.3},\"min\":{:.3},\"max\":{:.3}}}}}", rates[0], rates[rates.len() - 1])
}

fn run() -> Result<(), String> {
    let options = parse_args()?;
    let features = features();
    if let Some(found) = features.iter().find(|f| f.starts_with("amx")) {
        return Err(format!("this llama.cpp was built with {found}, expected none: build in this folder with a fresh target folder"));
    }
    let named = features.iter().map(|f| format!("\"{f}\"")).collect::<Vec<_>>().join(",");
    // SAFETY: a function without parameters; the text it returns is static.
    let system = unsafe { CStr::from_ptr(llama::llama_print_system_info()) }.to_string_lossy().trim().replace(['"', '\\'], "'");
    if options.info {
        println!("{{\"engine\":\"llama.cpp\",\"isa\":[{named}],\"system_info\":\"{system}\"}}");
        return Ok(());
    }
    if !options.verbose {
        // SAFETY: the callback is a plain function and ignores its data.
        unsafe { llama::llama_log_set(Some(quiet), ptr::null_mut()) };
    }
    // SAFETY: called once, before any other use.
    unsafe { llama::llama_backend_init() };
    let start = Instant::now();
    let mut peer = Peer::open(&options)?;
    let open_ms = start.elapsed().as_secs_f64() * 1e3;
    // Touches every page and lets the pool start, in prefill and in decode.
    peer.prefill(options.n_prompt.min(512))?;
    peer.clear();
    peer.generate(options.n_gen.min(1))?;
    let pp = if options.n_prompt > 0 { peer.rates(&options, options.n_prompt, Peer::prefill)? } else { Vec::new() };
    let tg = if options.n_gen > 0 { peer.rates(&options, options.n_gen, Peer::generate)? } else { Vec::new() };
    println!(
        "{{\"engine\":\"llama.cpp\",\"n_prompt\":{},\"n_gen\":{},\"depth\":{},\"pp\":{},\"tg\":{},\"threads\":{},\"isa\":[{named}],\"open_ms\":{open_ms:.1}}}",
        options.n_prompt,
        options.n_gen,
        options.depth,
        spread(pp),
        spread(tg),
        options.threads,
    );
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("peer: {message}");
            ExitCode::FAILURE
        }
    }
}
