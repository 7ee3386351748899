//! A model's file or files, mapped read-only: the one place in core that opens files.
//!
//! ```text
//!   path ─▶ part 1 ─▶ its siblings NAME-0000i-of-0000N.gguf ─▶ one table of tensors, sorted by name
//!             │ little endian: tensors are slices of the mapping
//!             └ big endian: tensors are copied once, with their numbers swapped, into anonymous memory
//! ```
//! A mapped file that somebody truncates or rewrites would turn into a signal or into nonsense: what the system said of
//! each file at open is remembered, and [`ModelFile::check_unchanged`] compares before every step. The race that
//! remains, a change during a step, is the caller's to avoid.

use super::ModelError;
use crate::backend::TensorSource;
use crate::os::{Region, align_up};
use memmap2::Mmap;
use selvedge_gguf::{Endian, Gguf, TensorInfo, TensorType, split, swap_endian};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A tensor of the file.
#[derive(Debug, Clone, Copy)]
pub struct TensorRef<'a> {
    /// Storage type.
    pub ty: TensorType,
    /// Columns: the first dimension, contiguous.
    pub n_in: usize,
    /// Rows: the product of all other dimensions, 1 for a vector.
    pub n_out: usize,
    /// Dimensions that the file states.
    pub n_dims: usize,
    /// The data, little endian.
    pub bytes: &'a [u8],
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Range in the arena of names.
    name: (u32, u8),
    part: u16,
    n_dims: u8,
    ty: TensorType,
    n_in: usize,
    n_out: usize,
    /// Place of the data in the part's mapping, or in its swapped copy.
    offset: usize,
    n_bytes: usize,
}

/// What the system says of a file; a file that was changed differs in one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    len: u64,
    device: u64,
    inode: u64,
    /// Nanoseconds since the epoch, wrapped.
    mtime: u64,
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    map: Map,
    /// Tensor data in this machine's byte order, where the file has the other.
    swapped: Option<Region>,
}

/// An empty file can't be mapped.
#[derive(Debug)]
enum Map {
    Empty,
    Mapped(Mmap),
}

impl Map {
    fn bytes(&self) -> &[u8] {
        match self {
            Map::Empty => &[],
            Map::Mapped(map) => map,
        }
    }
}

impl Part {
    fn bytes(&self) -> &[u8] {
        self.map.bytes()
    }

    /// What the entries' offsets count from.
    fn data(&self) -> &[u8] {
        self.swapped.as_ref().map_or(self.bytes(), Region::bytes)
    }
}

/// A model's file, or all files of a split set, open and checked.
#[derive(Debug)]
pub struct ModelFile {
    parts: Vec<Part>,
    names: String,
    /// Sorted by name.
    entries: Vec<Entry>,
}

impl ModelFile {
    /// Opens a model by its file, or by the first file of its split set. No tensor is read, apart from those of files in
    /// foreign byte order.
    ///
    /// # Errors
    /// The system's refusal, anything wrong with the container, parts of a split set that are missing or don't fit.
    pub fn open(path: &Path) -> Result<ModelFile, ModelError> {
        ModelFile::open_parts(path, true)
    }

    /// Opens one file as it stands, without the others of its split set: to look into it.
    ///
    /// # Errors
    /// The system's refusal, anything wrong with the container.
    pub fn open_alone(path: &Path) -> Result<ModelFile, ModelError> {
        ModelFile::open_parts(path, false)
    }

    fn open_parts(path: &Path, with_siblings: bool) -> Result<ModelFile, ModelError> {
        let first = open_part(path)?;
        let mut ggufs = vec![parse(&first)?];
        let wrong = |source| ModelError::Gguf { path: path.to_owned(), source };
        let file_name = path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
        let siblings = if with_siblings { split::siblings(&ggufs[0], &file_name).map_err(wrong)? } else { Vec::new() };
        let mut others = Vec::with_capacity(siblings.len());
        for (i, name) in siblings.iter().enumerate() {
            let path = path.with_file_name(name);
            if !path.exists() {
                return Err(ModelError::PartMissing { path, part: i + 2, n_parts: siblings.len() + 1 });
            }
            others.push(open_part(&path)?);
        }
        for part in &others {
            ggufs.push(parse(part)?);
        }
        if !others.is_empty() {
            split::check_set(&ggufs).map_err(wrong)?;
        }
        let mut table = Table::default();
        let mut swapped = Vec::with_capacity(ggufs.len());
        for (i, gguf) in ggufs.iter().enumerate() {
            swapped.push(table.add(gguf, i as u16)?);
        }
        drop(ggufs);
        let with_copy = |(part, swapped): (Part, Option<Region>)| Part { swapped, ..part };
        let parts = std::iter::once(first).chain(others).zip(swapped).map(with_copy).collect();
        let Table { names, mut entries } = table;
        entries.sort_unstable_by(|a, b| name_of(&names, a).cmp(name_of(&names, b)));
        Ok(ModelFile { parts, names, entries })
    }

    /// Metadata and tensor table of the first part. Parses anew: a few milliseconds.
    ///
    /// # Errors
    /// None, unless somebody has changed the file since it was opened.
    pub fn gguf(&self) -> Result<Gguf<'_>, ModelError> {
        parse(&self.parts[0])
    }

    /// The path given to [`ModelFile::open`].
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// Paths of all parts.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|p| p.path.as_path())
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<TensorRef<'_>> {
        let at = self.entries.binary_search_by(|e| name_of(&self.names, e).cmp(name)).ok()?;
        Some(self.tensor_ref(&self.entries[at]))
    }

    /// All tensors in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, TensorRef<'_>)> {
        self.entries.iter().map(|e| (name_of(&self.names, e), self.tensor_ref(e)))
    }

    /// Number of tensors.
    pub fn n_tensors(&self) -> usize {
        self.entries.len()
    }

    fn tensor_ref(&self, e: &Entry) -> TensorRef<'_> {
        let data = self.parts[e.part as usize].data();
        // The range was checked at open, against a mapping whose length doesn't change.
        let bytes = data.get(e.offset..e.offset + e.n_bytes).unwrap_or_default();
        TensorRef { ty: e.ty, n_in: e.n_in, n_out: e.n_out, n_dims: usize::from(e.n_dims), bytes }
    }

    /// Bytes of the files that are mapped.
    pub fn mapped_bytes(&self) -> usize {
        self.parts.iter().map(|p| p.bytes().len()).sum()
    }

    /// Anonymous memory: the tensor table, and the copy of tensors in foreign byte order.
    pub fn anonymous_bytes(&self) -> usize {
        let table = self.names.capacity() + self.entries.capacity() * size_of::<Entry>() + self.parts.capacity() * size_of::<Part>();
        table + self.parts.iter().filter_map(|p| p.swapped.as_ref()).map(Region::len).sum::<usize>()
    }

    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> usize {
        self.entries.iter().map(|e| e.n_bytes).sum()
    }

    /// Compares what the system says of each file with what it said at open: size, place and time of the last write.
    /// One system call a part, no allocation: made before every step.
    ///
    /// # Errors
    /// [`ModelError::Changed`] with the first difference.
    pub fn check_unchanged(&self) -> Result<(), ModelError> {
        for part in &self.parts {
            let now = stamp(&part.path, &part.file)?;
            let was = part.stamp;
            let differs = [
                ("its size in bytes", was.len, now.len),
                ("the time of its last change, in nanoseconds,", was.mtime, now.mtime),
                ("its device", was.device, now.device),
                ("its inode", was.inode, now.inode),
            ];
            if let Some(&(what, expected, found)) = differs.iter().find(|(_, was, now)| was != now) {
                return Err(ModelError::Changed { path: part.path.clone(), what, expected, found });
            }
        }
        Ok(())
    }

    /// Tells the system how the files will be read. A hint: nothing depends on it.
    pub fn advise(&self, access: Access) {
        #[cfg(unix)]
        for part in &self.parts {
            if let Map::Mapped(map) = &part.map {
                let advice = match access {
                    Access::Normal => memmap2::Advice::Normal,
                    Access::Sequential => memmap2::Advice::Sequential,
                    Access::Soon => memmap2::Advice::WillNeed,
                };
                // A hint that fails changes nothing but speed.
                let _ = map.advise(advice);
            }
        }
        let _ = access;
    }
}

/// How a mapping will be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// In no order that is known.
    Normal,
    /// From front to back, once: the system reads far ahead and may drop what was read.
    Sequential,
    /// Soon, and as a whole: the system starts to read now.
    Soon,
}

impl TensorSource for ModelFile {
    fn tensor(&self, name: &str) -> &[u8] {
        ModelFile::tensor(self, name).map_or(&[], |t| t.bytes)
    }
}

/// The tensors of all parts while they are collected.
#[derive(Default)]
struct Table {
    names: String,
    entries: Vec<Entry>,
}

impl Table {
    /// Takes the tensors of a part; makes the copy in this machine's byte order where the part has the other.
    fn add(&mut self, gguf: &Gguf<'_>, part: u16) -> Result<Option<Region>, ModelError> {
        let too_large = |t: &TensorInfo<'_>| ModelError::TensorShape {
            name: t.name.to_owned(),
            expected: vec![usize::MAX as u64],
            found: t.dims[..t.n_dims].to_vec(),
        };
        let foreign = (gguf.endian == Endian::Big) != cfg!(target_endian = "big");
        let mut region = match foreign {
            true => Some(Region::new(gguf.tensors.iter().map(|t| align_up(t.n_bytes as usize)).sum(), false)?),
            false => None,
        };
        let mut region_used = 0;
        self.entries.reserve_exact(gguf.tensors.len());
        self.names.reserve_exact(gguf.tensors.iter().map(|t| t.name.len()).sum());
        for t in &gguf.tensors {
            let (Ok(n_in), Ok(n_out)) = (usize::try_from(t.dims[0]), usize::try_from(t.n_rows())) else {
                return Err(too_large(t));
            };
            let bytes = gguf.tensor_bytes(t);
            let offset = match &mut region {
                None => t.offset as usize,
                Some(region) => {
                    let copy = &mut region.bytes_mut()[region_used..][..bytes.len()];
                    copy.copy_from_slice(bytes);
                    swap_endian(t.ty, copy);
                    let offset = region_used;
                    region_used += align_up(bytes.len());
                    offset
                }
            };
            let (Ok(start), Ok(len)) = (u32::try_from(self.names.len()), u8::try_from(t.name.len())) else {
                return Err(ModelError::NamesTooLong);
            };
            self.names.push_str(t.name);
            let name = (start, len);
            self.entries.push(Entry { name, part, n_dims: t.n_dims as u8, ty: t.ty, n_in, n_out, offset, n_bytes: bytes.len() });
        }
        Ok(region)
    }
}

fn name_of<'a>(names: &'a str, e: &Entry) -> &'a str {
    let (start, len) = (e.name.0 as usize, usize::from(e.name.1));
    names.get(start..start + len).unwrap_or_default()
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ModelError {
    let path = path.to_owned();
    move |source| ModelError::Io { what, path, source }
}

fn open_part(path: &Path) -> Result<Part, ModelError> {
    // Before opening: opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(io_error("open", path))?.is_file() {
        return Err(ModelError::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(io_error("open", path))?;
    let stamp = stamp(path, &file)?;
    let map = if stamp.len == 0 {
        Map::Empty
    } else {
        // SAFETY: the mapping is read-only and private to this value. Another process may still change the file under it:
        // nothing here trusts bytes to stay as they were checked (ranges come from the table, which is a copy), sizes are
        // compared before each step, and the remaining race is documented on `ModelFile`.
        Map::Mapped(unsafe { Mmap::map(&file) }.map_err(io_error("map", path))?)
    };
    Ok(Part { path: path.to_owned(), file, stamp, map, swapped: None })
}

fn parse(part: &Part) -> Result<Gguf<'_>, ModelError> {
    Gguf::parse(part.bytes()).map_err(|source| ModelError::Gguf { path: part.path.clone(), source })
}

fn stamp(path: &Path, file: &File) -> Result<Stamp, ModelError> {
    let meta = file.metadata().map_err(|source| ModelError::Io { what: "look at", path: path.to_owned(), source })?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let mtime = meta.mtime().wrapping_mul(1_000_000_000).wrapping_add(meta.mtime_nsec()) as u64;
        Ok(Stamp { len: meta.len(), device: meta.dev(), inode: meta.ino(), mtime })
    }
    #[cfg(not(unix))]
    {
        let since = meta.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
        Ok(Stamp { len: meta.len(), device: 0, inode: 0, mtime: since.map_or(0, |d| d.as_nanos() as u64) })
    }
}
