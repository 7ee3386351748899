//! Rust source as the tidy rules see it: comments and the contents of literals blanked, tests cut out, words found.
//!
//! Not a parser: it knows just enough of the language to never take a comment, a string or a test for production code.

/// `source` with comments and the contents of string and character literals turned into spaces; lines stay lines.
pub(crate) fn strip(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let blank = |out: &mut String, c: char| out.push(if c == '\n' { '\n' } else { ' ' });
    while i < chars.len() {
        let c = at(i);
        let after_word = i > 0 && is_word(at(i - 1));
        if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && at(i) != '\n' {
                out.push(' ');
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            while i < chars.len() {
                let step = match (at(i), at(i + 1)) {
                    ('/', '*') => {
                        depth += 1;
                        2
                    }
                    ('*', '/') => {
                        depth -= 1;
                        2
                    }
                    _ => 1,
                };
                for c in &chars[i..(i + step).min(chars.len())] {
                    blank(&mut out, *c);
                }
                i += step;
                if depth == 0 {
                    break;
                }
            }
        } else if let Some(n_hashes) = raw_string(&chars, i).filter(|_| !after_word) {
            // From the `r` to the quote with as many hashes as at its start.
            while at(i) != '"' {
                out.push(at(i));
                i += 1;
            }
            out.push('"');
            i += 1;
            while i < chars.len() && !(at(i) == '"' && (1..=n_hashes).all(|k| at(i + k) == '#')) {
                blank(&mut out, at(i));
                i += 1;
            }
            out.push('"');
            i += 1;
        } else if c == '"' {
            out.push('"');
            i += 1;
            while i < chars.len() && at(i) != '"' {
                if at(i) == '\\' {
                    out.push(' ');
                    i += 1;
                }
                blank(&mut out, at(i));
                i += 1;
            }
            out.push('"');
            i += 1;
        } else if c == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            out.push('\'');
            i += 1;
            while i < chars.len() && at(i) != '\'' {
                if at(i) == '\\' {
                    out.push(' ');
                    i += 1;
                }
                blank(&mut out, at(i));
                i += 1;
            }
            out.push('\'');
            i += 1;
        } else {
            out.push(c);
            i += 1;
        }
    }
    out
}

/// Number of hashes of the raw string that begins at `i` (`r"`, `r#"`, `br"`, `cr"`), if one does.
fn raw_string(chars: &[char], i: usize) -> Option<usize> {
    let r = match (chars.get(i), chars.get(i + 1)) {
        (Some('r'), _) => i,
        (Some('b' | 'c'), Some('r')) => i + 1,
        _ => return None,
    };
    let n_hashes = chars[r + 1..].iter().take_while(|c| **c == '#').count();
    (chars.get(r + 1 + n_hashes) == Some(&'"')).then_some(n_hashes)
}

/// Production code of a stripped source, and the names of modules in other files that are compiled for tests only.
pub(crate) fn without_tests(code: &str) -> (String, Vec<String>) {
    let mut out: Vec<u8> = code.bytes().collect();
    let mut test_modules = Vec::new();
    let mut from = 0;
    while let Some(found) = ["#[cfg(test", "#[cfg(all(test", "#[test]"].iter().filter_map(|mark| code[from..].find(mark)).min() {
        let start = from + found;
        let end = item_end(code, start);
        let item = &code[start..end];
        if item.ends_with(';')
            && let Some((_, name)) = item.rsplit_once("mod ")
        {
            test_modules.push(name.trim_end_matches(';').trim().to_owned());
        }
        for byte in &mut out[start..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        from = end;
    }
    (String::from_utf8_lossy(&out).into_owned(), test_modules)
}

/// End of the item whose attributes begin at `start`: past its `;`, or past the brace that closes its body.
fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0usize;
    let mut brackets = 0usize;
    for (i, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'[' | b'(' => brackets += 1,
            b']' | b')' => brackets = brackets.saturating_sub(1),
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i + 1;
                }
            }
            b';' if depth == 0 && brackets == 0 => return i + 1,
            _ => {}
        }
    }
    code.len()
}

/// Whether `c` can stand in a name.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Byte offsets at which `word` stands as a whole (it may hold `::` and `!`; only its outer ends are checked).
pub(crate) fn find_word(code: &str, word: &str) -> Vec<usize> {
    let ends_open = |c: Option<char>| !c.is_some_and(is_word);
    let starts_word = word.starts_with(is_word);
    let ends_word = word.ends_with(is_word);
    code.match_indices(word)
        .map(|(i, _)| i)
        .filter(|&i| !starts_word || ends_open(code[..i].chars().next_back()))
        .filter(|&i| !ends_word || ends_open(code[i + word.len()..].chars().next()))
        .collect()
}

/// Line of a byte offset, counted from one.
pub(crate) fn line_of(code: &str, offset: usize) -> usize {
    code[..offset].matches('\n').count() + 1
}

/// Calls of a method of this name, and uses of `f32::name` and `f64::name`: byte offsets.
pub(crate) fn find_float_function(code: &str, name: &str) -> Vec<usize> {
    find_word(code, name)
        .into_iter()
        .filter(|&i| {
            let before = code[..i].trim_end();
            let after = code[i + name.len()..].trim_start();
            (before.ends_with('.') && !before.ends_with("..") && after.starts_with('('))
                || before.ends_with("f32::")
                || before.ends_with("f64::")
        })
        .collect()
}

/// The names that follow `prefix` (`crate::`, `std::`), also inside one level of braces: `crate::{a, b::C}` gives a and b.
pub(crate) fn names_after(code: &str, prefix: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for start in find_word(code, prefix.trim_end_matches(':')).into_iter().filter(|&i| code[i..].starts_with(prefix)) {
        let rest = &code[start + prefix.len()..];
        let word = |text: &str| text.trim_start().chars().take_while(|c| is_word(*c)).collect::<String>();
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut from = 0;
            for (i, c) in group.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' if depth > 0 => depth -= 1,
                    ',' | '}' if depth == 0 => {
                        names.push((start, word(&group[from..i])));
                        from = i + 1;
                        if c == '}' {
                            break;
                        }
                    }
                    _ => {}
                }
            }
        } else {
            names.push((start, word(rest)));
        }
    }
    names.retain(|(_, name)| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strip_blanks_comments_and_literals_only() {
        let source = "a /* b /* c */ d */ e // f\n\"g\\\"h\" i r#\"j\" k\"# l '\\'' m 'n' &'o p br\"q\" attr";
        let code = strip(source);
        let words: String = code.chars().filter(|c| c.is_alphabetic()).collect();
        assert_eq!(words, "aeirlmopbrattr");
        assert_eq!(code.matches('\n').count(), 1);
    }

    #[test]
    fn tests_are_cut_out() {
        let source = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { x[1]; } }\nfn c() {}\n#[cfg(test)] mod naive;\n#[test]\nfn d([e; 3]) { }\nfn f() {}";
        let (code, modules) = without_tests(source);
        assert_eq!(modules, ["naive"]);
        for (name, stays) in [("a", true), ("b", false), ("c", true), ("d", false), ("f", true)] {
            assert_eq!(!find_word(&code, name).is_empty(), stays, "{name} in {code:?}");
        }
        assert_eq!(code.matches('\n').count(), source.matches('\n').count());
    }

    #[test]
    fn float_functions_are_told_from_our_own() {
        for (source, found) in [
            ("x.exp()", true),
            ("x\n    .exp()", true),
            ("f32::exp", true),
            ("core::f64::exp(x)", true),
            ("math::exp(x)", false),
            ("exp(x)", false),
            ("x.exp2()", false),
            ("a.expect()", false),
            ("0..exp(1)", false),
            ("x.exp", false),
        ] {
            assert_eq!(!find_float_function(source, "exp").is_empty(), found, "{source}");
        }
    }

    #[test]
    fn names_are_found_in_groups() {
        let code = "use crate::a::B; use crate::{c, d::{E, F}, g::H}; crate::i!(); mycrate::j";
        let names: Vec<_> = names_after(code, "crate::").into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["a", "c", "d", "g", "i"]);
    }
}
