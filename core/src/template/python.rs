//! Python's ways with strings, dicts and lists: how values print, and their methods.
//!
//! To add a method, add a row to [`METHODS`].

use super::args::{Args, Params};
use super::error::{Error, failed};
use super::limits::Budget;
use super::printf;
use super::provenance::{Text, TextBuf};
use super::value::{ITEM_BYTES, Value};
use std::ops::Range;

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
    budget.step(1)?;
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
            buf.push_plain("[");
            for (i, item) in list.items().iter().enumerate() {
                buf.push_plain(if i == 0 { "" } else { ", " });
                repr_into(item, buf, budget)?;
            }
            buf.push_plain("]");
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

/// What a method belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Str,
    Dict,
    List,
}

/// A method of a built-in type.
#[derive(Debug)]
pub(super) struct Method {
    of: Of,
    /// Its name.
    pub(super) name: &'static str,
    /// What it does with the value it belongs to.
    pub(super) call: fn(&Value, Args, &mut Budget) -> Result<Value, Error>,
}

/// The method that `value.name` is, if it is one.
pub(super) fn method(value: &Value, name: &str) -> Option<&'static Method> {
    let of = match value {
        Value::Str(_) => Of::Str,
        Value::Dict(_) => Of::Dict,
        Value::List(_) => Of::List,
        _ => return None,
    };
    METHODS.iter().find(|method| method.of == of && method.name == name)
}

macro_rules! methods {
    ($($of:ident $name:literal $call:expr;)*) => {
        &[$(Method { of: Of::$of, name: $name, call: $call }),*]
    };
}

/// Every method a template can call. Those that change a list or dict in place are refused, as in the
/// sandbox that `apply_chat_template` renders in.
static METHODS: &[Method] = methods! {
    Str "capitalize" |s, a, b| none("capitalize", s, a, b, capitalize);
    Str "casefold" |s, a, b| none("casefold", s, a, b, |t| t.map_chars(char::to_lowercase));
    Str "center" |s, a, b| pad(s, a, b, "center");
    Str "count" count;
    Str "endswith" |s, a, b| affix(s, a, b, "endswith", |s, p| s.ends_with(p));
    Str "expandtabs" expandtabs;
    Str "find" |s, a, b| find(s, a, b, "find", false);
    Str "format" |s, a, b| printf::str_format(str_of(s), a, b).map(Value::Str);
    Str "index" |s, a, b| find(s, a, b, "index", false);
    Str "isalnum" |s, a, _| every(s, a, "isalnum", char::is_alphanumeric);
    Str "isalpha" |s, a, _| every(s, a, "isalpha", char::is_alphabetic);
    Str "isascii" isascii;
    Str "isdecimal" |s, a, _| every(s, a, "isdecimal", |c| c.is_numeric() && c.to_digit(10).is_some());
    Str "isdigit" |s, a, _| every(s, a, "isdigit", |c| c.is_ascii_digit());
    Str "islower" |s, a, _| cased(s, a, "islower", char::is_lowercase, char::is_uppercase);
    Str "isnumeric" |s, a, _| every(s, a, "isnumeric", char::is_numeric);
    Str "isspace" |s, a, _| every(s, a, "isspace", is_space);
    Str "isupper" |s, a, _| cased(s, a, "isupper", char::is_uppercase, char::is_lowercase);
    Str "join" |s, a, b| {
        let mut p = a.params("join");
        let items = p.required("iterable")?.items(b)?;
        p.end()?;
        for item in &items {
            if !matches!(item, Value::Str(_)) {
                return failed(format!("join() needs strings, not {}", item.type_name()));
            }
        }
        join(&items, str_of(s), b)
    };
    Str "ljust" |s, a, b| pad(s, a, b, "ljust");
    Str "lower" |s, a, b| none("lower", s, a, b, lower);
    Str "lstrip" |s, a, b| strip_method(s, a, b, "lstrip", (true, false));
    Str "partition" |s, a, b| partition(s, a, b, "partition", false);
    Str "removeprefix" |s, a, _| {
        let mut p = a.params("removeprefix");
        let prefix = p.required_text("prefix")?;
        p.end()?;
        let text = str_of(s);
        let start = if text.as_str().starts_with(prefix.as_str()) { prefix.len() } else { 0 };
        Ok(Value::Str(text.slice(start..text.len())))
    };
    Str "removesuffix" |s, a, _| {
        let mut p = a.params("removesuffix");
        let suffix = p.required_text("suffix")?;
        p.end()?;
        let text = str_of(s);
        let cut = if text.as_str().ends_with(suffix.as_str()) { suffix.len() } else { 0 };
        Ok(Value::Str(text.slice(0..text.len() - cut)))
    };
    Str "replace" |s, a, b| {
        let mut p = a.params("replace");
        let (old, new, count) = (p.required_text("old")?, p.required_text("new")?, p.int("count")?);
        p.end()?;
        replace(str_of(s), &old, &new, count, b).map(Value::Str)
    };
    Str "rfind" |s, a, b| find(s, a, b, "rfind", true);
    Str "rindex" |s, a, b| find(s, a, b, "rindex", true);
    Str "rjust" |s, a, b| pad(s, a, b, "rjust");
    Str "rpartition" |s, a, b| partition(s, a, b, "rpartition", true);
    Str "rsplit" |s, a, b| split(s, a, b, "rsplit", true);
    Str "rstrip" |s, a, b| strip_method(s, a, b, "rstrip", (false, true));
    Str "split" |s, a, b| split(s, a, b, "split", false);
    Str "splitlines" splitlines;
    Str "startswith" |s, a, b| affix(s, a, b, "startswith", |s, p| s.starts_with(p));
    Str "strip" |s, a, b| strip_method(s, a, b, "strip", (true, true));
    Str "swapcase" |s, a, b| none("swapcase", s, a, b, |t| t.map_chars(|c| {
        let swapped: Vec<char> = if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() };
        swapped.into_iter()
    }));
    Str "title" |s, a, b| none("title", s, a, b, title);
    Str "upper" |s, a, b| none("upper", s, a, b, |t| t.map_chars(char::to_uppercase));
    Str "zfill" |s, a, b| pad(s, a, b, "zfill");
    Dict "append" |_, _, _| immutable("append");
    Dict "clear" |_, _, _| immutable("clear");
    Dict "copy" |s, _, _| Ok(s.clone());
    Dict "get" |s, a, _| {
        let mut p = a.params("get");
        let (key, default) = (p.required("key")?, p.optional("default"));
        p.end()?;
        let Value::Dict(dict) = s else { return Ok(Value::None) };
        Ok(dict.get(&key).cloned().or(default).unwrap_or(Value::None))
    };
    Dict "items" |s, a, b| {
        a.params("items").end()?;
        items(s, b)
    };
    Dict "keys" |s, a, b| {
        a.params("keys").end()?;
        let keys = s.items(b)?;
        Value::list(keys, b)
    };
    Dict "pop" |_, _, _| immutable("pop");
    Dict "popitem" |_, _, _| immutable("popitem");
    Dict "setdefault" |_, _, _| immutable("setdefault");
    Dict "update" |_, _, _| immutable("update");
    Dict "values" |s, a, b| {
        a.params("values").end()?;
        let Value::Dict(dict) = s else { return Ok(Value::None) };
        b.step(dict.entries().len())?;
        Value::list(dict.entries().iter().map(|(_, value)| value.clone()).collect(), b)
    };
    List "append" |_, _, _| immutable("append");
    List "clear" |_, _, _| immutable("clear");
    List "copy" |s, _, _| Ok(s.clone());
    List "count" |s, a, b| {
        let mut p = a.params("count");
        let needle = p.required("value")?;
        p.end()?;
        let mut n = 0;
        for item in s.items(b)? {
            n += i128::from(item.equals(&needle, b)?);
        }
        Ok(Value::Int(n))
    };
    List "extend" |_, _, _| immutable("extend");
    List "index" |s, a, b| {
        let mut p = a.params("index");
        let needle = p.required("value")?;
        p.end()?;
        for (i, item) in s.items(b)?.iter().enumerate() {
            if item.equals(&needle, b)? {
                return Ok(Value::Int(i as i128));
            }
        }
        failed("the value is not in the list")
    };
    List "insert" |_, _, _| immutable("insert");
    List "pop" |_, _, _| immutable("pop");
    List "remove" |_, _, _| immutable("remove");
    List "reverse" |_, _, _| immutable("reverse");
    List "sort" |_, _, _| immutable("sort");
};

fn immutable(name: &str) -> Result<Value, Error> {
    failed(format!("{name}() would change a value in place, which a template may not"))
}

/// The string that a method of strings belongs to.
fn str_of(value: &Value) -> &Text {
    match value {
        Value::Str(text) => text,
        // The table of methods gives these functions strings alone.
        _ => unreachable!("a method of str on {}", value.type_name()),
    }
}

fn none(name: &'static str, value: &Value, args: Args, budget: &mut Budget, map: impl Fn(&Text) -> Text) -> Result<Value, Error> {
    args.params(name).end()?;
    let text = str_of(value);
    // A character's other case has at most three characters.
    budget.step(text.len())?;
    budget.build(3 * text.weight())?;
    Ok(Value::Str(map(text)))
}

/// `str.lower`, with the final sigma.
pub(super) fn lower(text: &Text) -> Text {
    let whole = text.as_str().to_lowercase();
    let mut buf = TextBuf::default();
    let mut chars = whole.chars();
    for (_, c, trusted) in text.chars() {
        // Both forms of the sigma are one character, so the counts agree.
        for lowered in chars.by_ref().take(c.to_lowercase().count()) {
            buf.push_char(lowered, trusted);
        }
    }
    buf.finish()
}

/// `str.capitalize`.
pub(super) fn capitalize(text: &Text) -> Text {
    let first = text.as_str().chars().next().map_or(0, char::len_utf8);
    let mut buf = TextBuf::default();
    buf.push(&text.slice(0..first).map_chars(char::to_uppercase));
    buf.push(&lower(&text.slice(first..text.len())));
    buf.finish()
}

/// `str.title`.
pub(super) fn title(text: &Text) -> Text {
    let mut buf = TextBuf::default();
    let mut in_word = false;
    for (_, c, trusted) in text.chars() {
        let cased: Vec<char> = if in_word { c.to_lowercase().collect() } else { c.to_uppercase().collect() };
        in_word = c.is_alphabetic();
        for c in cased {
            buf.push_char(c, trusted);
        }
    }
    buf.finish()
}

/// `str.strip` and its halves: cuts white space, or any of `chars`, from the `(start, end)`.
pub(super) fn strip(text: &Text, chars: Option<&Text>, (start, end): (bool, bool)) -> Text {
    let cut = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.as_str().contains(c));
    let mut rest = text.as_str();
    if end {
        rest = rest.trim_end_matches(cut);
    }
    let stop = rest.len();
    if start {
        rest = rest.trim_start_matches(cut);
    }
    text.slice(stop - rest.len()..stop)
}

fn strip_method(value: &Value, args: Args, budget: &mut Budget, name: &'static str, sides: (bool, bool)) -> Result<Value, Error> {
    let mut p = args.params(name);
    let chars = p.text("chars")?;
    p.end()?;
    let text = str_of(value);
    budget.step(chars.as_ref().map_or(0, |chars| chars.len() / 64 * text.len()))?;
    budget.build(text.weight())?;
    Ok(Value::Str(strip(text, chars.as_ref(), sides)))
}

/// `str.replace`.
pub(super) fn replace(text: &Text, old: &Text, new: &Text, count: Option<i128>, budget: &mut Budget) -> Result<Text, Error> {
    budget.scan(text.len())?;
    let most = match count {
        Some(count) if count >= 0 => count as usize,
        _ => usize::MAX,
    };
    let mut buf = TextBuf::default();
    let mut at = 0;
    for (start, matched) in text.as_str().match_indices(old.as_str()).take(most) {
        budget.step(1)?;
        budget.build(new.weight() + start - at)?;
        buf.push_slice(text, at..start);
        buf.push(new);
        at = start + matched.len();
    }
    budget.build(text.weight() - at)?;
    buf.push_slice(text, at..text.len());
    Ok(buf.finish())
}

/// The strings of `items` with `separator` between.
pub(super) fn join(items: &[Value], separator: &Text, budget: &mut Budget) -> Result<Value, Error> {
    let mut buf = TextBuf::default();
    for (i, item) in items.iter().enumerate() {
        let text = to_text(item, budget)?;
        budget.step(1)?;
        budget.build(text.weight() + separator.weight())?;
        if i > 0 {
            buf.push(separator);
        }
        buf.push(&text);
    }
    Ok(Value::Str(buf.finish()))
}

/// The entries of a dict as a list of pairs.
pub(super) fn items(value: &Value, budget: &mut Budget) -> Result<Value, Error> {
    match value {
        Value::Dict(dict) => {
            budget.step(dict.entries().len())?;
            let pairs = dict
                .entries()
                .iter()
                .map(|(key, value)| Value::list(vec![key.clone(), value.clone()], budget))
                .collect::<Result<_, _>>()?;
            Value::list(pairs, budget)
        }
        _ => failed(format!("items needs a dict, not {}", value.defined()?.type_name())),
    }
}

fn count(value: &Value, args: Args, budget: &mut Budget) -> Result<Value, Error> {
    let mut p = args.params("count");
    let needle = p.required_text("sub")?;
    let range = bounds(str_of(value), &mut p)?;
    p.end()?;
    budget.scan(str_of(value).len())?;
    let n = range.map_or(0, |range| str_of(value).as_str()[range].matches(needle.as_str()).count());
    Ok(Value::Int(n as i128))
}

/// The byte range that the parameters `start` and `end` name, `None` where start lies behind the end.
fn bounds(text: &Text, p: &mut Params) -> Result<Option<Range<usize>>, Error> {
    let (start, end) = (p.int("start")?, p.int("end")?);
    if start.is_none() && end.is_none() {
        return Ok(Some(0..text.len()));
    }
    let n = text.as_str().chars().count() as i128;
    let clamp = |i: i128| if i < 0 { (i + n).max(0) } else { i };
    let (start, end) = (clamp(start.unwrap_or(0)), clamp(end.unwrap_or(n)).min(n));
    let byte = |i: i128| text.as_str().char_indices().nth(i as usize).map_or(text.len(), |(at, _)| at);
    Ok((start <= end).then(|| byte(start)..byte(end)))
}

fn find(value: &Value, args: Args, budget: &mut Budget, name: &'static str, last: bool) -> Result<Value, Error> {
    let mut p = args.params(name);
    let needle = p.required_text("sub")?;
    let text = str_of(value);
    let range = bounds(text, &mut p)?;
    p.end()?;
    budget.scan(2 * text.len())?;
    let found = range.and_then(|range| {
        let within = &text.as_str()[range.clone()];
        let at = if last { within.rfind(needle.as_str()) } else { within.find(needle.as_str()) };
        at.map(|at| text.as_str()[..range.start + at].chars().count() as i128)
    });
    match found {
        Some(at) => Ok(Value::Int(at)),
        None if name.ends_with("index") => failed("substring not found"),
        None => Ok(Value::Int(-1)),
    }
}

fn affix(value: &Value, args: Args, budget: &mut Budget, name: &'static str, holds: fn(&str, &str) -> bool) -> Result<Value, Error> {
    let mut p = args.params(name);
    let affix = p.required("prefix")?;
    let text = str_of(value);
    let range = bounds(text, &mut p)?;
    p.end()?;
    let Some(range) = range else {
        return Ok(Value::Bool(false));
    };
    let within = &text.as_str()[range];
    // A tuple means any of them.
    let any = match affix {
        Value::List(_) => affix.items(budget)?,
        other => vec![other],
    };
    let mut found = false;
    for affix in any {
        match affix {
            Value::Str(affix) => found |= holds(within, affix.as_str()),
            other => {
                return failed(format!("{name}() needs a string, not {}", other.defined()?.type_name()));
            }
        }
    }
    Ok(Value::Bool(found))
}

fn every(value: &Value, args: Args, name: &'static str, holds: fn(char) -> bool) -> Result<Value, Error> {
    args.params(name).end()?;
    let text = str_of(value).as_str();
    Ok(Value::Bool(!text.is_empty() && text.chars().all(holds)))
}

fn isascii(value: &Value, args: Args, _: &mut Budget) -> Result<Value, Error> {
    args.params("isascii").end()?;
    Ok(Value::Bool(str_of(value).as_str().is_ascii()))
}

fn cased(value: &Value, args: Args, name: &'static str, wanted: fn(char) -> bool, other: fn(char) -> bool) -> Result<Value, Error> {
    args.params(name).end()?;
    let text = str_of(value).as_str();
    Ok(Value::Bool(text.chars().any(wanted) && !text.chars().any(other)))
}

fn pad(value: &Value, args: Args, budget: &mut Budget, name: &'static str) -> Result<Value, Error> {
    let mut p = args.params(name);
    let width = p.required("width")?.as_int().unwrap_or(0).max(0) as usize;
    let fill = if name == "zfill" { None } else { p.text("fillchar")? };
    p.end()?;
    let fill = match (&fill, name) {
        (_, "zfill") => Text::untrusted("0"),
        (None, _) => Text::untrusted(" "),
        (Some(fill), _) if fill.as_str().chars().count() == 1 => fill.clone(),
        _ => return failed(format!("{name}() needs one character to fill with")),
    };
    let text = str_of(value);
    let missing = width.saturating_sub(value.length(budget)?);
    budget.build(missing.saturating_mul(fill.weight()).saturating_add(text.weight()))?;
    let (before, after) = match name {
        "ljust" => (0, missing),
        // CPython puts the odd one to the left where the width is odd.
        "center" => {
            let left = missing / 2 + (missing & width & 1);
            (left, missing - left)
        }
        _ => (missing, 0),
    };
    let mut buf = TextBuf::default();
    let signed = name == "zfill" && text.as_str().starts_with(['+', '-']);
    let sign = usize::from(signed);
    buf.push_slice(text, 0..sign);
    (0..before).for_each(|_| buf.push(&fill));
    buf.push_slice(text, sign..text.len());
    (0..after).for_each(|_| buf.push(&fill));
    Ok(Value::Str(buf.finish()))
}

fn expandtabs(value: &Value, args: Args, budget: &mut Budget) -> Result<Value, Error> {
    let mut p = args.params("expandtabs");
    let size = p.int("tabsize")?.unwrap_or(8).clamp(0, 1 << 20) as usize;
    p.end()?;
    let text = str_of(value);
    let mut buf = TextBuf::default();
    let mut column = 0;
    budget.build(text.weight())?;
    for (_, c, trusted) in text.chars() {
        match c {
            '\t' if size > 0 => {
                let n = size - column % size;
                budget.build(n)?;
                (0..n).for_each(|_| buf.push_char(' ', trusted));
                column += n;
            }
            '\t' => {}
            _ => {
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
                buf.push_char(c, trusted);
            }
        }
    }
    Ok(Value::Str(buf.finish()))
}

fn partition(value: &Value, args: Args, budget: &mut Budget, name: &'static str, last: bool) -> Result<Value, Error> {
    let mut p = args.params(name);
    let separator = p.required_text("sep")?;
    p.end()?;
    let text = str_of(value);
    if separator.is_empty() {
        return failed("empty separator");
    }
    budget.scan(text.len())?;
    budget.build(text.weight())?;
    let found = if last { text.as_str().rfind(separator.as_str()) } else { text.as_str().find(separator.as_str()) };
    let empty = Text::trusted("");
    let parts = match found {
        Some(at) => {
            let end = at + separator.len();
            [text.slice(0..at), text.slice(at..end), text.slice(end..text.len())]
        }
        None if last => [empty.clone(), empty, text.clone()],
        None => [text.clone(), empty.clone(), empty],
    };
    Value::list(parts.into_iter().map(Value::Str).collect(), budget)
}

fn split(value: &Value, args: Args, budget: &mut Budget, name: &'static str, last: bool) -> Result<Value, Error> {
    let mut p = args.params(name);
    let (separator, most) = (p.text("sep")?, p.int("maxsplit")?);
    p.end()?;
    let most = match most {
        Some(most) if most >= 0 => most as usize,
        _ => usize::MAX,
    };
    let text = str_of(value);
    budget.scan(text.len())?;
    let ranges = match &separator {
        Some(separator) if separator.is_empty() => return failed("empty separator"),
        Some(separator) => split_at(text.as_str(), separator.as_str(), most, last),
        None => split_space(text.as_str(), most, last),
    };
    budget.step(ranges.len())?;
    // The pieces and their headers.
    budget.build(text.weight() + ranges.len() * ITEM_BYTES)?;
    Value::list(ranges.into_iter().map(|range| Value::Str(text.slice(range))).collect(), budget)
}

fn split_at(text: &str, separator: &str, most: usize, last: bool) -> Vec<Range<usize>> {
    let mut cuts: Vec<usize> = if last {
        text.rmatch_indices(separator).take(most).map(|(at, _)| at).collect()
    } else {
        text.match_indices(separator).take(most).map(|(at, _)| at).collect()
    };
    if last {
        cuts.reverse();
    }
    let mut start = 0;
    let mut ranges = Vec::with_capacity(cuts.len() + 1);
    for cut in cuts {
        ranges.push(start..cut);
        start = cut + separator.len();
    }
    ranges.push(start..text.len());
    ranges
}

fn split_space(text: &str, most: usize, last: bool) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut rest = 0..text.len();
    loop {
        let within = &text[rest.clone()];
        let trimmed = if last { within.trim_end_matches(is_space) } else { within.trim_start_matches(is_space) };
        rest = if last { rest.start..rest.start + trimmed.len() } else { rest.end - trimmed.len()..rest.end };
        if trimmed.is_empty() {
            break;
        }
        if ranges.len() == most {
            ranges.push(rest.clone());
            break;
        }
        let cut = if last { trimmed.rfind(is_space) } else { trimmed.find(is_space) };
        match (cut, last) {
            (None, _) => {
                ranges.push(rest.clone());
                break;
            }
            (Some(at), false) => {
                ranges.push(rest.start..rest.start + at);
                rest.start += at;
            }
            (Some(at), true) => {
                let width = trimmed[at..].chars().next().map_or(0, char::len_utf8);
                ranges.push(rest.start + at + width..rest.end);
                rest.end = rest.start + at;
            }
        }
    }
    if last {
        ranges.reverse();
    }
    ranges
}

fn splitlines(value: &Value, args: Args, budget: &mut Budget) -> Result<Value, Error> {
    let mut p = args.params("splitlines");
    let keep = p.flag("keepends", false);
    p.end()?;
    let text = str_of(value);
    budget.step(text.len())?;
    budget.build(text.weight())?;
    let mut lines = Vec::new();
    let (mut start, mut chars) = (0, text.as_str().char_indices().peekable());
    while let Some((at, c)) = chars.next() {
        if !matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}') {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|&(_, next)| next == '\n').is_some() {
            end += 1;
        }
        lines.push(Value::Str(text.slice(start..if keep { end } else { at })));
        start = end;
    }
    if start < text.len() {
        lines.push(Value::Str(text.slice(start..text.len())));
    }
    Value::list(lines, budget)
}
