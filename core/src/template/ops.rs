//! Operators, attributes, subscripts and slices, as Python and Jinja define them.

use super::error::{Error, failed};
use super::limits::Budget;
use super::printf;
use super::provenance::{Text, TextBuf};
use super::python;
use super::syntax::BinOp;
use super::value::{ITEM_BYTES, Value};
use std::rc::Rc;

/// `a op b`.
pub(super) fn binary(op: BinOp, a: &Value, b: &Value, budget: &mut Budget) -> Result<Value, Error> {
    match (op, a, b) {
        (BinOp::Concat, _, _) => {
            let (a, b) = (python::to_text(a, budget)?, python::to_text(b, budget)?);
            concat(&a, &b, budget)
        }
        (BinOp::Add, Value::Str(a), Value::Str(b)) => concat(a, b, budget),
        (BinOp::Add, Value::List(x), Value::List(y)) => {
            budget.step(x.items().len() + y.items().len())?;
            Value::list([x.items(), y.items()].concat(), budget)
        }
        (BinOp::Mul, Value::Str(text), n) | (BinOp::Mul, n, Value::Str(text)) if n.as_int().is_some() => {
            let n = times(n);
            budget.build(text.weight().saturating_mul(n))?;
            budget.step(if text.is_empty() { 0 } else { n })?;
            let mut buf = TextBuf::default();
            if !text.is_empty() {
                (0..n).for_each(|_| buf.push(text));
            }
            Ok(Value::Str(buf.finish()))
        }
        (BinOp::Mul, Value::List(list), n) | (BinOp::Mul, n, Value::List(list)) if n.as_int().is_some() => {
            let n = list.items().len().saturating_mul(times(n));
            budget.step(n)?;
            budget.build(n.saturating_mul(ITEM_BYTES))?;
            Value::list(list.items().iter().cycle().take(n).cloned().collect(), budget)
        }
        (BinOp::Rem, Value::Str(format), values) => {
            let values = match values {
                Value::List(list) => list.items(),
                one => std::slice::from_ref(one.defined()?),
            };
            printf::percent(format, values, budget).map(Value::Str)
        }
        _ => numeric(op, a, b),
    }
}

fn times(n: &Value) -> usize {
    usize::try_from(n.as_int().unwrap_or(0).max(0)).unwrap_or(usize::MAX)
}

fn concat(a: &Text, b: &Text, budget: &mut Budget) -> Result<Value, Error> {
    budget.build(a.weight() + b.weight())?;
    let mut buf = TextBuf::default();
    buf.push(a);
    buf.push(b);
    Ok(Value::Str(buf.finish()))
}

fn numeric(op: BinOp, a: &Value, b: &Value) -> Result<Value, Error> {
    let unsupported = || {
        a.defined()?;
        b.defined()?;
        let hint = if matches!((a, b), (Value::Str(_), _) | (_, Value::Str(_))) { " (~ joins anything)" } else { "" };
        let sign = match op {
            BinOp::Add => "+",
            BinOp::Sub => "-",
            BinOp::Mul => "*",
            BinOp::Div => "/",
            BinOp::FloorDiv => "//",
            BinOp::Rem => "%",
            BinOp::Pow => "**",
            BinOp::Concat => "~",
        };
        failed(format!("unsupported operand types for {sign}: '{}' and '{}'{hint}", a.type_name(), b.type_name()))
    };
    let zero = || failed("division by zero");
    if let (Some(x), Some(y)) = (a.as_int(), b.as_int()) {
        let whole = match op {
            BinOp::Add => x.checked_add(y),
            BinOp::Sub => x.checked_sub(y),
            BinOp::Mul => x.checked_mul(y),
            BinOp::Div if y == 0 => return zero(),
            BinOp::Div => return Ok(Value::Float(x as f64 / y as f64)),
            BinOp::FloorDiv | BinOp::Rem if y == 0 => return zero(),
            // Python rounds down, and the remainder has the divisor's sign.
            BinOp::FloorDiv => x.checked_div(y).map(|q| q - i128::from(x % y != 0 && (x < 0) != (y < 0))),
            BinOp::Rem => x.checked_rem(y).map(|r| if r != 0 && (r < 0) != (y < 0) { r + y } else { r }),
            BinOp::Pow if y < 0 => return float_pow(x as f64, y as f64),
            BinOp::Pow => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
            BinOp::Concat => return unsupported(),
        };
        return match whole {
            Some(whole) => Ok(Value::Int(whole)),
            None => failed("a whole number grew beyond 127 bits"),
        };
    }
    let (Some(x), Some(y)) = (a.as_float(), b.as_float()) else {
        return unsupported();
    };
    Ok(Value::Float(match op {
        BinOp::Add => x + y,
        BinOp::Sub => x - y,
        BinOp::Mul => x * y,
        BinOp::Div | BinOp::FloorDiv | BinOp::Rem if y == 0.0 => return zero(),
        BinOp::Div => x / y,
        BinOp::FloorDiv => (x / y).floor(),
        BinOp::Rem => {
            let r = x % y;
            if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
        }
        BinOp::Pow => return float_pow(x, y),
        BinOp::Concat => return unsupported(),
    }))
}

fn float_pow(x: f64, y: f64) -> Result<Value, Error> {
    if x == 0.0 && y < 0.0 {
        return failed("0.0 cannot be raised to a negative power");
    }
    // Whole powers by squaring, which needs no function of the platform's mathematics library.
    if y.fract() != 0.0 || y.abs() > 1e6 {
        return failed("** takes whole exponents up to a million");
    }
    let (mut result, mut square, mut left) = (1.0, x, y.abs() as u32);
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    Ok(Value::Float(if y < 0.0 { 1.0 / result } else { result }))
}

/// `-a`.
pub(super) fn negate(a: &Value) -> Result<Value, Error> {
    match (a.as_int(), a.as_float()) {
        (Some(i), _) => i.checked_neg().map(Value::Int).map_or_else(|| failed("a whole number is too large"), Ok),
        (_, Some(f)) => Ok(Value::Float(-f)),
        _ => failed(format!("bad operand type for unary -: '{}'", a.defined()?.type_name())),
    }
}

/// `value.name`: Python's attributes first, then the keys of a dict, as Jinja has it.
pub(super) fn attribute(value: &Value, name: &str, budget: &mut Budget) -> Result<Value, Error> {
    value.defined()?;
    if let Some(found) = method_of(value, name)? {
        return Ok(found);
    }
    let found = match value {
        Value::Dict(dict) => dict.get_str(name).cloned(),
        _ => None,
    };
    budget.step(1)?;
    Ok(found.unwrap_or_else(|| missing(value, name)))
}

fn missing(value: &Value, name: &str) -> Value {
    let name: String = name.chars().take(80).collect();
    Value::undefined(format!("'{} object' has no attribute '{name}', which", value.type_name()))
}

fn method_of(value: &Value, name: &str) -> Result<Option<Value>, Error> {
    let is_key = matches!(value, Value::Dict(dict) if dict.get_str(name).is_some());
    if name.starts_with("__") && !is_key {
        return failed(format!("access to attribute '{name}' of '{}' object is unsafe", value.type_name()));
    }
    Ok(python::method(value, name).map(|method| Value::Method(Rc::new(value.clone()), method)))
}

/// `value[key]`: keys and places first, then attributes.
pub(super) fn item(value: &Value, key: &Value, budget: &mut Budget) -> Result<Value, Error> {
    value.defined()?;
    let found = match (value, key) {
        (Value::Dict(dict), key) => dict.get(key).cloned(),
        (Value::List(list), key) if key.as_int().is_some() => place(key, list.items().len()).map(|i| list.items()[i].clone()),
        (Value::Str(text), key) if key.as_int().is_some() => {
            budget.scan(2 * text.len())?;
            let n = text.as_str().chars().count();
            place(key, n).and_then(|i| {
                let (at, c) = text.as_str().char_indices().nth(i)?;
                Some(Value::Str(text.slice(at..at + c.len_utf8())))
            })
        }
        _ => None,
    };
    match (found, key) {
        (Some(found), _) => Ok(found),
        (None, Value::Str(name)) => match method_of(value, name.as_str())? {
            Some(method) => Ok(method),
            None => Ok(missing(value, name.as_str())),
        },
        (None, _) => Ok(Value::undefined(format!("an element of a {}", value.type_name()))),
    }
}

fn place(key: &Value, n: usize) -> Option<usize> {
    let i = key.as_int()?;
    let i = if i < 0 { i + n as i128 } else { i };
    usize::try_from(i).ok().filter(|&i| i < n)
}

/// `value[start:stop:step]`.
pub(super) fn slice(value: &Value, parts: [Option<Value>; 3], budget: &mut Budget) -> Result<Value, Error> {
    let mut bounds = [None; 3];
    for (bound, part) in bounds.iter_mut().zip(&parts) {
        *bound = match part {
            None | Some(Value::None) => None,
            Some(part) => match part.as_int() {
                Some(i) => Some(i),
                None => {
                    return failed(format!("slice indices must be integers, not {}", part.defined()?.type_name()));
                }
            },
        };
    }
    let [start, stop, step] = bounds;
    let step = step.unwrap_or(1);
    if step == 0 {
        return failed("slice step cannot be zero");
    }
    let n = match value {
        // Jinja's undefined has no elements, and slicing it is an error.
        Value::Str(_) | Value::List(_) => value.length(budget)? as i128,
        _ => {
            return failed(format!("'{}' object can't be sliced", value.defined()?.type_name()));
        }
    };
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let clamp = |i: i128| {
        if i < 0 { (i.saturating_add(n)).max(low) } else { i.min(high) }
    };
    let (first, last) =
        if step > 0 { (start.map_or(0, clamp), stop.map_or(n, clamp)) } else { (start.map_or(n - 1, clamp), stop.map_or(-1, clamp)) };
    let count = if step > 0 { last - first } else { first - last };
    let count = if count <= 0 { 0 } else { (count - 1) / step.saturating_abs() + 1 };
    budget.step(count as usize)?;
    let places = (0..count).map(|i| (first + i * step) as usize);
    match value {
        Value::List(list) => Value::list(places.map(|i| list.items()[i].clone()).collect(), budget),
        Value::Str(text) if step == 1 => {
            budget.scan(text.len())?;
            let byte = |i: i128| text.as_str().char_indices().nth(i as usize).map_or(text.len(), |(at, _)| at);
            let start = byte(first);
            let end = if count == 0 { start } else { byte(first + count) };
            budget.build(text.weight())?;
            Ok(Value::Str(text.slice(start..end)))
        }
        Value::Str(text) => {
            budget.step(text.len())?;
            budget.build(text.weight() + text.len() * ITEM_BYTES)?;
            let chars: Vec<(char, bool)> = text.chars().map(|(_, c, trusted)| (c, trusted)).collect();
            let mut buf = TextBuf::default();
            places.for_each(|i| buf.push_char(chars[i].0, chars[i].1));
            Ok(Value::Str(buf.finish()))
        }
        _ => Ok(Value::None),
    }
}
