//! Where tests find their data.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};

/// The cases folder, or `None` after a line that says so. With `SELVEDGE_REQUIRE_CASES=1` its absence is a failure.
pub fn cases() -> Option<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases");
    let dir = std::env::var_os("SELVEDGE_CASES").map_or(default, PathBuf::from);
    if dir.join("hostile/manifest.json").is_file() {
        return Some(dir);
    }
    assert!(
        std::env::var_os("SELVEDGE_REQUIRE_CASES").is_none_or(|v| v != "1"),
        "no cases folder at {}",
        dir.display()
    );
    println!("skipped: no cases folder");
    None
}

/// Real models on this machine: the folder of `SELVEDGE_MODELS`, or the cache that `selvedge pull` fills.
pub fn models() -> Vec<PathBuf> {
    let cache =
        std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/selvedge/models"));
    let dir = std::env::var_os("SELVEDGE_MODELS")
        .map(PathBuf::from)
        .or(cache);
    let found = dir.map_or_else(Vec::new, |dir| gguf_files(&dir));
    if found.is_empty() {
        println!("skipped: no models folder");
    }
    found
}

/// The files of a folder that end in `.gguf`, sorted.
pub fn gguf_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|ext| ext == "gguf"))
        .collect();
    files.sort();
    files
}
