//! Types of the KV cache: a quantised cache stays near the f16 one, and refuses heads that it can't hold.

use selvedge::{BackendOptions, CancelToken, KvElem, Model, ModelOptions, PlanError, PlanOptions, TokenId, plan};
use selvedge_tests::{case, golden, real_model};

fn options(kv: KvElem, n_ctx: usize) -> ModelOptions {
    ModelOptions { plan: PlanOptions { n_ctx: Some(n_ctx), kv, max_wanted: 8, ..PlanOptions::default() }, ..ModelOptions::default() }
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    logits.iter().map(|&x| f64::from(x - max) - sum.ln()).collect()
}

fn best(xs: &[f64]) -> usize {
    (0..xs.len()).rev().max_by(|&a, &b| xs[a].total_cmp(&xs[b])).unwrap()
}

/// Teacher-forced over texts of 256 tokens: the best token agrees, and the text's own tokens keep their probability.
fn near_f16(model: &str, golden_file: &str) {
    let (Some(path), Some(golden)) = (real_model(model), golden(golden_file)) else { return };
    let tokens: Vec<TokenId> =
        golden["texts"]["gpl9k"]["ids"].as_array().unwrap().iter().map(|x| TokenId(x.as_u64().unwrap() as u32)).collect();
    // Texts beyond a model's sliding window are longer than 512: one of the parts is.
    let parts = [&tokens[..256], &tokens[300..556], &tokens[700..956], &tokens[..640]];
    let mut rows: Vec<Vec<Vec<f64>>> = Vec::new();
    for kv in [KvElem::F16, KvElem::Q8_0] {
        let mut session = Model::open(&path, &options(kv, 640)).unwrap().session().unwrap();
        let mut all = Vec::new();
        for part in parts {
            // Every eighth position, so that the distributions fit in memory.
            session
                .logits(part, 256, &CancelToken::new(), &mut |i, l| {
                    if i % 8 == 7 {
                        all.push(log_softmax(l))
                    }
                })
                .unwrap();
        }
        rows.push(all);
    }
    let n = rows[0].len();
    let same = rows[0].iter().zip(&rows[1]).filter(|(a, b)| best(a) == best(b)).count();
    assert!(same as f64 >= 0.97 * n as f64, "{model}: the best token agrees at {same} of {n} positions");
    let targets = parts.iter().flat_map(|part| (7..part.len()).step_by(8).map(|i| part.get(i + 1).map_or(0, |t| t.0 as usize)));
    let moved: f64 = rows[0].iter().zip(&rows[1]).zip(targets).map(|((a, b), t)| (a[t] - b[t]).abs()).sum::<f64>() / n as f64;
    assert!(moved <= 0.05, "{model}: log-probabilities of the text move by {moved} on average");
}

#[test]
fn q8_0_is_near_f16_on_smollm2() {
    near_f16("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2.json");
}

#[test]
fn q8_0_is_near_f16_on_gemma3_past_its_window() {
    near_f16("gemma-3-270m-q4_k_m.gguf", "gemma3.json");
}

#[test]
fn heads_that_are_no_whole_blocks_are_refused_by_name() {
    let Some(path) = case("hostile/m01_valid_tiny_f32.gguf") else { return };
    let error = plan(&path, &options(KvElem::Q8_0, 64)).unwrap_err();
    assert!(matches!(error, selvedge::Error::Plan(PlanError::KvHead { kv: "q8_0", block: 32, d_head: 8, .. })), "{error}");
    let options = ModelOptions { backend: BackendOptions { n_threads: 1, ..BackendOptions::default() }, ..options(KvElem::F16, 64) };
    let mut session = Model::open(&path, &options).unwrap().session().unwrap();
    let mut last = Vec::new();
    session.logits(&[TokenId(1), TokenId(5), TokenId(9)], 3, &CancelToken::new(), &mut |_, l| last = log_softmax(l)).unwrap();
    assert_eq!(best(&last), 61);
}
