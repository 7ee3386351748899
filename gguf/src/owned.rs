//! Metadata values that own their content: what a [`Writer`](crate::Writer) holds.

use crate::error::Error;
use crate::value::{Array, MAX_ARRAY_DEPTH, Value, ValueType};

/// A metadata value. `From` is there for the common Rust types: `"text"`, `3u32`, `vec!["a", "b"]`, `vec![0.5f32]`.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnedValue {
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
    /// See [`ValueType::String`]; any bytes.
    String(Vec<u8>),
    /// See [`ValueType::Array`]; all values have the type `elem`.
    Array {
        /// Type of the elements, also where there are none.
        elem: ValueType,
        /// The elements.
        values: Vec<OwnedValue>,
    },
    /// See [`ValueType::U64`].
    U64(u64),
    /// See [`ValueType::I64`].
    I64(i64),
    /// See [`ValueType::F64`].
    F64(f64),
}

impl OwnedValue {
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
            Self::Array { .. } => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Whether arrays in it are of one type each and nested no deeper than a reader accepts; `depth` starts at 1.
    pub(crate) fn check(&self, key: &str, depth: usize) -> Result<(), Error> {
        let Self::Array { elem, values } = self else {
            return Ok(());
        };
        if depth > MAX_ARRAY_DEPTH {
            return Err(Error::ArrayDepth {
                key: key.to_owned(),
                max: MAX_ARRAY_DEPTH,
            });
        }
        for value in values {
            let found = value.value_type();
            if found != *elem {
                return Err(Error::ArrayElement {
                    key: key.to_owned(),
                    expected: *elem,
                    found,
                });
            }
            value.check(key, depth.saturating_add(1))?;
        }
        Ok(())
    }
}

impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::U8(v) => Self::U8(v),
            Value::I8(v) => Self::I8(v),
            Value::U16(v) => Self::U16(v),
            Value::I16(v) => Self::I16(v),
            Value::U32(v) => Self::U32(v),
            Value::I32(v) => Self::I32(v),
            Value::F32(v) => Self::F32(v),
            Value::Bool(v) => Self::Bool(v),
            Value::String(v) => Self::String(v.to_vec()),
            Value::Array(v) => v.into(),
            Value::U64(v) => Self::U64(v),
            Value::I64(v) => Self::I64(v),
            Value::F64(v) => Self::F64(v),
        }
    }
}

impl From<Array<'_>> for OwnedValue {
    fn from(array: Array<'_>) -> Self {
        Self::Array {
            elem: array.elem_type(),
            values: array.iter().map(Self::from).collect(),
        }
    }
}

/// `From` for a scalar and for a `Vec` of it.
macro_rules! from_scalars {
    ($($ty:ty => $variant:ident),*) => {$(
        impl From<$ty> for OwnedValue {
            fn from(v: $ty) -> Self {
                Self::$variant(v.into())
            }
        }
        impl From<Vec<$ty>> for OwnedValue {
            fn from(v: Vec<$ty>) -> Self {
                Self::Array { elem: ValueType::$variant, values: v.into_iter().map(Self::from).collect() }
            }
        }
    )*};
}

from_scalars! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool,
    u64 => U64, i64 => I64, f64 => F64, &str => String, String => String
}

/// An array of strings of any bytes.
impl From<Vec<Vec<u8>>> for OwnedValue {
    fn from(v: Vec<Vec<u8>>) -> Self {
        Self::Array {
            elem: ValueType::String,
            values: v.into_iter().map(Self::String).collect(),
        }
    }
}
