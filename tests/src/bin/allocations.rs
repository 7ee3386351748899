//! Heap allocations between two tokens, as JSON: every allocation of every thread is counted from the tenth token of a
//! reply to its end.
//!
//! usage: allocations MODEL.gguf

use selvedge::{CancelToken, Event, GenerateOptions, Model, ModelOptions, SamplingParams};
use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls that took memory, over all threads.
static CALLS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counter is beside the point.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tokens before counting begins.
const WARM: usize = 10;
/// Tokens counted.
const COUNTED: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: allocations MODEL.gguf")?;
    let model = Model::open(path.as_ref(), &ModelOptions::default())?;
    let mut most = 0;
    for sampling in [SamplingParams::greedy(), SamplingParams { seed: Some(7), ..SamplingParams::default() }] {
        let mut session = model.session()?;
        let options = GenerateOptions {
            max_tokens: Some(WARM + COUNTED),
            sampling,
            stops: vec!["never in any text".into()],
            top_logprobs: 5,
            ignore_stop_ids: true,
            ..GenerateOptions::default()
        };
        let prompt =
            model.tokenizer().encode("The sea was calm and", selvedge::EncodeOptions { add_special: true, ..Default::default() })?;
        let (mut n, mut first, mut last) = (0, 0, 0);
        session.generate(&prompt, &options, &CancelToken::new(), &mut |event| {
            if let Event::Token { .. } = event {
                n += 1;
                if n == WARM {
                    first = CALLS.load(Ordering::Relaxed);
                }
                last = CALLS.load(Ordering::Relaxed);
            }
            ControlFlow::Continue(())
        })?;
        most = most.max(last - first);
    }
    println!("{{\"allocations\": {most}, \"tokens\": {COUNTED}, \"allocations_per_token\": {}}}", most as f64 / COUNTED as f64);
    Ok(())
}
