//! Python's two ways of formatting: `"{:>5}".format(x)` and `"%5d" % x`.

use super::args::Args;
use super::error::{Error, failed};
use super::limits::Budget;
use super::provenance::{Text, TextBuf};
use super::python::{self, to_text};
use super::value::Value;

/// How one value is to be shown.
#[derive(Debug, Default, Clone)]
struct Spec {
    fill: Option<char>,
    /// One of `<`, `>`, `^`, `=`.
    align: Option<char>,
    /// One of `+`, `-`, a space.
    sign: Option<char>,
    alternate: bool,
    width: usize,
    /// `,` or `_` between groups of digits.
    group: Option<char>,
    precision: Option<usize>,
    /// The presentation type.
    kind: Option<char>,
}

/// Digits after the point beyond which nobody asks: the bound on what a number's text can take.
const MAX_PRECISION: usize = 1000;

/// `str.format`.
pub(super) fn str_format(format: &Text, args: Args, budget: &mut Budget) -> Result<Text, Error> {
    let source = format.as_str();
    let mut buf = TextBuf::default();
    let mut next = 0;
    let mut at = 0;
    budget.build(format.weight())?;
    while at < source.len() {
        budget.step(1)?;
        let rest = &source[at..];
        let Some(brace) = rest.find(['{', '}']) else {
            buf.push_slice(format, at..source.len());
            break;
        };
        buf.push_slice(format, at..at + brace);
        let rest = &rest[brace..];
        at += brace;
        if rest.starts_with("{{") || rest.starts_with("}}") {
            buf.push_slice(format, at..at + 1);
            at += 2;
            continue;
        }
        let Some(end) = rest.find('}').filter(|_| rest.starts_with('{')) else {
            return failed("single brace in a format string");
        };
        let field = &rest[1..end];
        at += end + 1;
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (field, conversion) = field.split_once('!').unwrap_or((field, ""));
        let value = match field {
            "" => {
                next += 1;
                args.positional.get(next - 1)
            }
            _ => match field.parse::<usize>() {
                Ok(i) => args.positional.get(i),
                Err(_) => args.named.iter().find(|(name, _)| **name == *field).map(|(_, value)| value),
            },
        };
        let Some(value) = value else {
            return failed(format!("format() has no argument for the field '{field}'"));
        };
        let shown = match conversion {
            "" => value.clone(),
            "s" => Value::Str(to_text(value, budget)?),
            "r" | "a" => Value::Str(repr(value, budget)?),
            _ => {
                return failed(format!("format() doesn't know the conversion '{conversion}'"));
            }
        };
        show(&shown, &parse_spec(spec)?, &mut buf, budget)?;
    }
    Ok(buf.finish())
}

/// `format % values`; a dict gives its values by name.
pub(super) fn percent(format: &Text, values: &[Value], budget: &mut Budget) -> Result<Text, Error> {
    let source = format.as_str();
    let mut buf = TextBuf::default();
    let mut values_left = values.iter();
    let by_name = match values {
        [Value::Dict(dict)] => Some(dict),
        _ => None,
    };
    let mut at = 0;
    budget.build(format.weight())?;
    while let Some(percent) = source[at..].find('%') {
        budget.step(1)?;
        buf.push_slice(format, at..at + percent);
        at += percent + 1;
        let mut named = None;
        if let (Some(name), Some(dict)) = (source[at..].strip_prefix('('), by_name) {
            let Some(end) = name.find(')') else {
                return failed("incomplete format key");
            };
            named = Some(match dict.get_str(&name[..end]) {
                Some(value) => value,
                None => return failed(format!("the format's key '{}' is missing", &name[..end])),
            });
            at += end + 2;
        }
        let mut spec = Spec { align: Some('>'), ..Spec::default() };
        let mut chars = source[at..].char_indices().peekable();
        while let Some((_, c)) = chars.next_if(|(_, c)| "-+ 0#".contains(*c)) {
            match c {
                '-' => spec.align = Some('<'),
                '0' if spec.align != Some('<') => (spec.fill, spec.align) = (Some('0'), Some('=')),
                '0' => {}
                '#' => spec.alternate = true,
                sign => spec.sign = Some(sign),
            }
        }
        while let Some((_, c)) = chars.next_if(|(_, c)| c.is_ascii_digit()) {
            spec.width = spec.width.saturating_mul(10).saturating_add(c as usize - '0' as usize);
        }
        if chars.next_if(|(_, c)| *c == '.').is_some() {
            let mut precision: usize = 0;
            while let Some((_, c)) = chars.next_if(|(_, c)| c.is_ascii_digit()) {
                precision = precision.saturating_mul(10).saturating_add(c as usize - '0' as usize);
            }
            spec.precision = Some(precision);
        }
        let Some((i, kind)) = chars.next() else {
            return failed("incomplete format");
        };
        let end = at + i + kind.len_utf8();
        if kind == '%' {
            buf.push_slice(format, end - 1..end);
            at = end;
            continue;
        }
        let Some(value) = named.or_else(|| values_left.next()) else {
            return failed("not enough arguments for format string");
        };
        at = end;
        let value = match kind {
            's' => Value::Str(to_text(value, budget)?),
            'r' | 'a' => Value::Str(repr(value, budget)?),
            'd' | 'i' | 'u' => match value {
                Value::Float(f) => Value::Int(*f as i128),
                other => other.clone(),
            },
            _ => value.clone(),
        };
        let number = value.as_float().is_some();
        spec.kind = match kind {
            's' | 'r' | 'a' => None,
            'd' | 'i' | 'u' if number => Some('d'),
            'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' if number => Some(kind),
            // A character from its number is not made here: it would be text that nobody wrote.
            _ => {
                return failed(format!("the format %{kind} doesn't take {}", value.type_name()));
            }
        };
        if !number {
            spec.fill = None;
            spec.align = spec.align.map(|align| if align == '=' { '>' } else { align });
        }
        show(&value, &spec, &mut buf, budget)?;
    }
    buf.push_slice(format, at..source.len());
    if by_name.is_none() && values_left.next().is_some() {
        return failed("not all arguments converted during string formatting");
    }
    Ok(buf.finish())
}

fn repr(value: &Value, budget: &mut Budget) -> Result<Text, Error> {
    let mut buf = TextBuf::default();
    python::repr_into(value, &mut buf, budget)?;
    Ok(buf.finish())
}

fn parse_spec(spec: &str) -> Result<Spec, Error> {
    let mut out = Spec::default();
    let chars: Vec<char> = spec.chars().collect();
    let mut i = 0;
    let is_align = |c: Option<&char>| c.is_some_and(|c| "<>^=".contains(*c));
    if is_align(chars.get(1)) {
        (out.fill, out.align, i) = (Some(chars[0]), Some(chars[1]), 2);
    } else if is_align(chars.first()) {
        (out.align, i) = (Some(chars[0]), 1);
    }
    let accept = |i: &mut usize, set: &str| {
        let c = chars.get(*i).copied().filter(|c| set.contains(*c));
        *i += usize::from(c.is_some());
        c
    };
    out.sign = accept(&mut i, "+- ");
    out.alternate = accept(&mut i, "#").is_some();
    if accept(&mut i, "0").is_some() && out.align.is_none() {
        (out.fill, out.align) = (Some('0'), Some('='));
    }
    while let Some(c) = accept(&mut i, "0123456789") {
        out.width = out.width.saturating_mul(10).saturating_add(c as usize - '0' as usize);
    }
    out.group = accept(&mut i, ",_");
    if accept(&mut i, ".").is_some() {
        let mut precision: usize = 0;
        while let Some(c) = accept(&mut i, "0123456789") {
            precision = precision.saturating_mul(10).saturating_add(c as usize - '0' as usize);
        }
        out.precision = Some(precision);
    }
    out.kind = accept(&mut i, "sdbxXoeEfFgGn%");
    if i < chars.len() {
        return failed(format!("the format '{spec}' isn't known"));
    }
    Ok(out)
}

fn show(value: &Value, spec: &Spec, buf: &mut TextBuf, budget: &mut Budget) -> Result<(), Error> {
    let numeric = value.as_float().is_some() && !(matches!(value, Value::Bool(_)) && spec.kind.is_none());
    let (sign, body) = if numeric && spec.kind != Some('s') {
        number(value, spec)?
    } else if matches!(spec.kind, None | Some('s')) {
        let text = to_text(value, budget)?;
        let keep = spec.precision.unwrap_or(usize::MAX);
        let end = text.as_str().char_indices().nth(keep).map_or(text.len(), |(at, _)| at);
        (String::new(), text.slice(0..end))
    } else {
        value.defined()?;
        return failed(format!("the format '{}' doesn't take {}", spec.kind.unwrap_or(' '), value.type_name()));
    };
    let width = sign.chars().count() + body.as_str().chars().count();
    let missing = spec.width.saturating_sub(width);
    let fill = spec.fill.unwrap_or(' ');
    budget.build(missing.saturating_mul(fill.len_utf8()).saturating_add(body.weight() + sign.len()))?;
    let (before, inside, after) = match spec.align.unwrap_or(if numeric { '>' } else { '<' }) {
        '<' => (0, 0, missing),
        '^' => (missing / 2, 0, missing - missing / 2),
        '=' => (0, missing, 0),
        _ => (missing, 0, 0),
    };
    let fill_n = |buf: &mut TextBuf, n: usize| (0..n).for_each(|_| buf.push_char(fill, false));
    fill_n(buf, before);
    buf.push_plain(&sign);
    fill_n(buf, inside);
    buf.push(&body);
    fill_n(buf, after);
    Ok(())
}

/// A number's sign (with `0x` and the like) and its digits.
fn number(value: &Value, spec: &Spec) -> Result<(String, Text), Error> {
    let negative = value.as_int().map_or_else(|| value.as_float().is_some_and(f64::is_sign_negative), |i| i < 0);
    let mut sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    }
    .to_owned();
    let precision = spec.precision.unwrap_or(6).min(MAX_PRECISION);
    let digits = match (value.as_int(), spec.kind) {
        (Some(i), None | Some('d' | 'n')) => i.unsigned_abs().to_string(),
        (Some(i), Some(kind @ ('x' | 'X' | 'o' | 'b'))) => {
            if spec.alternate {
                sign.push('0');
                sign.push(kind);
            }
            let i = i.unsigned_abs();
            match kind {
                'x' => format!("{i:x}"),
                'X' => format!("{i:X}"),
                'o' => format!("{i:o}"),
                _ => format!("{i:b}"),
            }
        }
        (None, Some(kind @ ('d' | 'x' | 'X' | 'o' | 'b'))) => {
            return failed(format!("the format '{kind}' doesn't take float"));
        }
        (_, kind) => {
            let f = value.as_float().unwrap_or(f64::NAN).abs();
            match kind {
                _ if !f.is_finite() => python::float_repr(f),
                Some('f' | 'F') => format!("{f:.precision$}"),
                Some('e') => exponent(&format!("{f:.precision$e}")),
                Some('E') => exponent(&format!("{f:.precision$e}")).to_uppercase(),
                Some('%') => format!("{:.precision$}%", f * 100.0),
                Some('G') => general(f, precision).to_uppercase(),
                Some(_) => general(f, precision),
                None if spec.precision.is_some() => general(f, precision),
                None => python::float_repr(f),
            }
        }
    };
    let digits = match spec.group {
        Some(separator) => grouped(&digits, separator),
        None => digits,
    };
    Ok((sign, Text::untrusted(&digits)))
}

/// Rust's exponent in C's form: at least two digits and a sign.
fn exponent(number: &str) -> String {
    let (digits, exponent) = number.split_once('e').unwrap_or((number, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// C's `%g`.
fn general(f: f64, precision: usize) -> String {
    let precision = precision.max(1);
    let scientific = format!("{f:.*e}", precision - 1);
    let exp: i32 = scientific.split_once('e').and_then(|(_, exp)| exp.parse().ok()).unwrap_or(0);
    let trim = |s: &str| {
        if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.').to_owned() } else { s.to_owned() }
    };
    if exp < -4 || exp >= precision as i32 {
        let (digits, exp) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        exponent(&format!("{}e{exp}", trim(digits)))
    } else {
        let after = (precision as i32 - 1 - exp).max(0) as usize;
        trim(&format!("{f:.after$}"))
    }
}

fn grouped(digits: &str, separator: char) -> String {
    let whole = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let mut out = String::new();
    for (i, c) in digits[..whole].chars().enumerate() {
        if i > 0 && (whole - i).is_multiple_of(3) {
            out.push(separator);
        }
        out.push(c);
    }
    out + &digits[whole..]
}
