//! Types of the KV cache: a quantised cache stays near the f16 one, and refuses heads that it can't hold.
//!
//! Compared on the reference backend. On the CPU the rounding of activations to 8 bits turns the smallest change (an f32
//! for an f16 cache) into other roundings everywhere, which hides what the cache itself does.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use selvedge::{BackendOptions, CancelToken, KvElem, Model, ModelOptions, PlanError, PlanOptions, TokenId, plan};
use selvedge_tests::{GEMMA, SMOLLM2, argmax, case, golden, logsumexp, real_model};

fn options(backend: &str, kv: KvElem, n_ctx: usize) -> ModelOptions {
    ModelOptions {
        plan: PlanOptions { n_ctx: Some(n_ctx), kv, max_wanted: 64, ..PlanOptions::default() },
        backend: BackendOptions { backend: Some(backend.into()), ..BackendOptions::default() },
        ..ModelOptions::default()
    }
}

/// Teacher-forced: the best token agrees at 97 % of the positions, and the text's own tokens keep their probability.
fn near_f16(model: &str, golden_file: &str, n: usize) {
    let (Some(path), Some(golden)) = (real_model(model), golden(golden_file)) else { return };
    let ids = golden["texts"]["gpl9k"]["ids"].as_array().unwrap();
    let tokens: Vec<TokenId> = ids.iter().take(n + 1).map(|x| TokenId(x.as_u64().unwrap() as u32)).collect();
    let [f16, q8] = [KvElem::F16, KvElem::Q8_0].map(|kv| {
        let mut session = Model::open(&path, &options("reference", kv, n)).unwrap().session().unwrap();
        let mut all: Vec<(usize, f64)> = Vec::new();
        let mut show = |i: usize, l: &mut [f32]| all.push((argmax(l), f64::from(l[tokens[i + 1].0 as usize]) - logsumexp(l)));
        session.logits(&tokens[..n], 64, &CancelToken::new(), &mut show).unwrap();
        all
    });
    let same = f16.iter().zip(&q8).filter(|(a, b)| a.0 == b.0).count();
    assert!(same as f64 >= 0.97 * n as f64, "{model}: the best token agrees at {same} of {n} positions");
    let moved = f16.iter().zip(&q8).map(|(a, b)| (a.1 - b.1).abs()).sum::<f64>() / n as f64;
    assert!(moved <= 0.05, "{model}: log-probabilities of the text move by {moved} on average");
}

#[test]
fn q8_0_is_near_f16_on_smollm2() {
    near_f16(SMOLLM2, "smollm2.json", 256);
}

#[test]
fn q8_0_is_near_f16_on_gemma3() {
    near_f16(GEMMA, "gemma3.json", 256);
}

#[test]
fn heads_that_are_no_whole_blocks_are_refused_by_name() {
    let Some(path) = case("hostile/m01_valid_tiny_f32.gguf") else { return };
    let error = plan(&path, &options("cpu", KvElem::Q8_0, 64)).unwrap_err();
    assert!(matches!(error, selvedge::Error::Plan(PlanError::KvHead { kv: "q8_0", block: 32, d_head: 8, .. })), "{error}");
    let mut session = Model::open(&path, &options("cpu", KvElem::F16, 64)).unwrap().session().unwrap();
    let mut last = 0;
    session.logits(&[TokenId(1), TokenId(5), TokenId(9)], 3, &CancelToken::new(), &mut |_, l| last = argmax(l)).unwrap();
    assert_eq!(last, 61);
}
