//! Content to bytes: the inverse of the reader, and a builder for files made from nothing.
//!
//! Tensors are written in table order, each padded with zeros to the alignment. A file that was laid out so, read with
//! [`Writer::from_gguf`] and written again, is byte-equal; version, byte order and the padding at the end are kept.

use crate::error::Error;
use crate::format::{TensorType, encode_row, swap_endian};
use crate::owned::OwnedValue;
use crate::reader::{ALIGNMENT_KEY, ALIGNMENTS, DEFAULT_ALIGNMENT, Endian, Gguf, MAX_KEY};
use crate::tensor::{MAX_DIMS, MAX_TENSOR_NAME, TensorInfo, blocks_bytes};
use std::borrow::Cow;
use std::collections::HashSet;
use std::io;

/// A file to be written.
#[derive(Debug, Clone)]
pub struct Writer<'a> {
    /// Container version, 2 or 3.
    pub version: u32,
    /// Byte order of all numbers.
    pub endian: Endian,
    /// Tensors start at multiples of this many bytes. Where it isn't 32, it is written as `general.alignment`.
    pub alignment: u64,
    metadata: Vec<(String, OwnedValue)>,
    tensors: Vec<WriterTensor<'a>>,
    /// Zeros after the last byte of table and tensors, where not just those up to the alignment.
    end_padding: Option<u64>,
}

/// A tensor to be written.
#[derive(Debug, Clone)]
pub struct WriterTensor<'a> {
    /// Name, at most 64 bytes.
    pub name: String,
    /// Storage type.
    pub ty: TensorType,
    /// Elements per dimension, the contiguous one first; at most 4.
    pub dims: Vec<u64>,
    /// Whole blocks, little endian whatever the file's byte order.
    pub data: Cow<'a, [u8]>,
}

impl Default for Writer<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Writer<'a> {
    /// An empty file: version 3, little endian, alignment 32.
    pub fn new() -> Self {
        Self {
            version: 3,
            endian: Endian::Little,
            alignment: DEFAULT_ALIGNMENT,
            metadata: Vec::new(),
            tensors: Vec::new(),
            end_padding: None,
        }
    }

    /// The content of a parsed file. Tensor data of little-endian files is borrowed, of big-endian files copied.
    pub fn from_gguf(gguf: &Gguf<'a>) -> Self {
        let data = |t: &TensorInfo<'a>| match gguf.endian {
            Endian::Little => Cow::Borrowed(gguf.tensor_bytes(t)),
            Endian::Big => {
                let mut data = gguf.tensor_bytes(t).to_vec();
                swap_endian(t.ty, &mut data);
                Cow::Owned(data)
            }
        };
        let tensor = |t: &TensorInfo<'a>| WriterTensor {
            name: t.name.to_owned(),
            ty: t.ty,
            dims: t.dims.get(..t.n_dims).unwrap_or(&t.dims).to_vec(),
            data: data(t),
        };
        Self {
            version: gguf.version,
            endian: gguf.endian,
            alignment: gguf.alignment,
            metadata: gguf.metadata.iter().map(|(key, value)| (key.to_owned(), value.into())).collect(),
            tensors: gguf.tensors.iter().map(tensor).collect(),
            end_padding: gguf.end_zeros(),
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&OwnedValue> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    /// Sets a key: in place where it is there, else after the others.
    pub fn set(&mut self, key: &str, value: impl Into<OwnedValue>) -> &mut Self {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Takes a key out; whether it was there.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.metadata.len();
        self.metadata.retain(|(k, _)| k != key);
        self.metadata.len() < before
    }

    /// Keys and values in the order of the file.
    pub fn metadata(&self) -> &[(String, OwnedValue)] {
        &self.metadata
    }

    /// Tensors in table order.
    pub fn tensors(&self) -> &[WriterTensor<'a>] {
        &self.tensors
    }

    /// Tensors in table order, to be changed, removed, moved. The end of the file is padded to the alignment from then on.
    pub fn tensors_mut(&mut self) -> &mut Vec<WriterTensor<'a>> {
        self.end_padding = None;
        &mut self.tensors
    }

    /// Appends a tensor of whole blocks, little endian.
    pub fn add_tensor(&mut self, name: &str, ty: TensorType, dims: &[u64], data: impl Into<Cow<'a, [u8]>>) -> &mut Self {
        let (name, dims, data) = (name.to_owned(), dims.to_vec(), data.into());
        self.tensors_mut().push(WriterTensor { name, ty, dims, data });
        self
    }

    /// Appends a tensor encoded from its values.
    ///
    /// # Errors
    /// As [`encode_row`]: no encoder for the type, or values that aren't whole blocks.
    pub fn add_values(&mut self, name: &str, ty: TensorType, dims: &[u64], values: &[f32]) -> Result<&mut Self, Error> {
        let row = ty.row();
        let n_blocks = values.len().checked_div(row.block_elems).unwrap_or(0);
        let mut data = vec![0; n_blocks.saturating_mul(row.block_bytes)];
        encode_row(ty, values, &mut data)?;
        Ok(self.add_tensor(name, ty, dims, data))
    }

    /// The file as bytes.
    ///
    /// # Errors
    /// Content that a reader would refuse, as the [`Error`] with which it would.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let outline = self.lay_out(true)?;
        let mut out = Vec::with_capacity(usize::try_from(outline.file_len).unwrap_or(0));
        // Writing to a vector doesn't fail.
        self.put(&outline, &mut out).ok();
        Ok(out)
    }

    /// Writes the file; tensor data isn't gathered in memory first.
    ///
    /// # Errors
    /// Those of `out`; or one of kind [`io::ErrorKind::InvalidInput`] that holds the [`Error`] of content that a reader
    /// would refuse, before anything is written.
    pub fn write_to(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let outline = self.lay_out(true).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        self.put(&outline, out)
    }

    /// The file without the data of its tensors, for a caller that writes them itself. Sizes follow from types and
    /// dimensions; data that tensors hold is left aside.
    ///
    /// # Errors
    /// As [`Writer::to_bytes`].
    pub fn outline(&self) -> Result<Outline, Error> {
        self.lay_out(false)
    }

    /// Checks all content and lays the file out.
    fn lay_out(&self, with_data: bool) -> Result<Outline, Error> {
        if !matches!(self.version, 2 | 3) {
            return Err(Error::Version { found: self.version, hint: "" });
        }
        let (min, max) = ALIGNMENTS;
        if !self.alignment.is_power_of_two() || !(u64::from(min)..=u64::from(max)).contains(&self.alignment) {
            return Err(Error::Alignment { found: self.alignment.to_string(), min, max });
        }

        let mut keys = HashSet::new();
        for (index, (key, value)) in self.metadata.iter().enumerate() {
            let found = key.len() as u64;
            if found == 0 || found > MAX_KEY {
                return Err(Error::KeyLength { index: index as u64, found, max: MAX_KEY });
            }
            if !keys.insert(key) {
                return Err(Error::KeyDuplicate { key: key.clone() });
            }
            value.check(key, 1)?;
        }

        let mut head = Head { bytes: Vec::new(), endian: self.endian };
        head.bytes.extend_from_slice(b"GGUF");
        head.u32(self.version);
        head.u64(self.tensors.len() as u64);
        let states_alignment = self.metadata.iter().any(|(key, _)| key == ALIGNMENT_KEY);
        let adds_alignment = !states_alignment && self.alignment != DEFAULT_ALIGNMENT;
        head.u64((self.metadata.len() as u64).saturating_add(adds_alignment.into()));
        let alignment = OwnedValue::U32(u32::try_from(self.alignment).unwrap_or(max));
        for (key, value) in &self.metadata {
            // The field wins over the key, so that a change of it can't be forgotten.
            head.entry(key, if key == ALIGNMENT_KEY { &alignment } else { value });
        }
        if adds_alignment {
            head.entry(ALIGNMENT_KEY, &alignment);
        }

        let mut names = HashSet::new();
        let mut offsets = Vec::with_capacity(self.tensors.len());
        let mut end = 0u64;
        for (index, tensor) in self.tensors.iter().enumerate() {
            let n_bytes = self.check_tensor(index as u64, tensor, with_data)?;
            if !names.insert(&tensor.name) {
                return Err(Error::TensorDuplicate { name: tensor.name.clone() });
            }
            let too_large = || Error::TensorSize { name: tensor.name.clone(), found: tensor.dims.clone(), file_len: end };
            let offset = end.checked_next_multiple_of(self.alignment).ok_or_else(too_large)?;
            head.tensor(tensor, offset);
            offsets.push(offset);
            end = offset.checked_add(n_bytes).ok_or_else(too_large)?;
        }

        let table_end = head.bytes.len() as u64;
        let data_start = table_end.next_multiple_of(self.alignment);
        let content_end = if self.tensors.is_empty() { table_end } else { data_start.saturating_add(end) };
        let file_len = match self.end_padding {
            Some(zeros) => content_end.saturating_add(zeros),
            None => content_end.next_multiple_of(self.alignment),
        };
        Ok(Outline { head: head.bytes, data_start, offsets, file_len })
    }

    /// Checks a tensor; its size in bytes.
    fn check_tensor(&self, index: u64, tensor: &WriterTensor<'_>, with_data: bool) -> Result<u64, Error> {
        let WriterTensor { name, ty, dims, data } = tensor;
        let found = name.len() as u64;
        if found > MAX_TENSOR_NAME {
            return Err(Error::TensorNameLength { index, found, max: MAX_TENSOR_NAME });
        }
        if dims.len() > MAX_DIMS {
            let found = u32::try_from(dims.len()).unwrap_or(u32::MAX);
            return Err(Error::TensorDims { name: name.clone(), found, max: MAX_DIMS as u32 });
        }
        let expected = blocks_bytes(name, *ty, dims, data.len() as u64)?;
        if with_data && expected != data.len() as u64 {
            let (name, dims, found) = (name.clone(), dims.clone(), data.len() as u64);
            return Err(Error::TensorData { name, ty: *ty, dims, expected, found });
        }
        Ok(expected)
    }

    fn put(&self, plan: &Outline, out: &mut dyn io::Write) -> io::Result<()> {
        out.write_all(&plan.head)?;
        let mut at = plan.head.len() as u64;
        for (tensor, &offset) in self.tensors.iter().zip(&plan.offsets) {
            let start = plan.data_start.saturating_add(offset);
            put_zeros(out, start.saturating_sub(at))?;
            match self.endian {
                Endian::Little => out.write_all(&tensor.data)?,
                Endian::Big => {
                    let mut data = tensor.data.to_vec();
                    swap_endian(tensor.ty, &mut data);
                    out.write_all(&data)?;
                }
            }
            at = start.saturating_add(tensor.data.len() as u64);
        }
        put_zeros(out, plan.file_len.saturating_sub(at))
    }
}

/// A file without the data of its tensors: see [`Writer::outline`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// All bytes before the padding that precedes the data.
    pub head: Vec<u8>,
    /// First byte of the data.
    pub data_start: u64,
    /// Of the tensors in table order, from `data_start`.
    pub offsets: Vec<u64>,
    /// Size of the file; bytes that belong to no tensor are zero.
    pub file_len: u64,
}

fn put_zeros(out: &mut dyn io::Write, mut n: u64) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    while n > 0 {
        let chunk = ZEROS.get(..usize::try_from(n).unwrap_or(ZEROS.len())).unwrap_or(&ZEROS);
        out.write_all(chunk)?;
        n = n.saturating_sub(chunk.len() as u64);
    }
    Ok(())
}

/// Header, metadata and table as they grow.
struct Head {
    bytes: Vec<u8>,
    endian: Endian,
}

impl Head {
    /// A number given in little endian.
    fn number<const N: usize>(&mut self, mut le: [u8; N]) {
        if self.endian == Endian::Big {
            le.reverse();
        }
        self.bytes.extend_from_slice(&le);
    }

    fn u32(&mut self, v: u32) {
        self.number(v.to_le_bytes());
    }

    fn u64(&mut self, v: u64) {
        self.number(v.to_le_bytes());
    }

    fn string(&mut self, s: &[u8]) {
        self.u64(s.len() as u64);
        self.bytes.extend_from_slice(s);
    }

    fn entry(&mut self, key: &str, value: &OwnedValue) {
        self.string(key.as_bytes());
        self.u32(value.value_type() as u32);
        self.value(value);
    }

    /// Recursion is as deep as [`OwnedValue::check`] allowed.
    fn value(&mut self, value: &OwnedValue) {
        match value {
            OwnedValue::U8(v) => self.number(v.to_le_bytes()),
            OwnedValue::I8(v) => self.number(v.to_le_bytes()),
            OwnedValue::U16(v) => self.number(v.to_le_bytes()),
            OwnedValue::I16(v) => self.number(v.to_le_bytes()),
            OwnedValue::U32(v) => self.number(v.to_le_bytes()),
            OwnedValue::I32(v) => self.number(v.to_le_bytes()),
            OwnedValue::F32(v) => self.number(v.to_le_bytes()),
            OwnedValue::Bool(v) => self.bytes.push((*v).into()),
            OwnedValue::String(v) => self.string(v),
            OwnedValue::Array { elem, values } => {
                self.u32(*elem as u32);
                self.u64(values.len() as u64);
                values.iter().for_each(|v| self.value(v));
            }
            OwnedValue::U64(v) => self.number(v.to_le_bytes()),
            OwnedValue::I64(v) => self.number(v.to_le_bytes()),
            OwnedValue::F64(v) => self.number(v.to_le_bytes()),
        }
    }

    fn tensor(&mut self, tensor: &WriterTensor<'_>, offset: u64) {
        self.string(tensor.name.as_bytes());
        self.u32(u32::try_from(tensor.dims.len()).unwrap_or(u32::MAX));
        tensor.dims.iter().for_each(|&d| self.u64(d));
        self.u32(tensor.ty as u32);
        self.u64(offset);
    }
}
