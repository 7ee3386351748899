//! llama.cpp as an engine, run as its own tools run it: default parameters (the file mapped, f16 KV, flash attention as it
//! chooses, weights repacked where it has a faster form), a persistent thread pool, logits of the last position only.
//!
//! Its threads poll for a while after each graph. In a process that measures another engine next, they must be put to sleep:
//! `ggml_threadpool_pause`; `compare` records what the process burns between turns.

use crate::Result;
use crate::engine::Engine;
use llama_cpp_sys_2 as llama;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Mutex;

/// What llama.cpp tells, kept so that the buffers in use can be looked up in it.
static LOG: Mutex<String> = Mutex::new(String::new());

unsafe extern "C" fn keep(_level: llama::ggml_log_level, text: *const c_char, _data: *mut c_void) {
    // SAFETY: llama.cpp hands over a string that lives for the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    LOG.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push_str(&text);
}

/// Instruction sets of this build, as llama.cpp names them, that are on.
pub fn features() -> Vec<&'static str> {
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

/// Its own words on the build.
pub fn system_info() -> String {
    // SAFETY: a function without parameters; the text it returns is static.
    unsafe { CStr::from_ptr(llama::llama_print_system_info()) }.to_string_lossy().trim().to_owned()
}

/// A loaded model with a context and its thread pool; all are freed at the end of the program only.
pub struct Peer {
    context: *mut llama::llama_context,
    memory: llama::llama_memory_t,
    pool: *mut llama::ggml_threadpool,
    n_vocab: usize,
    /// Buffers that hold weights, as its log names them, with their sizes.
    pub buffers: Vec<String>,
}

impl Peer {
    pub fn open(path: &Path, threads: usize, n_ctx: usize) -> Result<Peer> {
        let name = CString::new(path.to_str().ok_or("the model's path is not UTF-8")?)?;
        let threads = i32::try_from(threads)?;
        // SAFETY: plain calls of the C API in its documented order; pointers are checked before use.
        unsafe {
            llama::llama_log_set(Some(keep), ptr::null_mut());
            llama::llama_backend_init();
            let model = llama::llama_model_load_from_file(name.as_ptr(), llama::llama_model_default_params());
            if model.is_null() {
                return Err(format!("llama.cpp can't load {}", path.display()).into());
            }
            let mut params = llama::llama_context_default_params();
            params.n_ctx = u32::try_from(n_ctx)?;
            params.n_threads = threads;
            params.n_threads_batch = threads;
            // As its tools set it: windowed layers keep their window only.
            params.swa_full = false;
            let context = llama::llama_init_from_model(model, params);
            if context.is_null() {
                return Err("llama.cpp can't make a context".into());
            }
            let mut pool_params = llama::ggml_threadpool_params_default(threads);
            let pool = llama::ggml_threadpool_new(&mut pool_params);
            if pool.is_null() {
                return Err("llama.cpp can't make a thread pool".into());
            }
            llama::llama_attach_threadpool(context, pool, ptr::null_mut());
            let n_vocab = usize::try_from(llama::llama_vocab_n_tokens(llama::llama_model_get_vocab(model)))?;
            let log = std::mem::take(&mut *LOG.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
            let buffers = log
                .lines()
                .filter(|line| line.contains("model buffer size"))
                .map(|line| line.split_once(':').map_or(line, |(_, rest)| rest).split_whitespace().collect::<Vec<_>>().join(" "))
                .collect();
            Ok(Peer { context, memory: llama::llama_get_memory(context), pool, n_vocab, buffers })
        }
    }

    fn run(&mut self, ids: &[u32]) -> Result<()> {
        // Batches of at most 2048, the size that llama.cpp's tools use.
        for part in ids.chunks(2048) {
            let mut tokens: Vec<llama::llama_token> = part.iter().map(|&id| id as llama::llama_token).collect();
            let n = i32::try_from(tokens.len())?;
            // SAFETY: the batch borrows `tokens`, which outlives both calls.
            let status = unsafe {
                let status = llama::llama_decode(self.context, llama::llama_batch_get_one(tokens.as_mut_ptr(), n));
                llama::llama_synchronize(self.context);
                status
            };
            if status != 0 {
                return Err(format!("llama_decode gave {status}").into());
            }
        }
        Ok(())
    }
}

impl Engine for Peer {
    fn prefill(&mut self, ids: &[u32]) -> Result<()> {
        self.run(ids)
    }

    fn decode(&mut self, id: u32) -> Result<()> {
        self.run(&[id])
    }

    fn clear(&mut self) -> Result<()> {
        // SAFETY: the memory belongs to the open context.
        unsafe { llama::llama_memory_clear(self.memory, false) };
        Ok(())
    }

    fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        self.clear()?;
        self.run(ids)?;
        // SAFETY: the last position's logits were computed: n_vocab floats that live until the next decode.
        unsafe {
            let logits = llama::llama_get_logits_ith(self.context, -1);
            if logits.is_null() {
                return Err("llama.cpp gave no logits".into());
            }
            Ok(std::slice::from_raw_parts(logits, self.n_vocab).to_vec())
        }
    }

    fn rest(&mut self, asleep: bool) {
        // SAFETY: the pool lives as long as the program.
        unsafe {
            if asleep {
                llama::ggml_threadpool_pause(self.pool);
            } else {
                llama::ggml_threadpool_resume(self.pool);
            }
        }
    }
}
