//! A file or a part of one, mapped read-only, with what the system said of it when it was opened; or a buffer in its place.

use super::{Access, ModelError};
use crate::backend::HoldBytes;
use memmap2::{Mmap, MmapOptions};
use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// The bytes of a file, of a part of one, or of a buffer. Another process may change a file under its mapping: nothing trusts
/// bytes to stay as they were checked, and [`MappedFile::check_unchanged`] is called before every step.
#[derive(Debug)]
pub(super) struct MappedFile {
    /// Where it lies; a description where it has no name.
    path: PathBuf,
    /// Whether `path` is one.
    named: bool,
    /// What is mapped, with what the system said of it; a buffer has neither.
    file: Option<(Arc<File>, Stamp)>,
    /// Where in the file it begins.
    start: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// An empty file can't be mapped.
    Nothing,
    Map(Mmap),
    Held(Arc<dyn HoldBytes>),
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
        MappedFile::map(path.to_owned(), true, Arc::new(file), 0, None)
    }

    /// Maps a part of an open file, to its end where no length is given.
    pub(super) fn open_part(file: Arc<File>, start: u64, n_bytes: Option<u64>) -> Result<MappedFile, ModelError> {
        let path = PathBuf::from(format!("an open file from byte {start} on"));
        if !file.metadata().map_err(io_error("look at", &path))?.is_file() {
            return Err(ModelError::NotAFile { path });
        }
        MappedFile::map(path, false, file, start, n_bytes)
    }

    /// Takes a buffer.
    pub(super) fn of_bytes(bytes: Arc<dyn HoldBytes>) -> MappedFile {
        MappedFile { path: PathBuf::from("a model in memory"), named: false, file: None, start: 0, content: Content::Held(bytes) }
    }

    fn map(path: PathBuf, named: bool, file: Arc<File>, start: u64, n_bytes: Option<u64>) -> Result<MappedFile, ModelError> {
        let stamp = Stamp::of(&file.metadata().map_err(io_error("look at", &path))?);
        let left = stamp.len.checked_sub(start);
        let n_bytes = match (left, n_bytes) {
            (Some(left), None) => left,
            (Some(left), Some(n)) if n <= left => n,
            (_, n) => return Err(ModelError::NoSuchPart { start, n_bytes: n.unwrap_or(0), file_len: stamp.len }),
        };
        let content = match usize::try_from(n_bytes) {
            Ok(0) => Content::Nothing,
            Ok(len) => {
                // SAFETY: the mapping is read-only and private to this value. Another process may still change the file: ranges
                // come from tables that are copies, sizes are compared before each step, and the remaining race is documented
                // on `ModelFile`.
                Content::Map(unsafe { MmapOptions::new().offset(start).len(len).map(&*file) }.map_err(io_error("map", &path))?)
            }
            Err(_) => return Err(ModelError::NoSuchPart { start, n_bytes, file_len: stamp.len }),
        };
        Ok(MappedFile { path, named, file: Some((file, stamp)), start, content })
    }

    /// The path, or a description of what has none.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether [`MappedFile::path`] leads to it.
    pub(super) fn is_named(&self) -> bool {
        self.named
    }

    /// What the system said of the file when it was opened; `None` for a buffer.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        self.file.as_ref().map(|(_, stamp)| *stamp)
    }

    /// Where in its file it lies, where it isn't the whole of it.
    pub(super) fn part(&self) -> Option<(u64, u64)> {
        let (_, stamp) = self.file.as_ref()?;
        let n_bytes = self.bytes().len() as u64;
        (self.start > 0 || n_bytes < stamp.len).then_some((self.start, n_bytes))
    }

    /// The content.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Nothing => &[],
            Content::Map(map) => map,
            Content::Held(bytes) => bytes.bytes(),
        }
    }

    /// Bytes that are a mapping, which costs no anonymous memory.
    pub(super) fn n_mapped(&self) -> usize {
        if matches!(self.content, Content::Map(_)) { self.bytes().len() } else { 0 }
    }

    #[cfg(unix)]
    fn mapping(&self) -> Option<&Mmap> {
        if let Content::Map(map) = &self.content { Some(map) } else { None }
    }

    /// Compares what the system says of the file with what it said at open. One system call, no allocation.
    pub(super) fn check_unchanged(&self) -> Result<(), ModelError> {
        let Some((file, was)) = &self.file else { return Ok(()) };
        let now = Stamp::of(&file.metadata().map_err(io_error("look at", &self.path))?);
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
        self.named && std::fs::canonicalize(path).is_ok_and(|path| std::fs::canonicalize(&self.path).is_ok_and(|own| own == path))
    }

    /// Tells the system how the file will be read. A hint: nothing depends on it.
    pub(super) fn advise(&self, access: Access) {
        #[cfg(unix)]
        if let Some(map) = self.mapping() {
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
        if let Some(map) = self.mapping() {
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
