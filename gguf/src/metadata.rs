//! The file's key-value pairs: order of the file, lookup by key, typed getters.

use crate::error::{Error, shown};
use crate::value::{Array, Value};

/// The metadata of a file.
#[derive(Debug, Clone, Default)]
pub struct Metadata<'a> {
    /// In file order.
    entries: Vec<(&'a str, Value<'a>)>,
    /// Indices into `entries`, sorted by key.
    by_key: Vec<usize>,
}

impl<'a> Metadata<'a> {
    /// Indexes the entries; the first key that occurs twice is an error.
    pub(crate) fn new(entries: Vec<(&'a str, Value<'a>)>) -> Result<Self, Error> {
        let mut by_key: Vec<usize> = (0..entries.len()).collect();
        by_key.sort_unstable_by_key(|&i| entries.get(i).map(|e| e.0));
        let mut last = None;
        for key in by_key.iter().filter_map(|&i| entries.get(i)).map(|e| e.0) {
            if last == Some(key) {
                return Err(Error::KeyDuplicate { key: shown(key) });
            }
            last = Some(key);
        }
        Ok(Self { entries, by_key })
    }

    /// The value of a key. Costs the logarithm of the number of keys.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        let key_of = |&i: &usize| self.entries.get(i).map_or("", |e| e.0);
        let at = self.by_key.binary_search_by(|i| key_of(i).cmp(key)).ok()?;
        self.entries.get(*self.by_key.get(at)?).map(|e| e.1)
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> {
        self.entries.iter().copied()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// `None` when absent, the picked value, or a [`Error::KeyType`] that says what was expected.
    fn pick<T>(
        &self,
        key: &str,
        expected: &'static str,
        pick: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match pick(value) {
            Some(v) => Ok(Some(v)),
            None => Err(Error::KeyType {
                key: shown(key),
                expected,
                found: value.to_string(),
            }),
        }
    }

    /// An integer of any type whose value fits.
    ///
    /// # Errors
    /// [`Error::KeyType`] where the value has another type or doesn't fit; so in all getters here.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.pick(key, "an integer from 0 to 4294967295", |v| {
            v.as_i128()?.try_into().ok()
        })
    }

    /// An integer of any type whose value fits.
    #[allow(clippy::missing_errors_doc, reason = "as in `u32`")]
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.pick(key, "an integer from 0 to 18446744073709551615", |v| {
            v.as_i128()?.try_into().ok()
        })
    }

    /// An integer of any type whose value fits.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, Error> {
        self.pick(key, "an integer from -2147483648 to 2147483647", |v| {
            v.as_i128()?.try_into().ok()
        })
    }

    /// A float; `f64` is rounded.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.pick(key, "a floating-point number", |v| v.as_f32())
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.pick(key, "a boolean", |v| {
            if let Value::Bool(v) = v {
                Some(v)
            } else {
                None
            }
        })
    }

    /// A string that must be UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&'a str>, Error> {
        self.pick(key, "a UTF-8 string", |v| {
            std::str::from_utf8(v.as_bytes()?).ok()
        })
    }

    /// A string of any bytes.
    pub fn bytes(&self, key: &str) -> Result<Option<&'a [u8]>, Error> {
        self.pick(key, "a string", |v| v.as_bytes())
    }

    /// An array of any element type.
    pub fn array(&self, key: &str) -> Result<Option<Array<'a>>, Error> {
        self.pick(key, "an array", |v| {
            if let Value::Array(v) = v {
                Some(v)
            } else {
                None
            }
        })
    }

    /// [`Self::u32`] of a key that must be there.
    ///
    /// # Errors
    /// [`Error::KeyMissing`] when absent; so in all `require_` getters.
    pub fn require_u32(&self, key: &str) -> Result<u32, Error> {
        require(key, self.u32(key)?)
    }

    /// [`Self::u64`] of a key that must be there.
    pub fn require_u64(&self, key: &str) -> Result<u64, Error> {
        require(key, self.u64(key)?)
    }

    /// [`Self::f32`] of a key that must be there.
    pub fn require_f32(&self, key: &str) -> Result<f32, Error> {
        require(key, self.f32(key)?)
    }

    /// [`Self::bool`] of a key that must be there.
    pub fn require_bool(&self, key: &str) -> Result<bool, Error> {
        require(key, self.bool(key)?)
    }

    /// [`Self::str`] of a key that must be there.
    pub fn require_str(&self, key: &str) -> Result<&'a str, Error> {
        require(key, self.str(key)?)
    }

    /// [`Self::array`] of a key that must be there.
    pub fn require_array(&self, key: &str) -> Result<Array<'a>, Error> {
        require(key, self.array(key)?)
    }
}

fn require<T>(key: &str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::KeyMissing { key: shown(key) })
}
