//! A folder of packs, shared by processes.
//!
//! ```text
//!   NAME.gguf       a pack; NAME is made of the model's hash and the layout's
//!   NAME.lock       held while the pack is being written; its time is that of the last use
//!   NAME.PID.tmp    a pack being written by that process
//!   source-*.json   hashes of models, until their files change
//!   huge-pages      whether mappings of this folder's files come in huge pages, by kernel
//! ```

use super::file::{PackFile, WriteError, write};
use super::source;
use crate::backend::{BackendError, HoldBytes, LoadControl, PACK_CHUNK, PackLayout, PackSink};
use crate::cancel::CancelToken;
use crate::math::NUMERICS;
use crate::model::ModelFile;
use crate::os;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A folder that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("packed weights can't be kept in {}: {source}", dir.display())]
pub struct StoreError {
    /// The folder.
    pub dir: PathBuf,
    /// The system's answer.
    pub source: std::io::Error,
}

/// What cleaning took away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Packs.
    pub n_files: usize,
    /// Their bytes.
    pub n_bytes: u64,
}

/// What a look for a pack found.
#[derive(Debug)]
pub(crate) enum Found {
    /// The pack.
    Pack(PackFile),
    /// None.
    Nothing,
    /// One that can't be used, and why.
    Unusable(String),
}

/// How making a pack ended.
#[derive(Debug)]
pub(crate) enum Made {
    /// In the store, made now or meanwhile by another process.
    Pack(PackFile),
    /// It can't be kept there, and why.
    NotKept(String),
}

/// The folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackStore {
    dir: PathBuf,
    limit: Option<u64>,
}

/// Waiting between two looks at a lock.
const LOCK_EVERY: Duration = Duration::from_millis(10);

impl PackStore {
    /// Uses a folder, made where it isn't there. `limit`: the most bytes that all packs in it may take; those used longest
    /// ago go first.
    ///
    /// # Errors
    /// A folder that can't be made.
    pub fn open(dir: &Path, limit: Option<u64>) -> Result<PackStore, StoreError> {
        let wrong = |source| StoreError { dir: dir.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(wrong)?;
        Ok(PackStore { dir: dir.to_owned(), limit })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, source: &str, layout: &PackLayout) -> PathBuf {
        let pieces = format!("{:?} {} {}", layout.pieces, layout.form, NUMERICS);
        let layout: String = Sha256::digest(pieces.as_bytes())[..6].iter().map(|b| format!("{b:02x}")).collect();
        self.dir.join(format!("{}-{layout}.gguf", &source[..source.len().min(24)]))
    }

    fn known_source(&self, model: &ModelFile) -> Option<String> {
        let parts: Option<Vec<String>> = model.mapped().map(|file| source::known(&self.dir, file)).collect();
        Some(source::of_parts(&parts?))
    }

    /// Whether a pack of the model is there, without looking into it.
    pub(crate) fn expects(&self, model: &ModelFile, layout: &PackLayout) -> Option<PathBuf> {
        let path = self.path(&self.known_source(model)?, layout);
        path.is_file().then_some(path)
    }

    /// Looks for a pack. Nothing is hashed: a file that isn't remembered has none.
    pub(crate) fn find(&self, model: &ModelFile, layout: &PackLayout) -> Found {
        let Some(source) = self.known_source(model) else { return Found::Nothing };
        self.look(&self.path(&source, layout), layout, &source)
    }

    fn look(&self, path: &Path, layout: &PackLayout, source: &str) -> Found {
        if !path.exists() {
            return Found::Nothing;
        }
        match PackFile::open(path, layout, source) {
            Ok(pack) => {
                if let Ok(lock) = File::open(path.with_extension("lock")) {
                    // The time of use only orders what a limit takes away.
                    let _ = lock.set_modified(SystemTime::now());
                }
                Found::Pack(pack)
            }
            Err(reason) => Found::Unusable(format!("{} can't be used: {reason}", path.display())),
        }
    }

    /// Makes a pack, or waits for the process that makes it.
    pub(crate) fn make(
        &self,
        model: &ModelFile,
        layout: &PackLayout,
        control: &mut LoadControl<'_>,
        pack: &mut dyn FnMut(&dyn PackSink, &mut LoadControl<'_>) -> Result<(), BackendError>,
    ) -> Result<Made, BackendError> {
        if let Some(limit) = self.limit.filter(|&limit| layout.n_bytes as u64 > limit) {
            return Ok(Made::NotKept(format!("{} bytes are more than the limit of {limit} for all packs", layout.n_bytes)));
        }
        let source = hash(model, Some(&self.dir), control)?;
        let path = self.path(&source, layout);
        let failed = |what: &str, e: std::io::Error| Ok(Made::NotKept(format!("cannot {what} in {}: {e}", self.dir.display())));
        let lock = match OpenOptions::new().create(true).write(true).truncate(false).open(path.with_extension("lock")) {
            Ok(lock) => lock,
            Err(e) => return failed("make a file", e),
        };
        if let Err(e) = wait_for(&lock, control.cancel)? {
            return failed("lock a file", e);
        }
        // Another process may have made it while we waited.
        if let Found::Pack(pack) = self.look(&path, layout, &source) {
            return Ok(Made::Pack(pack));
        }
        remove_leftovers(&path);
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        match self.write(&temporary, &path, model, layout, &source, control, pack) {
            Ok(()) => {}
            Err(error) => {
                // Whatever is left of it would only take room; the next writer begins anew in any case.
                let _ = std::fs::remove_file(&temporary);
                return match error {
                    WriteError::Backend(e) => Err(e),
                    WriteError::Place(reason) => Ok(Made::NotKept(reason)),
                };
            }
        }
        if let Some(limit) = self.limit {
            self.prune(limit, Some(&path));
        }
        Ok(match self.look(&path, layout, &source) {
            Found::Pack(pack) => Made::Pack(pack),
            Found::Unusable(reason) => Made::NotKept(reason),
            Found::Nothing => Made::NotKept(format!("{} vanished", path.display())),
        })
    }

    #[allow(clippy::too_many_arguments, reason = "two names and what `write` needs")]
    fn write(
        &self,
        temporary: &Path,
        path: &Path,
        model: &ModelFile,
        layout: &PackLayout,
        source: &str,
        control: &mut LoadControl<'_>,
        pack: &mut dyn FnMut(&dyn PackSink, &mut LoadControl<'_>) -> Result<(), BackendError>,
    ) -> Result<(), WriteError> {
        let place = |e: std::io::Error| WriteError::Place(format!("{}: {e}", self.dir.display()));
        let file = File::create(temporary).map_err(place)?;
        write(&file, model, layout, source, false, &mut |sink| pack(sink, control))?;
        drop(file);
        std::fs::rename(temporary, path).map_err(place)?;
        // The name is on the disk too; where folders can't be synced, a crash may lose the pack and nothing else.
        let _ = File::open(&self.dir).and_then(|dir| dir.sync_all());
        Ok(())
    }

    /// Packs with their sizes and the times of their last use, the oldest first.
    fn packs(&self) -> Vec<(SystemTime, u64, PathBuf)> {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return Vec::new() };
        let pack = |path: PathBuf| {
            let n_bytes = path.metadata().ok()?.len();
            let used = path.with_extension("lock").metadata().and_then(|m| m.modified());
            Some((used.unwrap_or(SystemTime::UNIX_EPOCH), n_bytes, path))
        };
        let paths = entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "gguf"));
        let mut packs: Vec<_> = paths.filter_map(pack).collect();
        packs.sort();
        packs
    }

    /// Takes away the packs that were used longest ago until all of them fit a limit. Processes that have one mapped keep it.
    pub fn prune(&self, limit: u64, keep: Option<&Path>) -> Cleaned {
        let packs = self.packs();
        let mut total: u64 = packs.iter().map(|(_, n, _)| n).sum();
        let mut cleaned = Cleaned::default();
        for (_, n_bytes, path) in packs {
            if total <= limit {
                break;
            }
            if keep != Some(path.as_path()) && std::fs::remove_file(&path).is_ok() {
                total -= n_bytes;
                cleaned = Cleaned { n_files: cleaned.n_files + 1, n_bytes: cleaned.n_bytes + n_bytes };
                remove_lock(&path.with_extension("lock"));
            }
        }
        cleaned
    }

    /// Empties the folder of everything that the store made.
    pub fn clean(&self) -> Cleaned {
        let cleaned = self.prune(0, None);
        for path in std::fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|e| e.path()) {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let is = |e: &str| path.extension().is_some_and(|x| x == e);
            if is("lock") {
                remove_lock(&path);
            } else if (is("json") && name.starts_with("source-")) || name == HUGE_PAGES {
                // What can't be removed stays, and is right.
                let _ = std::fs::remove_file(&path);
            }
        }
        cleaned
    }

    /// Whether mappings of files in this folder come in huge pages: tried once for a kernel, then remembered.
    pub(crate) fn has_huge_pages(&self) -> bool {
        let kernel = os::kernel_release();
        if let Some(answer) = self.recall(HUGE_PAGES, &kernel) {
            return answer == "yes";
        }
        let answer = self.try_huge_pages().unwrap_or(false);
        self.remember(HUGE_PAGES, &kernel, if answer { "yes" } else { "no" });
        answer
    }

    /// What was remembered under a name, for a key that must be the same.
    pub fn recall(&self, name: &str, key: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.dir.join(name)).ok()?;
        Some(text.strip_prefix(key)?.strip_prefix('\n')?.trim().to_owned())
    }

    /// Remembers something about this machine. What can't be kept is found out again.
    pub fn remember(&self, name: &str, key: &str, value: &str) {
        let temporary = self.dir.join(format!("{name}-{}.tmp", std::process::id()));
        let written = std::fs::write(&temporary, format!("{key}\n{value}\n"));
        if written.and_then(|()| std::fs::rename(&temporary, self.dir.join(name))).is_err() {
            // Whatever is there is this process's own.
            let _ = std::fs::remove_file(&temporary);
        }
    }

    fn try_huge_pages(&self) -> Option<bool> {
        let path = self.dir.join(format!("huge-pages-{}.tmp", std::process::id()));
        let answer = (|| {
            let file = File::create(&path).ok()?;
            let chunk = vec![1_u8; PACK_CHUNK];
            for i in 0..2 {
                super::file::put_at(&file, (i * PACK_CHUNK) as u64, &chunk).ok()?;
            }
            let mapped = crate::model::mapped::MappedFile::open(&path).ok()?;
            mapped.read_in(&mut |_| true);
            os::in_huge_pages(mapped.bytes())
        })();
        // The name is this process's own.
        let _ = std::fs::remove_file(&path);
        answer
    }
}

const HUGE_PAGES: &str = "huge-pages";

/// Removes a lock that nobody holds, with what its writers may have left behind. A writer that has opened it and not yet
/// locked it goes on with a lock that has no name: two may then write the same pack, each to a name of its own.
fn remove_lock(lock: &Path) {
    let free = File::open(lock).is_ok_and(|file| file.try_lock().is_ok());
    if free {
        remove_leftovers(lock);
        // A lock that stays takes no room.
        let _ = std::fs::remove_file(lock);
    }
}

/// Removes what writers of a pack that came to an end have left.
fn remove_leftovers(path: &Path) {
    let (Some(dir), Some(stem)) = (path.parent(), path.file_stem().and_then(|s| s.to_str())) else { return };
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(stem) && name.ends_with(".tmp") {
            // What can't be removed takes room, no more.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Takes a lock; the inner error is the system's refusal.
fn wait_for(lock: &File, cancel: &CancelToken) -> Result<std::io::Result<()>, BackendError> {
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(Ok(())),
            Err(TryLockError::Error(e)) => return Ok(Err(e)),
            Err(TryLockError::WouldBlock) if cancel.is_cancelled() => return Err(BackendError::Cancelled),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_EVERY),
        }
    }
}

/// The hash of all files of a model.
fn hash(model: &ModelFile, dir: Option<&Path>, control: &mut LoadControl<'_>) -> Result<String, BackendError> {
    let mut parts = Vec::new();
    let (total, mut before) = (model.mapped_bytes() as u64, 0);
    for file in model.mapped() {
        let progress = &mut *control.progress;
        let hash = source::hash(dir, file, control.cancel, &mut |done| progress(before + done, total));
        parts.push(hash.ok_or(BackendError::Cancelled)?);
        before += file.bytes().len() as u64;
    }
    Ok(source::of_parts(&parts))
}

impl ModelFile {
    /// Writes a file that can ship instead of this one: all metadata, the weights packed as `layout` says, and what isn't
    /// packed as it is. Written beside its name and renamed when whole.
    ///
    /// # Errors
    /// [`BackendError::PackWrite`] with the system's answer; what packing refuses.
    pub fn write_packed(
        &self,
        out: &Path,
        layout: &PackLayout,
        control: &mut LoadControl<'_>,
        pack: &mut dyn FnMut(&dyn PackSink, &mut LoadControl<'_>) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let source = hash(self, None, &mut LoadControl { progress: &mut |_, _| {}, cancel: control.cancel })?;
        let mut name = out.file_name().unwrap_or_default().to_owned();
        name.push(".tmp");
        let temporary = out.with_file_name(name);
        let place = |e: std::io::Error| WriteError::Place(format!("{}: {e}", out.display()));
        let written = File::create(&temporary).map_err(place).and_then(|file| {
            write(&file, self, layout, &source, true, &mut |sink| pack(sink, control))?;
            drop(file);
            std::fs::rename(&temporary, out).map_err(place)
        });
        written.map_err(|error| {
            // What is left of it is no file that anybody asked for.
            let _ = std::fs::remove_file(&temporary);
            match error {
                WriteError::Backend(e) => e,
                WriteError::Place(reason) => BackendError::PackWrite { reason },
            }
        })
    }
}

/// Bytes of packs in use.
impl PackFile {
    /// Size of the pack.
    pub fn n_bytes(&self) -> usize {
        self.bytes().len()
    }
}
