//! The file itself: its keys, reading and writing.

use crate::backend::{BackendError, HoldBytes, PACK_CHUNK, PackLayout, PackPiece, PackSink};
use crate::math::NUMERICS;
use crate::model::mapped::MappedFile;
use crate::model::{ModelError, ModelFile};
use crate::os;
use selvedge_gguf::{Array, Endian, Gguf, TensorType, Value, Writer, split};
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
    /// The table of a file; `None` where it holds no pack.
    pub(in crate::model) fn read(gguf: &Gguf<'_>) -> Result<Option<PackTable>, ModelError> {
        let m = &gguf.metadata;
        if m.get(FORM).is_none() {
            return Ok(None);
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
        (self.pieces != layout.pieces).then(|| "it holds other pieces than the model needs".into())
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
        put_at(self.file, self.data_start + offset as u64, bytes)
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
pub(in crate::model) enum WriteError {
    /// The weights, or a cancel.
    Backend(BackendError),
    /// The place: a full disk, a limit.
    Place(String),
}

/// What packs the weights into a sink.
pub(in crate::model) type PackInto<'a> = &'a mut dyn FnMut(&dyn PackSink) -> Result<(), BackendError>;

/// Writes a whole pack file. `ships`: with the tensors that aren't packed, so that nothing but this file is needed.
pub(in crate::model) fn write(
    out: &File,
    model: &ModelFile,
    layout: &PackLayout,
    source: &str,
    ships: bool,
    pack: PackInto<'_>,
) -> Result<(), WriteError> {
    let place = |e: &dyn std::fmt::Display| WriteError::Place(e.to_string());
    let gguf = model.gguf().map_err(|e| place(&e))?;
    let (outline, raw) = {
        let mut writer = Writer::from_gguf(&gguf);
        (writer.version, writer.endian, writer.alignment) = (3, Endian::Little, os::ALIGN as u64);
        for key in [split::SPLIT_NO, split::SPLIT_COUNT, split::SPLIT_TENSORS] {
            writer.remove(key);
        }
        writer.tensors_mut().clear();
        let pieces = &layout.pieces;
        let number = |f: fn(&PackPiece) -> usize| pieces.iter().map(|p| f(p) as u64).collect::<Vec<u64>>();
        writer.set(FORM, layout.form.as_str()).set(NUMERICS_KEY, NUMERICS).set(SOURCE, source);
        writer.set(TENSOR, pieces.iter().map(|p| p.tensor.as_str()).collect::<Vec<_>>());
        writer.set(TYPE, pieces.iter().map(|p| p.ty as u32).collect::<Vec<u32>>());
        writer.set(N_IN, number(|p| p.n_in)).set(N_OUT, number(|p| p.n_out));
        writer.set(FIRST, number(|p| p.rows.start)).set(ROWS, number(|p| p.rows.len()));
        for p in pieces {
            let name = match (p.plain, p.rows.len() == p.n_out) {
                (true, _) => p.tensor.clone(),
                (false, true) => format!("{}.packed", p.tensor),
                (false, false) => format!("{}.packed.{}", p.tensor, p.rows.start),
            };
            let (ty, n) = if p.plain { (TensorType::F32, p.n_bytes / 4) } else { (TensorType::I8, p.n_bytes) };
            writer.add_tensor(&name, ty, &[n as u64], Vec::new());
        }
        let packed = |name: &str| layout.pieces.iter().any(|p| p.tensor == name) && !layout.unpacked.iter().any(|u| u == name);
        let raw: Vec<_> = if ships { model.tensors().filter(|(name, _)| !packed(name)).collect() } else { Vec::new() };
        for (name, t) in &raw {
            let dims = [t.n_in as u64, t.n_out as u64];
            writer.add_tensor(name, t.ty, &dims[..t.n_dims.clamp(1, 2)], Vec::new());
        }
        (writer.outline().map_err(|e| place(&e))?, raw)
    };
    let from_layout = outline.offsets.iter().zip(&layout.pieces).all(|(&at, p)| at == p.offset as u64);
    debug_assert!(from_layout, "the writer lays the pieces out as the plan did");
    if os::file_size_limit().is_some_and(|limit| outline.file_len > limit) {
        return Err(WriteError::Place(format!(
            "files may not be larger than the limit set for this process, {} bytes are needed",
            outline.file_len
        )));
    }
    out.set_len(outline.file_len).map_err(|e| place(&e))?;
    let sink = FileSink { file: out, data_start: outline.data_start };
    put_at(out, 0, &outline.head).map_err(|e| place(&e))?;
    pack(&sink).map_err(|e| match e {
        BackendError::PackWrite { reason } => WriteError::Place(reason),
        other => WriteError::Backend(other),
    })?;
    for ((_, t), &offset) in raw.iter().zip(&outline.offsets[layout.pieces.len()..]) {
        sink.put(offset as usize, t.bytes).map_err(|e| place(&e))?;
    }
    // What a crash must not leave half written is on the disk before its name is.
    out.sync_all().map_err(|e| place(&e))
}
