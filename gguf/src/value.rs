//! Metadata values as views into the file's bytes.
//!
//! Arrays stay where they are: [`Array`] holds the bytes of its elements, which [`check_value`] has walked once, so that
//! the iterators need no errors. To add a value type, add a row to [`TYPES`], a variant to [`ValueType`] and [`Value`],
//! and its case to [`read_scalar`].

use crate::cursor::{Cursor, Short};
use crate::error::{Error, shown, shown_bytes};
use crate::reader::Endian;
use std::fmt;

/// Arrays may hold arrays down to this depth.
pub const MAX_ARRAY_DEPTH: usize = 4;

/// The types that a metadata value can have, with the ids of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ValueType {
    /// 8 bits, unsigned.
    U8 = 0,
    /// 8 bits, signed.
    I8 = 1,
    /// 16 bits, unsigned.
    U16 = 2,
    /// 16 bits, signed.
    I16 = 3,
    /// 32 bits, unsigned.
    U32 = 4,
    /// 32 bits, signed.
    I32 = 5,
    /// 32 bits, IEEE 754.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// u64 length, then that many bytes of any content.
    String = 8,
    /// u32 element type, u64 length, then the elements.
    Array = 9,
    /// 64 bits, unsigned.
    U64 = 10,
    /// 64 bits, signed.
    I64 = 11,
    /// 64 bits, IEEE 754.
    F64 = 12,
}

/// One row per value type, in the order of the ids: type, name, bytes of a value or the least that one takes.
const TYPES: [(ValueType, &str, usize, bool); 13] = [
    (ValueType::U8, "u8", 1, true),
    (ValueType::I8, "i8", 1, true),
    (ValueType::U16, "u16", 2, true),
    (ValueType::I16, "i16", 2, true),
    (ValueType::U32, "u32", 4, true),
    (ValueType::I32, "i32", 4, true),
    (ValueType::F32, "f32", 4, true),
    (ValueType::Bool, "bool", 1, true),
    (ValueType::String, "string", 8, false),
    (ValueType::Array, "array", 12, false),
    (ValueType::U64, "u64", 8, true),
    (ValueType::I64, "i64", 8, true),
    (ValueType::F64, "f64", 8, true),
];

impl ValueType {
    /// The type with this id in the file.
    pub fn from_id(id: u32) -> Option<Self> {
        TYPES.get(usize::try_from(id).ok()?).map(|row| row.0)
    }

    /// The name used in messages, such as `u32` or `string`.
    pub fn name(self) -> &'static str {
        TYPES.get(self as usize).map_or("", |row| row.1)
    }

    /// Bytes of a value; for strings and arrays the least that one takes.
    pub(crate) fn min_bytes(self) -> usize {
        TYPES.get(self as usize).map_or(1, |row| row.2)
    }

    /// Whether all values of the type take [`Self::min_bytes`].
    pub(crate) fn is_fixed(self) -> bool {
        TYPES.get(self as usize).is_some_and(|row| row.3)
    }

    /// Whether [`Array::i64s`] reads it.
    fn is_integer(self) -> bool {
        self.is_fixed() && !matches!(self, Self::F32 | Self::F64 | Self::Bool)
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A metadata value. Strings are raw bytes: the format doesn't promise UTF-8 for them, and vocabularies break it.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// See [`ValueType::U8`].
    U8(u8),
    /// See [`ValueType::I8`].
    I8(i8),
    /// See [`ValueType::U16`].
    U16(u16),
    /// See [`ValueType::I16`].
    I16(i16),
    /// See [`ValueType::U32`].
    U32(u32),
    /// See [`ValueType::I32`].
    I32(i32),
    /// See [`ValueType::F32`].
    F32(f32),
    /// See [`ValueType::Bool`].
    Bool(bool),
    /// See [`ValueType::String`].
    String(&'a [u8]),
    /// See [`ValueType::Array`].
    Array(Array<'a>),
    /// See [`ValueType::U64`].
    U64(u64),
    /// See [`ValueType::I64`].
    I64(i64),
    /// See [`ValueType::F64`].
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value as a wide integer, from any integer type. `bool` isn't one.
    pub fn as_i128(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The value from `f32` or `f64`, rounded to `f32`.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Self::F32(v) => Some(v),
            Self::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    /// The raw bytes of a string.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match *self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }
}

/// Type and value on one short line, such as `u32 7` or `array of 3 string`; long strings are cut.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ty = self.value_type();
        match self {
            Self::F32(v) => write!(f, "{ty} {v}"),
            Self::F64(v) => write!(f, "{ty} {v}"),
            Self::Bool(v) => write!(f, "{ty} {v}"),
            Self::String(v) => write!(f, "{ty} \"{}\"", shown_bytes(v)),
            Self::Array(a) => write!(f, "{ty} of {} {}", a.len(), a.elem_type()),
            _ => write!(f, "{ty} {}", self.as_i128().unwrap_or(0)),
        }
    }
}

/// An array of metadata values: a view of bytes that the parser has checked.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    elem: ValueType,
    len: usize,
    /// The elements, in the file's byte order.
    bytes: &'a [u8],
    endian: Endian,
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} x {})", self.len, self.elem)
    }
}

impl<'a> Array<'a> {
    /// Type of the elements.
    pub fn elem_type(&self) -> ValueType {
        self.elem
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + 'a {
        Values { cursor: Cursor::new(self.bytes, self.endian), elem: self.elem, left: self.len }
    }

    /// The elements of an array of strings; `None` for other arrays.
    #[inline]
    pub fn strings(&self) -> Option<impl Iterator<Item = &'a [u8]> + 'a> {
        let (mut cursor, mut left) = (Cursor::new(self.bytes, self.endian), self.len);
        // Not by way of values: a vocabulary has several hundred thousand, which are gone through whenever a model is opened.
        (self.elem == ValueType::String).then(move || {
            std::iter::from_fn(move || {
                left = left.checked_sub(1)?;
                cursor.string().ok()
            })
        })
    }

    /// The elements of an array of any integer type; u64 values above `i64::MAX` become `i64::MAX`. `None` for others.
    pub fn i64s(&self) -> Option<impl Iterator<Item = i64> + 'a> {
        let wide = |v: Value<'_>| v.as_i128().map(|v| i64::try_from(v).unwrap_or(i64::MAX));
        let (words, others) = self.words(ValueType::I32);
        self.elem.is_integer().then(|| words.map(|word| i64::from(word.cast_signed())).chain(others.filter_map(wide)))
    }

    /// The elements of an array of `f32`, or of `f64` rounded to `f32`; `None` for others.
    pub fn f32s(&self) -> Option<impl Iterator<Item = f32> + 'a> {
        let is_float = matches!(self.elem, ValueType::F32 | ValueType::F64);
        let (words, others) = self.words(ValueType::F32);
        is_float.then(|| words.map(f32::from_bits).chain(others.filter_map(|v| v.as_f32())))
    }

    /// The elements as words of 32 bits where they are of type `ty` and lie in this machine's usual order; else as values.
    /// A vocabulary has hundreds of thousands of types and scores.
    fn words(&self, ty: ValueType) -> (impl Iterator<Item = u32> + 'a, Values<'a>) {
        let quick = self.elem == ty && self.endian == Endian::Little;
        let (words, left) = if quick { (self.bytes, 0) } else { (&[][..], self.len) };
        let others = Values { cursor: Cursor::new(self.bytes, self.endian), elem: self.elem, left };
        (words.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)), others)
    }
}

/// Iterator behind [`Array::iter`]. Ends early only where the bytes were never checked.
struct Values<'a> {
    cursor: Cursor<'a>,
    elem: ValueType,
    left: usize,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        match self.elem {
            ValueType::Array => read_array(&mut self.cursor).map(Value::Array),
            elem => read_scalar(&mut self.cursor, elem).ok(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

/// A value of any type but an array.
fn read_scalar<'a>(c: &mut Cursor<'a>, ty: ValueType) -> Result<Value<'a>, Short> {
    Ok(match ty {
        ValueType::U8 => Value::U8(c.u8()?),
        ValueType::I8 => Value::I8(c.u8()? as i8),
        ValueType::U16 => Value::U16(c.u16()?),
        ValueType::I16 => Value::I16(c.u16()? as i16),
        ValueType::U32 => Value::U32(c.u32()?),
        ValueType::I32 => Value::I32(c.u32()? as i32),
        ValueType::F32 => Value::F32(f32::from_bits(c.u32()?)),
        ValueType::Bool => Value::Bool(c.u8()? != 0),
        ValueType::U64 => Value::U64(c.u64()?),
        ValueType::I64 => Value::I64(c.u64()? as i64),
        ValueType::F64 => Value::F64(f64::from_bits(c.u64()?)),
        ValueType::String | ValueType::Array => Value::String(c.string()?),
    })
}

/// An array inside bytes that were checked; recursion is as deep as the check allowed.
fn read_array<'a>(c: &mut Cursor<'a>) -> Option<Array<'a>> {
    let elem = ValueType::from_id(c.u32().ok()?)?;
    let len = usize::try_from(c.u64().ok()?).ok()?;
    let mut end = *c;
    if elem.is_fixed() {
        end.take((len as u64).checked_mul(elem.min_bytes() as u64)?).ok()?;
    } else {
        for _ in 0..len {
            match elem {
                ValueType::Array => drop(read_array(&mut end)?),
                _ => drop(end.string().ok()?),
            }
        }
    }
    let bytes = c.take(end.pos().checked_sub(c.pos())? as u64).ok()?;
    Some(Array { elem, len, bytes, endian: c.endian() })
}

/// Context of a check: whose value it is and how large the file is, for messages.
struct Check<'k> {
    key: &'k str,
    file_len: u64,
}

impl Check<'_> {
    fn short(&self, short: Short) -> Error {
        Error::Truncated { what: format!("the value of metadata key `{}`", shown(self.key)), needed: short.needed, file_len: self.file_len }
    }

    fn value_type(&self, id: u32) -> Result<ValueType, Error> {
        ValueType::from_id(id).ok_or_else(|| Error::ValueType { key: shown(self.key), found: id })
    }

    fn bool(&self, byte: u8) -> Result<(), Error> {
        if byte > 1 {
            return Err(Error::Bool { key: shown(self.key), found: byte });
        }
        Ok(())
    }

    /// Walks an array, `depth` levels below the value. Work and recursion are bounded by the bytes and the depth.
    fn array<'a>(&self, c: &mut Cursor<'a>, depth: usize) -> Result<Array<'a>, Error> {
        if depth > MAX_ARRAY_DEPTH {
            return Err(Error::ArrayDepth { key: shown(self.key), max: MAX_ARRAY_DEPTH });
        }
        let elem = self.value_type(c.u32().map_err(|e| self.short(e))?)?;
        let n = c.u64().map_err(|e| self.short(e))?;
        let remaining = c.remaining() as u64;
        let max = remaining.checked_div(elem.min_bytes() as u64).unwrap_or(0);
        if n > max {
            let what = format!("the array in metadata key `{}`", shown(self.key));
            return Err(Error::Count { what, found: n, max, remaining });
        }
        let mut end = *c;
        match elem {
            ValueType::Array => {
                for _ in 0..n {
                    self.array(&mut end, depth.saturating_add(1))?;
                }
            }
            ValueType::String => {
                for _ in 0..n {
                    end.string().map_err(|e| self.short(e))?;
                }
            }
            fixed => {
                // n <= remaining / min_bytes, so the product fits.
                let bytes = end.take(n.saturating_mul(fixed.min_bytes() as u64)).map_err(|e| self.short(e))?;
                if fixed == ValueType::Bool {
                    bytes.iter().try_for_each(|&b| self.bool(b))?;
                }
            }
        }
        let n_bytes = end.pos().saturating_sub(c.pos()) as u64;
        let bytes = c.take(n_bytes).map_err(|e| self.short(e))?;
        Ok(Array { elem, len: n as usize, bytes, endian: c.endian() })
    }
}

/// Reads the value of `key` at the cursor, its type id first, and checks all of it.
pub(crate) fn check_value<'a>(c: &mut Cursor<'a>, key: &str, file_len: u64) -> Result<Value<'a>, Error> {
    let check = Check { key, file_len };
    match check.value_type(c.u32().map_err(|e| check.short(e))?)? {
        ValueType::Array => Ok(Value::Array(check.array(c, 1)?)),
        ValueType::Bool => {
            let byte = c.u8().map_err(|e| check.short(e))?;
            check.bool(byte)?;
            Ok(Value::Bool(byte == 1))
        }
        ty => read_scalar(c, ty).map_err(|e| check.short(e)),
    }
}
