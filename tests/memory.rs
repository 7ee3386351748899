//! Memory: nothing is allocated between two tokens, nothing leaks, the plan tells what is taken, a file that changes is
//! an error. Case 27 of CASES.md.
//!
//! Each test that counts runs in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use selvedge::{
    CancelToken, Error, Event, GenerateOptions, Limit, Mirostat, Model, ModelError, ModelOptions, Overflow, SamplingParams, SessionError,
    StepError, TokenId, Weights,
};
use selvedge_tests::{GEMMA, SMOLLM2, Setup, case, in_own_process, real_model, status_bytes, synthetic, tiny_tokens};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Allocations of all threads.
static N_ALLOC: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        N_ALLOC.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        N_ALLOC.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        N_ALLOC.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A folder for packed weights that holds none.
fn packs_folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("memory-packs-{name}"));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn m01() -> Option<PathBuf> {
    Some(case("hostile")?.join("m01_valid_tiny_f32.gguf"))
}

// ---------------------------------------------------------------------------------------------------------------------
// Allocations.

/// Ways to sample, each with whatever else a reply may carry.
fn ways() -> Vec<(&'static str, GenerateOptions)> {
    let base = || GenerateOptions { ignore_stop_ids: true, ..GenerateOptions::default() };
    let seeded = |params: SamplingParams| SamplingParams { seed: Some(1), ..params };
    let all = SamplingParams {
        repeat_penalty: 1.1,
        frequency_penalty: 0.1,
        dry_multiplier: 0.5,
        xtc_probability: 0.3,
        typical_p: 0.95,
        logit_bias: vec![(TokenId(7), 1.0), (TokenId(8), -100.0)],
        ..SamplingParams::default()
    };
    vec![
        ("greedy", GenerateOptions { sampling: SamplingParams::greedy(), ..base() }),
        (
            "default, stop texts, alternatives",
            GenerateOptions {
                sampling: seeded(SamplingParams::default()),
                stops: vec!["\n\nUser:".into(), "<|never|>".into()],
                top_logprobs: 20,
                ..base()
            },
        ),
        ("all filters", GenerateOptions { sampling: seeded(all), top_logprobs: 3, ..base() }),
        (
            "mirostat",
            GenerateOptions {
                sampling: seeded(SamplingParams { mirostat: Some(Mirostat::default()), ..SamplingParams::default() }),
                ..base()
            },
        ),
    ]
}

/// Generates `n` tokens and counts allocations from one to the next; across page borders, and across a context shift.
fn check_no_allocation(model: &Model, prompt: &[TokenId], n: usize, shift: bool) {
    let mut session = model.session().unwrap();
    for (name, options) in ways() {
        let overflow = if shift { Overflow::Shift { n_keep: 4, n_discard: Some(40) } } else { Overflow::Stop };
        let options = GenerateOptions { max_tokens: Some(n), overflow, ..options };
        let (mut last, mut worst, mut n_tokens) = (usize::MAX, (0, 0), 0);
        let stats = session
            .generate(prompt, &options, &CancelToken::new(), &mut |event| {
                if let Event::Token { .. } = event {
                    let now = N_ALLOC.load(Ordering::Relaxed);
                    n_tokens += 1;
                    worst = worst.max((now.saturating_sub(last), n_tokens));
                    last = now;
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!((stats.n_tokens, n_tokens), (n, n), "{name}");
        assert_eq!(worst.0, 0, "{name}: {} allocations before token {} of {n}", worst.0, worst.1);
    }
}

#[test]
fn nothing_is_allocated_between_two_tokens() {
    if !in_own_process("nothing_is_allocated_between_two_tokens") {
        return;
    }
    let before = N_ALLOC.load(Ordering::Relaxed);
    drop(std::hint::black_box(vec![1_u8; 100]));
    assert_eq!(N_ALLOC.load(Ordering::Relaxed), before + 1, "the counter counts");
    let (Some(m01), Some(arch)) = (m01(), case("arch")) else { return };
    for (path, n_ctx) in [(m01, 256), (arch.join("gemma3.q8.gguf"), 256)] {
        let model = Setup { n_ctx, chunk: 64, max_wanted: 1, ..Setup::default() }.open(&path);
        check_no_allocation(&model, &tiny_tokens(50, 1), 150, false);
        check_no_allocation(&model, &tiny_tokens(50, 2), n_ctx + 30, true);
    }
    // With packed weights that are mapped, whose file is looked at before every step too.
    let dir = packs_folder("no-allocation");
    let mut options = Setup { n_ctx: 256, chunk: 64, max_wanted: 1, ..Setup::default() }.options();
    (options.plan.weights, options.packs.dir) = (Weights::Mapped, Some(dir.clone()));
    let model = Model::open(&arch.join("llama_q4.q4.gguf"), &options).unwrap();
    assert!(model.packs().next().is_some());
    check_no_allocation(&model, &tiny_tokens(50, 3), 150, false);
    std::fs::remove_dir_all(dir).unwrap();
    let Some(path) = real_model(SMOLLM2) else { return };
    let model = Setup { n_ctx: 128, max_wanted: 1, ..Setup::default() }.open(&path);
    check_no_allocation(&model, &synthetic(58, None), 12, false);
}

// ---------------------------------------------------------------------------------------------------------------------
// Leaks.

/// Loads, generates and unloads; bytes resident after cycle 50 and after the last.
fn check_cycles(path: &Path, n: usize) {
    let mut early = 0;
    for cycle in 1..=n {
        let model = Setup { n_ctx: 256, chunk: 64, max_wanted: 1, ..Setup::default() }.open(path);
        let mut session = model.session().unwrap();
        let options = GenerateOptions { max_tokens: Some(4), ignore_stop_ids: true, top_logprobs: 5, ..GenerateOptions::default() };
        session.complete(&tiny_tokens(80, cycle as u32), &options, &CancelToken::new()).unwrap();
        // A load that fails, and a reply that is cancelled, give back as much.
        assert!(Model::open(&path.with_file_name("m13_missing_ffn_down.gguf"), &ModelOptions::default()).is_err());
        let cancel = CancelToken::new();
        let stats = session.generate(&tiny_tokens(90, cycle as u32 + 1), &options, &cancel, &mut |_| ControlFlow::Break(())).unwrap();
        assert_eq!(stats.n_tokens, 0);
        if cycle == 50 {
            early = status_bytes("VmRSS").unwrap_or(0);
        }
    }
    let late = status_bytes("VmRSS").unwrap_or(0);
    println!("found: {early} bytes resident after 50 cycles, {late} after {n}");
    assert!(late <= early + (2 << 20), "{early} bytes resident after 50 cycles, {late} after {n}");
    let n_files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    assert!(n_files < 20, "{n_files} files are open");
}

#[test]
fn loading_and_unloading_takes_no_more_each_time() {
    let Some(path) = m01() else { return };
    if in_own_process("loading_and_unloading_takes_no_more_each_time") {
        check_cycles(&path, 120);
    }
}

#[test]
#[ignore = "long: 500 cycles of load and unload"]
fn loading_and_unloading_500_times_takes_no_more_each_time() {
    let Some(path) = m01() else { return };
    if in_own_process("loading_and_unloading_500_times_takes_no_more_each_time") {
        check_cycles(&path, 500);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The plan.

/// Opens a model and fills its context; compares the most anonymous memory with the plan, both ways: within 5 % and
/// 8 MiB.
fn check_plan(path: &Path, setup: Setup, tokens: &[TokenId]) {
    check_plan_with(path, &setup.options(), tokens);
}

fn check_plan_with(path: &Path, options: &ModelOptions, tokens: &[TokenId]) {
    let name = path.file_name().unwrap().to_string_lossy();
    let n_ctx = options.plan.n_ctx.unwrap();
    let planned = selvedge::plan(path, options).unwrap().plan.anonymous;
    let Some(before) = status_bytes("RssAnon") else { return };
    let (peak, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let look = || peak.fetch_max(status_bytes("RssAnon").unwrap_or(0), Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                look();
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let model = Model::open(path, options).unwrap();
        assert_eq!(model.plan().anonymous, planned, "{name}: what was planned is what is loaded");
        let mut session = model.session().unwrap();
        let sampling = SamplingParams { seed: Some(1), ..SamplingParams::default() };
        let options = GenerateOptions { sampling, top_logprobs: 5, ignore_stop_ids: true, ..GenerateOptions::default() };
        let stats = session
            .generate(&tokens[..n_ctx - 8], &options, &CancelToken::new(), &mut |_| {
                look();
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!((stats.n_tokens, session.tokens().len()), (9, n_ctx), "{name}: the context is full");
        done.store(true, Ordering::Relaxed);
    });
    let (taken, total) = (peak.load(Ordering::Relaxed) - before, planned.total());
    println!("found: {name}: planned {total}, taken {taken}: {planned:?}");
    let allowed = total / 20 + (8 << 20);
    assert!(taken <= total + allowed && total <= taken + allowed, "{name}: planned {total} bytes, taken {taken}: {planned:?}");
}

#[test]
fn the_plan_tells_what_smollm2_takes() {
    let Some(path) = real_model(SMOLLM2) else { return };
    if in_own_process("the_plan_tells_what_smollm2_takes") {
        check_plan(&path, Setup { n_ctx: 1024, max_wanted: 1, ..Setup::default() }, &synthetic(1024, None));
    }
}

#[test]
#[ignore = "long: 2048 positions of a real model"]
fn the_plan_tells_what_smollm2_takes_with_a_longer_context() {
    let Some(path) = real_model(SMOLLM2) else { return };
    if in_own_process("the_plan_tells_what_smollm2_takes_with_a_longer_context") {
        check_plan(&path, Setup { n_ctx: 2048, n_threads: 8, max_wanted: 1, ..Setup::default() }, &synthetic(2048, None));
    }
}

#[test]
fn the_plan_tells_what_gemma_takes() {
    let Some(path) = real_model(GEMMA) else { return };
    if in_own_process("the_plan_tells_what_gemma_takes") {
        check_plan(&path, Setup { n_ctx: 1024, max_wanted: 1, ..Setup::default() }, &synthetic(1024, Some(2)));
    }
}

#[test]
fn the_plan_tells_what_a_tiny_model_takes() {
    let Some(path) = m01() else { return };
    if in_own_process("the_plan_tells_what_a_tiny_model_takes") {
        let path = &path;
        check_plan(path, Setup { n_ctx: 256, max_wanted: 1, ..Setup::default() }, &tiny_tokens(256, 1));
    }
}

/// With weights in a folder: while it is packed for the first time, and when it is there.
fn check_plan_with_packs(name: &str, weights: Weights, n_threads: usize) {
    let Some(path) = real_model(name) else { return };
    let dir = packs_folder(&format!("{weights:?}-{n_threads}"));
    let mut options = Setup { n_ctx: 256, n_threads, max_wanted: 1, ..Setup::default() }.options();
    (options.plan.weights, options.packs.dir) = (weights, Some(dir.clone()));
    for _ in 0..2 {
        check_plan_with(&path, &options, &synthetic(256, None));
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_plan_tells_what_mapped_weights_take() {
    if in_own_process("the_plan_tells_what_mapped_weights_take") {
        check_plan_with_packs(SMOLLM2, Weights::Mapped, 2);
    }
}

/// More threads hold more while they pack, and no plan tells of it.
#[test]
fn the_plan_tells_what_mapped_weights_take_on_many_threads() {
    if in_own_process("the_plan_tells_what_mapped_weights_take_on_many_threads") {
        check_plan_with_packs(SMOLLM2, Weights::Mapped, 32);
    }
}

#[test]
fn the_plan_tells_what_resident_weights_take() {
    if in_own_process("the_plan_tells_what_resident_weights_take") {
        check_plan_with_packs(SMOLLM2, Weights::Resident, 2);
    }
}

/// A budget below the plan is refused before any weight is read; a context that the error names fits.
#[test]
fn a_budget_is_kept_or_refused_with_what_would_fit() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let mut options = Setup { n_ctx: 2048, max_wanted: 1, ..Setup::default() }.options();
    let total = selvedge::plan(&path, &options).unwrap().plan.anonymous.total();
    options.plan.budget = Some(total);
    Model::open(&path, &options).unwrap();
    options.plan.budget = Some(total - (20 << 20));
    let planned = selvedge::plan(&path, &options).unwrap().plan;
    let error = Model::open(&path, &options).unwrap_err().to_string();
    assert!(error.contains(&planned.max_ctx.to_string()) && error.contains(&total.to_string()), "{error}");
    assert!(planned.max_ctx > 0 && planned.max_ctx < 2048);
    options.plan.n_ctx = Some(planned.max_ctx);
    Model::open(&path, &options).unwrap();
    // A context that nobody asked for shrinks to what fits.
    options.plan.n_ctx = None;
    assert_eq!(Model::open(&path, &options).unwrap().n_ctx(), planned.max_ctx);
    options.plan.budget = Some(1 << 20);
    assert_eq!(selvedge::plan(&path, &options).unwrap().plan.max_ctx, 0);
    assert!(Model::open(&path, &options).is_err());
}

/// Without a budget the limit is what the system has free: 16 million positions of keys and values are nowhere.
#[test]
fn more_than_the_system_has_is_refused() {
    let Some(path) = real_model(SMOLLM2) else { return };
    let mut options = ModelOptions::default();
    options.plan.n_ctx = Some(1 << 24);
    let plan = selvedge::plan(&path, &options).unwrap().plan;
    let Limit::Free(free) = plan.limit else { return };
    assert!(plan.anonymous.total() > free && plan.max_ctx > 0);
    let error = Model::open(&path, &options).unwrap_err().to_string();
    assert!(error.contains("the system has") && error.contains(&format!("a context of {} fits", plan.max_ctx)), "{error}");
}

/// What only looks at so many positions plans no more.
#[test]
fn a_model_opened_for_some_positions_takes_no_more() {
    let Some(path) = m01() else { return };
    let open = |options: &ModelOptions, n| Model::open_for(&path, options, n, &CancelToken::new(), &mut |_, _, _| {});
    assert_eq!(open(&ModelOptions::default(), 20).unwrap().n_ctx(), 20);
    let mut options = ModelOptions::default();
    options.plan.n_ctx = Some(64);
    assert_eq!(open(&options, 20).unwrap().n_ctx(), 64);
    assert!(matches!(open(&options, 65), Err(Error::ContextTooShort { n_positions: 65, n_ctx: 64 })));
}

// ---------------------------------------------------------------------------------------------------------------------
// Files that change.

/// A copy of a model that a test may spoil.
fn copy(path: &Path, name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("memory");
    std::fs::create_dir_all(&folder).unwrap();
    let to = folder.join(name);
    let _ = std::fs::remove_file(&to);
    std::fs::copy(path, &to).unwrap();
    let mut permissions = std::fs::metadata(&to).unwrap().permissions();
    #[allow(clippy::permissions_set_readonly_false, reason = "a scratch file")]
    permissions.set_readonly(false);
    std::fs::set_permissions(&to, permissions).unwrap();
    to
}

fn open_to_write(path: &Path) -> std::fs::File {
    std::fs::OpenOptions::new().write(true).open(path).unwrap()
}

/// What may happen to a file under an open model.
type Spoil = fn(&Path);

const SPOILS: [(&str, Spoil); 4] = [
    ("cut short", |path| open_to_write(path).set_len(50_000).unwrap()),
    ("emptied", |path| open_to_write(path).set_len(0).unwrap()),
    ("longer", |path| {
        let mut file = open_to_write(path);
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(&[0; 4096]).unwrap();
    }),
    ("rewritten in place", |path| {
        // Clocks of file systems may tick slowly.
        std::thread::sleep(Duration::from_millis(30));
        let mut file = open_to_write(path);
        file.seek(SeekFrom::Start(60_000)).unwrap();
        file.write_all(&[7; 100]).unwrap();
    }),
];

#[test]
fn a_file_that_changes_is_an_error_at_the_next_step() {
    let Some(original) = m01() else { return };
    for (what, spoil) in SPOILS {
        let path = copy(&original, &format!("{}.gguf", what.replace(' ', "-")));
        let model = Setup { n_ctx: 128, chunk: 16, ..Setup::default() }.open(&path);
        let mut session = model.session().unwrap();
        let options = GenerateOptions { max_tokens: Some(20), ignore_stop_ids: true, ..GenerateOptions::default() };
        // In the middle of a reply: the step after the change fails, what came before stays.
        let mut n = 0;
        let error = session
            .generate(&tiny_tokens(10, 1), &options, &CancelToken::new(), &mut |event| {
                if let Event::Token { .. } = event {
                    n += 1;
                    if n == 3 {
                        spoil(&path);
                    }
                }
                ControlFlow::Continue(())
            })
            .unwrap_err();
        let SessionError::Step(StepError::Model(ModelError::Changed { path: named, .. })) = &error else { panic!("{what}: {error}") };
        assert!(n == 3 && named == &path, "{what}: {error}");
        assert_eq!(session.tokens().len(), 12, "{what}");
        let again = session.complete(&tiny_tokens(10, 1), &options, &CancelToken::new()).unwrap_err();
        assert!(matches!(again, SessionError::Step(StepError::Model(ModelError::Changed { .. }))), "{what}: {again}");
        // Another session on the model sees it too; a new open is what helps, where the file is still a model.
        assert!(model.session().unwrap().complete(&tiny_tokens(10, 1), &options, &CancelToken::new()).is_err());
        match Setup::default().options() {
            options if what == "cut short" || what == "emptied" => {
                assert!(matches!(Model::open(&path, &options), Err(Error::Load(_) | Error::Model(_))), "{what}");
            }
            options => drop(Model::open(&path, &options)),
        }
    }
}

/// A file that is replaced, as a download does it, leaves the open one what it was.
#[test]
fn a_file_that_is_replaced_by_another_stays_what_it_was() {
    let Some(original) = m01() else { return };
    let path = copy(&original, "replaced.gguf");
    let model = Setup { n_ctx: 128, ..Setup::default() }.open(&path);
    let options = GenerateOptions { max_tokens: Some(5), sampling: SamplingParams::greedy(), ..GenerateOptions::default() };
    let before = model.session().unwrap().complete(&tiny_tokens(10, 1), &options, &CancelToken::new()).unwrap();
    let other = copy(&original.with_file_name("m02_valid_tiny_q8_0.gguf"), "replacement.gguf");
    std::fs::rename(other, &path).unwrap();
    let after = model.session().unwrap().complete(&tiny_tokens(10, 1), &options, &CancelToken::new()).unwrap();
    assert_eq!((after.ids, after.logprobs), (before.ids, before.logprobs));
    std::fs::remove_file(&path).unwrap();
    let gone = model.session().unwrap().complete(&tiny_tokens(10, 1), &options, &CancelToken::new()).unwrap();
    assert_eq!(gone.text, before.text);
}
