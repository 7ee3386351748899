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

use super::mapped::MappedFile;
use super::pack::PackTable;
use super::{ModelError, ModelSource};
use crate::backend::{HoldBytes, TensorSource};
use crate::os::{ALIGN, Region, align_up};
use selvedge_gguf::{Endian, Gguf, TensorInfo, TensorType, split, swap_endian};
use std::collections::HashSet;
use std::path::Path;

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
    /// Place of the data in the part's mapping, or in its swapped copy; no bytes for a tensor in packed form alone.
    offset: usize,
    n_bytes: usize,
}

#[derive(Debug)]
struct Part {
    file: MappedFile,
    /// Tensor data in this machine's byte order, where the file has the other.
    swapped: Option<Region>,
}

impl Part {
    /// What the entries' offsets count from.
    fn data(&self) -> &[u8] {
        self.swapped.as_ref().map_or(self.file.bytes(), Region::bytes)
    }
}

/// A model's file, or all files of a split set, open and checked.
#[derive(Debug)]
pub struct ModelFile {
    parts: Vec<Part>,
    names: String,
    /// Sorted by name.
    entries: Vec<Entry>,
    packed: Option<PackTable>,
}

impl ModelFile {
    /// Opens a model. No tensor is read, apart from those of files in foreign byte order.
    ///
    /// # Errors
    /// The system's refusal, anything wrong with the container, parts of a split set that are missing or don't fit.
    pub fn open_source(source: &ModelSource) -> Result<ModelFile, ModelError> {
        match source {
            ModelSource::Path(path) => ModelFile::open(path),
            ModelSource::File { file, start, n_bytes } => ModelFile::of_first(MappedFile::open_part(file.clone(), *start, *n_bytes)?, true),
            ModelSource::Bytes(bytes) => ModelFile::of_first(MappedFile::of_bytes(bytes.clone()), true),
        }
    }

    /// Opens a model by its file, or by the first file of its split set, as [`ModelFile::open_source`].
    ///
    /// # Errors
    /// As there.
    pub fn open(path: &Path) -> Result<ModelFile, ModelError> {
        ModelFile::of_first(MappedFile::open(path)?, true)
    }

    /// Opens one file as it stands, without the others of its split set and without a pack: to look into it.
    ///
    /// # Errors
    /// The system's refusal, anything wrong with the container.
    pub fn open_alone(path: &Path) -> Result<ModelFile, ModelError> {
        ModelFile::of_first(MappedFile::open(path)?, false)
    }

    fn of_first(first: MappedFile, as_model: bool) -> Result<ModelFile, ModelError> {
        let path = first.path().to_owned();
        let mut ggufs = vec![parse(&first)?];
        let wrong = |source| ModelError::Gguf { path: path.clone(), source };
        if as_model
            && !first.is_named()
            && let Some(set) = split::SplitInfo::of(&ggufs[0]).map_err(wrong)?
        {
            return Err(ModelError::SplitWithoutPath { n_parts: set.count as usize });
        }
        let file_name = path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
        let siblings = if as_model && first.is_named() { split::siblings(&ggufs[0], &file_name).map_err(wrong)? } else { Vec::new() };
        let mut others = Vec::with_capacity(siblings.len());
        for (i, name) in siblings.iter().enumerate() {
            let path = path.with_file_name(name);
            if !path.exists() {
                return Err(ModelError::PartMissing { path, part: i + 2, n_parts: siblings.len() + 1 });
            }
            others.push(MappedFile::open(&path)?);
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
        // Whoever looks into a file wants to see it also where the table of its pack is damaged.
        let packed = if as_model { PackTable::read(&ggufs[0])? } else { None };
        if let Some(pack) = &packed {
            table.show_packed(&ggufs[0], pack)?;
        }
        drop(ggufs);
        let parts = std::iter::once(first).chain(others).zip(swapped).map(|(file, swapped)| Part { file, swapped }).collect();
        let Table { names, mut entries } = table;
        entries.sort_unstable_by(|a, b| name_of(&names, a).cmp(name_of(&names, b)));
        Ok(ModelFile { parts, names, entries, packed })
    }

    /// Metadata and tensor table of the first part. Parses anew: a few milliseconds.
    ///
    /// # Errors
    /// None, unless somebody has changed the file since it was opened.
    pub fn gguf(&self) -> Result<Gguf<'_>, ModelError> {
        parse(&self.parts[0].file)
    }

    /// The path that it was opened by; a description where it was opened without one.
    pub fn path(&self) -> &Path {
        self.parts[0].file.path()
    }

    /// What the file says of its packed weights, where it ships them instead of plain ones.
    pub fn packed(&self) -> Option<&PackTable> {
        self.packed.as_ref()
    }

    /// The packed weights of a file that ships them.
    pub fn packed_bytes(&self) -> &[u8] {
        let range = self.packed.as_ref().map_or(0..0, |pack| pack.data.clone());
        self.parts[0].file.bytes().get(range).unwrap_or_default()
    }

    /// Reads the first file in; `keep_on` is told the bytes so far and stops it by false.
    pub fn read_in(&self, keep_on: &mut dyn FnMut(usize) -> bool) {
        self.parts[0].file.read_in(keep_on);
    }

    /// Whether the packed weights of a file that ships them lie where kernels can read them: a part of a file, or a buffer, may
    /// begin anywhere.
    pub fn packed_is_aligned(&self) -> bool {
        self.packed_bytes().as_ptr().addr().is_multiple_of(ALIGN)
    }

    /// Whether a later load can know the model again: by what the system says of its files, which a buffer lacks.
    pub fn is_identifiable(&self) -> bool {
        self.parts.iter().all(|part| part.file.stamp().is_some_and(|stamp| part.file.is_named() || stamp.inode != 0))
    }

    /// The files.
    pub(super) fn mapped(&self) -> impl Iterator<Item = &MappedFile> {
        self.parts.iter().map(|p| &p.file)
    }

    /// Paths of all parts.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|p| p.file.path())
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
        self.parts.iter().map(|p| p.file.n_mapped()).sum()
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
        self.parts.iter().try_for_each(|part| part.file.check_unchanged())
    }

    /// Tells the system how the files will be read. A hint: nothing depends on it.
    pub fn advise(&self, access: Access) {
        self.parts.iter().for_each(|part| part.file.advise(access));
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

/// A file that ships packed weights holds them for all who load it.
impl HoldBytes for ModelFile {
    fn bytes(&self) -> &[u8] {
        self.packed_bytes()
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
            let bytes = gguf.tensor_bytes(t);
            let (Ok(n_in), Ok(n_out)) = (usize::try_from(t.dims[0]), usize::try_from(t.n_rows())) else {
                return Err(too_large(t));
            };
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
            let name = self.name(t.name)?;
            self.entries.push(Entry { name, part, n_dims: t.n_dims as u8, ty: t.ty, n_in, n_out, offset, n_bytes: bytes.len() });
        }
        Ok(region)
    }

    fn name(&mut self, name: &str) -> Result<(u32, u8), ModelError> {
        let (Ok(start), Ok(len)) = (u32::try_from(self.names.len()), u8::try_from(name.len())) else {
            return Err(ModelError::NamesTooLong);
        };
        self.names.push_str(name);
        Ok((start, len))
    }

    /// Replaces the pieces of a pack by the tensors that they are pieces of.
    fn show_packed(&mut self, gguf: &Gguf<'_>, pack: &PackTable) -> Result<(), ModelError> {
        let pieces = gguf.tensors.iter().zip(&pack.pieces).filter(|(_, p)| !p.plain);
        let hidden: HashSet<&str> = pieces.clone().map(|(t, _)| t.name).collect();
        let names = &self.names;
        self.entries.retain(|e| !hidden.contains(name_of(names, e)));
        let mut shown: HashSet<&str> = gguf.tensors.iter().map(|t| t.name).filter(|name| !hidden.contains(name)).collect();
        for (_, p) in pieces {
            if shown.insert(&p.tensor) {
                let name = self.name(&p.tensor)?;
                let n_dims = if p.n_out > 1 { 2 } else { 1 };
                self.entries.push(Entry { name, part: 0, n_dims, ty: p.ty, n_in: p.n_in, n_out: p.n_out, offset: 0, n_bytes: 0 });
            }
        }
        Ok(())
    }
}

fn name_of<'a>(names: &'a str, e: &Entry) -> &'a str {
    let (start, len) = (e.name.0 as usize, usize::from(e.name.1));
    names.get(start..start + len).unwrap_or_default()
}

fn parse(file: &MappedFile) -> Result<Gguf<'_>, ModelError> {
    Gguf::parse(file.bytes()).map_err(|source| ModelError::Gguf { path: file.path().to_owned(), source })
}
