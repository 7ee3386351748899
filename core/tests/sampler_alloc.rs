//! The sampler allocates nothing between two tokens, whatever its stages.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use selvedge_core::ids::TokenId;
use selvedge_core::sampler::{Mirostat, Sampler, SamplingParams, Stage};
use selvedge_core::stop::{StopMatcher, StopState};

thread_local! {
    /// Allocations by this thread.
    static N_ALLOC: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        N_ALLOC.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        N_ALLOC.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(run: impl FnOnce()) -> usize {
    let before = N_ALLOC.with(Cell::get);
    run();
    N_ALLOC.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1u8; 100]))), 1);
}

#[test]
fn sampling_allocates_nothing() {
    let n_vocab = 20_000;
    let base = || SamplingParams { seed: Some(3), ..SamplingParams::plain(0.9) };
    let all = SamplingParams {
        typical_p: 0.9,
        xtc_probability: 0.5,
        repeat_penalty: 1.1,
        dry_multiplier: 0.8,
        dry_breakers: vec![TokenId(3)],
        logit_bias: vec![(TokenId(1), 5.0), (TokenId(2), -100.0)],
        seed: Some(4),
        ..SamplingParams::default()
    };
    let mut reversed = all.clone();
    reversed.order.reverse();
    let chains = [
        ("greedy", SamplingParams { repeat_penalty: 1.3, dry_multiplier: 1.0, ..SamplingParams::greedy() }),
        ("default", SamplingParams { seed: Some(1), ..SamplingParams::default() }),
        ("everything", all),
        ("everything, reversed", reversed),
        ("top_p alone", SamplingParams { top_p: 0.99, ..base() }),
        ("typical alone", SamplingParams { typical_p: 0.99, ..base() }),
        ("min_p alone", SamplingParams { min_p: 1e-9, ..base() }),
        ("top_k beyond the vocabulary", SamplingParams { top_k: u32::MAX, top_p: 0.999, ..base() }),
        (
            "top_k last",
            SamplingParams { top_k: 40, order: vec![Stage::Temperature, Stage::Xtc, Stage::TopK], xtc_probability: 1.0, ..base() },
        ),
        ("mirostat", SamplingParams { mirostat: Some(Mirostat::default()), ..base() }),
        ("forced", SamplingParams { logit_bias: (0..5000).map(|id| (TokenId(id), 100.0)).collect(), ..SamplingParams::greedy() }),
    ];
    for (name, params) in chains {
        let mut sampler = Sampler::new(params, n_vocab).unwrap();
        let mut twin = sampler.clone();
        let mut snapshot = sampler.state().clone();
        let mut top = Vec::with_capacity(16);
        let mut logits = vec![0.0f32; n_vocab];
        sampler.top_logprobs(&logits, 5, &mut top).unwrap();
        let mut x = 1u32;
        let n = allocations(|| {
            for step in 0..300u32 {
                for logit in &mut logits {
                    x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    *logit = (x >> 16) as f32 / 4096.0 * (1.0 + (step % 3) as f32);
                }
                for sampler in [&mut sampler, &mut twin] {
                    let token = sampler.sample(&mut logits).unwrap().token;
                    sampler.accept(TokenId(token.0 % 7));
                }
                sampler.top_logprobs(&logits, 5, &mut top).unwrap();
                sampler.sample_with_top(&mut logits, 5, &mut top).unwrap();
                twin.sample_token(&mut logits).unwrap();
                snapshot.clone_from(sampler.state());
                sampler.restore(&snapshot);
            }
        });
        assert_eq!(n, 0, "{name}");
    }
}

#[test]
fn matching_stop_strings_allocates_nothing() {
    let stops = ["<|end|>", "User:", "\u{1F600}"];
    let mut matcher = StopMatcher::new(stops.iter().copied()).unwrap();
    let mut out = String::with_capacity(4096);
    let n = allocations(|| {
        for _ in 0..500 {
            out.clear();
            for piece in ["a <", "|en", "d", " Us", "er ", "\u{1F601}", "x"] {
                assert_eq!(matcher.push(piece, &mut out), StopState::Continue);
            }
        }
        matcher.finish(&mut out);
        assert!(matches!(matcher.push("User:", &mut out), StopState::Matched { stop_idx: 1 }));
    });
    assert_eq!(n, 0);
}
