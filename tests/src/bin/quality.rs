//! Quality against the f32 reference, as JSON: KL divergence over all positions of `gpl2k`, perplexity of `gpl9k`.
//!
//! usage: quality MODEL.gguf GOLDEN.json [ISA]
//!
//! The reference backend gives the whole distributions; it is itself held against the golden values (`nll` of every
//! position), so that a fault of the reference can't hide one of the CPU backend.

use selvedge::{BackendOptions, CancelToken, KvElem, Model, ModelOptions, PlanOptions, Session, TokenId};
use serde_json::{Value, json};
use std::error::Error;

fn session(path: &str, backend: &str, isa: Option<String>, kv: KvElem, n_ctx: usize) -> Result<Session, Box<dyn Error>> {
    let options = ModelOptions {
        plan: PlanOptions { n_ctx: Some(n_ctx), kv, max_wanted: 16, ..PlanOptions::default() },
        backend: BackendOptions { backend: Some(backend.into()), isa, ..BackendOptions::default() },
        ..ModelOptions::default()
    };
    Ok(Model::open(path.as_ref(), &options)?.session()?)
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    logits.iter().map(|&x| f64::from(x - max) - sum.ln()).collect()
}

fn best(logits: &[f32]) -> usize {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0)
}

fn ids(text: &Value) -> Vec<TokenId> {
    text["ids"].as_array().into_iter().flatten().filter_map(|x| Some(TokenId(x.as_u64()? as u32))).collect()
}

fn median(mut xs: Vec<f64>) -> f64 {
    xs.sort_by(f64::total_cmp);
    let n = xs.len();
    if n == 0 { f64::NAN } else { (xs[n / 2] + xs[(n - 1) / 2]) / 2.0 }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, golden, rest @ ..] = args.as_slice() else { return Err("usage: quality MODEL.gguf GOLDEN.json [ISA]".into()) };
    let golden: Value = serde_json::from_slice(&std::fs::read(golden)?)?;
    let cancel = CancelToken::new();
    let text = &golden["texts"]["gpl2k"];
    let tokens = ids(text);
    let mut reference = session(path, "reference", None, KvElem::F32, tokens.len())?;
    let mut cpu = session(path, "cpu", rest.first().cloned(), KvElem::F16, tokens.len())?;
    // In parts, so that two sets of distributions fit in memory whatever the vocabulary.
    let (mut kl, mut same, mut worst_nll) = (Vec::new(), 0, 0.0_f64);
    let part = 64;
    let mut done = 0;
    let mut expected: Vec<Vec<f32>> = Vec::new();
    let mut found: Vec<Vec<f32>> = Vec::new();
    while done < tokens.len() {
        let end = (done + part).min(tokens.len());
        expected.clear();
        found.clear();
        reference.logits_after(done, &tokens[done..end], part, &cancel, &mut |_, l| expected.push(l.to_vec()))?;
        cpu.logits_after(done, &tokens[done..end], part, &cancel, &mut |_, l| found.push(l.to_vec()))?;
        for (i, (e, f)) in expected.iter().zip(&found).enumerate() {
            let (p, q) = (log_softmax(e), log_softmax(f));
            kl.push(p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>());
            same += u32::from(best(e) == best(f));
            if let (Some(next), Some(nll)) = (tokens.get(done + i + 1), text["nll"][done + i].as_f64()) {
                worst_nll = worst_nll.max((nll + p[next.0 as usize]).abs());
            }
        }
        done = end;
    }
    drop(reference);
    let text = &golden["texts"]["gpl9k"];
    let tokens = ids(text);
    let mut cpu = session(path, "cpu", rest.first().cloned(), KvElem::F16, tokens.len())?;
    let mut nll = Vec::new();
    cpu.logits(&tokens, 512, &cancel, &mut |i, l| {
        if let Some(next) = tokens.get(i + 1) {
            nll.push(-log_softmax(l)[next.0 as usize]);
        }
    })?;
    let ppl = (nll.iter().sum::<f64>() / nll.len() as f64).exp();
    let positions = kl.len() as f64;
    let kl_mean = kl.iter().sum::<f64>() / positions;
    let result = json!({
        "model": golden["model"],
        "positions": positions,
        "kl_mean": kl_mean,
        "kl_median": median(kl),
        "argmax_agreement": f64::from(same) / positions,
        "reference_worst_nll_error": worst_nll,
        "gpl9k_tokens": tokens.len(),
        "gpl9k_ppl": ppl,
        "gpl9k_ppl_reference": text["ppl"],
        "gpl9k_ppl_ratio": ppl / text["ppl"].as_f64().unwrap_or(f64::NAN),
    });
    println!("{result}");
    Ok(())
}
