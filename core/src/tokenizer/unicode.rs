//! Classes of characters as the published splitting patterns see them (Unicode 15.1), and the stripping of accents.

use super::unicode_tables::{CLASS_RUNS, STRIPPED, STRIPPED_MANY};

/// Class of a character: its general category, as finely as any splitter asks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Class(u8);

/// Values of [`Class`], in the order of the generated table.
mod value {
    pub(super) const OTHER: u8 = 0;
    pub(super) const LU: u8 = 1;
    pub(super) const LL: u8 = 2;
    pub(super) const LT: u8 = 3;
    pub(super) const LO: u8 = 5;
    pub(super) const MN: u8 = 6;
    pub(super) const MARK: u8 = 7;
    pub(super) const NUMBER: u8 = 8;
    pub(super) const PUNCT: u8 = 9;
    pub(super) const SYMBOL: u8 = 10;
    pub(super) const SEPARATOR: u8 = 11;
    pub(super) const CONTROL_SPACE: u8 = 12;
}

impl Class {
    /// `\p{L}`
    pub(super) fn is_letter(self) -> bool {
        (value::LU..=value::LO).contains(&self.0)
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`: may stand in the upper part of a word.
    pub(super) fn is_upper_part(self) -> bool {
        (value::LU..=value::MARK).contains(&self.0) && self.0 != value::LL
    }

    /// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`: may stand in the lower part of a word.
    pub(super) fn is_lower_part(self) -> bool {
        (value::LL..=value::MARK).contains(&self.0) && self.0 != value::LT
    }

    /// `\p{M}`
    pub(super) fn is_mark(self) -> bool {
        matches!(self.0, value::MN | value::MARK)
    }

    /// `\p{Mn}`
    pub(super) fn is_nonspacing(self) -> bool {
        self.0 == value::MN
    }

    /// `\p{N}`
    pub(super) fn is_number(self) -> bool {
        self.0 == value::NUMBER
    }

    /// `\p{P}`
    pub(super) fn is_punct(self) -> bool {
        self.0 == value::PUNCT
    }

    /// `\p{S}`
    pub(super) fn is_symbol(self) -> bool {
        self.0 == value::SYMBOL
    }

    /// `\s`: the property White_Space.
    pub(super) fn is_space(self) -> bool {
        matches!(self.0, value::SEPARATOR | value::CONTROL_SPACE)
    }

    /// `\p{C}`
    pub(super) fn is_other(self) -> bool {
        matches!(self.0, value::OTHER | value::CONTROL_SPACE)
    }
}

/// The class by binary search; `const`, so that the table for ASCII is made by the compiler.
const fn search(c: u32) -> Class {
    let (mut lo, mut hi) = (0, CLASS_RUNS.len());
    while hi - lo > 1 {
        let mid = (lo + hi) / 2;
        if CLASS_RUNS[mid] >> 4 <= c {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    Class((CLASS_RUNS[lo] & 15) as u8)
}

static ASCII: [Class; 128] = {
    let mut table = [Class(0); 128];
    let mut c = 0;
    while c < 128 {
        table[c] = search(c as u32);
        c += 1;
    }
    table
};

/// The class of a character.
#[inline]
pub(super) fn class(c: char) -> Class {
    match ASCII.get(c as usize) {
        Some(&class) => class,
        None => search(c as u32),
    }
}

/// Canonical decomposition without its nonspacing marks: `é` gives `e`, an accent alone gives nothing.
pub(super) fn strip_accents(c: char, mut emit: impl FnMut(char)) {
    const SYLLABLES: u32 = 0xAC00;
    const N_SYLLABLE: u32 = 11172;
    let mut emit = |c: u32| emit(char::from_u32(c).unwrap_or(char::REPLACEMENT_CHARACTER));
    let cp = c as u32;
    if c.is_ascii() {
        emit(cp);
    } else if let Some(syllable) = cp.checked_sub(SYLLABLES).filter(|&s| s < N_SYLLABLE) {
        // Unicode standard, section 3.12: 28 trailing consonants in each of 21 vowels.
        emit(0x1100 + syllable / (21 * 28));
        emit(0x1161 + syllable / 28 % 21);
        if syllable % 28 != 0 {
            emit(0x11A7 + syllable % 28);
        }
    } else if let Ok(at) = STRIPPED.binary_search_by_key(&cp, |row| row.0) {
        emit(STRIPPED[at].1);
    } else if let Ok(at) = STRIPPED_MANY.binary_search_by_key(&cp, |row| row.0) {
        STRIPPED_MANY[at].1.iter().filter(|&&c| c != 0).for_each(|&c| emit(c));
    } else if !class(c).is_nonspacing() {
        emit(cp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_known_characters() {
        let of = |c: char| {
            let k = class(c);
            [k.is_letter(), k.is_mark(), k.is_number(), k.is_punct(), k.is_symbol(), k.is_space(), k.is_other()].map(u8::from)
        };
        for (c, expected) in [
            ('a', [1, 0, 0, 0, 0, 0, 0]),
            ('ǅ', [1, 0, 0, 0, 0, 0, 0]),
            ('\u{2EBF0}', [1, 0, 0, 0, 0, 0, 0]), // new in 15.1
            ('\u{1C89}', [0, 0, 0, 0, 0, 0, 1]),  // new in 16.0
            ('\u{0301}', [0, 1, 0, 0, 0, 0, 0]),
            ('½', [0, 0, 1, 0, 0, 0, 0]),
            ('—', [0, 0, 0, 1, 0, 0, 0]),
            ('+', [0, 0, 0, 0, 1, 0, 0]),
            ('\u{3000}', [0, 0, 0, 0, 0, 1, 0]),
            ('\u{85}', [0, 0, 0, 0, 0, 1, 1]),
            ('\u{1C}', [0, 0, 0, 0, 0, 0, 1]),
            ('\u{200B}', [0, 0, 0, 0, 0, 0, 1]),
            ('\u{10FFFF}', [0, 0, 0, 0, 0, 0, 1]),
        ] {
            assert_eq!(of(c), expected, "{c:?}");
        }
    }

    #[test]
    fn accents_leave_their_letters() {
        let strip = |text: &str| {
            let mut out = String::new();
            text.chars().for_each(|c| strip_accents(c, |c| out.push(c)));
            out
        };
        assert_eq!(strip("Čeština, e\u{301}té, ǖ"), "Cestina, ete, u");
        assert_eq!(strip("각가"), "\u{1100}\u{1161}\u{11A8}\u{1100}\u{1161}");
        assert_eq!(strip("\u{9CB}"), "\u{9C7}\u{9BE}");
    }
}
