//! Pre-tokenizers: how byte-level models cut a text into words before merging.
//!
//! A published split is one or several patterns, each applied to the pieces of the one before. Here a pattern is a
//! function that tells how long the first piece of a text is: a match at its start, or what lies before the first
//! match. All run in time linear in the text, look ahead within the text that they are given, and never behind.
//!
//! Classes of characters are those of `unicode`. Where llama.cpp approximates a published pattern (letters with case and
//! marks in `tekken` and `gpt-4o`, wide spaces in the two of DeepSeek), the published one holds here: the models were
//! trained with it.
//!
//! To add one: where its patterns are here already, a row in [`PRE_TOKENIZERS`]; else its patterns as functions first.

use super::unicode::{Class, class};

/// Length in bytes of the first piece of a text that isn't empty: at least one character.
type Pass = fn(&str) -> usize;

/// A row: the names that files use for one way of cutting, and what goes with them.
pub(super) struct PreTokenizer {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// The patterns in order.
    passes: &'static [Pass],
    /// Whether a word that is a token is taken whole, without merging.
    pub(super) ignore_merges: bool,
    /// Whether the start token is added where the file doesn't say.
    pub(super) add_bos: bool,
}

const fn row(names: &'static [&'static str], passes: &'static [Pass]) -> PreTokenizer {
    PreTokenizer { names, passes, ignore_merges: false, add_bos: false }
}

const fn whole_words(names: &'static [&'static str], passes: &'static [Pass], add_bos: bool) -> PreTokenizer {
    PreTokenizer { names, passes, ignore_merges: true, add_bos }
}

/// What a file without `tokenizer.ggml.pre` gets.
pub(super) const DEFAULT: &str = "default";

/// All ways of cutting, by the names in files.
static PRE_TOKENIZERS: &[PreTokenizer] = &[
    row(&[DEFAULT], &[punct_runs, gpt2, number_runs, digit_triples]),
    row(
        &[
            "gpt-2",
            "mpt",
            "olmo",
            "phi-2",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "roberta-bpe",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
        ],
        &[gpt2],
    ),
    row(&["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"], &[single_numbers, gpt2]),
    row(&["falcon"], &[punct_backtick_runs, gpt2, digit_triples]),
    whole_words(
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"],
        &[llama3],
        true,
    ),
    row(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[llama3]),
    row(&["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "kormo", "f2llmv2", "grok-2", "solar-open"], &[qwen2]),
    row(&["qwen35"], &[qwen35]),
    row(&["deepseek-llm"], &[line_breaks, spaced_cased, spaced_signs, trailing_space, wide_runs, number_runs]),
    row(&["deepseek-coder"], &[line_breaks, spaced_letters, spaced_punct, wide_runs, single_numbers]),
    row(&["deepseek-v3", "hunyuan-dense", "joyai-llm"], &[number_triples, cjk_runs, deepseek3]),
    whole_words(&["tekken"], &[tekken], true),
    row(&["gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"], &[gpt4o]),
];

impl PreTokenizer {
    /// The row that bears a name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        PRE_TOKENIZERS.iter().find(|row| row.names.contains(&name))
    }

    /// All names, for a message.
    pub(super) fn names() -> String {
        let names: Vec<&str> = PRE_TOKENIZERS.iter().flat_map(|row| row.names).copied().collect();
        names.join(", ")
    }

    /// Visits the words of a text in order; joined they are the text.
    pub(super) fn split<'t>(&self, text: &'t str, visit: &mut dyn FnMut(&'t str)) {
        apply(self.passes, text, visit);
    }
}

/// Recursion is as deep as a row has passes.
fn apply<'t>(passes: &[Pass], mut text: &'t str, visit: &mut dyn FnMut(&'t str)) {
    let Some((pass, rest)) = passes.split_first() else { return visit(text) };
    while !text.is_empty() {
        let (piece, after) = text.split_at(pass(text));
        apply(rest, piece, visit);
        text = after;
    }
}

/// A place in a text.
#[derive(Clone, Copy)]
struct Cursor<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Cursor<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    fn peek(&self) -> Option<(char, Class)> {
        self.text[self.at..].chars().next().map(|c| (c, class(c)))
    }

    /// The place after the character here, if it is one of these.
    fn after(&self, is: impl Fn(char, Class) -> bool) -> Option<Self> {
        let (c, k) = self.peek()?;
        is(c, k).then_some(Self { text: self.text, at: self.at + c.len_utf8() })
    }

    /// The place after as many of these as there are.
    fn after_all(&self, is: impl Fn(char, Class) -> bool) -> Self {
        let rest = &self.text[self.at..];
        let len = rest.char_indices().find(|&(_, c)| !is(c, class(c))).map_or(rest.len(), |(i, _)| i);
        Self { text: self.text, at: self.at + len }
    }

    /// The place after at least one of these.
    fn after_some(&self, is: impl Fn(char, Class) -> bool) -> Option<Self> {
        let end = self.after_all(is);
        (end.at > self.at).then_some(end)
    }
}

/// `X{1,max}` or what lies before the first `X`.
fn isolate(text: &str, max: usize, is: impl Fn(char, Class) -> bool) -> usize {
    let mut chars = text.char_indices();
    let Some((_, first)) = chars.next() else { return 0 };
    let inside = is(first, class(first));
    let mut n = 1;
    chars
        .find(|&(_, c)| {
            n += 1;
            is(c, class(c)) != inside || (inside && n > max)
        })
        .map_or(text.len(), |(i, _)| i)
}

/// `\s?X+` or what lies before the first match.
fn isolate_spaced(text: &str, is: impl Fn(char, Class) -> bool) -> usize {
    let start = Cursor::new(text);
    let spaced = start.after(|_, k| k.is_space()).and_then(|c| c.after_some(&is));
    if let Some(end) = spaced.or_else(|| start.after_some(&is)) {
        return end.at;
    }
    // No match here: up to the first X, less a space right before it. The character here is left out of that search,
    // or it would have begun a match.
    let mut before = None;
    for (i, c) in text.char_indices() {
        let k = class(c);
        if is(c, k) {
            return before.unwrap_or(i);
        }
        before = (k.is_space() && i > 0).then_some(i);
    }
    text.len()
}

/// `[\p{P}$+<=>^~|]+`
fn punct_runs(text: &str) -> usize {
    isolate(text, usize::MAX, |c, k| k.is_punct() || matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|'))
}

/// ``[\p{P}$+<=>^~|`]+``
fn punct_backtick_runs(text: &str) -> usize {
    isolate(text, usize::MAX, |c, k| k.is_punct() || matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|' | '`'))
}

/// `\p{N}+`
fn number_runs(text: &str) -> usize {
    isolate(text, usize::MAX, |_, k| k.is_number())
}

/// `\p{N}{1,3}`
fn number_triples(text: &str) -> usize {
    isolate(text, 3, |_, k| k.is_number())
}

/// `\p{N}`
fn single_numbers(text: &str) -> usize {
    isolate(text, 1, |_, k| k.is_number())
}

/// `[\r\n]`
fn line_breaks(text: &str) -> usize {
    isolate(text, 1, is_line_break)
}

/// `[0-9][0-9][0-9]`
fn digit_triples(text: &str) -> usize {
    let mut n = 0;
    for (i, c) in text.char_indices() {
        n = if c.is_ascii_digit() { n + 1 } else { 0 };
        if n == 3 {
            return if i == 2 { 3 } else { i - 2 };
        }
    }
    text.len()
}

/// `\s+$`
fn trailing_space(text: &str) -> usize {
    match text.trim_end_matches(|c| class(c).is_space()).len() {
        0 => text.len(),
        len => len,
    }
}

/// `[一-龥ࠀ-一가-퟿]+`
fn wide_runs(text: &str) -> usize {
    isolate(text, usize::MAX, |c, _| matches!(c, '\u{800}'..='\u{9FA5}' | '\u{AC00}'..='\u{D7FF}'))
}

/// `[一-龥぀-ゟ゠-ヿ]+`
fn cjk_runs(text: &str) -> usize {
    isolate(text, usize::MAX, |c, _| matches!(c, '\u{4E00}'..='\u{9FA5}' | '\u{3040}'..='\u{30FF}'))
}

/// `\s?\p{L}+`
fn spaced_letters(text: &str) -> usize {
    isolate_spaced(text, |_, k| k.is_letter())
}

/// `\s?\p{P}+`
fn spaced_punct(text: &str) -> usize {
    isolate_spaced(text, |_, k| k.is_punct())
}

/// `\s?[!-/:-~！-／：-～‘-‟　-。]+`
fn spaced_signs(text: &str) -> usize {
    isolate_spaced(text, |c, _| {
        matches!(c, '!'..='/' | ':'..='~' | '\u{FF01}'..='\u{FF0F}' | '\u{FF1A}'..='\u{FF5E}'
            | '\u{2018}'..='\u{201F}' | '\u{3000}'..='\u{3002}')
    })
}

/// `\s?[A-Za-zµÀ-Ö…]+`: the letters with case that the pattern lists.
fn spaced_cased(text: &str) -> usize {
    isolate_spaced(text, |c, _| {
        let at = CASED.partition_point(|range| range.1 < c as u32);
        CASED.get(at).is_some_and(|range| range.0 <= c as u32)
    })
}

/// The letters of [`spaced_cased`], as (first, last).
#[rustfmt::skip]
static CASED: [(u32, u32); 87] = [
    (0x41, 0x5a), (0x61, 0x7a), (0xb5, 0xb5), (0xc0, 0xd6), (0xd8, 0xf6), (0xf8, 0x1ba),
    (0x1bc, 0x1bf), (0x1c4, 0x293), (0x295, 0x2af), (0x370, 0x373), (0x376, 0x376), (0x377, 0x377),
    (0x37b, 0x37d), (0x37f, 0x37f), (0x386, 0x386), (0x388, 0x38a), (0x38c, 0x38c), (0x38e, 0x3a1),
    (0x3a3, 0x3f5), (0x3f7, 0x481), (0x48a, 0x52f), (0x531, 0x556), (0x10a0, 0x10c5), (0x13a0, 0x13f5),
    (0x13f8, 0x13fd), (0x1c90, 0x1cba), (0x1cbd, 0x1cbf), (0x1d00, 0x1d2b), (0x1d6b, 0x1d77), (0x1d79, 0x1d9a),
    (0x1e00, 0x1f15), (0x1f18, 0x1f1d), (0x1f20, 0x1f45), (0x1f48, 0x1f4d), (0x1f50, 0x1f57), (0x1f59, 0x1f59),
    (0x1f5b, 0x1f5b), (0x1f5d, 0x1f5d), (0x1f5f, 0x1f7d), (0x1f80, 0x1fb4), (0x1fb6, 0x1fbc), (0x1fbe, 0x1fbe),
    (0x1fc2, 0x1fc4), (0x1fc6, 0x1fcc), (0x1fd0, 0x1fd3), (0x1fd6, 0x1fdb), (0x1fe0, 0x1fec), (0x1ff2, 0x1ff4),
    (0x1ff6, 0x1ffc), (0x2102, 0x2102), (0x2107, 0x2107), (0x210a, 0x2113), (0x2115, 0x2115), (0x2119, 0x211d),
    (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128), (0x212a, 0x212d), (0x212f, 0x2134), (0x2139, 0x2139),
    (0x213c, 0x213f), (0x2145, 0x2149), (0x214e, 0x214e), (0x2183, 0x2183), (0x2184, 0x2184), (0x2c00, 0x2c7b),
    (0x2c7e, 0x2ce4), (0x2ceb, 0x2cee), (0x2cf2, 0x2cf2), (0x2cf3, 0x2cf3), (0xa640, 0xa66d), (0xa680, 0xa69b),
    (0xa722, 0xa76f), (0xa771, 0xa787), (0xa78b, 0xa78e), (0xab70, 0xabbf), (0xfb00, 0xfb06), (0xfb13, 0xfb17),
    (0xff21, 0xff3a), (0xff41, 0xff5a), (0x10400, 0x1044f), (0x104b0, 0x104d3), (0x104d8, 0x104fb), (0x10c80, 0x10cb2),
    (0x10cc0, 0x10cf2), (0x118a0, 0x118df), (0x1e900, 0x1e943),
];

fn is_line_break(c: char, _: Class) -> bool {
    matches!(c, '\r' | '\n')
}

/// `'s|'t|'re|'ve|'m|'ll|'d`; in any case where `any_case` is set.
fn after_contraction<'t>(here: Cursor<'t>, any_case: bool) -> Option<Cursor<'t>> {
    let rest = here.text.as_bytes().get(here.at..)?.strip_prefix(b"'")?;
    let lower = |i: usize| rest.get(i).map(|b| if any_case { b.to_ascii_lowercase() } else { *b });
    let len = match (lower(0)?, lower(1)) {
        (b's' | b't' | b'm' | b'd', _) => 1,
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => 2,
        _ => return None,
    };
    Some(Cursor { text: here.text, at: here.at + 1 + len })
}

/// ` ?X+`
fn after_space_run<'t>(here: Cursor<'t>, is: impl Fn(char, Class) -> bool) -> Option<Cursor<'t>> {
    here.after(|c, _| c == ' ').unwrap_or(here).after_some(&is)
}

/// `\s+(?!\S)|\s+`: white space, the last of it left for the next word; a lone space before a word stays alone.
fn after_space(here: Cursor<'_>) -> Option<Cursor<'_>> {
    let end = here.after_some(|_, k| k.is_space())?;
    if end.at == end.text.len() {
        return Some(end);
    }
    let run = &here.text[here.at..end.at];
    let last = run.char_indices().next_back().map_or(0, |(i, _)| i);
    Some(if last == 0 { end } else { Cursor { text: here.text, at: here.at + last } })
}

/// `\s*[\r\n]+`: white space up to its last line break.
fn after_breaks(here: Cursor<'_>) -> Option<Cursor<'_>> {
    let end = here.after_some(|_, k| k.is_space())?;
    let at = here.text[here.at..end.at].rfind(['\r', '\n'])?;
    Some(Cursor { text: here.text, at: here.at + at + 1 })
}

/// `[^\r\n\p{L}\p{N}]?`: the place after the character that may lead a word.
fn after_lead(here: Cursor<'_>) -> Option<Cursor<'_>> {
    here.after(|c, k| !(is_line_break(c, k) || k.is_letter() || k.is_number()))
}

/// The end of a match, or of one character where nothing matches, which none of the patterns here lets happen.
fn end_of(found: Option<Cursor<'_>>, text: &str) -> usize {
    found.map_or_else(|| text.chars().next().map_or(0, char::len_utf8), |c| c.at)
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2(text: &str) -> usize {
    let here = Cursor::new(text);
    let found = after_contraction(here, false)
        .or_else(|| after_space_run(here, |_, k| k.is_letter()))
        .or_else(|| after_space_run(here, |_, k| k.is_number()))
        .or_else(|| after_space_run(here, |_, k| !(k.is_space() || k.is_letter() || k.is_number())))
        .or_else(|| after_space(here));
    end_of(found, text)
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?L+|\p{N}{1,max}| ?[^\sL\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn llama3_like(text: &str, n_digit: usize, is_letter: impl Fn(Class) -> bool) -> usize {
    let here = Cursor::new(text);
    let found = after_contraction(here, true)
        .or_else(|| after_lead(here).and_then(|c| c.after_some(|_, k| is_letter(k))))
        .or_else(|| here.after_some(|_, k| is_letter(k)))
        .or_else(|| after_numbers(here, n_digit))
        .or_else(|| {
            let signs = after_space_run(here, |_, k| !(k.is_space() || is_letter(k) || k.is_number()))?;
            Some(signs.after_all(is_line_break))
        })
        .or_else(|| after_breaks(here))
        .or_else(|| after_space(here));
    end_of(found, text)
}

/// `\p{N}{1,max}`
fn after_numbers(here: Cursor<'_>, max: usize) -> Option<Cursor<'_>> {
    let mut end = here.after(|_, k| k.is_number())?;
    for _ in 1..max {
        let Some(next) = end.after(|_, k| k.is_number()) else { break };
        end = next;
    }
    Some(end)
}

fn llama3(text: &str) -> usize {
    llama3_like(text, 3, Class::is_letter)
}

fn qwen2(text: &str) -> usize {
    llama3_like(text, 1, Class::is_letter)
}

/// With `[\p{L}\p{M}]` for letters.
fn qwen35(text: &str) -> usize {
    llama3_like(text, 1, |k| k.is_letter() || k.is_mark())
}

/// `[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn deepseek3(text: &str) -> usize {
    let word = |c: Cursor<'_>| c.after_some(|_, k| k.is_letter() || k.is_mark()).map(|c| c.at);
    let is_sign = |_: char, k: Class| k.is_punct() || k.is_symbol();
    let end_at = |here: Cursor<'_>| {
        let ascii = here.after(|c, _| c.is_ascii_punctuation());
        let lead = here.after(|c, k| !(is_line_break(c, k) || k.is_letter() || is_sign(c, k)));
        ascii
            .and_then(|c| c.after_some(|c, _| c.is_ascii_alphabetic()))
            .map(|c| c.at)
            .or_else(|| lead.and_then(word))
            .or_else(|| word(here))
            .or_else(|| after_space_run(here, is_sign).map(|c| c.after_all(is_line_break).at))
            .or_else(|| after_breaks(here).map(|c| c.at))
            .or_else(|| after_space(here).map(|c| c.at))
    };
    let mut here = Cursor::new(text);
    if let Some(end) = end_at(here) {
        return end;
    }
    // Numbers, controls and unassigned characters match only before a letter: else they are a gap.
    while let Some(next) = here.after(|_, _| true) {
        here = next;
        if here.at < text.len() && end_at(here).is_some() {
            break;
        }
    }
    here.at
}

/// `U*L+`, or `U+L*` where `lower` isn't needed, with U for `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]` and L for
/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`.
fn after_cased_word(here: Cursor<'_>, lower: bool) -> Option<Cursor<'_>> {
    let upper = here.after_all(|_, k| k.is_upper_part());
    let end = upper.after_all(|_, k| k.is_lower_part());
    if lower && end.at == upper.at {
        // U* must give back characters until one of them can be the L that is asked for: the last that is both.
        let run = &here.text[here.at..upper.at];
        let (i, c) = run.char_indices().rfind(|&(_, c)| class(c).is_lower_part())?;
        return Some(Cursor { text: here.text, at: here.at + i + c.len_utf8() });
    }
    (lower || upper.at > here.at).then_some(end)
}

/// `[^\r\n\p{L}\p{N}]?U*L+C?|[^\r\n\p{L}\p{N}]?U+L*C?|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
/// with contractions C where `contractions` is set.
fn cased_words(text: &str, n_digit: usize, contractions: bool) -> usize {
    let here = Cursor::new(text);
    let lead = after_lead(here);
    let word = |lower: bool| {
        let end = lead.and_then(|c| after_cased_word(c, lower)).or_else(|| after_cased_word(here, lower))?;
        let contracted = if contractions { after_contraction(end, true) } else { None };
        Some(contracted.unwrap_or(end))
    };
    let found = word(true)
        .or_else(|| word(false))
        .or_else(|| after_numbers(here, n_digit))
        .or_else(|| {
            let signs = after_space_run(here, |_, k| !(k.is_space() || k.is_letter() || k.is_number()))?;
            Some(signs.after_all(|c, _| matches!(c, '\r' | '\n' | '/')))
        })
        .or_else(|| after_breaks(here))
        .or_else(|| after_space(here));
    end_of(found, text)
}

fn gpt4o(text: &str) -> usize {
    cased_words(text, 3, true)
}

fn tekken(text: &str) -> usize {
    cased_words(text, 1, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected cuts, made by `tests/data/tokenizer_splits.py` from the published patterns; another file of that form
    /// can be named by `SELVEDGE_SPLITS`.
    fn expected() -> String {
        match std::env::var("SELVEDGE_SPLITS") {
            Ok(path) => std::fs::read_to_string(path).unwrap(),
            Err(_) => include_str!("../../tests/data/tokenizer_splits.txt").into(),
        }
    }

    #[test]
    fn cuts_are_those_of_the_published_patterns() {
        let expected = expected();
        let mut lines = expected.lines().peekable();
        let mut texts: Vec<String> = Vec::new();
        while let Some(text) = lines.peek().and_then(|line| line.strip_prefix("T ")) {
            texts.push(serde_json::from_str(text).unwrap());
            lines.next();
        }
        assert!(texts.len() > 200);
        let mut n_row = 0;
        while let Some(name) = lines.next().and_then(|line| line.strip_prefix("P ")) {
            n_row += 1;
            let row = PreTokenizer::find(name).unwrap();
            for text in &texts {
                let lengths = lines.next().unwrap().split(' ');
                let expected: Vec<usize> = lengths.map(|n| usize::from_str_radix(n, 36).unwrap()).collect();
                let mut words = Vec::new();
                row.split(text, &mut |word| words.push(word));
                let found: Vec<usize> = words.iter().map(|word| word.chars().count()).collect();
                assert_eq!(found, expected, "{name}: {text:?} was cut into {words:?}");
            }
        }
        // `dbrx` and its like are cut as llama-bpe is: every other row has its own lines.
        assert_eq!(n_row + 1, PRE_TOKENIZERS.len());
    }

    #[test]
    fn names_are_unique_and_every_cut_is_whole() {
        let mut names: Vec<&str> = PRE_TOKENIZERS.iter().flat_map(|row| row.names).copied().collect();
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
        for row in PRE_TOKENIZERS {
            for text in ["", " ", "\n", "a", "é\u{301} ", "\u{0}\u{0}1\u{378}", "\u{10FFFF}\r\n\r\n  x"] {
                let mut joined = String::new();
                row.split(text, &mut |word| {
                    assert!(!word.is_empty() || text.is_empty());
                    joined.push_str(word);
                });
                assert_eq!(joined, text, "{:?}", row.names);
            }
        }
    }
}
