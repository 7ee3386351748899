//! A file mapped read-only, with what the system said of it when it was opened.

use super::{Access, ModelError};
use memmap2::{Mmap, MmapOptions};
use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};

/// What the system says of a file; a file that was changed differs in one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub len: u64,
    pub device: u64,
    pub inode: u64,
    /// Nanoseconds since the epoch, wrapped: last change of the content, and of anything else about the file.
    pub mtime: u64,
    pub ctime: u64,
}

impl Stamp {
    fn of(meta: &Metadata) -> Stamp {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let ns = |s: i64, ns: i64| s.wrapping_mul(1_000_000_000).wrapping_add(ns) as u64;
            let (mtime, ctime) = (ns(meta.mtime(), meta.mtime_nsec()), ns(meta.ctime(), meta.ctime_nsec()));
            Stamp { len: meta.len(), device: meta.dev(), inode: meta.ino(), mtime, ctime }
        }
        #[cfg(not(unix))]
        {
            let since = meta.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
            Stamp { len: meta.len(), device: 0, inode: 0, mtime: since.map_or(0, |d| d.as_nanos() as u64), ctime: 0 }
        }
    }
}

/// A file and its mapping. Another process may change the file under it: nothing trusts bytes to stay as they were
/// checked, and [`MappedFile::check_unchanged`] is called before every step.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    /// An empty file can't be mapped.
    map: Option<Mmap>,
}

/// Bytes that are asked for at once while a mapping is read in: a cancel waits no longer than for these.
const READ_AT_ONCE: usize = 4 << 20;

impl MappedFile {
    /// Opens and maps a regular file.
    pub(super) fn open(path: &Path) -> Result<MappedFile, ModelError> {
        // Before opening: opening a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(io_error("open", path))?.is_file() {
            return Err(ModelError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(io_error("open", path))?;
        let stamp = Stamp::of(&file.metadata().map_err(io_error("look at", path))?);
        let map = if stamp.len == 0 {
            None
        } else {
            // SAFETY: the mapping is read-only and private to this value. Another process may still change the file: ranges
            // come from tables that are copies, sizes are compared before each step, and the remaining race is documented
            // on `ModelFile`.
            Some(unsafe { MmapOptions::new().map(&file) }.map_err(io_error("map", path))?)
        };
        Ok(MappedFile { path: path.to_owned(), file, stamp, map })
    }

    /// The path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What the system said when it was opened.
    pub(super) fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// The content.
    pub(super) fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// Compares what the system says of the file with what it said at open. One system call, no allocation.
    pub(super) fn check_unchanged(&self) -> Result<(), ModelError> {
        let now = Stamp::of(&self.file.metadata().map_err(io_error("look at", &self.path))?);
        let was = self.stamp;
        // Not the time of other changes: a link to the file, or its removal from a folder, changes no byte.
        let differs = [
            ("its size in bytes", was.len, now.len),
            ("the time of its last change, in nanoseconds,", was.mtime, now.mtime),
            ("its device", was.device, now.device),
            ("its inode", was.inode, now.inode),
        ];
        match differs.iter().find(|(_, was, now)| was != now) {
            Some(&(what, expected, found)) => Err(ModelError::Changed { path: self.path.clone(), what, expected, found }),
            None => Ok(()),
        }
    }

    /// Whether a path leads to this file.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        std::fs::canonicalize(path).is_ok_and(|path| std::fs::canonicalize(&self.path).is_ok_and(|own| own == path))
    }

    /// Tells the system how the file will be read. A hint: nothing depends on it.
    pub(super) fn advise(&self, access: Access) {
        #[cfg(unix)]
        if let Some(map) = &self.map {
            let advice = match access {
                Access::Normal => memmap2::Advice::Normal,
                Access::Sequential => memmap2::Advice::Sequential,
                Access::Soon => memmap2::Advice::WillNeed,
            };
            // A hint that fails changes nothing but speed.
            let _ = map.advise(advice);
        }
        let _ = access;
    }

    /// Brings the content into memory from front to back, in huge pages where the file system can, and maps it. `keep_on` is
    /// told the bytes so far and stops it by false; what is missing then is read when it is needed.
    pub(super) fn read_in(&self, keep_on: &mut dyn FnMut(usize) -> bool) {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.map {
            // Hints: without them pages come in one by one, when they are first used.
            let _ = map.advise(memmap2::Advice::HugePage);
            for start in (0..map.len()).step_by(READ_AT_ONCE) {
                let n = READ_AT_ONCE.min(map.len() - start);
                if !keep_on(start) || map.advise_range(memmap2::Advice::PopulateRead, start, n).is_err() {
                    return;
                }
            }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (keep_on, READ_AT_ONCE);
            self.advise(Access::Soon);
        }
    }
}

/// The system's refusal of a file. The path is copied once there is an error: this stands before every step.
fn io_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> ModelError + 'a {
    move |source| ModelError::Io { what, path: path.to_owned(), source }
}
