//! How Python prints values: `str()` and `repr()`.

use super::error::Error;
use super::limits::Budget;
use super::provenance::{Text, TextBuf};
use super::value::Value;

/// What `str()` gives.
pub(super) fn to_text(value: &Value, budget: &mut Budget) -> Result<Text, Error> {
    match value {
        Value::Str(text) => Ok(text.clone()),
        Value::Undefined(_) => Ok(Text::trusted("")),
        _ => {
            let mut buf = TextBuf::default();
            repr_into(value, &mut buf, budget)?;
            Ok(buf.finish())
        }
    }
}

/// Appends what `repr()` gives.
pub(super) fn repr_into(value: &Value, buf: &mut TextBuf, budget: &mut Budget) -> Result<(), Error> {
    budget.step(2)?;
    let before = buf.len();
    match value {
        Value::Undefined(_) => buf.push_plain("Undefined"),
        Value::None => buf.push_plain("None"),
        Value::Bool(true) => buf.push_plain("True"),
        Value::Bool(false) => buf.push_plain("False"),
        Value::Int(i) => buf.push_plain(&i.to_string()),
        Value::Float(f) => buf.push_plain(&float_repr(*f)),
        Value::Str(text) => {
            budget.build(text.weight())?;
            repr_str(text, buf);
            return Ok(());
        }
        Value::List(list) => {
            buf.push_plain(if list.is_tuple() { "(" } else { "[" });
            for (i, item) in list.items().iter().enumerate() {
                buf.push_plain(if i == 0 { "" } else { ", " });
                repr_into(item, buf, budget)?;
            }
            buf.push_plain(match (list.is_tuple(), list.items().len()) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
            return budget.build(2 * list.items().len() + 2);
        }
        Value::Dict(dict) => {
            buf.push_plain("{");
            for (i, (key, value)) in dict.entries().iter().enumerate() {
                buf.push_plain(if i == 0 { "" } else { ", " });
                repr_into(key, buf, budget)?;
                buf.push_plain(": ");
                repr_into(value, buf, budget)?;
            }
            buf.push_plain("}");
            return budget.build(4 * dict.entries().len() + 2);
        }
        // Python would print an address here.
        other => buf.push_plain(&format!("<{}>", other.type_name())),
    }
    budget.build(buf.len() - before)
}

/// Python's `repr(float)`: the shortest digits that read back the same, with an exponent outside 1e-4..1e16.
pub(super) fn float_repr(f: f64) -> String {
    if f.is_nan() {
        return "nan".to_owned();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{f:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if f != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{f}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

fn repr_str(text: &Text, buf: &mut TextBuf) {
    let quote = if text.as_str().contains('\'') && !text.as_str().contains('"') { '"' } else { '\'' };
    let quote_str = if quote == '"' { "\"" } else { "'" };
    buf.push_plain(quote_str);
    for (_, c, trusted) in text.chars() {
        match c {
            '\\' => buf.push_marked("\\\\", trusted),
            '\n' => buf.push_marked("\\n", trusted),
            '\r' => buf.push_marked("\\r", trusted),
            '\t' => buf.push_marked("\\t", trusted),
            c if c == quote => buf.push_marked(&format!("\\{c}"), trusted),
            c if printable(c) => buf.push_char(c, trusted),
            c if (c as u32) < 0x100 => buf.push_marked(&format!("\\x{:02x}", c as u32), trusted),
            c if (c as u32) < 0x10000 => buf.push_marked(&format!("\\u{:04x}", c as u32), trusted),
            c => buf.push_marked(&format!("\\U{:08x}", c as u32), trusted),
        }
    }
    buf.push_plain(quote_str);
}

/// `str.isprintable` of one character: no control or format character, no separator but the space, nothing
/// for private use. (Code points that Unicode hasn't assigned yet count as printable here.)
fn printable(c: char) -> bool {
    let format = matches!(c as u32,
        0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890 | 0x891 | 0x8e2 | 0x180e | 0x200b..=0x200f
        | 0x202a..=0x202e | 0x2060..=0x206f | 0xfeff | 0xfff0..=0xfffb | 0xfffe | 0xffff | 0x110bd | 0x110cd
        | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0000..=0xe00ff | 0xe000..=0xf8ff | 0xf0000..);
    c == ' ' || !(c.is_control() || c.is_whitespace() || format)
}

/// `str.isspace` of one character: four control characters more than Rust's.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}
