//! Jinja's filters.
//!
//! To add one, add a row to [`FILTERS`].

use super::args::{Args, Params};
use super::error::{Error, failed};
use super::json;
use super::limits::Budget;
use super::ops;
use super::predicates;
use super::printf;
use super::provenance::{Text, TextBuf};
use super::python::{self, to_text};
use super::value::{ITEM_BYTES, Value};
use std::cmp::Ordering;

type Filter = fn(Value, &mut Params, &mut Budget) -> Result<Value, Error>;

/// Whether there is a filter of this name.
pub(super) fn exists(name: &str) -> bool {
    find(name).is_some()
}

/// `value | name(args)`.
pub(super) fn apply(name: &str, value: Value, args: Args, budget: &mut Budget) -> Result<Value, Error> {
    let Some((name, filter)) = find(name) else {
        return failed(format!("there is no filter named '{name}'"));
    };
    budget.enter()?;
    let mut params = args.params(name);
    let result = filter(value, &mut params, budget)?;
    params.end()?;
    budget.leave();
    Ok(result)
}

fn find(name: &str) -> Option<(&'static str, Filter)> {
    FILTERS.iter().find(|(n, _)| *n == name).copied()
}

static FILTERS: &[(&str, Filter)] = &[
    ("abs", |v, _, _| match (&v, v.as_int(), v.as_float()) {
        (_, Some(i), _) => Ok(Value::Int(i.saturating_abs())),
        (_, _, Some(f)) => Ok(Value::Float(f.abs())),
        _ => failed(format!("abs needs a number, not {}", v.type_name())),
    }),
    ("batch", batch),
    ("capitalize", |v, _, b| recased(&v, b, python::capitalize)),
    ("center", |v, p, b| {
        let width = p.optional("width").unwrap_or(Value::Int(80));
        method(&Value::Str(to_text(&v, b)?), "center", vec![width], b)
    }),
    ("count", |v, _, b| Ok(Value::Int(v.length(b)? as i128))),
    ("d", default),
    ("default", default),
    ("dictsort", dictsort),
    ("e", |v, _, b| escape(&v, b)),
    ("escape", |v, _, b| escape(&v, b)),
    ("first", |v, _, b| match &v {
        Value::Str(_) => ops::item(&v, &Value::Int(0), b),
        _ => Ok(v.items(b)?.into_iter().next().unwrap_or_else(|| Value::undefined("the first item"))),
    }),
    ("float", |v, p, _| {
        let default = p.optional("default").unwrap_or(Value::Float(0.0));
        let parsed = match &v {
            Value::Str(text) => parse_float(text.as_str()),
            other => other.as_float(),
        };
        Ok(parsed.map_or(default, Value::Float))
    }),
    ("forceescape", |v, _, b| escape(&v, b)),
    ("format", |v, p, b| {
        let args = std::mem::replace(p, Args::default().params("format")).rest();
        let values = match args.positional.is_empty() && !args.named.is_empty() {
            true => {
                let named = args.named.into_iter().map(|(name, value)| (Value::str(&name), value)).collect();
                vec![Value::dict(named, b)?]
            }
            false => args.positional,
        };
        printf::percent(&to_text(&v, b)?, &values, b).map(Value::Str)
    }),
    ("groupby", groupby),
    ("indent", indent),
    ("int", int),
    ("items", |v, _, b| match v {
        Value::Undefined(_) => Value::list(Vec::new(), b),
        v => python::items(&v, b),
    }),
    ("join", |v, p, b| {
        let separator = match p.optional("d") {
            None => Text::trusted(""),
            Some(separator) => to_text(&separator, b)?,
        };
        let attribute = p.optional("attribute");
        let mut items = v.items(b)?;
        if let Some(attribute) = attribute {
            for item in &mut items {
                *item = path(item, &attribute, b)?;
            }
        }
        python::join(&items, &separator, b)
    }),
    ("last", |v, _, b| match &v {
        Value::Str(_) => ops::item(&v, &Value::Int(-1), b),
        _ => Ok(v.items(b)?.into_iter().next_back().unwrap_or_else(|| Value::undefined("the last item"))),
    }),
    ("length", |v, _, b| Ok(Value::Int(v.length(b)? as i128))),
    ("list", |v, _, b| {
        let items = v.items(b)?;
        Value::list(items, b)
    }),
    ("lower", |v, _, b| recased(&v, b, python::lower)),
    ("map", map),
    ("max", |v, p, b| extreme(v, p, b, Ordering::Greater)),
    ("min", |v, p, b| extreme(v, p, b, Ordering::Less)),
    ("pprint", |v, _, b| {
        let mut buf = TextBuf::default();
        python::repr_into(&v, &mut buf, b)?;
        Ok(Value::Str(buf.finish()))
    }),
    ("reject", |v, p, b| select(v, p, b, false, false)),
    ("rejectattr", |v, p, b| select(v, p, b, false, true)),
    ("replace", |v, p, b| {
        let (text, old, new) = (to_text(&v, b)?, p.required("old")?, p.required("new")?);
        let (old, new) = (to_text(&old, b)?, to_text(&new, b)?);
        let count = p.int("count")?;
        python::replace(&text, &old, &new, count, b).map(Value::Str)
    }),
    ("reverse", |v, _, b| match &v {
        Value::Str(_) => ops::slice(&v, [None, None, Some(Value::Int(-1))], b),
        _ => {
            let items = v.items(b)?.into_iter().rev().collect();
            Value::list(items, b)
        }
    }),
    ("round", round),
    ("safe", |v, _, b| to_text(&v, b).map(Value::Str)),
    ("select", |v, p, b| select(v, p, b, true, false)),
    ("selectattr", |v, p, b| select(v, p, b, true, true)),
    ("slice", slice),
    ("sort", sort),
    ("string", |v, _, b| to_text(&v, b).map(Value::Str)),
    ("sum", |v, p, b| {
        let attribute = p.optional("attribute").filter(|a| !matches!(a, Value::None));
        let mut sum = p.optional("start").unwrap_or(Value::Int(0));
        for item in v.items(b)? {
            let item = attribute.as_ref().map_or(Ok(item.clone()), |attribute| path(&item, attribute, b))?;
            sum = ops::binary(super::syntax::BinOp::Add, &sum, &item, b)?;
        }
        Ok(sum)
    }),
    ("title", |v, _, b| recased(&v, b, python::title)),
    ("tojson", tojson),
    ("trim", |v, p, b| {
        let (text, chars) = (to_text(&v, b)?, p.text("chars")?);
        b.step(chars.as_ref().map_or(0, |chars| chars.len() / 64 * text.len()))?;
        b.build(text.weight())?;
        Ok(Value::Str(python::strip(&text, chars.as_ref(), (true, true))))
    }),
    ("truncate", truncate),
    ("unique", unique),
    ("upper", |v, _, b| recased(&v, b, |text| text.map_chars(char::to_uppercase))),
    ("urlencode", |v, _, b| urlencode(&v, b)),
    ("wordcount", |v, _, b| {
        let text = to_text(&v, b)?;
        b.scan(text.len())?;
        // Words of letters, digits and underscores, as Python's \w+ finds them.
        let words = text.as_str().split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
        Ok(Value::Int(words.count() as i128))
    }),
];

fn method(value: &Value, name: &str, positional: Vec<Value>, b: &mut Budget) -> Result<Value, Error> {
    match python::method(value, name) {
        Some(method) => (method.call)(value, Args { positional, named: Vec::new() }, b),
        None => failed(format!("'{} object' has no method '{name}'", value.type_name())),
    }
}

fn recased(v: &Value, b: &mut Budget, map: impl Fn(&Text) -> Text) -> Result<Value, Error> {
    let text = to_text(v, b)?;
    b.step(text.len())?;
    // A character's other case has at most three characters.
    b.build(3 * text.weight())?;
    Ok(Value::Str(map(&text)))
}

fn default(v: Value, p: &mut Params, _: &mut Budget) -> Result<Value, Error> {
    let default = p.optional("default_value").unwrap_or_else(|| Value::str(""));
    let falsy = p.flag("boolean", false);
    Ok(if matches!(v, Value::Undefined(_)) || (falsy && !v.truth()) { default } else { v })
}

/// The value at an attribute's path: `a.b.0`, or a number.
fn path(value: &Value, attribute: &Value, b: &mut Budget) -> Result<Value, Error> {
    let Value::Str(name) = attribute else {
        return ops::item(value, attribute, b);
    };
    let mut found = value.clone();
    for part in name.as_str().split('.') {
        found = match part.parse::<u32>() {
            Ok(i) => ops::item(&found, &Value::Int(i.into()), b)?,
            Err(_) => ops::item(&found, &Value::str(part), b)?,
        };
    }
    Ok(found)
}

fn map(v: Value, p: &mut Params, b: &mut Budget) -> Result<Value, Error> {
    let attribute = p.by_name("attribute");
    let default = attribute.as_ref().and_then(|_| p.by_name("default"));
    let mut args = std::mem::replace(p, Args::default().params("map")).rest();
    let mut items = v.items(b)?;
    if let Some(attribute) = attribute {
        for item in &mut items {
            *item = match (path(item, &attribute, b)?, &default) {
                (Value::Undefined(_), Some(default)) => default.clone(),
                (found, _) => found,
            };
        }
    } else {
        let name = match args.positional.first() {
            Some(Value::Str(name)) => name.clone(),
            _ => return failed("map needs the name of a filter, or attribute="),
        };
        args.positional.remove(0);
        for item in &mut items {
            b.step(args.positional.len() + args.named.len())?;
            let args = Args { positional: args.positional.clone(), named: args.named.clone() };
            *item = apply(name.as_str(), item.clone(), args, b)?;
        }
    }
    Value::list(items, b)
}

fn select(v: Value, p: &mut Params, b: &mut Budget, wanted: bool, by_attribute: bool) -> Result<Value, Error> {
    let attribute = if by_attribute { Some(p.required("attribute")?) } else { None };
    let mut args = std::mem::replace(p, Args::default().params("select")).rest();
    let name = match args.positional.first() {
        None => None,
        Some(Value::Str(name)) => Some(name.clone()),
        Some(other) => {
            return failed(format!("select needs the name of a test, not {}", other.type_name()));
        }
    };
    if name.is_some() {
        args.positional.remove(0);
    }
    let mut kept = Vec::new();
    for item in v.items(b)? {
        b.step(1 + args.positional.len() + args.named.len())?;
        let of = attribute.as_ref().map_or(Ok(item.clone()), |attribute| path(&item, attribute, b))?;
        let holds = match &name {
            None => of.truth(),
            Some(name) => {
                let args = Args { positional: args.positional.clone(), named: args.named.clone() };
                predicates::holds(name.as_str(), &of, args, b)?
            }
        };
        if holds == wanted {
            kept.push(item);
        }
    }
    Value::list(kept, b)
}

/// What sorting compares: strings in lower case, unless asked otherwise.
fn sort_key(value: Value, case_sensitive: bool, b: &mut Budget) -> Result<Value, Error> {
    match value {
        Value::Str(text) if !case_sensitive => {
            b.step(text.len())?;
            b.build(3 * text.weight())?;
            Ok(Value::Str(python::lower(&text)))
        }
        other => Ok(other),
    }
}

/// Sorts, keeping the order of equals, by keys that are compared as Python does.
fn sorted(mut items: Vec<(Value, Value)>, reverse: bool, b: &mut Budget) -> Result<Vec<Value>, Error> {
    let mut error = None;
    items.sort_by(|(x, _), (y, _)| {
        if error.is_some() {
            return Ordering::Equal;
        }
        let order = x.order(y, b).unwrap_or_else(|e| {
            error = Some(e);
            None
        });
        let order = order.unwrap_or(Ordering::Equal);
        if reverse { order.reverse() } else { order }
    });
    match error {
        Some(error) => Err(error),
        None => Ok(items.into_iter().map(|(_, item)| item).collect()),
    }
}

fn sort(v: Value, p: &mut Params, b: &mut Budget) -> Result<Value, Error> {
    let reverse = p.flag("reverse", false);
    let case_sensitive = p.flag("case_sensitive", false);
    let attribute = p.optional("attribute").filter(|a| !matches!(a, Value::None));
    let mut keyed = Vec::new();
    for item in v.items(b)? {
        keyed.push((attribute_key(&item, attribute.as_ref(), case_sensitive, b)?, item));
    }
    let items = sorted(keyed, reverse, b)?;
    Value::list(items, b)
}

/// The key of an item by one or, comma separated, several attributes.
fn attribute_key(item: &Value, attribute: Option<&Value>, case_sensitive: bool, b: &mut Budget) -> Result<Value, Error> {
    match attribute {
        None => sort_key(item.clone(), case_sensitive, b),
        Some(Value::Str(names)) if names.as_str().contains(',') => {
            let mut parts = Vec::new();
            for name in names.as_str().split(',') {
                let part = path(item, &Value::str(name), b)?;
                parts.push(sort_key(part, case_sensitive, b)?);
            }
            Value::list(parts, b)
        }
        Some(attribute) => {
            let part = path(item, attribute, b)?;
            sort_key(part, case_sensitive, b)
        }
    }
}

fn dictsort(v: Value, p: &mut Params, b: &mut Budget) -> Result<Value, Error> {
    let case_sensitive = p.flag("case_sensitive", false);
    let by = match p.text("by")? {
        Some(by) if by.as_str() == "value" => 1,
        None => 0,
        Some(by) if by.as_str() == "key" => 0,
        Some(_) => return failed("dictsort sorts by 'key' or by 'value'"),
    };
    let reverse = p.flag("reverse", false);
    let mut keyed = Vec::new();
    for pair in python::items(&v, b)?.items(b)? {
        let part = ops::item(&pair, &Value::Int(by), b)?;
        keyed.push((sort_key(part, case_sensitive, b)?, pair));
    }
    let pairs = sorted(keyed, reverse, b)?;
    Value::list(pairs, b)
}

fn groupby(v: Value, p: &mut Params, b: &mut Budget) -> Result<Value, Error> {
    let attribute = p.required("attribute")?;
    let default = p.optional("default");
    let case_sensitive = p.flag("case_sensitive", false);
    let mut keyed = Vec::new();
    for item in v.items(b)? {
        let mut group = path(&item, &attribute, b)?;
        if let (Value::Undefined(_), Some(default)) = (&group, &default) {
            group = default.clone();
        }
        let key = sort_key(group.clone(), case_sensitive, b)?;
        let member = Value::list(vec![key.clone(), group, item], b)?;
        keyed.push((key, member));
    }
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for member in sorted(keyed, false, b)? {
        let mut parts = member.items(b)?.into_iter();
        let (Some(key), Some(group), Some(item)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        match groups.last_mut() {
            Some((last, _, members)) if last.equals(&key, b)? => members.push(item),
            _ => groups.push((key, group, vec![item])),
        }
    }
    let mut out = Vec::with_capacity(groups.len());
    for (_, group, members) in groups {
        let members = Value::list(members, b)?;
        out.push(Value::list(vec![group, members], b)?);
    }
    Value::list(out, b)
}

fn unique(v: Value, p: &mut Params, b: &mut Budget) -> Result<Value, Error> {
    let case_sensitive = p.flag("case_sensitive", false);
    let attribute = p.optional("attribute").filter(|a| !matches!(a, Value::None));
    let mut seen: Vec<Value> = Vec::new();
    let mut kept = Vec::new();
    for item in v.items(b)? {
        let key = attribute_key(&item, attribute.as_ref(), case_sensitive, b)?;
        let mut known = false;
        for other in &seen {
            known = known || other.equals(&key, b)?;
        }
        if !known {
            seen.push(key);
            kept.push(item);
        }
    }
    Value::list(kept, b)
}

fn extreme(v: Value, p: &mut Params, b: &mut Budget, wanted: Ordering) -> Result<Value, Error> {
    let case_sensitive = p.flag("case_sensitive", false);
    let attribute = p.optional("attribute").filter(|a| !matches!(a, Value::None));
    let mut best: Option<(Value, Value)> = None;
    for item in v.items(b)? {
        let key = attribute_key(&item, attribute.as_ref(), case_sensitive, b)?;
        let better = match &best {
            None => true,
            Some((best, _)) => key.order(best, b)? == Some(wanted),
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(|| Value::undefined("the extreme of an empty sequence"), |(_, item)| item))
}

/// Groups of at most so many, or so many groups: a count that must be at least one.
fn positive(p: &mut Params, name: &str) -> Result<usize, Error> {
    match p.int(name)? {
        Some(n) if n >= 1 => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
        _ => failed(format!("'{name}' must be at least 1")),
    }
}

fn batch(v: Value, p: &mut Params, b: &mut Budget) -> Result<Value, Error> {
    let n = positive(p, "linecount")?;
    let fill = p.optional("fill_with").filter(|fill| !matches!(fill, Value::None));
    let items = v.items(b)?;
    let mut rows = Vec::new();
    for row in items.chunks(n) {
        let mut row = row.to_vec();
        if let Some(fill) = &fill {
            b.build((n - row.len()).saturating_mul(ITEM_BYTES))?;
            row.resize(n, fill.clone());
        }
        rows.push(Value::list(row, b)?);
    }
    Value::list(rows, b)
}

fn slice(v: Value, p: &mut Params, b: &mut Budget) -> Result<Value, Error> {
    let n = positive(p, "slices")?;
    let fill = p.optional("fill_with").filter(|fill| !matches!(fill, Value::None));
    let items = v.items(b)?;
    b.step(n)?;
    let (each, more) = (items.len() / n, items.len() % n);
    let mut rest = items.as_slice();
    let mut out = Vec::new();
    for i in 0..n {
        let (piece, left) = rest.split_at(each + usize::from(i < more));
        rest = left;
        let mut piece = piece.to_vec();
        if let (Some(fill), true) = (&fill, i >= more && more > 0) {
            piece.push(fill.clone());
        }
        out.push(Value::list(piece, b)?);
    }
    Value::list(out, b)
}

fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(python::is_space);
    // Rust takes the words that Python takes; Python also takes underscores between digits.
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    plain.parse().ok()
}

fn int(v: Value, p: &mut Params, _: &mut Budget) -> Result<Value, Error> {
    let default = p.optional("default").unwrap_or(Value::Int(0));
    let base = p.int("base")?.unwrap_or(10);
    let whole = |f: f64| (f.is_finite() && f.abs() < 1e38).then_some(f.trunc() as i128);
    let parsed = match &v {
        Value::Str(text) => {
            let text = text.as_str().trim_matches(python::is_space);
            let plain: String = text.chars().filter(|c| *c != '_').collect();
            let digits = match base {
                16 => plain.trim_start_matches("0x").trim_start_matches("0X"),
                8 => plain.trim_start_matches("0o").trim_start_matches("0O"),
                2 => plain.trim_start_matches("0b").trim_start_matches("0B"),
                _ => &plain,
            };
            match u32::try_from(base) {
                Ok(base @ 2..=36) => i128::from_str_radix(digits, base).ok().or_else(|| parse_float(text).and_then(whole)),
                _ => return failed("the base of a whole number is 2 to 36"),
            }
        }
        Value::Float(f) => whole(*f),
        other => other.as_int(),
    };
    Ok(parsed.map_or(default, Value::Int))
}

fn round(v: Value, p: &mut Params, _: &mut Budget) -> Result<Value, Error> {
    let precision = p.int("precision")?.unwrap_or(0).clamp(-300, 300) as i32;
    let how = p.text("method")?;
    let Some(f) = v.as_float() else {
        return failed(format!("round needs a number, not {}", v.type_name()));
    };
    let common = how.as_ref().is_none_or(|how| how.as_str() == "common");
    if common && precision >= 0 && v.as_int().is_some() {
        return Ok(v);
    }
    // Ten to whole powers is exact up to 22, as far as anybody rounds.
    let scale = format!("1e{precision}").parse::<f64>().unwrap_or(1.0);
    let rounded = match how.as_ref().map(Text::as_str) {
        // The decimal expansion is exact, so this rounds the number that is there, ties to even, as Python does.
        None | Some("common") if precision >= 0 => format!("{f:.*}", precision as usize).parse().unwrap_or(f),
        None | Some("common") => (f * scale).round_ties_even() / scale,
        Some("ceil") => (f * scale).ceil() / scale,
        Some("floor") => (f * scale).floor() / scale,
        Some(_) => return failed("round knows the methods 'common', 'ceil' and 'floor'"),
    };
    Ok(Value::Float(rounded))
}

fn indent(v: Value, p: &mut Params, b: &mut Budget) -> Result<Value, Error> {
    let text = to_text(&v, b)?;
    let by = match p.optional("width") {
        None => Text::untrusted("    "),
        Some(Value::Str(by)) => by,
        Some(width) => match width.as_int() {
            Some(n) => {
                let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
                b.build(n)?;
                Text::untrusted(&" ".repeat(n))
            }
            None => return failed("indent needs a width or a string"),
        },
    };
    let first = p.flag("first", false);
    let blank = p.flag("blank", false);
    b.scan(text.len())?;
    b.build(text.weight())?;
    let mut buf = TextBuf::default();
    let mut start = 0;
    for (i, line) in text.as_str().split('\n').enumerate() {
        b.step(1)?;
        let end = start + line.len();
        if i > 0 {
            buf.push_slice(&text, start - 1..start);
        }
        if (i > 0 || first) && (blank || !line.is_empty() || (i == 0 && first)) {
            b.build(by.weight())?;
            buf.push(&by);
        }
        buf.push_slice(&text, start..end);
        start = end + 1;
    }
    Ok(Value::Str(buf.finish()))
}

fn truncate(v: Value, p: &mut Params, b: &mut Budget) -> Result<Value, Error> {
    let text = to_text(&v, b)?;
    let length = p.int("length")?.unwrap_or(255).max(0);
    let kill_words = p.flag("killwords", false);
    let end = p.text("end")?.unwrap_or_else(|| Text::trusted("..."));
    let leeway = p.int("leeway")?.unwrap_or(5).max(0);
    let n = Value::Str(text.clone()).length(b)? as i128;
    if n <= length.saturating_add(leeway) {
        return Ok(Value::Str(text));
    }
    let keep = (length - end.as_str().chars().count() as i128).max(0);
    let cut = text.as_str().char_indices().nth(keep as usize).map_or(text.len(), |(at, _)| at);
    let kept = &text.as_str()[..cut];
    let cut = if kill_words { cut } else { kept.rfind(' ').unwrap_or(cut) };
    b.build(text.weight() + end.weight())?;
    let mut buf = TextBuf::default();
    buf.push_slice(&text, 0..cut);
    buf.push(&end);
    Ok(Value::Str(buf.finish()))
}

fn escape(v: &Value, b: &mut Budget) -> Result<Value, Error> {
    let text = to_text(v, b)?;
    b.step(text.len())?;
    b.build(6 * text.weight())?;
    let mut buf = TextBuf::default();
    for (_, c, trusted) in text.chars() {
        match c {
            '&' => buf.push_marked("&amp;", trusted),
            '<' => buf.push_marked("&lt;", trusted),
            '>' => buf.push_marked("&gt;", trusted),
            '"' => buf.push_marked("&#34;", trusted),
            '\'' => buf.push_marked("&#39;", trusted),
            c => buf.push_char(c, trusted),
        }
    }
    Ok(Value::Str(buf.finish()))
}

fn urlencode(v: &Value, b: &mut Budget) -> Result<Value, Error> {
    let Value::Str(text) = v else {
        return failed(format!("urlencode needs a string, not {}", v.type_name()));
    };
    b.step(text.len())?;
    b.build(3 * text.weight())?;
    let mut buf = TextBuf::default();
    for (_, c, trusted) in text.chars() {
        if c.is_ascii_alphanumeric() || "_.-~/".contains(c) {
            buf.push_char(c, trusted);
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            buf.push_marked(&format!("%{byte:02X}"), trusted);
        }
    }
    Ok(Value::Str(buf.finish()))
}

fn tojson(v: Value, p: &mut Params, b: &mut Budget) -> Result<Value, Error> {
    v.defined()?;
    let ensure_ascii = p.flag("ensure_ascii", false);
    let indent = match p.optional("indent") {
        None | Some(Value::None) => None,
        Some(Value::Str(by)) => Some(by),
        Some(width) => match width.as_int() {
            Some(n) => {
                let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
                b.build(n)?;
                Some(Text::untrusted(&" ".repeat(n)))
            }
            None => {
                return failed(format!("tojson needs a number or a string as 'indent', not {}", width.type_name()));
            }
        },
    };
    let separators = match p.optional("separators") {
        None | Some(Value::None) => {
            let item = if indent.is_some() { "," } else { ", " };
            (Text::untrusted(item), Text::untrusted(": "))
        }
        Some(pair) => match pair.items(b)?.as_slice() {
            [Value::Str(item), Value::Str(key)] => (item.clone(), key.clone()),
            _ => return failed("tojson needs two strings as 'separators'"),
        },
    };
    let sort_keys = p.flag("sort_keys", false);
    json::dumps(&v, &json::Style { indent, separators, ensure_ascii, sort_keys }, b).map(Value::Str)
}
