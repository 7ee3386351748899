//! A folder of packs, shared by processes.
//!
//! ```text
//!   NAME.gguf       a pack; NAME is made of the model's hash and the layout's
//!   NAME.lock       held while the pack is being written; its time is that of the last use
//!   source-*.json   hashes of models, until their files change
//!   huge-pages, threads    what was found out about the machine: see [`Memo`]
//!   *.tmp           any of these while it is being written
//! ```
//! Other files in the folder are nobody's business here: it may be one that a person keeps models in.

use super::file::{Job, KeepError, PackFile, PackInto, put_at};
use super::source::{self, hex};
use crate::backend::{BackendError, LoadControl, PACK_CHUNK, PackLayout};
use crate::cancel::CancelToken;
use crate::math::NUMERICS;
use crate::model::ModelFile;
use crate::model::mapped::MappedFile;
use crate::os;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
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

/// A pack that was made, now or meanwhile by another process.
#[derive(Debug)]
pub(crate) struct Made {
    /// The pack.
    pub pack: PackFile,
    /// Why the one that was there before had to give way.
    pub replaced: Option<String>,
}

/// What a store that makes a pack is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Making {
    /// Hashing the model's files.
    Hash,
    /// Packing.
    Pack,
}

/// The folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackStore {
    dir: PathBuf,
    limit: Option<u64>,
}

/// Waiting between two looks at a lock.
const LOCK_EVERY: Duration = Duration::from_millis(10);
/// Hexadecimal digits of the model's hash and of the layout's in the name of a pack: 96 and 48 bits.
const SOURCE_DIGITS: usize = 24;
const LAYOUT_DIGITS: usize = 12;

/// What a store remembers of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memo {
    /// Whether mappings of the folder's files come in huge pages.
    HugePages,
    /// The number of threads that decodes fastest.
    Threads,
}

impl Memo {
    const ALL: [Memo; 2] = [Memo::HugePages, Memo::Threads];

    fn name(self) -> &'static str {
        match self {
            Memo::HugePages => "huge-pages",
            Memo::Threads => "threads",
        }
    }
}

/// What a file of the store is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pack,
    Lock,
    /// A pack that is being written, or was when its writer came to an end.
    Unfinished,
    /// Memos, finished or not.
    Memo,
}

impl Kind {
    /// `None`: the store made no file of that name.
    fn of(path: &Path) -> Option<Kind> {
        let (stem, extension) = path.file_name()?.to_str()?.split_once('.').unwrap_or((path.file_name()?.to_str()?, ""));
        let of_machine = |stem: &str| Memo::ALL.iter().any(|memo| memo.name() == stem);
        let digits = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_hexdigit());
        let of_pack = stem.split_once('-').is_some_and(|(source, layout)| digits(source, SOURCE_DIGITS) && digits(layout, LAYOUT_DIGITS));
        let unfinished = extension == "tmp" || extension.ends_with(".tmp");
        match (of_pack, extension) {
            (true, "gguf") => Some(Kind::Pack),
            (true, "lock") => Some(Kind::Lock),
            (true, _) if unfinished => Some(Kind::Unfinished),
            (false, "json") if stem.starts_with(source::MEMO) => Some(Kind::Memo),
            (false, "") if of_machine(stem) => Some(Kind::Memo),
            (false, _) if unfinished && (stem.starts_with(source::MEMO) || of_machine(stem)) => Some(Kind::Memo),
            _ => None,
        }
    }
}

/// Extension of a file that nobody else writes.
pub(super) fn temporary_extension() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}.tmp", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

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

    /// Files of the folder that the store made.
    fn files(&self, kind: Kind) -> impl Iterator<Item = PathBuf> {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(move |path| Kind::of(path) == Some(kind))
    }

    fn path(&self, source: &str, layout: &PackLayout) -> PathBuf {
        let pieces = format!("{:?} {} {}", layout.pieces, layout.form, NUMERICS);
        let layout = hex(&Sha256::digest(pieces.as_bytes())[..LAYOUT_DIGITS / 2]);
        self.dir.join(format!("{}-{layout}.gguf", &source[..source.len().min(SOURCE_DIGITS)]))
    }

    /// Whether a pack of the model is there, without looking into it.
    pub(crate) fn expects(&self, model: &ModelFile, layout: &PackLayout) -> Option<PathBuf> {
        let path = self.path(&source::known(&self.dir, model)?, layout);
        path.is_file().then_some(path)
    }

    /// Looks for a pack. Nothing is hashed: a file that isn't remembered has none.
    pub(crate) fn find(&self, model: &ModelFile, layout: &PackLayout) -> Found {
        let Some(source) = source::known(&self.dir, model) else { return Found::Nothing };
        self.look(&self.path(&source, layout), layout, &source)
    }

    fn look(&self, path: &Path, layout: &PackLayout, source: &str) -> Found {
        if !path.exists() {
            return Found::Nothing;
        }
        match PackFile::open(path, layout, source) {
            Ok(pack) => {
                if let Ok(lock) = File::open(lock_of(path)) {
                    // The time of use only orders what a limit takes away.
                    let _ = lock.set_modified(SystemTime::now());
                }
                Found::Pack(pack)
            }
            Err(reason) => Found::Unusable(format!("{} can't be used: {reason}", path.display())),
        }
    }

    /// Makes a pack, or waits for the process that makes it. `memory`: as [`LoadControl::memory`]; `progress`: what it is at,
    /// bytes done and in all.
    pub(crate) fn make(
        &self,
        model: &ModelFile,
        layout: &PackLayout,
        cancel: &CancelToken,
        memory: u64,
        progress: &mut dyn FnMut(Making, u64, u64),
        pack: PackInto<'_>,
    ) -> Result<Made, KeepError> {
        let place = |what: &str| {
            let dir = self.dir.display().to_string();
            let what = what.to_owned();
            move |e: std::io::Error| KeepError::Place(format!("cannot {what} in {dir}: {e}"))
        };
        if let Some(limit) = self.limit.filter(|&limit| layout.n_bytes as u64 > limit) {
            return Err(KeepError::Place(format!("{} bytes are more than the limit of {limit} for all packs", layout.n_bytes)));
        }
        // Before gigabytes are hashed for a folder that takes nothing; one that can't be written may hold the pack all the same.
        self.try_to_write().or_else(|e| self.files(Kind::Pack).next().map(drop).ok_or(e)).map_err(place("make a file"))?;
        let source = source::find(Some(&self.dir), model, cancel, &mut |done, total| progress(Making::Hash, done, total));
        let source = source.ok_or(BackendError::Cancelled)?;
        let path = self.path(&source, layout);
        if let Found::Pack(pack) = self.look(&path, layout, &source) {
            return Ok(Made { pack, replaced: None });
        }
        // Held to the end of the function.
        let _lock = lock(&lock_of(&path), cancel)?.map_err(place("lock a file"))?;
        let replaced = match self.look(&path, layout, &source) {
            // Another process has made it while this one waited.
            Found::Pack(pack) => return Ok(Made { pack, replaced: None }),
            Found::Unusable(reason) => Some(reason),
            Found::Nothing => None,
        };
        remove_leftovers(&path);
        let mut control = LoadControl { progress: &mut |done, total| progress(Making::Pack, done, total), cancel, memory };
        let job = Job { model, source: &source, layout, ships: false };
        job.write(&path.with_extension(temporary_extension()), &path, &mut control, pack)?;
        if let Some(limit) = self.limit {
            self.prune(limit, Some(&path));
        }
        match self.look(&path, layout, &source) {
            Found::Pack(pack) => Ok(Made { pack, replaced }),
            Found::Unusable(reason) => Err(KeepError::Place(reason)),
            Found::Nothing => Err(KeepError::Place(format!("{} is gone again", path.display()))),
        }
    }

    fn try_to_write(&self) -> std::io::Result<()> {
        let path = self.dir.join(source::MEMO).with_extension(temporary_extension());
        File::create_new(&path)?;
        std::fs::remove_file(&path)
    }

    /// Takes away the packs that were used longest ago until all of them fit a limit. Processes that have one mapped keep it.
    pub fn prune(&self, limit: u64, keep: Option<&Path>) -> Cleaned {
        let mut packs: Vec<(SystemTime, u64, PathBuf)> = self
            .files(Kind::Pack)
            .filter_map(|path| {
                let used = lock_of(&path).metadata().and_then(|m| m.modified());
                Some((used.unwrap_or(SystemTime::UNIX_EPOCH), path.metadata().ok()?.len(), path))
            })
            .collect();
        packs.sort();
        let mut total: u64 = packs.iter().map(|(_, n, _)| n).sum();
        let mut cleaned = Cleaned::default();
        for (_, n_bytes, path) in packs {
            if total <= limit {
                break;
            }
            if keep != Some(path.as_path()) && std::fs::remove_file(&path).is_ok() {
                total -= n_bytes;
                cleaned = Cleaned { n_files: cleaned.n_files + 1, n_bytes: cleaned.n_bytes + n_bytes };
                remove_lock(&lock_of(&path));
            }
        }
        cleaned
    }

    /// Empties the folder of everything that the store made, apart from what is being written.
    pub fn clean(&self) -> Cleaned {
        let cleaned = self.prune(0, None);
        self.files(Kind::Unfinished).for_each(|path| remove_lock(&lock_of(&path)));
        self.files(Kind::Lock).for_each(|path| remove_lock(&path));
        for path in self.files(Kind::Memo) {
            // What can't be removed stays, and is right.
            let _ = std::fs::remove_file(path);
        }
        cleaned
    }

    /// Whether mappings of files in this folder come in huge pages: tried once for a kernel, then remembered.
    pub(crate) fn has_huge_pages(&self) -> bool {
        let kernel = os::kernel_release();
        if let Some(answer) = self.recall(Memo::HugePages, &kernel) {
            return answer == "yes";
        }
        // A full disk is no answer: it is asked again.
        let Some(answer) = self.try_huge_pages() else { return false };
        self.remember(Memo::HugePages, &kernel, if answer { "yes" } else { "no" });
        answer
    }

    /// What was remembered for a key that must be the same.
    pub fn recall(&self, memo: Memo, key: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.dir.join(memo.name())).ok()?;
        Some(text.strip_prefix(key)?.strip_prefix('\n')?.trim().to_owned())
    }

    /// Remembers something. What can't be kept is found out again.
    pub fn remember(&self, memo: Memo, key: &str, value: &str) {
        let (path, text) = (self.dir.join(memo.name()), format!("{key}\n{value}\n"));
        let temporary = path.with_extension(temporary_extension());
        let written = os::check_file_size(text.len() as u64).and_then(|()| std::fs::write(&temporary, text));
        if written.and_then(|()| std::fs::rename(&temporary, &path)).is_err() {
            // The name is this call's own.
            let _ = std::fs::remove_file(&temporary);
        }
    }

    fn try_huge_pages(&self) -> Option<bool> {
        let path = self.dir.join(Memo::HugePages.name()).with_extension(temporary_extension());
        os::check_file_size(2 * PACK_CHUNK as u64).ok()?;
        let answer = (|| {
            let file = File::create(&path).ok()?;
            let chunk = vec![1_u8; PACK_CHUNK];
            for i in 0..2 {
                put_at(&file, (i * PACK_CHUNK) as u64, &chunk).ok()?;
            }
            let mapped = MappedFile::open(&path).ok()?;
            mapped.read_in(&mut |_| true);
            os::in_huge_pages(mapped.bytes())
        })();
        // The name is this call's own.
        let _ = std::fs::remove_file(&path);
        answer
    }
}

/// The lock of a pack, finished or not.
fn lock_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{}.lock", name.split('.').next().unwrap_or_default()))
}

/// Removes a lock that nobody holds, with what its writers may have left behind.
fn remove_lock(path: &Path) {
    let file = File::open(path);
    if file.as_ref().is_ok_and(|file| file.try_lock().is_err()) {
        return;
    }
    remove_leftovers(path);
    // Removed while it is held, so that whoever waits for it sees that it is none any more. One that stays takes no room.
    let _ = std::fs::remove_file(path);
}

/// Removes what writers of a pack that came to an end have left.
fn remove_leftovers(path: &Path) {
    let (Some(dir), lock) = (path.parent(), lock_of(path)) else { return };
    for path in std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if Kind::of(&path) == Some(Kind::Unfinished) && lock_of(&path) == lock {
            // What can't be removed takes room, no more.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Makes and takes a lock; the inner error is the system's refusal.
fn lock(path: &Path, cancel: &CancelToken) -> Result<std::io::Result<File>, BackendError> {
    loop {
        let file = match OpenOptions::new().create(true).write(true).truncate(false).open(path) {
            Ok(file) => file,
            Err(e) => return Ok(Err(e)),
        };
        match file.try_lock() {
            // A cleaner may have taken the name away since it was opened: then the next one makes another.
            Ok(()) if os::is_open_at(&file, path) => return Ok(Ok(file)),
            Ok(()) => {}
            Err(TryLockError::Error(e)) => return Ok(Err(e)),
            Err(TryLockError::WouldBlock) if cancel.is_cancelled() => return Err(BackendError::Cancelled),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_EVERY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_the_store_made_are_its_own() {
        let kind = |name: &str| Kind::of(&Path::new("folder").join(name));
        let pack = "b179c9523d0e6a0f98a330c7-1fa76c7b339b";
        assert_eq!(kind(&format!("{pack}.gguf")), Some(Kind::Pack));
        assert_eq!(kind(&format!("{pack}.lock")), Some(Kind::Lock));
        assert_eq!(kind(&format!("{pack}.{}", temporary_extension())), Some(Kind::Unfinished));
        for name in ["source-fe00-9a6008.json", "source-fe00-9a6008.7-0.tmp", "huge-pages", "huge-pages.7-1.tmp", "threads"] {
            assert_eq!(kind(name), Some(Kind::Memo), "{name}");
        }
        let long = format!("a{pack}.gguf");
        for name in
            ["SmolLM2-135M-Instruct.Q4_1.gguf", "model.gguf", &long, "notes.json", "x.tmp", "yarn.lock", ".gguf", pack, "source.json"]
        {
            assert_eq!(kind(name), None, "{name}");
        }
        assert_eq!(lock_of(Path::new("d/a-b.7-1.tmp")), Path::new("d/a-b.lock"));
    }
}
