//! The file itself: its keys, reading and writing.

use super::source;
use crate::backend::{BackendError, HoldBytes, LoadControl, PACK_CHUNK, PackLayout, PackPiece, PackSink};
use crate::cancel::CancelToken;
use crate::math::NUMERICS;
use crate::model::mapped::MappedFile;
use crate::model::{ModelError, ModelFile, TensorRef};
use crate::os;
use selvedge_gguf::{Array, Endian, Gguf, Outline, TensorType, Value, Writer, split};
use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

const FORM: &str = "selvedge.pack.form";
const NUMERICS_KEY: &str = "selvedge.pack.numerics";
const SOURCE: &str = "selvedge.pack.source";
const TENSOR: &str = "selvedge.pack.tensor";
const TYPE: &str = "selvedge.pack.type";
const N_IN: &str = "selvedge.pack.n_in";
const N_OUT: &str = "selvedge.pack.n_out";
const FIRST: &str = "selvedge.pack.first";
const ROWS: &str = "selvedge.pack.rows";

/// What a file says of its packed weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackTable {
    /// Name and version of the packed form.
    pub form: String,
    /// Version of the arithmetic that it was packed for.
    pub numerics: u32,
    /// SHA-256 of the model's file, in hexadecimal.
    pub source: String,
    /// The pieces.
    pub pieces: Vec<PackPiece>,
    /// Where the pack lies in the file.
    pub(in crate::model) data: Range<usize>,
}

fn wrong(key: &str, expected: impl Into<String>, found: impl Into<String>) -> ModelError {
    ModelError::KeyValue { key: key.to_owned(), expected: expected.into(), found: found.into() }
}

impl PackTable {
    /// The table of a file; `None` where it holds no pack. Pieces lie inside the file, rows inside their tensors.
    ///
    /// # Errors
    /// Keys that are missing, contradict each other, or name sizes that no file of this size can hold.
    pub fn read(gguf: &Gguf<'_>) -> Result<Option<PackTable>, ModelError> {
        let m = &gguf.metadata;
        if m.get(FORM).is_none() {
            return Ok(None);
        }
        // Pieces are bytes of this project's own, which no tool that turns a file around knows.
        if gguf.endian == Endian::Big {
            return Err(wrong(FORM, "in a little-endian file", "in a big-endian one"));
        }
        let text = |key: &str| -> Result<String, ModelError> { Ok(m.require_str(key)?.to_owned()) };
        let array = |key: &str| -> Result<Array<'_>, ModelError> {
            m.array(key)?.ok_or_else(|| wrong(key, "an array with an element a piece", "missing"))
        };
        let tensors = array(TENSOR)?;
        let n = tensors.len();
        if n > gguf.tensors.len() {
            return Err(wrong(TENSOR, format!("at most {} elements, one a tensor", gguf.tensors.len()), n.to_string()));
        }
        let numbers = |key: &str| -> Result<Vec<usize>, ModelError> {
            let array = array(key)?;
            let number = |v: Value<'_>| match v {
                Value::U64(x) => usize::try_from(x).ok(),
                Value::U32(x) => usize::try_from(x).ok(),
                _ => None,
            };
            let all: Option<Vec<usize>> = array.iter().map(number).collect();
            all.filter(|all| all.len() == n)
                .ok_or_else(|| wrong(key, format!("{n} unsigned integers"), format!("{} elements", array.len())))
        };
        let (types, n_in, n_out, first, rows) = (numbers(TYPE)?, numbers(N_IN)?, numbers(N_OUT)?, numbers(FIRST)?, numbers(ROWS)?);
        let start = gguf.data_start as usize;
        let mut pieces = Vec::with_capacity(n);
        let mut end = start;
        for (i, name) in tensors.iter().enumerate() {
            let Value::String(name) = name else { return Err(wrong(TENSOR, "texts", "something else")) };
            let tensor = String::from_utf8(name.to_vec()).map_err(|_| wrong(TENSOR, "UTF-8", format!("element {i}")))?;
            let id = u32::try_from(types[i]).unwrap_or(u32::MAX);
            let ty = TensorType::from_id(id).ok_or_else(|| wrong(TYPE, "known storage types", id.to_string()))?;
            let t = &gguf.tensors[i];
            let plain = t.ty == TensorType::F32;
            if !plain && t.ty != TensorType::I8 {
                return Err(wrong(TENSOR, format!("tensor {} to be I8 or F32", t.name), t.ty.to_string()));
            }
            let end_row = first[i].checked_add(rows[i]).filter(|&end| end <= n_out[i]);
            let end_row = end_row.ok_or_else(|| wrong(ROWS, format!("rows inside the {} of {tensor}", n_out[i]), rows[i].to_string()))?;
            // As for tensors of any file: no weight takes less than an eighth of a byte, so that sizes computed from a shape stay
            // within small multiples of the file's.
            let most = gguf.file_len().saturating_mul(8);
            if (n_in[i] as u64).checked_mul(n_out[i] as u64).is_none_or(|n| n > most) {
                let found = format!("{} x {} of {tensor}", n_in[i], n_out[i]);
                return Err(wrong(N_OUT, format!("at most {most} numbers in a file of this size"), found));
            }
            if n_in[i] % ty.row().block_elems != 0 {
                return Err(wrong(N_IN, format!("whole blocks of {} columns of {tensor}", ty.row().block_elems), n_in[i].to_string()));
            }
            // The reader has shown that the tensor lies in the file, after the start of the data.
            let (offset, n_bytes) = (t.offset as usize - start, t.n_bytes as usize);
            end = end.max(start + offset + n_bytes);
            pieces.push(PackPiece { tensor, ty, n_in: n_in[i], n_out: n_out[i], rows: first[i]..end_row, plain, offset, n_bytes });
        }
        let padded = end.next_multiple_of(os::ALIGN).min(gguf.file_len() as usize);
        Ok(Some(PackTable {
            form: text(FORM)?,
            numerics: m.require_u32(NUMERICS_KEY)?,
            source: text(SOURCE)?,
            pieces,
            data: start..padded,
        }))
    }

    /// Says what is wrong with the table for a layout; `None`: it is the layout's.
    pub fn mismatch(&self, layout: &PackLayout) -> Option<String> {
        if self.form != layout.form {
            let wanted = if layout.form.is_empty() { "not packed at all" } else { &layout.form };
            return Some(format!("its form is {}, this backend wants weights that are {wanted}", self.form));
        }
        if self.numerics != NUMERICS {
            return Some(format!("it was packed for version {} of the arithmetic, this is {}", self.numerics, NUMERICS));
        }
        if self.pieces != layout.pieces {
            return Some("it holds other pieces than the model needs".into());
        }
        if !self.data.start.is_multiple_of(os::ALIGN) {
            return Some(format!("its weights begin at byte {}, which is no multiple of {}", self.data.start, os::ALIGN));
        }
        (self.data.len() < layout.n_bytes).then(|| format!("it holds {} bytes, {} are needed", self.data.len(), layout.n_bytes))
    }
}

/// A pack, mapped.
#[derive(Debug)]
pub struct PackFile {
    file: MappedFile,
    data: Range<usize>,
}

impl PackFile {
    /// Opens a pack and compares it with what is wanted. The error is a reason to say.
    pub(super) fn open(path: &Path, layout: &PackLayout, source: &str) -> Result<PackFile, String> {
        let file = MappedFile::open(path).map_err(|e| e.to_string())?;
        let gguf = Gguf::parse(file.bytes()).map_err(|e| e.to_string())?;
        let table = PackTable::read(&gguf).map_err(|e| e.to_string())?.ok_or("it holds no packed weights")?;
        if table.source != source {
            return Err("it was packed from another model".into());
        }
        match table.mismatch(layout) {
            Some(reason) => Err(reason),
            None => Ok(PackFile { data: table.data, file }),
        }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// As [`ModelFile::check_unchanged`].
    ///
    /// # Errors
    /// [`ModelError::Changed`].
    pub fn check_unchanged(&self) -> Result<(), ModelError> {
        self.file.check_unchanged()
    }

    /// Reads the pack in; `keep_on` is told the bytes so far and stops it by false.
    pub fn read_in(&self, keep_on: &mut dyn FnMut(usize) -> bool) {
        self.file.read_in(keep_on);
    }
}

impl HoldBytes for PackFile {
    fn bytes(&self) -> &[u8] {
        self.file.bytes().get(self.data.clone()).unwrap_or_default()
    }
}

/// Writes chunks at their places in a file.
struct FileSink<'a> {
    file: &'a File,
    data_start: u64,
}

impl PackSink for FileSink<'_> {
    fn phase(&self) -> usize {
        // Chunks begin at multiples of their size in the file, where its huge pages do.
        (PACK_CHUNK as u64 - self.data_start % PACK_CHUNK as u64) as usize % PACK_CHUNK
    }

    fn put(&self, offset: usize, bytes: &[u8]) -> std::io::Result<()> {
        let at = self.data_start + offset as u64;
        put_at(self.file, at, bytes)?;
        os::begin_writing(self.file, at, bytes.len() as u64);
        Ok(())
    }
}

/// Writes bytes at a place of a file, from any thread.
pub(super) fn put_at(file: &File, at: u64, bytes: &[u8]) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileExt;
        file.write_all_at(bytes, at)
    }
    #[cfg(windows)]
    {
        use std::os::windows::fs::FileExt;
        let mut done = 0;
        while done < bytes.len() {
            done += file.seek_write(&bytes[done..], at + done as u64)?;
        }
        Ok(())
    }
    #[cfg(not(any(unix, windows)))]
    {
        let _ = (file, at, bytes);
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// Why a pack wasn't written.
#[derive(Debug)]
pub(crate) enum KeepError {
    /// The weights, or a cancel.
    Backend(BackendError),
    /// The place: a full disk, a limit.
    Place(String),
}

impl From<BackendError> for KeepError {
    fn from(error: BackendError) -> KeepError {
        match error {
            BackendError::PackWrite { reason } => KeepError::Place(reason),
            other => KeepError::Backend(other),
        }
    }
}

/// What packs the weights into a sink; `progress`: bytes done and in all.
pub(crate) type PackInto<'a> = &'a mut dyn FnMut(&dyn PackSink, &mut LoadControl<'_>) -> Result<(), BackendError>;

/// A pack file that is to be written.
pub(super) struct Job<'a> {
    /// The model.
    pub model: &'a ModelFile,
    /// SHA-256 of its files.
    pub source: &'a str,
    /// What the pack holds.
    pub layout: &'a PackLayout,
    /// Whether the tensors that aren't packed come too, so that nothing but this file is needed.
    pub ships: bool,
}

/// Bytes that are written or waited for between two looks at the cancel token.
const WRITTEN_AT_ONCE: usize = 4 << 20;

impl<'a> Job<'a> {
    /// Tensors that the file holds as they are.
    fn raw(&self) -> Vec<(&'a str, TensorRef<'a>)> {
        let unpacked = |name: &str| self.layout.unpacked.iter().any(|u| u == name);
        let packed: HashSet<&str> = self.layout.pieces.iter().map(|p| p.tensor.as_str()).filter(|name| !unpacked(name)).collect();
        self.model.tensors().filter(|(name, _)| self.ships && !packed.contains(name)).collect()
    }

    /// Everything but the bytes of the tensors.
    fn outline(&self, gguf: &Gguf<'_>, raw: &[(&str, TensorRef<'_>)]) -> Result<Outline, selvedge_gguf::Error> {
        let mut writer = Writer::with_metadata(gguf);
        (writer.version, writer.endian, writer.alignment) = (3, Endian::Little, os::ALIGN as u64);
        for key in [split::SPLIT_NO, split::SPLIT_COUNT, split::SPLIT_TENSORS] {
            writer.remove(key);
        }
        let pieces = &self.layout.pieces;
        let numbers = |f: fn(&PackPiece) -> usize| pieces.iter().map(|p| f(p) as u64).collect::<Vec<u64>>();
        writer.set(FORM, self.layout.form.as_str()).set(NUMERICS_KEY, NUMERICS).set(SOURCE, self.source);
        writer.set(TENSOR, pieces.iter().map(|p| p.tensor.as_str()).collect::<Vec<_>>());
        writer.set(TYPE, pieces.iter().map(|p| p.ty as u32).collect::<Vec<u32>>());
        writer.set(N_IN, numbers(|p| p.n_in)).set(N_OUT, numbers(|p| p.n_out));
        writer.set(FIRST, numbers(|p| p.rows.start)).set(ROWS, numbers(|p| p.rows.len()));
        for p in pieces {
            let name = match (p.plain, p.rows.len() == p.n_out) {
                (true, _) => p.tensor.clone(),
                (false, true) => format!("{}.packed", p.tensor),
                (false, false) => format!("{}.packed.{}", p.tensor, p.rows.start),
            };
            let (ty, n) = if p.plain { (TensorType::F32, p.n_bytes / 4) } else { (TensorType::I8, p.n_bytes) };
            writer.add_tensor(&name, ty, &[n as u64], Vec::new());
        }
        for (name, t) in raw {
            let dims = [t.n_in as u64, t.n_out as u64];
            writer.add_tensor(name, t.ty, &dims[..t.n_dims.clamp(1, 2)], Vec::new());
        }
        writer.outline()
    }

    /// Writes the file to `temporary` and, once it is whole and on the disk, calls it `path`. Leaves nothing else behind.
    pub(super) fn write(&self, temporary: &Path, path: &Path, control: &mut LoadControl<'_>, pack: PackInto<'_>) -> Result<(), KeepError> {
        let place = |e: std::io::Error| KeepError::Place(format!("cannot write {}: {e}", path.display()));
        let written = File::create(temporary).map_err(place).and_then(|file| {
            self.fill(&file, control, pack).map_err(|e| match e {
                KeepError::Place(reason) => KeepError::Place(format!("cannot write {}: {reason}", path.display())),
                other => other,
            })?;
            drop(file);
            std::fs::rename(temporary, path).map_err(place)
        });
        if written.is_err() {
            // What is left of it is no file that anybody asked for.
            let _ = std::fs::remove_file(temporary);
        } else if let Some(dir) = path.parent() {
            // The name is on the disk too; where folders can't be synced, a crash may lose the file and nothing else.
            let _ = File::open(dir).and_then(|dir| dir.sync_all());
        }
        written
    }

    fn fill(&self, out: &File, control: &mut LoadControl<'_>, pack: PackInto<'_>) -> Result<(), KeepError> {
        let place = |e: &dyn std::fmt::Display| KeepError::Place(e.to_string());
        let raw = self.raw();
        let outline = self.outline(&self.model.gguf().map_err(|e| place(&e))?, &raw).map_err(|e| place(&e))?;
        let as_planned = outline.offsets.iter().zip(&self.layout.pieces).all(|(&at, p)| at == p.offset as u64);
        debug_assert!(as_planned, "the writer lays the pieces out as the plan did");
        os::check_file_size(outline.file_len).map_err(|e| place(&e))?;
        out.set_len(outline.file_len).map_err(|e| place(&e))?;
        let sink = FileSink { file: out, data_start: outline.data_start };
        put_at(out, 0, &outline.head).map_err(|e| place(&e))?;
        pack(&sink, control)?;
        let go_on = |cancel: &CancelToken| if cancel.is_cancelled() { Err(BackendError::Cancelled) } else { Ok(()) };
        for ((_, t), &offset) in raw.iter().zip(&outline.offsets[self.layout.pieces.len()..]) {
            for (i, part) in t.bytes.chunks(WRITTEN_AT_ONCE).enumerate() {
                go_on(control.cancel)?;
                sink.put(offset as usize + i * WRITTEN_AT_ONCE, part).map_err(|e| place(&e))?;
            }
        }
        // The hash is that of the file as it was opened.
        self.model.check_unchanged().map_err(|e| place(&e))?;
        // What a crash must not leave half written is on the disk before its name is. Most of it is by now.
        for at in (0..outline.file_len).step_by(WRITTEN_AT_ONCE) {
            go_on(control.cancel)?;
            os::finish_writing(out, at, WRITTEN_AT_ONCE as u64);
        }
        go_on(control.cancel)?;
        out.sync_all().map_err(|e| place(&e))
    }
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
        pack: PackInto<'_>,
    ) -> Result<(), BackendError> {
        let unusable = |why: &str| BackendError::PackWrite { reason: format!("{} {why}, expected the name of a new file", out.display()) };
        if out.is_dir() {
            return Err(unusable("is a folder"));
        }
        if self.mapped().any(|file| file.is_at(out)) {
            return Err(unusable("is the model's own file"));
        }
        let source = source::find(None, self, control.cancel, &mut |_, _| {}).ok_or(BackendError::Cancelled)?;
        let mut name = out.file_name().unwrap_or_default().to_owned();
        name.push(".tmp");
        let job = Job { model: self, source: &source, layout, ships: true };
        job.write(&out.with_file_name(name), out, control, pack).map_err(|error| match error {
            KeepError::Backend(e) => e,
            KeepError::Place(reason) => BackendError::PackWrite { reason },
        })
    }
}
