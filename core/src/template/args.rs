//! Arguments of a call, bound to parameters by place or by name.

use super::error::{Error, failed};
use super::provenance::Text;
use super::value::Value;
use std::sync::Arc;

/// The arguments of one call.
#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

/// The parameters of a function of ours, read one after the other; [`Params::end`] refuses what is left.
#[derive(Debug)]
pub(super) struct Params {
    of: &'static str,
    positional: std::vec::IntoIter<Value>,
    named: Vec<(Arc<str>, Value)>,
}

impl Args {
    /// Binds the arguments to the parameters of `of`.
    pub(super) fn params(self, of: &'static str) -> Params {
        Params { of, positional: self.positional.into_iter(), named: self.named }
    }
}

impl Params {
    /// The next parameter.
    pub(super) fn optional(&mut self, name: &str) -> Option<Value> {
        self.positional.next().or_else(|| self.by_name(name))
    }

    /// The next parameter, which must be there.
    pub(super) fn required(&mut self, name: &str) -> Result<Value, Error> {
        let of = self.of;
        match self.optional(name) {
            Some(value) => Ok(value),
            None => failed(format!("{of}() needs an argument '{name}'")),
        }
    }

    /// The next parameter, a string; `None` where absent or `none`.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<Text>, Error> {
        match self.optional(name) {
            None | Some(Value::None) => Ok(None),
            Some(Value::Str(text)) => Ok(Some(text)),
            Some(other) => self.wrong(name, "a string", &other),
        }
    }

    /// The next parameter, a string that must be there.
    pub(super) fn required_text(&mut self, name: &str) -> Result<Text, Error> {
        match self.required(name)? {
            Value::Str(text) => Ok(text),
            other => self.wrong(name, "a string", &other),
        }
    }

    /// The next parameter, a whole number; `None` where absent or `none`.
    pub(super) fn int(&mut self, name: &str) -> Result<Option<i128>, Error> {
        match self.optional(name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => match value.as_int() {
                Some(i) => Ok(Some(i)),
                None => self.wrong(name, "a whole number", &value),
            },
        }
    }

    /// The next parameter's truth, or `default`.
    pub(super) fn flag(&mut self, name: &str, default: bool) -> bool {
        self.optional(name).map_or(default, |value| value.truth())
    }

    /// A parameter that is only given by name.
    pub(super) fn by_name(&mut self, name: &str) -> Option<Value> {
        let i = self.named.iter().position(|(n, _)| &**n == name)?;
        Some(self.named.remove(i).1)
    }

    /// Positional and named arguments that no parameter took.
    pub(super) fn rest(self) -> Args {
        Args { positional: self.positional.collect(), named: self.named }
    }

    /// Refuses arguments that no parameter took.
    pub(super) fn end(mut self) -> Result<(), Error> {
        match (self.positional.next(), self.named.first()) {
            (None, None) => Ok(()),
            (Some(_), _) => failed(format!("{}() was given too many arguments", self.of)),
            (_, Some((name, _))) => failed(format!("{}() has no argument '{name}'", self.of)),
        }
    }

    fn wrong<T>(&self, name: &str, expected: &str, found: &Value) -> Result<T, Error> {
        found.defined()?;
        failed(format!("{}() needs {expected} as '{name}', not {}", self.of, found.type_name()))
    }
}
