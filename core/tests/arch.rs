//! Architectures against values that others computed: the tiny models of `cases/arch` (transformers and llama.cpp agree
//! on them), tiny models of our own, hostile files, and the two real models.

mod support;

use selvedge_core::arch::{ARCHITECTURES, Architecture};
use selvedge_core::model::{ModelError, ModelFile};
use serde_json::Value;
use support::{Model, argmax, cases, logsumexp};

fn floats(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

/// Compares logits of all positions with an entry of `expected.json`.
fn check(name: &str, logits: &[Vec<f32>], entry: &Value, tolerance: f64) {
    let last = &logits[logits.len() - 1];
    let worst = last.iter().zip(floats(&entry["logits_last"])).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
    assert!(worst < tolerance, "{name}: last logits differ by {worst}, more than {tolerance}");
    let (sums, margins) = (floats(&entry["logsumexp"]), floats(&entry["argmax_margin"]));
    for (pos, (row, &best)) in logits.iter().zip(&ids(&entry["argmax"])).enumerate() {
        let diff = (logsumexp(row) - sums[pos]).abs();
        assert!(diff < tolerance, "{name}, position {pos}: logsumexp differs by {diff}, more than {tolerance}");
        if margins[pos] > 2.0 * tolerance {
            assert_eq!(argmax(row) as u32, best, "{name}, position {pos}: best id");
        }
    }
}

/// GELU in its tanh form: transformers and ggml round it differently.
fn tolerance(arch: &str) -> f64 {
    if arch.starts_with("gemma") { 1e-2 } else { 1e-3 }
}

#[test]
fn tiny_models_give_the_logits_of_transformers() {
    let Some(folder) = cases("arch") else { return };
    let expected: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let mut n_checked = 0;
    for (name, entry) in expected.as_object().unwrap() {
        let arch = entry["arch"].as_str().unwrap();
        let known = ARCHITECTURES.iter().any(|s| s.gguf_name == arch);
        for file in [&entry["file"], &entry["file_quant"]].into_iter().filter_map(Value::as_str) {
            let path = folder.join(file);
            let opened = ModelFile::open(&path).unwrap();
            match Architecture::of(&opened) {
                Ok(_) => {}
                Err(ModelError::UnknownArchitecture { found, known: list }) if !known => {
                    assert!(found == arch && list.contains("llama"), "{name}");
                    continue;
                }
                Err(ModelError::Unsupported { what, .. }) if name == "mixtral" => {
                    assert_eq!(what, "mixture of experts");
                    continue;
                }
                Err(e) => panic!("{file}: {e}"),
            }
            assert!(known && name != "mixtral", "{file} must be refused");
            let tokens = ids(&entry["tokens"]);
            let model = Model::open(&path, entry["n_ctx"].as_u64().unwrap() as usize);
            for chunk in [tokens.len(), 5, 1] {
                let logits = model.logits(&tokens, chunk).unwrap();
                check(&format!("{file} in chunks of {chunk}"), &logits, entry, tolerance(arch));
            }
            n_checked += 1;
        }
    }
    assert!(n_checked >= 20, "only {n_checked} files were checked");
}
