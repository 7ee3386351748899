//! Typed access to the keys of one architecture: `KEY` is looked up as `ARCH.KEY`, values are checked for sense.

use super::ModelError;
use selvedge_gguf::{Error, Metadata, Value};

/// The metadata of a file, seen from its architecture.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a> {
    meta: &'a Metadata<'a>,
    arch: &'a str,
}

impl<'a> Keys<'a> {
    /// Keys of the file's own architecture.
    ///
    /// # Errors
    /// The file names no architecture, or not by a text.
    pub fn new(meta: &'a Metadata<'a>) -> Result<Keys<'a>, ModelError> {
        Ok(Keys { meta, arch: meta.require_str("general.architecture")? })
    }

    /// Name of the architecture.
    pub fn architecture(&self) -> &'a str {
        self.arch
    }

    /// Full name of a key.
    pub fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// A value as text for messages.
    pub fn value(&self, key: &str) -> String {
        self.meta.get(&self.name(key)).map_or_else(|| "absent".into(), |v| v.to_string())
    }

    /// The error of a value that makes no sense.
    pub fn wrong(&self, key: &str, expected: impl ToString, found: impl ToString) -> ModelError {
        ModelError::KeyValue { key: self.name(key), expected: expected.to_string(), found: found.to_string() }
    }

    /// A count or size, where present.
    pub fn usize(&self, key: &str) -> Result<Option<usize>, ModelError> {
        // 32 bits hold every size of a model; what doesn't fit is a damaged file, on 64-bit machines too.
        Ok(self.meta.u32(&self.name(key))?.map(|v| v as usize))
    }

    /// A count or size that must be there and above zero.
    pub fn require_usize(&self, key: &str) -> Result<usize, ModelError> {
        match self.usize(key)? {
            Some(0) => Err(self.wrong(key, "at least 1", 0)),
            Some(v) => Ok(v),
            None => Err(self.missing(key)),
        }
    }

    /// A finite number, where present.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, ModelError> {
        match self.meta.f32(&self.name(key))? {
            Some(v) if !v.is_finite() => Err(self.wrong(key, "a finite number", v)),
            v => Ok(v),
        }
    }

    /// A finite number above zero, where present.
    pub fn positive(&self, key: &str) -> Result<Option<f32>, ModelError> {
        match self.f32(key)? {
            Some(v) if v <= 0.0 => Err(self.wrong(key, "a number above 0", v)),
            v => Ok(v),
        }
    }

    /// A finite number above zero, where present; zero counts as absent, as writers of files use it.
    pub fn positive_or_off(&self, key: &str) -> Result<Option<f32>, ModelError> {
        if self.f32(key)? == Some(0.0) { Ok(None) } else { self.positive(key) }
    }

    /// A finite number above zero that must be there.
    pub fn require_positive(&self, key: &str) -> Result<f32, ModelError> {
        self.positive(key)?.ok_or_else(|| self.missing(key))
    }

    /// A truth value, where present.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        Ok(self.meta.bool(&self.name(key))?)
    }

    /// A text, where present.
    pub fn str(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.meta.str(&self.name(key))?)
    }

    /// One size per layer: the file has one number for all, or an array with one a layer.
    pub fn per_layer(&self, key: &str, n_layer: usize) -> Result<Option<Vec<usize>>, ModelError> {
        let Some(Value::Array(array)) = self.meta.get(&self.name(key)) else {
            return Ok(self.usize(key)?.map(|v| vec![v; n_layer]));
        };
        let found = format!("an array of {} {} values", array.len(), array.elem_type().name());
        let wrong = || self.wrong(key, format!("a number, or an array of {n_layer} numbers, one a layer"), &found);
        if array.len() != n_layer {
            return Err(wrong());
        }
        let values = array.i64s().ok_or_else(wrong)?;
        values
            .map(|v| u32::try_from(v).map(|v| v as usize).map_err(|_| self.wrong(key, "sizes up to 2^32 - 1", v)))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// One size above zero per layer, which must be there.
    pub fn require_per_layer(&self, key: &str, n_layer: usize) -> Result<Vec<usize>, ModelError> {
        let values = self.per_layer(key, n_layer)?.ok_or_else(|| self.missing(key))?;
        if values.contains(&0) { Err(self.wrong(key, "at least 1", 0)) } else { Ok(values) }
    }

    /// Which layers have a property: the file has one truth value a layer, or a period of which the last is the exception.
    pub fn pattern(&self, key: &str, n_layer: usize, default_period: usize) -> Result<Vec<bool>, ModelError> {
        let period = match self.meta.get(&self.name(key)) {
            Some(Value::Array(array)) => {
                let flag = |v: Value<'_>| match v {
                    Value::Bool(b) => Some(b),
                    v => v.as_i128().filter(|&i| i == 0 || i == 1).map(|i| i == 1),
                };
                let flags: Option<Vec<bool>> = if array.len() == n_layer { array.iter().map(flag).collect() } else { None };
                return flags.ok_or_else(|| {
                    let found = format!("an array of {} {} values", array.len(), array.elem_type().name());
                    self.wrong(key, format!("a period, or {n_layer} truth values, one a layer"), found)
                });
            }
            _ => self.usize(key)?.unwrap_or(default_period),
        };
        // A period of 0 means that every layer has the property, one of 1 that none has.
        Ok((0..n_layer).map(|i| period == 0 || i % period < period - 1).collect())
    }

    fn missing(&self, key: &str) -> ModelError {
        Error::KeyMissing { key: self.name(key) }.into()
    }
}
