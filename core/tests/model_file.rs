//! Opening models: hostile files, truncations of a real one, split sets, foreign byte order, files that change.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use selvedge_core::arch::{Architecture, unused_tensors};
use selvedge_core::backend::BackendError;
use selvedge_core::graph::VerifiedGraph;
use selvedge_core::model::{Access, ModelError, ModelFile};
use selvedge_gguf::{Endian, Gguf, Writer};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::{Model, argmax, cases, real_model};

/// Opens a model and builds its graph, as `plan` does.
fn load(path: &Path) -> Result<(ModelFile, VerifiedGraph), ModelError> {
    let file = ModelFile::open(path)?;
    let graph = Architecture::of(&file)?.build(&file, 4096)?;
    Ok((file, graph))
}

/// A file of a test's own.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("model_file");
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

fn error(path: &Path) -> ModelError {
    load(path).map(|_| ()).expect_err(&format!("{} must be refused", path.display()))
}

/// What an error's sentence must name, beside the manifest's verdict.
const NAMED: [(&str, &str); 18] = [
    ("h16", "general.architecture"),
    ("k29", "general.architecture"),
    ("m05", "nosuch"),
    ("m05", "qwen3"),
    ("m07", "llama.block_count"),
    ("m09", "llama.attention.head_count_kv"),
    ("m11", "token_embd.weight"),
    ("m13", "blk.0.ffn_down.weight"),
    ("m15", "blk.0.ffn_down.weight"),
    ("m15", "expected"),
    ("m17", "llama.rope.dimension_count"),
    ("m20", "llama.attention.layer_norm_rms_epsilon"),
    ("m22", "llama.rope.freq_base"),
    ("m24", "llama.embedding_length"),
    ("s1-00002", "s1-00001-of-00002.gguf"),
    ("s2", "s2-00002-of-00002.gguf"),
    ("s5-00001", "token_embd.weight"),
    ("s5-00002", "s5-00001-of-00002.gguf"),
];

#[test]
fn hostile_models_get_their_verdict() {
    let Some(folder) = cases("hostile") else { return };
    let manifest: Value = serde_json::from_slice(&std::fs::read(folder.join("manifest.json")).unwrap()).unwrap();
    let mut n_checked = 0;
    for entry in manifest.as_array().unwrap() {
        let name = entry["file"].as_str().unwrap();
        // What tokenizer, template and adapters refuse, those test; as models they must load or be refused in words.
        let ours = matches!(entry["area"].as_str(), Some("kv" | "model" | "split" | "header" | "tensor" | "tensors"));
        let start = Instant::now();
        let result = load(&folder.join(name));
        let took = start.elapsed();
        assert!(took < Duration::from_millis(500), "{name} took {took:?}");
        let is_model = entry["stage"] == "model" && ours;
        if is_model && (entry["firm"] == true || name.starts_with('m')) {
            let expected_error = entry["expect"] == "error";
            assert_eq!(result.is_err(), expected_error, "{name}: {:?}", result.err());
            n_checked += 1;
        }
        if let Err(e) = &result {
            let sentence = e.to_string();
            assert!(!sentence.contains('\n') && sentence.len() < 600, "{name}: {sentence}");
            for (_, part) in NAMED.iter().filter(|(file, _)| name.starts_with(file)) {
                assert!(sentence.contains(part), "{name}: `{part}` isn't named in: {sentence}");
            }
        } else {
            assert!(!NAMED.iter().any(|(file, _)| name.starts_with(file)), "{name} must be refused");
        }
    }
    assert!(n_checked >= 15, "only {n_checked} verdicts were checked");
}

/// `(file, tokens, [(id, logit)], sum of all logits)`: values of an f64 computation.
type Control = (&'static str, &'static [u32], &'static [(usize, f32)], Option<f32>);

const CONTROLS: [Control; 7] = [
    ("m01_valid_tiny_f32.gguf", &[1, 5, 9], &[(61, 1.83311), (85, 1.59890), (261, 1.54661), (119, 1.49133), (128, 1.41188)], Some(5.74242)),
    (
        "m01_valid_tiny_f32.gguf",
        &[1, 5, 9, 20, 33, 47, 60],
        &[(220, 1.75567), (176, 1.60152), (175, 1.55937), (209, 1.55547), (256, 1.38805)],
        None,
    ),
    ("m01_valid_tiny_f32.gguf", &[1], &[(139, 1.53260), (145, 1.52000)], None),
    ("m02_valid_tiny_q8_0.gguf", &[1, 5, 9], &[(61, 1.83942)], None),
    ("m03_valid_tiny_untied.gguf", &[1, 5, 9], &[(194, 1.92723)], None),
    ("n10_qk_beyond_f16.gguf", &[1, 5, 9], &[(10, 1.82488)], None),
    ("s1-00001-of-00002.gguf", &[1, 5, 9], &[(61, 1.83311)], Some(5.74242)),
];

#[test]
fn control_models_give_the_values_of_an_f64_computation() {
    let Some(folder) = cases("hostile") else { return };
    for (name, tokens, best, sum) in CONTROLS {
        let logits = Model::open(&folder.join(name), 64).logits(tokens, tokens.len()).unwrap();
        let last = &logits[tokens.len() - 1];
        assert_eq!(argmax(last), best[0].0, "{name}");
        for &(id, logit) in best {
            assert!((last[id] - logit).abs() < 1e-4, "{name}: logit of {id} is {}, expected {logit}", last[id]);
        }
        if let Some(sum) = sum {
            assert!((last.iter().sum::<f32>() - sum).abs() < 1e-3, "{name}: sum of logits");
        }
    }
}

#[test]
fn damaged_numbers_are_errors_that_name_their_place() {
    let Some(folder) = cases("hostile") else { return };
    for (name, place) in [("n01_q8_scale_nan.gguf", "blk.0.Qcur"), ("n09_q8_scale_nan_ffn.gguf", "blk.0.ffn_out")] {
        match Model::open(&folder.join(name), 64).logits(&[1, 5, 9], 3) {
            Err(BackendError::NonFinite { node, layer: Some(0) }) => assert_eq!(node, place, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    let finite = Model::open(&folder.join("n04_q8_scale_subnormal.gguf"), 64).logits(&[1, 5, 9], 3).unwrap();
    assert!(finite.iter().flatten().all(|x| x.is_finite()));
}

#[test]
fn unused_tensors_are_listed() {
    let Some(folder) = cases("hostile") else { return };
    let (file, graph) = load(&folder.join("m27_extra_tensor.gguf")).unwrap();
    assert_eq!(unused_tensors(&file, &graph).len(), 1);
    let (file, graph) = load(&folder.join("m01_valid_tiny_f32.gguf")).unwrap();
    assert_eq!(unused_tensors(&file, &graph), [""; 0]);
}

#[test]
fn truncations_of_a_real_model_are_refused_at_once() {
    let Some(path) = real_model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let copy = scratch("truncated.gguf");
    std::fs::copy(&path, &copy).unwrap();
    let len = std::fs::metadata(&copy).unwrap().len();
    let data_start = ModelFile::open(&copy).unwrap().gguf().unwrap().data_start;
    let handle = std::fs::OpenOptions::new().write(true).open(&copy).unwrap();
    for cut in [len - 1, len - 4096, data_start + 1, data_start, data_start - 1, 4096, 24, 0] {
        handle.set_len(cut).unwrap();
        let start = Instant::now();
        let e = error(&copy);
        let took = start.elapsed();
        assert!(matches!(e, ModelError::Gguf { .. }), "cut to {cut}: {e}");
        assert!(took < Duration::from_millis(200), "cut to {cut} took {took:?}");
    }
    std::fs::remove_file(&copy).unwrap();
}

#[test]
fn what_is_no_file_is_refused() {
    assert!(matches!(error(Path::new(env!("CARGO_MANIFEST_DIR"))), ModelError::NotAFile { .. }));
    assert!(matches!(error(Path::new("/dev/null")), ModelError::NotAFile { .. }));
    let e = error(&scratch("never-there.gguf"));
    assert!(matches!(e, ModelError::Io { .. }) && e.to_string().contains("never-there.gguf"), "{e}");
}

#[test]
fn changes_to_an_open_file_are_noticed() {
    let Some(folder) = cases("hostile") else { return };
    let path = scratch("changing.gguf");
    let fresh = || {
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, std::fs::read(folder.join("m01_valid_tiny_f32.gguf")).unwrap()).unwrap();
        ModelFile::open(&path).unwrap()
    };
    let write = || std::fs::OpenOptions::new().write(true).open(&path).unwrap();

    let file = fresh();
    for access in [Access::Sequential, Access::Soon, Access::Normal] {
        file.advise(access);
    }
    file.check_unchanged().unwrap();
    let len = std::fs::metadata(&path).unwrap().len();
    assert_eq!(file.mapped_bytes() as u64, len);
    assert!(file.anonymous_bytes() < 4096, "the table of {} tensors takes {} bytes", file.n_tensors(), file.anonymous_bytes());

    write().set_len(len - 1).unwrap();
    match file.check_unchanged() {
        Err(ModelError::Changed { expected, found, .. }) => assert_eq!((expected, found), (len, len - 1)),
        other => panic!("{other:?}"),
    }

    // Same size, other contents: only the time of the last change tells.
    let file = fresh();
    write().set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
    assert!(matches!(file.check_unchanged(), Err(ModelError::Changed { .. })));

    // A new file under the same name is another file: the old one stays as it was, mapped and open.
    let file = fresh();
    let other = scratch("changing.gguf.new");
    std::fs::write(&other, b"another model").unwrap();
    std::fs::rename(&other, &path).unwrap();
    file.check_unchanged().unwrap();
    assert!(file.gguf().is_ok());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn big_endian_files_are_the_same_models() {
    let Some(folder) = cases("arch") else { return };
    for name in ["llama.f32.gguf", "qwen2.q8.gguf", "llama_q4.q4.gguf", "llama_bf16.bf16.gguf"] {
        let bytes = std::fs::read(folder.join(name)).unwrap();
        let gguf = Gguf::parse(&bytes).unwrap();
        let mut writer = Writer::from_gguf(&gguf);
        writer.endian = Endian::Big;
        let path = scratch(&format!("big-{name}"));
        std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
        assert_eq!(ModelFile::open(&path).unwrap().gguf().unwrap().endian, Endian::Big);
        let (little, big) = (Model::open(&folder.join(name), 64), Model::open(&path, 64));
        assert!(big.file.anonymous_bytes() >= big.file.tensor_bytes());
        assert!(little.file.anonymous_bytes() < 8192);
        assert_eq!(little.logits(&[1, 2, 3, 4], 4).unwrap(), big.logits(&[1, 2, 3, 4], 4).unwrap(), "{name}");
        std::fs::remove_file(&path).unwrap();
    }
}

/// Overwrites the u32 value of a key.
fn patched(bytes: &[u8], key: &str, value: u32) -> Vec<u8> {
    let at = bytes.windows(key.len()).position(|w| w == key.as_bytes()).unwrap() + key.len();
    let mut bytes = bytes.to_vec();
    assert_eq!(bytes[at..at + 4], 4u32.to_le_bytes(), "{key} isn't a u32");
    bytes[at + 4..at + 8].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn absurd_sizes_cost_neither_time_nor_memory() {
    let Some(folder) = cases("hostile") else { return };
    let bytes = std::fs::read(folder.join("m01_valid_tiny_f32.gguf")).unwrap();
    let keys = [
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.rope.dimension_count",
        "llama.context_length",
    ];
    for key in keys {
        for value in [0, 3, 1 << 16, 1 << 31, u32::MAX] {
            let path = scratch("absurd.gguf");
            std::fs::write(&path, patched(&bytes, key, value)).unwrap();
            let start = Instant::now();
            let result = load(&path);
            let took = start.elapsed();
            assert!(took < Duration::from_millis(100), "{key} = {value} took {took:?}");
            // A context length bounds nothing in the graph; all others contradict the tensors.
            let fine = key == "llama.context_length" && value > 0;
            assert_eq!(result.is_ok(), fine, "{key} = {value}: {:?}", result.err());
        }
    }
}

/// Damaged bytes anywhere before the tensors' data, and in it: refused in words, or computed with, but no panic.
#[test]
fn damaged_bytes_never_panic() {
    let Some(folder) = cases("arch") else { return };
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % n
    };
    let (mut n_loaded, mut n_refused) = (0, 0);
    for name in ["gemma3.q8.gguf", "phi3_longrope_long.q8.gguf", "llama_rope_yarn.q8.gguf"] {
        let bytes = std::fs::read(folder.join(name)).unwrap();
        let header = Gguf::parse(&bytes).unwrap().data_start;
        for round in 0..300 {
            let mut damaged = bytes.clone();
            for _ in 0..1 + round % 3 {
                damaged[next(header) as usize] = [0, 1, 0x7f, 0x80, 0xff, next(256) as u8][next(6) as usize];
            }
            let path = scratch("damaged.gguf");
            std::fs::write(&path, &damaged).unwrap();
            match ModelFile::open(&path).and_then(|file| Model::of(file, 64)) {
                Ok(model) => {
                    n_loaded += 1;
                    let _ = model.logits(&[0, 1, 2], 2);
                }
                Err(_) => n_refused += 1,
            }
        }
    }
    assert!(n_loaded > 50 && n_refused > 50, "{n_loaded} loaded, {n_refused} refused");
}
