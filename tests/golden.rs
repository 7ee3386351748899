//! The CPU backend against what others computed: golden results of an f32 forward pass over the real models, values of
//! llama.cpp (table R1 of CASES.md) and of an f64 computation over the tiny ones (table R2).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use selvedge::{CancelToken, Finish, GenerateOptions, KvElem, SamplingParams, TokenId};
use selvedge_tests::{GEMMA, SMOLLM2, Setup, argmax, case, feed, golden, golden_path, ids, logsumexp, real_model, synthetic};
use serde_json::Value;

fn floats(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// Where the best id leads by more than this, quantised activations don't change it.
const MARGIN: f64 = 0.5;
/// How far the mean of the negative log-likelihood over a long text may lie from the reference.
const NLL_RATIO: f64 = 0.01;

/// Best ids and negative log-likelihoods of a text, up to `most` positions of it.
fn check_text(model: &str, name: &str, text: &Value, setup: Setup, path: &std::path::Path, most: usize) {
    let tokens = ids(&text["ids"]);
    let n = tokens.len().min(most);
    let (best, margins, nll) = (ids(&text["argmax"]), floats(&text["margin"]), floats(&text["nll"]));
    let (mut sum, mut expected, mut n_sure, mut n_next) = (0.0, 0.0, 0, 0);
    let mut wrong = Vec::new();
    let mut engine = Setup { n_ctx: tokens.len(), ..setup }.engine(path);
    feed(&mut engine, &tokens[..n], 512.min(tokens.len()), &(0..n), &mut |pos, logits| {
        if margins[pos] > MARGIN {
            n_sure += 1;
            if argmax(logits) != best[pos].0 as usize {
                wrong.push(format!("position {pos}: {} for {} with margin {}", argmax(logits), best[pos].0, margins[pos]));
            }
        }
        if let Some(next) = tokens.get(pos + 1) {
            sum += logsumexp(logits) - f64::from(logits[next.0 as usize]);
            expected += nll[pos];
            n_next += 1;
        }
    });
    assert!(wrong.is_empty(), "{model}, {name}: {} of {n_sure}: {}", wrong.len(), wrong.join("; "));
    // Short texts hold too few positions for a mean of 1 %.
    let ratio = sum / expected - 1.0;
    assert!(
        n < 100 || ratio.abs() < NLL_RATIO,
        "{model}, {name}: mean nll {}, reference {}",
        sum / f64::from(n_next),
        expected / f64::from(n_next)
    );
    println!("{model}, {name}: {n_sure} of {n} best ids are sure and right, mean nll off by {:.3} %", 100.0 * ratio);
}

fn check_texts(model: &str, file: &str, texts: &[&str], most: usize) {
    let (Some(path), Some(golden)) = (real_model(model), golden(file)) else { return };
    for name in texts {
        check_text(model, name, &golden["texts"][name], Setup::default(), &path, most);
    }
}

const SHORT: [&str; 4] = ["fr", "fib", "chat", "gpl2k"];

#[test]
fn smollm2_agrees_with_the_golden_results() {
    check_texts(SMOLLM2, "smollm2.json", &SHORT, usize::MAX);
}

#[test]
fn gemma_agrees_with_the_golden_results() {
    check_texts(GEMMA, "gemma3.json", &SHORT, usize::MAX);
}

#[test]
fn smollm2_agrees_over_a_long_text() {
    check_texts(SMOLLM2, "smollm2.json", &["gpl9k"], usize::MAX);
}

#[test]
fn gemma_agrees_past_its_window() {
    check_texts(GEMMA, "gemma3.json", &["gpl9k"], 700);
}

#[test]
#[ignore = "long: 1938 positions with a vocabulary of 262144"]
fn gemma_agrees_over_a_long_text() {
    check_texts(GEMMA, "gemma3.json", &["gpl9k"], usize::MAX);
}

/// The tokenizer gives the ids of the golden results, and greedy text follows them as long as no step is close.
fn check_greedy(model: &str, file: &str) {
    let (Some(path), Some(golden)) = (real_model(model), golden(file)) else { return };
    let model_open = Setup { n_ctx: 256, max_wanted: 1, ..Setup::default() }.open(&path);
    let mut n_followed = 0;
    for name in ["fr", "fib", "chat"] {
        let text = &golden["texts"][name];
        let (expected, margins) = (ids(&text["greedy"]["ids"]), floats(&text["greedy"]["margin"]));
        let sure = margins.iter().position(|&m| m <= MARGIN).unwrap_or(margins.len());
        let options = GenerateOptions {
            max_tokens: Some(sure.max(1)),
            sampling: SamplingParams::greedy(),
            ignore_stop_ids: true,
            ..GenerateOptions::default()
        };
        let reply = model_open.session().unwrap().complete(&ids(&text["ids"]), &options, &CancelToken::new()).unwrap();
        assert_eq!(reply.stats.finish, Finish::Length);
        assert_eq!(reply.ids[..sure], expected[..sure], "{model}, {name}");
        n_followed += sure;
    }
    println!("{model}: {n_followed} greedy ids");
    assert!(n_followed > 0, "{model}: no continuation is sure");
}

#[test]
fn smollm2_continues_as_the_reference() {
    check_greedy(SMOLLM2, "smollm2.json");
}

#[test]
fn gemma_continues_as_the_reference() {
    check_greedy(GEMMA, "gemma3.json");
}

/// Greedy continuations whole, close steps included, on the backend whose arithmetic is the reference's.
fn check_greedy_reference(model: &str, file: &str, texts: &[&str], most: usize) {
    let (Some(path), Some(golden)) = (real_model(model), golden(file)) else { return };
    let open = Setup { backend: "reference", n_ctx: 128, max_wanted: 1, chunk: 32, kv: KvElem::F32, ..Setup::default() }.open(&path);
    for name in texts {
        let text = &golden["texts"][name];
        let mut expected = ids(&text["greedy"]["ids"]);
        expected.truncate(most);
        let options = GenerateOptions {
            max_tokens: Some(expected.len()),
            sampling: SamplingParams::greedy(),
            ignore_stop_ids: true,
            ..GenerateOptions::default()
        };
        let reply = open.session().unwrap().complete(&ids(&text["ids"]), &options, &CancelToken::new()).unwrap();
        assert_eq!(reply.ids, expected, "{model}, {name}");
    }
}

#[test]
fn the_reference_backend_continues_as_the_reference() {
    check_greedy_reference(SMOLLM2, "smollm2.json", &["fr"], 12);
}

#[test]
#[ignore = "long: the reference backend on whole continuations of both models"]
fn the_reference_backend_continues_everything_as_the_reference() {
    check_greedy_reference(SMOLLM2, "smollm2.json", &["fr", "fib", "chat"], usize::MAX);
    check_greedy_reference(GEMMA, "gemma3.json", &["fr", "fib", "chat"], usize::MAX);
}

/// Table R1, case 38 for Gemma: positions, the ids that may be best, the log-probability of the first of them.
type R1<'a> = &'a [(usize, &'a [usize], f64)];

const R1_GEMMA: R1<'_> = &[
    (4, &[2528], -1.156),
    (64, &[684, 236_743], -3.249),
    (511, &[236_743], -3.745),
    (513, &[236_743], -3.645),
    (700, &[236_767], -4.363),
    (1100, &[507], -3.609),
];
const R1_SMOLLM2: R1<'_> = &[(4, &[260], -2.044), (64, &[395], -2.519), (700, &[266, 85], -3.377)];

fn check_r1(model: &str, bos: Option<u32>, table: R1<'_>) {
    let Some(path) = real_model(model) else { return };
    let most = table.iter().map(|row| row.0).max().unwrap();
    let tokens = synthetic(most, bos);
    let mut engine = Setup { n_ctx: most, chunk: 256, max_wanted: 1, ..Setup::default() }.engine(&path);
    let mut first = 0;
    for &(n, best, logprob) in table {
        feed(&mut engine, &tokens[first..n], 256, &(n - 1..n), &mut |_, logits| {
            let found = f64::from(logits[best[0]]) - logsumexp(logits);
            assert!((found - logprob).abs() < 0.2, "{model}, n = {n}: log-probability of {} is {found}, expected {logprob}", best[0]);
            assert!(best.contains(&argmax(logits)), "{model}, n = {n}: best is {}, expected {best:?}", argmax(logits));
        });
        first = n;
    }
}

/// Both pairings of RoPE, past position 0; Gemma's two bases, window, activation, norms and scale.
#[test]
fn best_ids_after_synthetic_tokens() {
    check_r1(SMOLLM2, None, R1_SMOLLM2);
    check_r1(GEMMA, Some(2), R1_GEMMA);
}

/// Logits of the last position, on a backend with its cache in f32.
fn last_logits(file: &str, backend: &'static str, tokens: &[u32]) -> Option<Vec<f32>> {
    let path = case("hostile")?.join(file);
    let tokens: Vec<TokenId> = tokens.iter().map(|&t| TokenId(t)).collect();
    let mut last = Vec::new();
    let mut engine = Setup { backend, kv: KvElem::F32, n_ctx: 32, chunk: 8, ..Setup::default() }.engine(&path);
    feed(&mut engine, &tokens, 8, &(tokens.len() - 1..tokens.len()), &mut |_, l| last = l.to_vec());
    Some(last)
}

/// A row of table R2: file, tokens, logits of the best ids in order.
type R2Row = (&'static str, &'static [u32], &'static [(usize, f64)]);

const R2: [R2Row; 6] = [
    ("m01_valid_tiny_f32.gguf", &[1, 5, 9], &[(61, 1.83311), (85, 1.59890), (261, 1.54661), (119, 1.49133), (128, 1.41188)]),
    ("m02_valid_tiny_q8_0.gguf", &[1, 5, 9], &[(61, 1.83942)]),
    ("m03_valid_tiny_untied.gguf", &[1, 5, 9], &[(194, 1.92723)]),
    // Case 36: scores near 1e7, beyond what a half-precision float holds.
    ("n10_qk_beyond_f16.gguf", &[1, 5, 9], &[(10, 1.82488)]),
    // Case 37: neighbours turn, not halves.
    (
        "m01_valid_tiny_f32.gguf",
        &[1, 5, 9, 20, 33, 47, 60],
        &[(220, 1.75567), (176, 1.60152), (175, 1.55937), (209, 1.55547), (256, 1.38805)],
    ),
    ("m01_valid_tiny_f32.gguf", &[1], &[(139, 1.53260), (145, 1.52000)]),
];

#[test]
fn tiny_models_give_the_values_of_an_f64_computation() {
    for (file, tokens, expected) in R2 {
        // The reference multiplies floats; the CPU rounds activations of Q8_0 products to 8 bits: one part in 254 of the
        // largest of 32, which the few columns of this model hardly average out.
        for (backend, tolerance) in [("reference", 3e-4), ("cpu", if file.starts_with("m02") { 2e-2 } else { 3e-3 })] {
            let Some(logits) = last_logits(file, backend, tokens) else { return };
            assert!(logits.len() == 320 && logits.iter().all(|x| x.is_finite()), "{file}");
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            for (rank, &(id, logit)) in expected.iter().enumerate() {
                assert_eq!(order[rank], id, "{file} {tokens:?} on {backend}: rank {rank}");
                let diff = (f64::from(logits[id]) - logit).abs();
                assert!(diff < tolerance, "{file} {tokens:?} on {backend}: logit of {id} is off by {diff}");
            }
        }
    }
    let Some(logits) = last_logits(R2[0].0, "reference", R2[0].1) else { return };
    let sum: f64 = logits.iter().map(|&x| f64::from(x)).sum();
    assert!((sum - 5.74242).abs() < 1e-3, "sum of all logits {sum}");
}

/// The bar of quality: KL divergence of whole distributions from the f32 reference over all positions of `gpl2k`, and
/// perplexity of `gpl9k` within 1 %. The program compares with the reference backend, itself held to the golden values.
#[test]
#[ignore = "long: the reference backend over a whole text, both models"]
fn distributions_stay_near_the_reference() {
    for (model, results, mean, median) in [(SMOLLM2, "smollm2.json", 0.0046, 0.0028), (GEMMA, "gemma3.json", 0.0047, 0.0038)] {
        let (Some(path), Some(golden)) = (real_model(model), golden_path(results)) else { return };
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_quality")).arg(path).arg(golden).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let q: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let number = |key: &str| q[key].as_f64().unwrap();
        assert!(number("reference_worst_nll_error") < 1e-3, "{q}");
        assert!(number("kl_mean") <= mean && number("kl_median") <= median, "{q}");
        assert!((number("gpl9k_ppl_ratio") - 1.0).abs() <= 0.01, "{q}");
    }
}
