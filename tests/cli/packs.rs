//! Packed weights on the command line: `pack`, `--weights`, `--pack-dir`, and what `plan` and `inspect` say of them.

use crate::support::{Folder, json as parsed, run, selvedge, stderr, stdout};
use crate::{keys, refused};
use serde_json::{Value, json};
use std::path::Path;

/// Names in a folder that end so.
fn names(folder: &Path, end: &str) -> Vec<String> {
    let all = std::fs::read_dir(folder).map(|entries| entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>());
    let mut names: Vec<String> = all.unwrap_or_default().into_iter().filter(|name| name.ends_with(end)).collect();
    names.sort();
    names
}

/// The hash of some logits.
fn hash(folder: &Folder, model: &str, more: &[&str]) -> Value {
    let ids = folder.file("ids.json", "[1,5,9]");
    let output = run(&[&["score", "-m", model, "--ids", &ids], more].concat());
    let score = parsed(&output);
    assert!(output.stderr.is_empty(), "{more:?}: {}", stderr(&output));
    score["logits_sha256"].clone()
}

fn plan(model: &str, more: &[&str]) -> Value {
    parsed(&run(&[&["plan", "-m", model, "--json"], more].concat()))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn pack_keeps_weights_for_later_loads() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    let dir = folder.0.join("packs");
    let at = ["--pack-dir", text(&dir)];
    let before = plan(&model, &at);
    assert!(before["weights_why"].as_str().unwrap().contains("packed when first loaded"), "{before}");
    let packed = parsed(&run(&[&["pack", "-m", &model, "--json", "-t", "1"], &at[..]].concat()));
    assert_eq!(keys(&packed), ["dir", "packs", "removed", "removed_bytes"]);
    let [name] = &names(&dir, ".gguf")[..] else { panic!("{packed}") };
    let path = dir.join(name);
    let n_bytes = path.metadata().unwrap().len();
    assert_eq!(packed["packs"], json!([{ "file": text(&path), "bytes": n_bytes }]));
    assert_eq!((&packed["dir"], &packed["removed"], &packed["removed_bytes"]), (&json!(text(&dir)), &json!(0), &json!(0)));
    // Made once; for people, the same in a line.
    let modified = path.metadata().unwrap().modified().unwrap();
    let output = run(&[&["pack", "-m", &model], &at[..]].concat());
    assert_eq!(stdout(&output), format!("{}: {n_bytes} bytes\n", text(&path)));
    assert!(output.stderr.is_empty() && path.metadata().unwrap().modified().unwrap() == modified, "{}", stderr(&output));
    // What it is mapped for.
    let mapped = plan(&model, &[&at[..], &["--weights", "mapped"]].concat());
    assert_eq!((&mapped["weights"], &mapped["anonymous"]["pack"]), (&json!("mapped"), &json!(0)));
    assert_eq!(mapped["weights_why"], json!(format!("mapped from {}", text(&path))));
    let resident = plan(&model, &[&at[..], &["--weights", "resident"]].concat());
    let pack = resident["anonymous"]["pack"].as_u64().unwrap();
    assert_eq!((&resident["weights"], &resident["weights_why"]), (&json!("resident"), &json!(format!("copied from {}", text(&path)))));
    let file = std::fs::metadata(&model).unwrap().len();
    assert_eq!((&resident["mapped"], &mapped["mapped"]), (&json!(file), &json!(file + pack)));
    // No folder, by an empty name or an empty variable.
    let nowhere = plan(&model, &["--pack-dir", "", "--weights", "mapped"]);
    assert_eq!((&nowhere["weights"], &nowhere["anonymous"]["pack"]), (&json!("resident"), &json!(pack)));
    assert!(nowhere["weights_why"].as_str().unwrap().contains("packed in memory at every load"), "{nowhere}");
    let output = selvedge().args(["plan", "-m", &model, "--json"]).env("SELVEDGE_PACKS", "").output().unwrap();
    assert_eq!(parsed(&output)["weights_why"], nowhere["weights_why"]);
    let null = plan(&model, &["--backend", "null"]);
    assert_eq!(null["weights"], "plain");
    // For people.
    let table = stdout(&run(&[&["plan", "-m", &model, "--weights", "mapped"], &at[..]].concat()));
    assert!(table.lines().any(|l| l.starts_with("weights ") && l.contains(name)), "{table}");
    // The same bits in every mode.
    let want = hash(&folder, &model, &["--pack-dir", ""]);
    for mode in ["mapped", "resident", "auto"] {
        assert_eq!(hash(&folder, &model, &[&at[..], &["--weights", mode]].concat()), want, "{mode}");
    }
    // Limits and cleaning.
    let other = Path::new(&model).with_file_name("m03_valid_tiny_untied.gguf");
    let limit = (n_bytes + 1000).to_string();
    let refused_pack = run(&[&["pack", "-m", text(&other), "--pack-limit", "1000"], &at[..]].concat());
    assert!(refused_pack.status.code() == Some(1) && stderr(&refused_pack).contains("the limit of 1000"), "{}", stderr(&refused_pack));
    let both = parsed(&run(&[&["pack", "-m", text(&other), "--json"], &at[..]].concat()));
    assert_eq!((names(&dir, ".gguf").len(), &both["removed"]), (2, &json!(0)));
    let pruned = parsed(&run(&[&["pack", "--pack-limit", &limit, "--json"], &at[..]].concat()));
    assert_eq!((&pruned["packs"], &pruned["removed"]), (&json!([]), &json!(if names(&dir, ".gguf").is_empty() { 2 } else { 1 })));
    std::fs::write(dir.join("model.gguf"), "a person's own").unwrap();
    let output = run(&[&["pack", "--clean"], &at[..]].concat());
    assert!(stdout(&output).contains("taken out of") && output.stderr.is_empty(), "{}", stdout(&output));
    assert_eq!(names(&dir, ""), ["model.gguf"]);
    let again = parsed(&run(&[&["pack", "--clean", "--json"], &at[..]].concat()));
    assert_eq!((&again["removed"], &again["removed_bytes"]), (&json!(0), &json!(0)));
}

#[test]
fn pack_writes_a_file_that_ships() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    let out = folder.0.join("shipped.gguf");
    let written = parsed(&run(&["pack", "-m", &model, "-o", text(&out), "--json"]));
    assert_eq!(written, json!({ "file": text(&out), "bytes": out.metadata().unwrap().len() }));
    let output = run(&["pack", "-m", &model, "--out", text(&out)]);
    assert_eq!(stdout(&output), format!("{}: {} bytes\n", text(&out), written["bytes"]));
    assert_eq!(names(&folder.0, ""), ["shipped.gguf"]);
    let want = hash(&folder, &model, &[]);
    for more in [&["--pack-dir", ""][..], &["--weights", "resident"], &["--validate"], &["--isa", "scalar", "-t", "1"]] {
        assert_eq!(hash(&folder, text(&out), more), want, "{more:?}");
    }
    // It speaks as its source does.
    let reply = |model: &str| parsed(&run(&["run", "-m", model, "-p", "hi", "-n", "4", "--temp", "0", "--json"]))["ids"].clone();
    assert_eq!(reply(text(&out)), reply(&model));
    let shown = plan(text(&out), &["--weights", "mapped"]);
    assert_eq!((&shown["mapped"], &shown["anonymous"]["pack"]), (&written["bytes"], &json!(0)));
    assert_eq!(shown["weights_why"], json!(format!("mapped from {}", text(&out))));
    // A pack is a GGUF file like any other.
    let inside = parsed(&run(&["inspect", text(&out), "--json"]));
    let metadata = &inside["metadata"];
    assert_eq!((&metadata["selvedge.pack.form"], &metadata["general.architecture"]), (&json!("cpu-2"), &json!("llama")));
    assert_eq!(metadata["selvedge.pack.source"].as_str().unwrap().len(), 64);
    let tensor = |name: &str| inside["tensors"].as_array().unwrap().iter().find(|t| t["name"] == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(tensor("token_embd.weight.packed")["type"], "I8");
    assert_eq!(tensor("output_norm.weight")["type"], "F32");
    assert!(inside["tensors"].as_array().unwrap().iter().all(|t| t["offset"].as_u64().unwrap() % 64 == 0));
    assert!(stdout(&run(&["inspect", text(&out)])).contains("selvedge.pack.tensor"));
    // Nothing but the CPU's kernels reads it, and it isn't packed twice.
    refused(&["run", "-m", text(&out), "-p", "hi", "--backend", "reference"], 1, "use the model that it was packed from");
    refused(&["pack", "-m", text(&out)], 1, "packed already");
    refused(&["pack", "-m", text(&out), "--out", text(&folder.0.join("again.gguf"))], 1, "packed already");
    // One that is damaged can be looked into.
    let mut bytes = std::fs::read(&out).unwrap();
    let at = bytes.windows(18).position(|w| w == b"selvedge.pack.type").unwrap();
    bytes[at..][..18].copy_from_slice(b"selvedge.pack.typo");
    std::fs::write(&out, bytes).unwrap();
    refused(&["plan", "-m", text(&out)], 1, "selvedge.pack.type");
    assert_eq!(run(&["inspect", text(&out)]).status.code(), Some(0));
}

#[test]
fn pack_says_what_it_cannot_do() {
    let model = tiny_or_skip!();
    let folder = Folder::new();
    let file = folder.file("file", "");
    let m = model.as_str();
    // Options that contradict each other.
    refused(&["pack", "-m", m, "--out", "x", "--clean"], 2, "--clean");
    refused(&["pack", "-m", m, "--out", "x", "--pack-dir", "y"], 2, "--pack-dir");
    refused(&["pack", "-m", m, "--out", "x", "--pack-limit", "1G"], 2, "--pack-limit");
    refused(&["pack", "-m", m, "--clean"], 2, "--model");
    refused(&["pack", "--clean", "--pack-limit", "1G"], 2, "--pack-limit");
    refused(&["pack", "-m", m, "--pack-limit", "much"], 2, "512M");
    refused(&["pack", "-m", m, "--pack-dir", ""], 2, "--pack-dir");
    refused(&["run", "-m", m, "-p", "a", "--weights", "floating"], 2, "resident");
    // Places that take nothing.
    refused(&["pack", "-m", m, "--pack-dir", &file], 1, &file);
    refused(&["pack", "--clean", "--pack-dir", &file], 1, &file);
    refused(&["pack", "-m", m, "--out", text(&folder.0)], 1, "is a folder");
    refused(&["pack", "-m", m, "--out", text(&folder.0.join("no/such.gguf"))], 1, "no/such.gguf");
    let own = folder.0.join("own.gguf");
    std::fs::write(&own, std::fs::read(m).unwrap()).unwrap();
    refused(&["pack", "-m", text(&own), "--out", text(&own)], 1, "the model's own file");
    refused(&["pack", "-m", "no-such.gguf", "--pack-dir", text(&folder.0)], 1, "no-such.gguf");
    if cfg!(target_os = "linux") {
        refused(&["pack", "-m", m, "--pack-dir", "/proc/self"], 1, "/proc/self");
    }
    assert_eq!(names(&folder.0, ""), ["file", "own.gguf"]);
    // A load goes on without, and says so.
    let ids = folder.file("ids.json", "[1,5,9]");
    let output = run(&["score", "-m", m, "--ids", &ids, "--pack-dir", &file]);
    let said = stderr(&output);
    assert!(output.status.success() && said.contains(&file) && said.contains("packed in memory") && said.lines().count() == 1, "{said}");
    assert!(plan(m, &["--pack-dir", &file])["weights_why"].as_str().unwrap().contains(&file));
}
