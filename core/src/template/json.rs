//! `tojson` as `apply_chat_template` defines it: Python's `json.dumps` without escaping for ASCII or HTML.

use super::error::{Error, failed};
use super::limits::Budget;
use super::provenance::{Text, TextBuf};
use super::python::float_repr;
use super::value::Value;

/// How to write, as `json.dumps` names it.
#[derive(Debug)]
pub(super) struct Style {
    /// What one level is indented by; `None` writes one line.
    pub(super) indent: Option<Text>,
    /// Between items, and between a key and its value.
    pub(super) separators: (Text, Text),
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
}

/// The JSON of a value. Brackets, quotes and commas are nobody's text; characters of strings keep their marks,
/// also where they are escaped.
pub(super) fn dumps(value: &Value, style: &Style, budget: &mut Budget) -> Result<Text, Error> {
    let mut buf = TextBuf::default();
    write(value, style, 0, &mut buf, budget)?;
    Ok(buf.finish())
}

fn write(value: &Value, style: &Style, level: usize, buf: &mut TextBuf, budget: &mut Budget) -> Result<(), Error> {
    budget.step(1)?;
    match value {
        Value::None => buf.push_plain("null"),
        Value::Bool(true) => buf.push_plain("true"),
        Value::Bool(false) => buf.push_plain("false"),
        Value::Int(i) => buf.push_plain(&i.to_string()),
        Value::Float(f) => buf.push_plain(&float(*f)),
        Value::Str(text) => {
            // An escape of six bytes (twice that for a pair of surrogates) for a character.
            budget.build(if style.ensure_ascii { 6 * text.weight() } else { text.weight() })?;
            string(text, style.ensure_ascii, buf);
        }
        Value::List(list) => {
            buf.push_plain("[");
            for (i, item) in list.items().iter().enumerate() {
                before_item(i, style, level, buf, budget)?;
                write(item, style, level + 1, buf, budget)?;
            }
            after_items(list.items().len(), style, level, buf, budget)?;
            buf.push_plain("]");
        }
        Value::Dict(dict) => {
            let mut entries: Vec<(Text, &Value)> = Vec::with_capacity(dict.entries().len());
            for (key, value) in dict.entries() {
                entries.push((key_text(key)?, value));
            }
            if style.sort_keys {
                budget.step(entries.len())?;
                entries.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
            }
            buf.push_plain("{");
            for (i, (key, value)) in entries.iter().enumerate() {
                before_item(i, style, level, buf, budget)?;
                budget.build(key.weight())?;
                string(key, style.ensure_ascii, buf);
                buf.push(&style.separators.1);
                write(value, style, level + 1, buf, budget)?;
            }
            after_items(entries.len(), style, level, buf, budget)?;
            buf.push_plain("}");
        }
        other => {
            return failed(format!("an object of type {} is not JSON serializable", other.type_name()));
        }
    }
    budget.build(8)
}

fn before_item(i: usize, style: &Style, level: usize, buf: &mut TextBuf, budget: &mut Budget) -> Result<(), Error> {
    if i > 0 {
        budget.build(style.separators.0.weight() + style.separators.1.weight())?;
        buf.push(&style.separators.0);
    }
    line(style, level + 1, buf, budget)
}

fn after_items(n: usize, style: &Style, level: usize, buf: &mut TextBuf, budget: &mut Budget) -> Result<(), Error> {
    if n > 0 { line(style, level, buf, budget) } else { Ok(()) }
}

fn line(style: &Style, level: usize, buf: &mut TextBuf, budget: &mut Budget) -> Result<(), Error> {
    if let Some(indent) = &style.indent {
        budget.build(1 + level * indent.weight())?;
        buf.push_plain("\n");
        (0..level).for_each(|_| buf.push(indent));
    }
    Ok(())
}

fn key_text(key: &Value) -> Result<Text, Error> {
    Ok(match key {
        Value::Str(text) => text.clone(),
        Value::None => Text::untrusted("null"),
        Value::Bool(b) => Text::untrusted(if *b { "true" } else { "false" }),
        Value::Int(i) => Text::untrusted(&i.to_string()),
        Value::Float(f) => Text::untrusted(&float(*f)),
        other => {
            return failed(format!("a key of type {} is not JSON serializable", other.type_name()));
        }
    })
}

fn float(f: f64) -> String {
    match f {
        f if f.is_nan() => "NaN".to_owned(),
        f if f.is_infinite() => if f > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        f => float_repr(f),
    }
}

fn string(text: &Text, ensure_ascii: bool, buf: &mut TextBuf) {
    buf.push_plain("\"");
    for (_, c, trusted) in text.chars() {
        match c {
            '"' => buf.push_marked("\\\"", trusted),
            '\\' => buf.push_marked("\\\\", trusted),
            '\n' => buf.push_marked("\\n", trusted),
            '\r' => buf.push_marked("\\r", trusted),
            '\t' => buf.push_marked("\\t", trusted),
            '\x08' => buf.push_marked("\\b", trusted),
            '\x0c' => buf.push_marked("\\f", trusted),
            c if (c as u32) < 0x20 => buf.push_marked(&format!("\\u{:04x}", c as u32), trusted),
            c if ensure_ascii && !(' '..='~').contains(&c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    buf.push_marked(&format!("\\u{unit:04x}"), trusted);
                }
            }
            c => buf.push_char(c, trusted),
        }
    }
    buf.push_plain("\"");
}
