//! The values of a template: Python's, as far as a template can meet them.

use super::error::{Error, failed};
use super::limits::{self, Budget, limit};
use super::provenance::Text;
use super::python::Method;
use serde_json::Value as Json;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// A value. Clones are shallow.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Nothing by this name; the text says what was looked for.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    List(Rc<List>),
    Dict(Rc<Dict>),
    /// Index into the evaluator's namespaces.
    Namespace(usize),
    /// Index into the evaluator's macros.
    Macro(usize),
    /// A loop in progress: depth in the evaluator's stack of loops, and its serial number.
    Loop(usize, u64),
    /// A function or helper that the evaluator knows by name.
    Function(&'static str),
    /// A method of a value, not called yet.
    Method(Rc<Value>, &'static Method),
    /// A method of the loop, not called yet.
    LoopMethod(usize, u64, &'static str),
    /// A cycler or joiner: index into the evaluator's helpers.
    Helper(usize),
}

/// A list (or tuple: the parser doesn't tell them apart).
#[derive(Debug)]
pub(super) struct List {
    items: Vec<Value>,
    depth: u32,
}

/// A dict in insertion order.
#[derive(Debug, Default)]
pub(super) struct Dict {
    entries: Vec<(Value, Value)>,
    index: HashMap<Key, usize>,
    depth: u32,
}

/// What makes two dict keys the same.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    None,
    /// Also booleans and whole floats, as in Python.
    Int(i128),
    Bits(u64),
    Str(Arc<str>),
}

/// Bytes accounted for one item of a list or half an entry of a dict.
pub(super) const ITEM_BYTES: usize = size_of::<Value>();

fn deeper(values: impl Iterator<Item = u32>) -> Result<u32, Error> {
    let depth = values.max().unwrap_or(0) + 1;
    if depth as usize > limits::MAX_VALUE_DEPTH {
        return Err(limit("the nesting of a value", limits::MAX_VALUE_DEPTH as u64));
    }
    Ok(depth)
}

impl List {
    /// The items.
    pub(super) fn items(&self) -> &[Value] {
        &self.items
    }
}

impl Dict {
    /// The entries in order.
    pub(super) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    /// The value under `key`; `None` for absent and for what can't be a key.
    pub(super) fn get(&self, key: &Value) -> Option<&Value> {
        self.index.get(&key_of(key)?).map(|&i| &self.entries[i].1)
    }

    /// The value under a string.
    pub(super) fn get_str(&self, key: &str) -> Option<&Value> {
        self.index.get(&Key::Str(Arc::from(key))).map(|&i| &self.entries[i].1)
    }

    fn insert(&mut self, key: Value, value: Value) -> Result<(), Error> {
        let Some(hashed) = key_of(&key) else {
            return failed(format!("unhashable type: '{}'", key.type_name()));
        };
        self.depth = self.depth.max(deeper([value.depth()].into_iter())?);
        match self.index.entry(hashed) {
            std::collections::hash_map::Entry::Occupied(slot) => self.entries[*slot.get()].1 = value,
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(self.entries.len());
                self.entries.push((key, value));
            }
        }
        Ok(())
    }
}

fn key_of(value: &Value) -> Option<Key> {
    Some(match value {
        Value::None => Key::None,
        Value::Bool(b) => Key::Int(i128::from(*b)),
        Value::Int(i) => Key::Int(*i),
        Value::Float(f) if f.fract() == 0.0 && f.abs() < 1e30 => Key::Int(*f as i128),
        Value::Float(f) => Key::Bits(f.to_bits()),
        Value::Str(text) => Key::Str(text.shared()),
        _ => return None,
    })
}

impl Value {
    /// Undefined, found when looking for `what`.
    pub(super) fn undefined(what: impl AsRef<str>) -> Value {
        Value::Undefined(Rc::from(what.as_ref()))
    }

    /// A list of these items.
    pub(super) fn list(items: Vec<Value>, budget: &mut Budget) -> Result<Value, Error> {
        budget.build(items.len() * ITEM_BYTES)?;
        let depth = deeper(items.iter().map(Value::depth))?;
        Ok(Value::List(Rc::new(List { items, depth })))
    }

    /// A dict of these entries; a later one with the same key replaces the value, not the place.
    pub(super) fn dict(entries: Vec<(Value, Value)>, budget: &mut Budget) -> Result<Value, Error> {
        // An entry and its place in the index.
        budget.build(entries.len() * 4 * ITEM_BYTES)?;
        let mut dict = Dict { depth: 1, ..Dict::default() };
        for (key, value) in entries {
            dict.insert(key, value)?;
        }
        Ok(Value::Dict(Rc::new(dict)))
    }

    fn depth(&self) -> u32 {
        match self {
            Value::List(list) => list.depth,
            Value::Dict(dict) => dict.depth,
            Value::Method(of, _) => of.depth() + 1,
            _ => 0,
        }
    }

    /// A value of the request: every string in it, keys included, is untrusted.
    ///
    /// # Errors
    /// [`Error::Limit`] beyond the nesting allowed.
    pub(super) fn from_json(json: &Json, budget: &mut Budget) -> Result<Value, Error> {
        Value::from_json_at(json, 0, budget)
    }

    fn from_json_at(json: &Json, depth: usize, budget: &mut Budget) -> Result<Value, Error> {
        if depth >= limits::MAX_VALUE_DEPTH {
            return Err(limit("the nesting of a value", limits::MAX_VALUE_DEPTH as u64));
        }
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
                (Some(i), _, _) => Value::Int(i.into()),
                (_, Some(u), _) => Value::Int(u.into()),
                (_, _, Some(f)) => Value::Float(f),
                _ => return failed(format!("{n} is no number that can be held")),
            },
            Json::String(text) => {
                budget.build(text.len())?;
                Value::Str(Text::untrusted(text))
            }
            Json::Array(items) => {
                let items = items.iter().map(|item| Value::from_json_at(item, depth + 1, budget)).collect::<Result<_, _>>()?;
                Value::list(items, budget)?
            }
            Json::Object(entries) => {
                let entries = entries
                    .iter()
                    .map(|(key, value)| {
                        let value = Value::from_json_at(value, depth + 1, budget)?;
                        Ok((Value::Str(Text::untrusted(key)), value))
                    })
                    .collect::<Result<_, Error>>()?;
                Value::dict(entries, budget)?
            }
        })
    }

    /// Text of the template's side: an attribute's name, a type's name.
    pub(super) fn str(text: &str) -> Value {
        Value::Str(Text::trusted(text))
    }

    /// Python's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::List(_) => "list",
            Value::Dict(_) => "dict",
            Value::Namespace(_) => "Namespace",
            Value::Macro(_) => "Macro",
            Value::Loop(..) => "LoopContext",
            Value::Function(_) => "function",
            Value::Method(..) | Value::LoopMethod(..) => "method",
            Value::Helper(_) => "object",
        }
    }

    /// Python's truth.
    pub(super) fn truth(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(i) => *i != 0,
            Value::Float(f) => *f != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::List(list) => !list.items.is_empty(),
            Value::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    /// The value as a whole number; booleans count.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(i) => Some(*i),
            Value::Bool(b) => Some(i128::from(*b)),
            _ => None,
        }
    }

    /// The value as a float; whole numbers and booleans count.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(f) => Some(*f),
            _ => self.as_int().map(|i| i as f64),
        }
    }

    /// Whether it can be called.
    pub(super) fn is_callable(&self) -> bool {
        matches!(
            self,
            Value::Macro(_) | Value::Function(_) | Value::Method(..) | Value::LoopMethod(..) | Value::Helper(_) | Value::Loop(..)
        )
    }

    /// `==`.
    pub(super) fn equals(&self, other: &Value, budget: &mut Budget) -> Result<bool, Error> {
        budget.step(1)?;
        Ok(match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Str(a), Value::Str(b)) => {
                if a.len() == b.len() {
                    budget.scan(a.len())?;
                }
                a.as_str() == b.as_str()
            }
            (Value::List(a), Value::List(b)) => {
                if a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, budget)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Dict(a), Value::Dict(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match b.get(key) {
                        Some(other) if value.equals(other, budget)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Namespace(a), Value::Namespace(b)) | (Value::Macro(a), Value::Macro(b)) => a == b,
            (Value::Loop(_, a), Value::Loop(_, b)) => a == b,
            (Value::Function(a), Value::Function(b)) => a == b,
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => match (self.as_float(), other.as_float()) {
                    (Some(a), Some(b)) => a == b,
                    _ => false,
                },
            },
        })
    }

    /// `<`, `>` and so on: `None` where a NaN is in the way.
    ///
    /// # Errors
    /// [`Error::Failed`] where Python has no order.
    pub(super) fn order(&self, other: &Value, budget: &mut Budget) -> Result<Option<Ordering>, Error> {
        budget.step(1)?;
        match (self, other) {
            // UTF-8 keeps the order of code points.
            (Value::Str(a), Value::Str(b)) => {
                budget.scan(a.len().min(b.len()))?;
                Ok(Some(a.as_str().cmp(b.as_str())))
            }
            (Value::List(a), Value::List(b)) => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, budget)? {
                        return a.order(b, budget);
                    }
                }
                Ok(Some(a.items.len().cmp(&b.items.len())))
            }
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => Ok(Some(a.cmp(&b))),
                _ => match (self.as_float(), other.as_float()) {
                    (Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
                    _ => {
                        self.defined()?;
                        other.defined()?;
                        failed(format!("'{}' and '{}' can't be compared", self.type_name(), other.type_name()))
                    }
                },
            },
        }
    }

    /// An error if the value is undefined.
    pub(super) fn defined(&self) -> Result<&Value, Error> {
        match self {
            Value::Undefined(what) => failed(format!("{what} is undefined")),
            _ => Ok(self),
        }
    }

    /// `needle in self`.
    pub(super) fn contains(&self, needle: &Value, budget: &mut Budget) -> Result<bool, Error> {
        match self {
            Value::Str(text) => match needle {
                Value::Str(needle) => {
                    budget.scan(text.len())?;
                    Ok(text.as_str().contains(needle.as_str()))
                }
                _ => failed(format!("'in <string>' requires string as left operand, not {}", needle.type_name())),
            },
            Value::Dict(dict) => Ok(dict.get(needle).is_some()),
            Value::List(list) => {
                for item in &list.items {
                    if item.equals(needle, budget)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Value::Undefined(_) => Ok(false),
            _ => failed(format!("argument of type '{}' is not iterable", self.type_name())),
        }
    }

    /// What a loop over the value walks.
    pub(super) fn items(&self, budget: &mut Budget) -> Result<Vec<Value>, Error> {
        let n = match self {
            Value::List(list) => list.items.len(),
            Value::Dict(dict) => dict.entries.len(),
            Value::Str(text) => text.len(),
            Value::Undefined(_) => 0,
            _ => return failed(format!("'{}' object is not iterable", self.type_name())),
        };
        budget.step(n)?;
        budget.build(n * ITEM_BYTES)?;
        Ok(match self {
            Value::List(list) => list.items.clone(),
            Value::Dict(dict) => dict.entries.iter().map(|(key, _)| key.clone()).collect(),
            Value::Str(text) => text.chars().map(|(i, c, _)| Value::Str(text.slice(i..i + c.len_utf8()))).collect(),
            _ => Vec::new(),
        })
    }

    /// `len(self)`.
    pub(super) fn length(&self, budget: &mut Budget) -> Result<usize, Error> {
        match self {
            Value::Str(text) => {
                budget.scan(text.len())?;
                Ok(text.as_str().chars().count())
            }
            Value::List(list) => Ok(list.items.len()),
            Value::Dict(dict) => Ok(dict.entries.len()),
            Value::Undefined(_) => Ok(0),
            _ => failed(format!("object of type '{}' has no len()", self.type_name())),
        }
    }
}
