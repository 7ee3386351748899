//! Bytes to metadata and tensor table. Everything is checked here, once, in checked arithmetic.
//!
//! ```text
//! "GGUF"  u32 version  u64 n_tensors  u64 n_kv
//! n_kv      x { string key, u32 type, value }
//! n_tensors x { string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset }
//! zeros up to the next multiple of the alignment = data_start
//! tensor data; offsets count from data_start and are multiples of the alignment
//! ```
//! The magic is the same in both byte orders; the version tells which one holds for all numbers that follow.
//! No length or count leads to an allocation before it has been compared with the bytes that remain.

use crate::cursor::{Cursor, Short};
use crate::error::{Error, shown_bytes};
use crate::metadata::Metadata;
use crate::tensor::{self, TensorInfo};
use crate::value::{Value, check_value};

/// The key that sets the alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// Alignment of files that don't state one.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Smallest and largest alignment accepted. The format asks for multiples of 8; pages end at 64 KiB.
pub(crate) const ALIGNMENTS: (u32, u32) = (8, 65536);
/// Longest metadata key in bytes.
pub const MAX_KEY: u64 = 65535;
/// The least that a metadata entry takes: key length, one byte of key, type, one byte of value.
const MIN_ENTRY_BYTES: usize = 8 + 1 + 4 + 1;

/// Byte order of a file's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Least significant byte first: nearly all files.
    Little,
    /// Most significant byte first.
    Big,
}

/// A parsed file: views into its bytes.
#[derive(Debug, Clone)]
pub struct Gguf<'a> {
    /// Container version, 2 or 3.
    pub version: u32,
    /// Byte order of all numbers, in metadata and tensors.
    pub endian: Endian,
    /// Tensors start at multiples of this many bytes.
    pub alignment: u64,
    /// Key-value pairs.
    pub metadata: Metadata<'a>,
    /// Tensors in table order.
    pub tensors: Vec<TensorInfo<'a>>,
    /// First byte of the data section, from the start of the file; the file's size where no data follows.
    pub data_start: u64,
    /// One past the last byte of the tensor table, before padding.
    pub(crate) table_end: u64,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<usize>,
    bytes: &'a [u8],
}

impl<'a> Gguf<'a> {
    /// Reads header, metadata and tensor table, and proves that every tensor lies in `bytes`.
    /// Time and memory grow with the size of metadata and table; tensor data isn't touched.
    ///
    /// # Errors
    /// Every way in which a file can be malformed, as the [`Error`] that names it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        check_magic(bytes)?;
        let file_len = bytes.len() as u64;
        let in_header = |short: Short| Error::Truncated {
            what: "the header".to_owned(),
            needed: short.needed,
            file_len,
        };

        let (version, endian) = read_version(bytes).map_err(in_header)?;
        let hint = match version {
            2 | 3 => None,
            1 => Some(": version 1 files are from 2023, convert the model again"),
            _ => Some(""),
        };
        if let Some(hint) = hint {
            return Err(Error::Version {
                found: version,
                hint,
            });
        }

        let mut c = Cursor::new(bytes, endian);
        c.take(8).map_err(in_header)?;
        let n_tensors = c.u64().map_err(in_header)?;
        let n_kv = c.u64().map_err(in_header)?;

        check_count(&c, "the metadata", n_kv, MIN_ENTRY_BYTES)?;
        let mut entries = Vec::new();
        for index in 0..n_kv {
            entries.push(read_entry(&mut c, index, file_len)?);
        }
        let metadata = Metadata::new(entries)?;
        let alignment = read_alignment(&metadata)?;

        check_count(&c, "the tensor table", n_tensors, tensor::MIN_ROW_BYTES)?;
        let mut raw = Vec::new();
        for index in 0..n_tensors {
            raw.push(tensor::read_row(&mut c, index, file_len)?);
        }

        let table_end = c.pos() as u64;
        // At most 65536 bytes of padding on top of a position in memory.
        let data_start = table_end
            .checked_next_multiple_of(alignment)
            .unwrap_or(u64::MAX);
        let (tensors, by_name) = tensor::place(raw, data_start, alignment, file_len)?;
        let data_start = data_start.min(file_len);
        Ok(Self {
            version,
            endian,
            alignment,
            metadata,
            tensors,
            data_start,
            table_end,
            by_name,
            bytes,
        })
    }

    /// The tensor with this name. Costs the logarithm of the number of tensors.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo<'a>> {
        let name_of = |i: &usize| self.tensors.get(*i).map_or("", |t| t.name);
        let at = self
            .by_name
            .binary_search_by(|i| name_of(i).cmp(name))
            .ok()?;
        self.tensors.get(*self.by_name.get(at)?)
    }

    /// The bytes of a tensor of this file, in the file's byte order; empty for a tensor of another, larger file.
    pub fn tensor_bytes(&self, tensor: &TensorInfo<'_>) -> &'a [u8] {
        let range = || {
            let start = usize::try_from(tensor.offset).ok()?;
            let end = start.checked_add(usize::try_from(tensor.n_bytes).ok()?)?;
            self.bytes.get(start..end)
        };
        range().unwrap_or(&[])
    }

    /// Number of bytes after the table and the last tensor, where all of them are zero.
    pub(crate) fn end_zeros(&self) -> Option<u64> {
        let ends = self
            .tensors
            .iter()
            .map(|t| t.offset.saturating_add(t.n_bytes));
        let end = ends.max().unwrap_or(self.table_end);
        let rest = self.bytes.get(usize::try_from(end).ok()?..)?;
        rest.iter().all(|&b| b == 0).then_some(rest.len() as u64)
    }

    /// Size of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// First bytes of files that people take for GGUF; to add one, add its row.
const OTHER_FILES: [(&[u8], &str); 6] = [
    (
        b"\0\0\0\0",
        ": the file starts with zeros, as an unfinished download does; fetch it again",
    ),
    (
        b"<!DO",
        ": this looks like a web page; the download link was probably not the file itself",
    ),
    (
        b"<htm",
        ": this looks like a web page; the download link was probably not the file itself",
    ),
    (
        b"PK\x03\x04",
        ": this is a zip archive or a PyTorch checkpoint; convert it to GGUF",
    ),
    (b"\x1f\x8b", ": this is a gzip archive; unpack it first"),
    (b"FUGG", ": the magic is byte-swapped"),
];

/// Magics of the containers before GGUF, as bytes in a file.
const OLD_MAGICS: [([u8; 4], &str); 4] = [
    (*b"lmgg", "ggml"),
    (*b"fmgg", "ggmf"),
    (*b"tjgg", "ggjt"),
    (*b"algg", "ggla"),
];

fn check_magic(bytes: &[u8]) -> Result<(), Error> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    if bytes.starts_with(b"GGUF") {
        return Ok(());
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(Error::LfsPointer);
    }
    if bytes.starts_with(b"\xef\xbb\xbfGGUF") {
        return Err(Error::ByteOrderMark);
    }
    if let Some((_, found)) = OLD_MAGICS
        .iter()
        .find(|(magic, _)| bytes.starts_with(magic))
    {
        return Err(Error::OldFormat { found });
    }
    let hint = OTHER_FILES
        .iter()
        .find(|(start, _)| bytes.starts_with(start))
        .map_or("", |(_, hint)| hint);
    let found = shown_bytes(bytes.get(..4).unwrap_or(bytes));
    Err(Error::NotGguf { found, hint })
}

/// The version, and the byte order in which it is a small number.
fn read_version(bytes: &[u8]) -> Result<(u32, Endian), Short> {
    let mut c = Cursor::new(bytes, Endian::Little);
    c.take(4)?;
    let version = c.u32()?;
    if version != 0 && version & 0xffff == 0 {
        return Ok((version.swap_bytes(), Endian::Big));
    }
    Ok((version, Endian::Little))
}

/// Compares a count with the bytes that remain, before anything is allocated for it.
fn check_count(c: &Cursor<'_>, what: &str, found: u64, min_bytes: usize) -> Result<(), Error> {
    let remaining = c.remaining() as u64;
    let max = remaining.checked_div(min_bytes as u64).unwrap_or(0);
    if found > max {
        return Err(Error::Count {
            what: what.to_owned(),
            found,
            max,
            remaining,
        });
    }
    Ok(())
}

fn read_entry<'a>(
    c: &mut Cursor<'a>,
    index: u64,
    file_len: u64,
) -> Result<(&'a str, Value<'a>), Error> {
    let in_key = |short: Short| Error::Truncated {
        what: format!("the key of metadata entry {index}"),
        needed: short.needed,
        file_len,
    };
    let found = c.u64().map_err(in_key)?;
    if found == 0 || found > MAX_KEY {
        return Err(Error::KeyLength {
            index,
            found,
            max: MAX_KEY,
        });
    }
    let raw = c.take(found).map_err(in_key)?;
    let key = std::str::from_utf8(raw).map_err(|_| Error::KeyEncoding {
        index,
        found: shown_bytes(raw),
    })?;
    Ok((key, check_value(c, key, file_len)?))
}

fn read_alignment(metadata: &Metadata<'_>) -> Result<u64, Error> {
    let (min, max) = ALIGNMENTS;
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(v)) if v.is_power_of_two() && (min..=max).contains(&v) => Ok(v.into()),
        Some(other) => Err(Error::Alignment {
            found: other.to_string(),
            min,
            max,
        }),
    }
}
