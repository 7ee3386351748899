//! Architectures against values that others computed: the tiny models of `cases/arch` (transformers and llama.cpp agree
//! on them), tiny models of our own, hostile files, and the two real models.

mod support;

use selvedge_core::arch::rope::{Divisors, Scaling};
use selvedge_core::arch::{ARCHITECTURES, Architecture, DecoderConfig};
use selvedge_core::graph::{self, Fusions};
use selvedge_core::model::{ModelError, ModelFile};
use selvedge_gguf::TensorType;
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

/// Both sides compute in f32 over the same weights; 1e-5 was seen. Any feature left out costs far more.
const TOLERANCE: f64 = 1e-4;

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
                check(&format!("{file} in chunks of {chunk}"), &logits, entry, TOLERANCE);
            }
            n_checked += 1;
        }
    }
    assert!(n_checked >= 20, "only {n_checked} files were checked");
}

/// Weight types whose products take 8-bit activations on the CPU.
fn lattice(ty: TensorType) -> bool {
    ty.row().lattice.is_some()
}

#[test]
fn fused_graphs_compute_the_same() {
    let Some(folder) = cases("arch") else { return };
    let expected: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let mut n_checked = 0;
    for (_, entry) in expected.as_object().unwrap() {
        for file in [&entry["file"], &entry["file_quant"]].into_iter().filter_map(Value::as_str) {
            let path = folder.join(file);
            if Architecture::of(&ModelFile::open(&path).unwrap()).is_err() {
                continue;
            }
            let model = Model::open(&path, 512);
            let tokens = ids(&entry["tokens"]);
            let plain = model.logits(&tokens, tokens.len()).unwrap();
            let fused = graph::fuse(&model.graph, &Fusions { act8: lattice, merge: true }).unwrap();
            assert_eq!(model.logits_of(&fused, &tokens, tokens.len(), 1).unwrap(), plain, "{file}:\n{}", fused.dump());
            // What a layer may cost at most: norms, quantisations, products, turned queries, store, attention.
            let n_norms = 2 + 2 * usize::from(model.arch.config.qk_norm) + 2 * usize::from(model.arch.config.post_norms);
            let per_layer = n_norms + 4 + 3 + 2 * usize::from(fused.dump().contains(".q8"));
            let n_layer = model.arch.config.n_layer();
            let of_layers = fused.nodes.iter().filter(|n| n.layer.is_some()).count();
            assert_eq!(of_layers, per_layer * n_layer, "{file}:\n{}", fused.dump());
            n_checked += 1;
        }
    }
    assert!(n_checked >= 20, "only {n_checked} files were checked");
}

/// A change to a configuration that takes one feature away.
type Break = fn(&mut DecoderConfig);

/// `(entry, feature in its table of sensitivities, change)`
const BROKEN: [(&str, &str, Break); 20] = [
    ("llama", "rope base 1e5", |c| c.ropes[0].base = 1e5),
    ("llama", "no RoPE (base 1e30)", |c| c.ropes[0].base = 1e30),
    ("llama_rope_llama3", "no scaling", |c| c.ropes[0].divisors = Divisors::None),
    ("llama_rope_yarn", "no scaling", |c| c.ropes[0].scaling = Scaling::None),
    ("llama_rope_yarn", "linear 4", |c| c.ropes[0].scaling = Scaling::Linear { factor: 4.0 }),
    ("llama_rope_yarn", "original context 512", |c| {
        if let Scaling::Yarn(yarn) = &mut c.ropes[0].scaling {
            yarn.n_ctx_orig = 512.0;
        }
    }),
    ("phi3_longrope_long", "short factors", |c| c.ropes[0].divisors = Divisors::ByContext { n_ctx_orig: 512 }),
    ("phi3_longrope_long", "attention factor 1", |c| c.ropes[0].magnitude = 1.0),
    ("gemma2", "no window", |c| c.layers.iter_mut().for_each(|l| l.window = None)),
    ("gemma2", "window 9", |c| c.layers.iter_mut().for_each(|l| l.window = l.window.map(|w| w + 1))),
    ("gemma2", "windows on the other layers", |c| {
        c.layers.iter_mut().for_each(|l| l.window = if l.window.is_some() { None } else { Some(8) });
    }),
    ("gemma2", "no attention cap", |c| c.attention_soft_cap = None),
    ("gemma2", "no final cap", |c| c.final_soft_cap = None),
    ("gemma3", "no window", |c| c.layers.iter_mut().for_each(|l| l.window = None)),
    ("gemma3", "window 9", |c| c.layers.iter_mut().for_each(|l| l.window = l.window.map(|w| w + 1))),
    ("gemma3", "one base 1e6", |c| c.layers.iter_mut().for_each(|l| l.rope = Some(0))),
    ("gemma3", "one base 1e4", |c| c.layers.iter_mut().for_each(|l| l.rope = Some(1))),
    ("granite", "attention 0.25 (default scale)", |c| c.attention_scale = 0.25),
    ("granite", "embedding 1", |c| c.embedding_scale = 1.0),
    ("granite", "residual 1", |c| c.residual_scale = 1.0),
];

#[test]
fn taking_a_feature_away_changes_logits_as_much_as_in_transformers() {
    let Some(folder) = cases("arch") else { return };
    let expected: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    for (name, feature, change) in BROKEN {
        let entry = &expected[name];
        let model = Model::open(&folder.join(entry["file"].as_str().unwrap()), 512);
        let tokens = ids(&entry["tokens"]);
        let right = model.logits(&tokens, tokens.len()).unwrap();
        let mut config = model.arch.config.clone();
        change(&mut config);
        let broken = model.logits_of(&config.build(&model.file, 512).unwrap(), &tokens, tokens.len(), 1).unwrap();
        let worst = right.iter().flatten().zip(broken.iter().flatten()).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        let Some(in_transformers) = entry["sensitivity"][feature].as_f64() else { panic!("{name} has no `{feature}`: {}", entry["sensitivity"]) };
        assert!((worst / in_transformers - 1.0).abs() < 0.01, "{name} without `{feature}`: {worst}, in transformers {in_transformers}");
    }
}
