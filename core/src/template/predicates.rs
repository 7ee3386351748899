//! Jinja's tests: `x is defined` and the like.
//!
//! To add one, add a row to [`TESTS`].

use super::args::{Args, Params};
use super::error::{Error, failed};
use super::filters;
use super::limits::Budget;
use super::value::Value;
use std::cmp::Ordering;

type Test = fn(&Value, &mut Params, &mut Budget) -> Result<bool, Error>;

/// Whether `value is name(args)`.
pub(super) fn holds(name: &str, value: &Value, args: Args, budget: &mut Budget) -> Result<bool, Error> {
    let Some((name, test)) = find(name) else {
        return failed(format!("there is no test named '{name}'"));
    };
    let mut params = args.params(name);
    let holds = test(value, &mut params, budget)?;
    params.end()?;
    Ok(holds)
}

fn find(name: &str) -> Option<(&'static str, Test)> {
    TESTS.iter().find(|(n, _)| *n == name).copied()
}

static TESTS: &[(&str, Test)] = &[
    ("!=", |v, p, b| Ok(!v.equals(&p.required("other")?, b)?)),
    ("<", |v, p, b| ordered(v, p, b, |o| o == Ordering::Less)),
    ("<=", |v, p, b| ordered(v, p, b, Ordering::is_le)),
    ("==", |v, p, b| v.equals(&p.required("other")?, b)),
    (">", |v, p, b| ordered(v, p, b, |o| o == Ordering::Greater)),
    (">=", |v, p, b| ordered(v, p, b, Ordering::is_ge)),
    ("boolean", |v, _, _| Ok(matches!(v, Value::Bool(_)))),
    ("callable", |v, _, _| Ok(v.is_callable())),
    ("defined", |v, _, _| Ok(!matches!(v, Value::Undefined(_)))),
    ("divisibleby", |v, p, _| match (v.as_int(), p.required("num")?.as_int()) {
        (Some(a), Some(b)) if b != 0 => Ok(a.checked_rem(b).unwrap_or(0) == 0),
        _ => failed("divisibleby needs whole numbers, the second not zero"),
    }),
    ("eq", |v, p, b| v.equals(&p.required("other")?, b)),
    ("equalto", |v, p, b| v.equals(&p.required("other")?, b)),
    ("escaped", |_, _, _| Ok(false)),
    ("even", |v, _, _| parity(v, 0)),
    ("false", |v, _, _| Ok(matches!(v, Value::Bool(false)))),
    ("filter", |v, _, _| Ok(matches!(v, Value::Str(name) if filters::exists(name.as_str())))),
    ("float", |v, _, _| Ok(matches!(v, Value::Float(_)))),
    ("ge", |v, p, b| ordered(v, p, b, Ordering::is_ge)),
    ("greaterthan", |v, p, b| ordered(v, p, b, |o| o == Ordering::Greater)),
    ("gt", |v, p, b| ordered(v, p, b, |o| o == Ordering::Greater)),
    ("in", |v, p, b| p.required("seq")?.contains(v, b)),
    ("integer", |v, _, _| Ok(matches!(v, Value::Int(_)))),
    // Python's undefined can be iterated over: it has no items.
    ("iterable", |v, _, _| Ok(matches!(v, Value::List(_) | Value::Dict(_) | Value::Str(_) | Value::Undefined(_) | Value::Loop(..)))),
    ("le", |v, p, b| ordered(v, p, b, Ordering::is_le)),
    ("lessthan", |v, p, b| ordered(v, p, b, |o| o == Ordering::Less)),
    ("lower", |v, _, _| cased(v, char::is_lowercase, char::is_uppercase)),
    ("lt", |v, p, b| ordered(v, p, b, |o| o == Ordering::Less)),
    ("mapping", |v, _, _| Ok(matches!(v, Value::Dict(_)))),
    ("ne", |v, p, b| Ok(!v.equals(&p.required("other")?, b)?)),
    ("none", |v, _, _| Ok(matches!(v, Value::None))),
    ("number", |v, _, _| Ok(v.as_float().is_some())),
    ("odd", |v, _, _| parity(v, 1)),
    ("sameas", |v, p, b| {
        let other = p.required("other")?;
        Ok(v.type_name() == other.type_name() && v.equals(&other, b)?)
    }),
    // Python asks for a length and items by number or key, which strings and dicts have too.
    ("sequence", |v, _, _| Ok(matches!(v, Value::List(_) | Value::Dict(_) | Value::Str(_) | Value::Undefined(_)))),
    ("string", |v, _, _| Ok(matches!(v, Value::Str(_)))),
    ("test", |v, _, _| Ok(matches!(v, Value::Str(name) if find(name.as_str()).is_some()))),
    ("true", |v, _, _| Ok(matches!(v, Value::Bool(true)))),
    ("undefined", |v, _, _| Ok(matches!(v, Value::Undefined(_)))),
    ("upper", |v, _, _| cased(v, char::is_uppercase, char::is_lowercase)),
];

fn ordered(v: &Value, p: &mut Params, b: &mut Budget, holds: fn(Ordering) -> bool) -> Result<bool, Error> {
    Ok(v.order(&p.required("other")?, b)?.is_some_and(holds))
}

fn parity(v: &Value, wanted: i128) -> Result<bool, Error> {
    match v.as_int() {
        Some(i) => Ok(i.rem_euclid(2) == wanted),
        None => failed(format!("odd and even need a whole number, not {}", v.type_name())),
    }
}

fn cased(v: &Value, wanted: fn(char) -> bool, other: fn(char) -> bool) -> Result<bool, Error> {
    Ok(matches!(v, Value::Str(text) if text.as_str().chars().any(wanted) && !text.as_str().chars().any(other)))
}
