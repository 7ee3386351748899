//! What the suites of the command share: the binary, the cases, folders that go away.

#![allow(dead_code)] // Each suite uses a part.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// The collected cases; `None`, with a word about it, where there are none and none are demanded.
pub(crate) fn cases() -> Option<PathBuf> {
    let named = std::env::var_os("SELVEDGE_CASES").map(PathBuf::from);
    let folder = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases"));
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var_os("SELVEDGE_REQUIRE_CASES").is_none_or(|v| v != "1"), "no cases folder at {}", folder.display());
    println!("skipped: no cases folder");
    None
}

/// A model of one layer with a chat template, `[role]content` for each message, and 128 positions.
pub(crate) fn tiny() -> Option<PathBuf> {
    Some(cases()?.join("hostile/p01_tpl_ok.gguf"))
}

/// A real model, where it was fetched.
pub(crate) fn real(name: &str) -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/selvedge/models"));
    let path = std::env::var_os("SELVEDGE_MODELS").map(PathBuf::from).or_else(home)?.join(name);
    if path.is_file() {
        return Some(path);
    }
    println!("skipped: {name} is not there");
    None
}

/// Where the tests' packed weights are kept, instead of the user's own cache.
pub(crate) const PACKS: (&str, &str) = ("SELVEDGE_PACKS", concat!(env!("CARGO_TARGET_TMPDIR"), "/cli-packs"));

/// The command.
pub(crate) fn selvedge() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
    command.env(PACKS.0, PACKS.1);
    command
}

/// Runs the command with arguments.
pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    selvedge().args(args).output().expect("the binary runs")
}

/// Standard output as text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("standard output is UTF-8")
}

/// Standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The one JSON value on standard output of a command that succeeded.
pub(crate) fn json(output: &Output) -> serde_json::Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stdout(output)))
}

/// A folder of its own for a test, removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("selvedge-cli-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder for the test");
        Folder(folder)
    }

    /// Writes a file and gives its path as text.
    pub(crate) fn file(&self, name: &str, content: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, content).expect("a file for the test");
        path.to_str().expect("a path in UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
