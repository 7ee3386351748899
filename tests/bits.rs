//! The same bits everywhere (DESIGN 3.1): hashes of logits over instruction sets, thread counts, chunk sizes, shared
//! batches, rewinds, cancelled steps and a host's floating-point environment.
//!
//! `hashes.txt` holds what every one of them must give. A hash changes only in a commit of its own that raises
//! `NUMERICS` and tells the KL divergence before and after.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use selvedge::{BackendError, CancelToken, Engine, GenerateOptions, Mirostat, Model, NUMERICS, SamplingParams, SeqId, StepError, TokenId};
use selvedge_backend_cpu::Isa;
use selvedge_tests::{
    GEMMA, LogitsHash, SMOLLM2, Setup, feed, golden, hash, ids, real_model, rows, stem, synthetic, tiny_models, tiny_tokens,
};
use std::path::Path;

const HASHES: &str = include_str!("hashes.txt");

/// The hash that a name must have.
fn known(name: &str) -> &'static str {
    let mut lines = HASHES.lines().filter(|l| !l.starts_with('#'));
    lines.find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')).unwrap_or("none")
}

fn check(name: &str, how: &str, found: &str) {
    assert!(found == known(name), "{name}, {how}: hash {found}, expected {}", known(name));
}

/// Instruction sets of this machine, the scalar one first.
fn isas() -> Vec<&'static str> {
    Isa::available().into_iter().map(Isa::name).collect()
}

#[test]
fn hashes_are_of_this_arithmetic() {
    assert_eq!(known("numerics"), NUMERICS.to_string());
    let names: Vec<&str> = HASHES.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split(' ').next()).collect();
    assert!(names.iter().all(|n| names.iter().filter(|m| m == &n).count() == 1), "a name stands twice");
}

/// Instruction sets times threads times chunks; and what happened before in the same engine changes nothing.
fn check_everywhere(path: &Path, name: &str, tokens: &[TokenId], isas: &[&'static str], ways: &[(usize, usize)]) {
    for &isa in isas {
        for &(n_threads, chunk) in ways {
            let setup = Setup { isa: Some(isa), n_threads, n_ctx: tokens.len().max(64), ..Setup::default() };
            let found = hash(&mut setup.engine(path), tokens, chunk.min(tokens.len()), &(0..tokens.len()));
            check(name, &format!("isa {isa}, {n_threads} threads, chunks of {chunk}"), &found);
        }
    }
}

/// All threads with all chunks.
const ALL_WAYS: [(usize, usize); 12] =
    [(1, 1), (1, 7), (1, 64), (1, 512), (2, 1), (2, 7), (2, 64), (2, 512), (3, 1), (3, 7), (3, 64), (3, 512)];
/// Each thread count and each chunk at least once.
const SOME_WAYS: [(usize, usize); 4] = [(1, 512), (2, 64), (3, 7), (2, 1)];

#[test]
fn smollm2_has_the_same_bits_for_all_threads_and_chunks() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let best = Isa::best().name();
    check_everywhere(&path, "smollm2-64", &synthetic(64, None), &[best], &ALL_WAYS);
}

#[test]
fn smollm2_has_the_same_bits_on_all_instruction_sets() {
    let Some(path) = real_model(SMOLLM2) else { return };
    check_everywhere(&path, "smollm2-64", &synthetic(64, None), &isas(), &[(2, 64), (1, 7)]);
}

#[test]
fn gemma_has_the_same_bits_everywhere() {
    let Some(path) = real_model(GEMMA) else { return };
    let best = Isa::best().name();
    check_everywhere(&path, "gemma-64", &synthetic(64, Some(2)), &[best], &SOME_WAYS);
    check_everywhere(&path, "gemma-16", &synthetic(16, Some(2)), &isas(), &[(2, 7)]);
}

/// Short enough for an emulated processor: `scripts/check-arm64` asks for the same hashes there.
#[test]
fn short_texts_have_the_same_bits_on_all_instruction_sets() {
    for (model, name, tokens) in [(SMOLLM2, "smollm2-32", synthetic(32, None)), (GEMMA, "gemma-8", synthetic(8, Some(2)))] {
        let Some(path) = real_model(model) else { return };
        check_everywhere(&path, name, &tokens, &isas(), &[(2, 39)]);
    }
}

#[test]
fn smollm2_has_the_same_bits_over_a_whole_text() {
    let (Some(path), Some(golden)) = (real_model(SMOLLM2), golden("smollm2.json")) else { return };
    let tokens = ids(&golden["texts"]["gpl2k"]["ids"]);
    check_everywhere(&path, "smollm2-gpl2k", &tokens, &[Isa::best().name()], &[(1, 64), (2, 512)]);
}

/// Past the window of 512 pages are given up: what is seen depends on positions, not on how they came.
#[test]
fn gemma_has_the_same_bits_past_its_window() {
    let Some(path) = real_model(GEMMA) else { return };
    let tokens = synthetic(700, Some(2));
    for chunk in [64, 512] {
        let setup = Setup { n_ctx: 700, chunk, ..Setup::default() };
        check("gemma-700", &format!("chunks of {chunk}"), &hash(&mut setup.engine(&path), &tokens, chunk, &(620..700)));
    }
}

/// Every kind of weight and of layer that runs: F32, BF16, Q8_0, Q4_0; windows, caps, RoPE variants, biases.
#[test]
fn tiny_models_have_the_same_bits_everywhere() {
    let Some(paths) = tiny_models() else { return };
    let tokens = tiny_tokens(150, 0);
    let mut wrong = Vec::new();
    for path in &paths {
        for isa in isas() {
            for (n_threads, chunk) in [(1, 150), (2, 1), (3, 7), (2, 64)] {
                let setup = Setup { isa: Some(isa), n_threads, n_ctx: 150, chunk, ..Setup::default() };
                let found = hash(&mut setup.engine(path), &tokens, chunk, &(0..150));
                if found != known(&stem(path)) {
                    wrong.push(format!("{} {found} (isa {isa}, {n_threads} threads, chunks of {chunk})", stem(path)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The models on which engines are driven in unusual ways: one whose window of 8 is short, and the real ones.
fn driven() -> Vec<(std::path::PathBuf, &'static str, Vec<TokenId>)> {
    let tiny = selvedge_tests::case("arch").map(|folder| (folder.join("gemma3.q8.gguf"), "gemma3.q8", tiny_tokens(150, 0)));
    let smollm2 = real_model(SMOLLM2).map(|path| (path, "smollm2-64", synthetic(64, None)));
    let gemma = real_model(GEMMA).map(|path| (path, "gemma-64", synthetic(64, Some(2))));
    [tiny, smollm2, gemma].into_iter().flatten().collect()
}

#[test]
fn sharing_a_batch_changes_no_bit() {
    for (path, name, tokens) in driven() {
        let other: Vec<TokenId> = tokens.iter().rev().copied().collect();
        let mut engine = Setup { n_seq: 2, n_ctx: 256, chunk: 64, ..Setup::default() }.engine(&path);
        let sequences = [&tokens, &other];
        let mut hashes = [LogitsHash::default(), LogitsHash::default()];
        let mut fed = [0; 2];
        for round in 0.. {
            // Uneven shares, the second sequence first in every other step.
            let mut step = Vec::new();
            for seq in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                let n = [3, 11, 1, 0, 20][(round + 2 * seq) % 5].min(tokens.len() - fed[seq]);
                step.extend(rows(seq as u32, fed[seq], &sequences[seq][fed[seq]..fed[seq] + n], &(0..usize::MAX)));
                fed[seq] += n;
            }
            engine.step(&step, &CancelToken::new(), &mut |i, logits| hashes[step[i].seq.0 as usize].row(logits)).unwrap();
            if fed == [tokens.len(); 2] {
                break;
            }
        }
        let [first, second] = hashes.map(LogitsHash::hex);
        check(name, "sharing its steps", &first);
        let alone = hash(&mut Setup { n_ctx: 256, ..Setup::default() }.engine(&path), &other, 13, &(0..usize::MAX));
        assert!(second == alone, "{name}: the other sequence");
    }
}

#[test]
fn a_rewind_changes_no_bit() {
    for (path, name, tokens) in driven() {
        let mut engine = Setup { n_ctx: 256, ..Setup::default() }.engine(&path);
        // Other tokens stood in the pages before, and the same ones.
        feed(&mut engine, &tokens.iter().rev().copied().collect::<Vec<_>>(), 64, &(0..0), &mut |_, _| {});
        assert_eq!(engine.rollback(SeqId(0), 0), 0);
        let mut whole = LogitsHash::default();
        feed(&mut engine, &tokens[..30], 30, &(0..30), &mut |_, l| whole.row(l));
        feed(&mut engine, &tokens[30..55], 7, &(0..0), &mut |_, _| {});
        for to in [45, 33, 30] {
            assert_eq!(engine.rollback(SeqId(0), to), to, "{name}");
            feed(&mut engine, &[TokenId(5), TokenId(6)], 2, &(0..0), &mut |_, _| {});
        }
        assert_eq!(engine.rollback(SeqId(0), 30), 30, "{name}");
        feed(&mut engine, &tokens[30..], 9, &(30..tokens.len()), &mut |_, l| whole.row(l));
        check(name, "after rewinds", &whole.hex());
    }
}

/// Cancels a step when it shows its `at`th value; whether it came so far.
fn cancel_at(engine: &mut Engine, tokens: &[TokenId], at: usize) -> bool {
    let (seq, cancel) = (SeqId(0), CancelToken::new());
    let before = engine.len(seq);
    let mut n = 0;
    let step = engine.step_tapped(
        &rows(0, before, tokens, &(0..0)),
        &cancel,
        &mut |_, _| {},
        Some(&mut |_, _| {
            n += 1;
            if n == at {
                cancel.cancel();
            }
        }),
    );
    match step {
        Ok(()) => {
            assert_eq!(engine.rollback(seq, before), before);
            false
        }
        Err(StepError::Backend(BackendError::Cancelled)) => {
            assert_eq!(engine.len(seq), before, "a cancelled step commits nothing");
            true
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_cancelled_step_changes_no_bit() {
    for (path, name, tokens) in driven() {
        let mut engine = Setup { n_ctx: 256, ..Setup::default() }.engine(&path);
        let mut whole = LogitsHash::default();
        let mut n_cancelled = 0;
        for (i, part) in tokens.chunks(11).enumerate() {
            n_cancelled += usize::from(cancel_at(&mut engine, part, 1 + 5 * i));
            n_cancelled += usize::from(cancel_at(&mut engine, &tokens[..part.len()], 17));
            feed(&mut engine, part, 11, &(0..usize::MAX), &mut |_, l| whole.row(l));
        }
        assert!(n_cancelled > tokens.len() / 11, "{name}: {n_cancelled} steps were cancelled");
        check(name, "after cancelled steps", &whole.hex());
    }
}

/// Runs with the floating-point environment that some audio hosts set: round up, flush to zero, denormals are zero.
#[cfg(target_arch = "x86_64")]
fn with_hostile_environment<T>(run: impl FnOnce() -> T) -> T {
    const DEFAULT: u32 = 0x1f80;
    const HOSTILE: u32 = DEFAULT | 0x4000 | 0x8000 | 0x40;
    let mut after = 0_u32;
    // SAFETY: loads MXCSR from four bytes in which no reserved bit is set; all exceptions stay masked.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &HOSTILE, options(nostack, readonly)) };
    let result = run();
    // SAFETY: stores MXCSR to four bytes and loads the default again.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &mut after, options(nostack));
        std::arch::asm!("ldmxcsr [{}]", in(reg) &DEFAULT, options(nostack, readonly));
    }
    // The lowest six bits are flags of what happened.
    assert_eq!(after & !0x3f, HOSTILE & !0x3f, "the caller's environment is restored");
    result
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_hosts_floating_point_environment_changes_no_bit() {
    let Some(folder) = selvedge_tests::case("arch") else { return };
    let tiny = ["gemma3.f32", "llama_q4.q4", "phi3_longrope_long.q8", "llama_rope_yarn.q8", "llama_bf16.bf16"];
    let tiny = tiny.map(|name| (folder.join(format!("{name}.gguf")), name, tiny_tokens(150, 0)));
    let real = real_model(SMOLLM2).map(|path| (path, "smollm2-64", synthetic(64, None)));
    for (path, name, tokens) in tiny.into_iter().chain(real) {
        // Opening too: packing, and the tables of RoPE.
        let found = with_hostile_environment(|| {
            let mut engine = Setup { n_ctx: 256, ..Setup::default() }.engine(&path);
            hash(&mut engine, &tokens, 40, &(0..tokens.len()))
        });
        check(name, "in a hostile floating-point environment", &found);
    }
}

#[test]
fn a_hosts_floating_point_environment_changes_no_draw() {
    let Some(folder) = selvedge_tests::case("arch") else { return };
    let model = Model::open(&folder.join("llama_q4.q4.gguf"), &Setup { n_ctx: 128, ..Setup::default() }.options()).unwrap();
    let prompt = tiny_tokens(20, 0);
    // Every stage that computes, and a distribution wide enough that a bit would show.
    let sampling = SamplingParams {
        seed: Some(7),
        temperature: 1.3,
        top_k: 0,
        typical_p: 0.9,
        repeat_penalty: 1.1,
        frequency_penalty: 0.3,
        xtc_probability: 0.5,
        ..SamplingParams::default()
    };
    for mirostat in [None, Some(Mirostat::default())] {
        let sampling = SamplingParams { mirostat, ..sampling.clone() };
        let options =
            GenerateOptions { max_tokens: Some(60), sampling, ignore_stop_ids: true, top_logprobs: 3, ..GenerateOptions::default() };
        let reply = || {
            let reply = model.session().unwrap().complete(&prompt, &options, &CancelToken::new()).unwrap();
            (reply.ids, reply.logprobs.iter().map(|p| p.to_bits()).collect::<Vec<u32>>())
        };
        let (calm, hostile) = (reply(), with_hostile_environment(reply));
        assert_eq!(calm.0.len(), 60);
        assert_eq!(calm, hostile);
    }
}
