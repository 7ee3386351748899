//! Time from logits to text, per token: `cargo bench -p selvedge-core --bench sampler [-- part-of-a-name]`.
//!
//! Prints microseconds, the least of many runs, since a shared machine only ever adds time. The bound is 2 % of a token's
//! time: 80 µs at 49152 tokens (SmolLM2-135M, 4 ms a token), 260 µs at 262144 (Gemma 3 270M, 13 ms).

#![allow(clippy::unwrap_used, reason = "a measurement has nobody to report an error to")]

use selvedge_core::ids::TokenId;
use selvedge_core::math::double::ln;
use selvedge_core::sampler::{Mirostat, Sampler, SamplingParams, Stage};
use selvedge_core::stop::StopMatcher;
use selvedge_core::tokenizer::{Detokenizer, Tokenizer};
use selvedge_gguf::{Gguf, Writer};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Time that this thread has had a processor: a neighbour's share of a busy machine doesn't count.
#[cfg(unix)]
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a timespec where it is given room for one.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Time.
#[cfg(not(unix))]
fn now() -> Duration {
    static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed()
}

/// Runs `run` for a while and returns the least time of one run, in microseconds.
fn least(mut run: impl FnMut()) -> f64 {
    let begun = Instant::now();
    let mut least = Duration::MAX;
    let mut n = 0;
    while n < 20 || begun.elapsed() < Duration::from_millis(400) {
        let start = now();
        run();
        least = least.min(now() - start);
        n += 1;
    }
    least.as_secs_f64() * 1e6
}

/// A fixed generator of numbers in [0, 1).
struct Noise(u64);

impl Noise {
    fn unit(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 24) as f32
    }
}

/// Logits of a shape over shuffled ids.
fn logits(shape: &str, n: usize) -> Vec<f32> {
    let mut noise = Noise(0x5e1_ed6e);
    let zipf = |noise: &mut Noise, s: f64| {
        let mut xs: Vec<f32> = (0..n).map(|rank| (-s * ln(rank as f64 + 1.0)) as f32 + 0.01 * noise.unit()).collect();
        for i in (1..n).rev() {
            xs.swap(i, (noise.unit() * (i + 1) as f32) as usize);
        }
        xs
    };
    match shape {
        // The entropy of a model that is at a loss; most tokens of a text are nearer `sure`.
        "zipf" => zipf(&mut noise, 1.1),
        "sure" => zipf(&mut noise, 2.0),
        "flat" => (0..n).map(|_| noise.unit() * 0.1).collect(),
        "noise" => (0..n).map(|_| (noise.unit() + noise.unit() + noise.unit() - 1.5) * 4.0).collect(),
        "equal" => vec![1.5; n],
        _ => panic!("no shape {shape}"),
    }
}

fn main() {
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let plain = || SamplingParams { seed: Some(1), ..SamplingParams::plain(1.0) };
    let greedy = SamplingParams { seed: Some(1), ..SamplingParams::greedy() };
    let default = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    let penalised =
        SamplingParams { repeat_penalty: 1.1, frequency_penalty: 0.1, presence_penalty: 0.1, dry_multiplier: 0.8, ..default.clone() };
    let mut temperature_first = SamplingParams { top_k: 0, top_p: 0.95, min_p: 0.05, ..default.clone() };
    temperature_first.order = vec![Stage::Temperature, Stage::TopP, Stage::MinP];
    let chains: Vec<(&str, &str, SamplingParams)> = vec![
        ("greedy", "zipf", greedy.clone()),
        ("default", "zipf", default.clone()),
        ("default", "flat", default.clone()),
        ("default", "equal", default.clone()),
        ("penalties and DRY", "zipf", penalised),
        ("plain, temperature 0.8", "zipf", SamplingParams { temperature: 0.8, ..plain() }),
        ("plain, temperature 0.8", "flat", SamplingParams { temperature: 0.8, ..plain() }),
        ("min-p 0.05", "zipf", SamplingParams { min_p: 0.05, ..plain() }),
        ("min-p 0.05", "flat", SamplingParams { min_p: 0.05, ..plain() }),
        ("top-p 0.95", "sure", SamplingParams { top_p: 0.95, ..plain() }),
        ("top-p 0.95", "zipf", SamplingParams { top_p: 0.95, ..plain() }),
        ("top-p 0.95", "noise", SamplingParams { top_p: 0.95, ..plain() }),
        ("top-p 0.95", "flat", SamplingParams { top_p: 0.95, ..plain() }),
        ("top-p 0.95", "equal", SamplingParams { top_p: 0.95, ..plain() }),
        ("temperature, top-p, min-p", "zipf", temperature_first),
        ("typical 0.95", "sure", SamplingParams { typical_p: 0.95, ..plain() }),
        ("typical 0.95", "zipf", SamplingParams { typical_p: 0.95, ..plain() }),
        ("typical 0.95", "noise", SamplingParams { typical_p: 0.95, ..plain() }),
        ("typical 0.95", "flat", SamplingParams { typical_p: 0.95, ..plain() }),
        ("XTC", "zipf", SamplingParams { xtc_probability: 1.0, xtc_threshold: 1e-3, ..plain() }),
        ("mirostat", "zipf", SamplingParams { mirostat: Some(Mirostat::default()), ..plain() }),
        ("mirostat", "flat", SamplingParams { mirostat: Some(Mirostat::default()), ..plain() }),
    ];
    println!("{:<28} {:<6} {:>9} {:>9}", "µs a token", "logits", "49152", "262144");
    let line = |name: &str, shape: &str, run: &mut dyn FnMut(usize) -> f64| {
        if format!("{name} {shape}").contains(&only) {
            println!("{name:<28} {shape:<6} {:>9.2} {:>9.2}", run(49_152), run(262_144));
        }
    };
    for (name, shape, params) in chains {
        line(name, shape, &mut |n| {
            let mut logits = logits(shape, n);
            let mut sampler = Sampler::new(params.clone(), n).unwrap();
            // A window of tokens with repeats, as a text has.
            let mut noise = Noise(7);
            (0..1024).for_each(|_| sampler.accept(TokenId((noise.unit() * noise.unit() * 300.0) as u32)));
            least(|| {
                black_box(sampler.sample_token(black_box(&mut logits)).unwrap());
            })
        });
    }
    for (name, params) in [("greedy, log-probability", &greedy), ("default, log-probability", &default)] {
        line(name, "zipf", &mut |n| {
            let mut logits = logits("zipf", n);
            let mut sampler = Sampler::new(params.clone(), n).unwrap();
            least(|| {
                black_box(sampler.sample(black_box(&mut logits)).unwrap());
            })
        });
    }
    line("greedy and top 5", "zipf", &mut |n| {
        let mut logits = logits("zipf", n);
        let mut sampler = Sampler::new(greedy.clone(), n).unwrap();
        let mut top = Vec::new();
        least(|| {
            black_box((sampler.sample_with_top(black_box(&mut logits), 5, &mut top).unwrap(), &top));
        })
    });
    line("text of a token, stops", "", &mut text_time);
}

/// Detokenising and matching stop strings.
fn text_time(n_vocab: usize) -> f64 {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").set("tokenizer.ggml.model", "llama");
    let tokens: Vec<Vec<u8>> = (0..n_vocab).map(|i| format!("\u{2581}wörd{i}").into_bytes()).collect();
    writer.set("tokenizer.ggml.scores", (0..n_vocab).map(|i| -(i as f32)).collect::<Vec<_>>());
    writer.set("tokenizer.ggml.tokens", tokens);
    let bytes = writer.to_bytes().unwrap();
    let tokenizer = Tokenizer::from_metadata(&Gguf::parse(&bytes).unwrap().metadata).unwrap();
    let mut detokenizer = Detokenizer::new();
    let mut matcher = StopMatcher::new(["<|im_end|>", "\n\nUser:", " wörx", "wörd1 "]).unwrap();
    let (mut piece, mut shown) = (String::with_capacity(1024), String::with_capacity(4096));
    let mut id = 0;
    let n = 1000;
    least(|| {
        for _ in 0..n {
            id = (id + 7919) % n_vocab as u32;
            piece.clear();
            shown.clear();
            detokenizer.push(&tokenizer, TokenId(id), &mut piece);
            black_box(matcher.push(&piece, &mut shown));
        }
    }) / f64::from(n)
}
