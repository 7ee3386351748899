#!/usr/bin/env python3
"""Writes tokenizer_splits.txt: how the published patterns cut random texts.

Needs the packages `regex` and `unicodedata2==15.1.0`. Characters whose class isn't
the same in both are left out. The texts are made here, from a fixed seed.

Lines: `T` and a text (JSON), numbered from 0; then for each row of the table of
pre-tokenizers `P` and its first name, and a line of lengths for each text: lengths
of its pieces in characters, in base 36, joined by spaces.
"""
import json
import random
import sys

import regex
import unicodedata2 as ud

CONTRACTION = r"'s|'t|'re|'ve|'m|'ll|'d"
GPT2 = rf"{CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"


def llama3(digits, letters=r"\p{L}"):
    return (rf"(?i:{CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|\p{{N}}{digits}| ?[^\s{letters}\p{{N}}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")


UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(contraction, digits):
    return (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{contraction}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{contraction}"
            rf"|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


# The letters with case that one pattern lists: those of an older Unicode, as ranges.
CASED = "".join(f"\\U{int(a, 16):08x}-\\U{int(b, 16):08x}" for a, b in (r.split("-") for r in """
41-5a 61-7a b5-b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376-377 37b-37d 37f-37f 386-386 388-38a 38c-38c
38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a
1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59-1f59 1f5b-1f5b 1f5d-1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe-1fbe
1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102-2102 2107-2107 210a-2113 2115-2115 2119-211d
2124-2124 2126-2126 2128-2128 212a-212d 212f-2134 2139-2139 213c-213f 2145-2149 214e-214e 2183-2184 2c00-2c7b 2c7e-2ce4
2ceb-2cee 2cf2-2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a
10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943""".split()))
WIDE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

PATTERNS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "llama-bpe": [llama3("{1,3}")],
    "qwen2": [llama3("")],
    "qwen35": [llama3("", r"\p{L}\p{M}")],
    "deepseek-llm": [r"[\r\n]", rf"\s?[{CASED}]+",
                     "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", WIDE, r"\p{N}+"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", WIDE, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""],
    "tekken": [cased("", "")],
    "gpt-4o": [cased(f"(?i:{CONTRACTION})?", "{1,3}")],
}
# `\s` is the property White_Space in the engines that the models' own tokenizers use; Python's has more.
COMPILED = {
    name: [regex.compile(p.replace(r"\S", r"\P{White_Space}").replace(r"\s", r"\p{White_Space}")) for p in patterns]
    for name, patterns in PATTERNS.items()
}
CLASSES = [(c, regex.compile(rf"\p{{{c}}}")) for c in ("Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", "Z", "C")]


def same_class(c):
    category = ud.category(c)
    return any(category.startswith(name) and pattern.match(c) for name, pattern in CLASSES) and c not in "\u017f\u212a"


def split(name, text):
    pieces = [text]
    for pattern in COMPILED[name]:
        cut = []
        for piece in pieces:
            at = 0
            for match in pattern.finditer(piece):
                if match.start() > at:
                    cut.append(piece[at:match.start()])
                if match.group():
                    cut.append(match.group())
                at = max(at, match.end())
            if at < len(piece):
                cut.append(piece[at:])
        pieces = cut
    assert "".join(pieces) == text
    return pieces


ALPHABETS = [
    "abcxyzABCXYZ", "0123456789", " \t\n\r\v\f  \n  ", "'’`\"!?.,;:-_()[]{}<>/\\|@#$%^&*+=~", "éèüßñÆŒœÐđĞğ",
    "ǅǈǋᾈ", "абвгАБВГДЖІї", "αβγΔΩΣάώἙὝῼ", "אבגד", "ابتث١٢٣", "हिन्दी्ा१२", "ไทยภาษา", "你好世界中文字", "ひらがなカタカナー", "가나다라각",
    "😀👩\u200d🚀🇫🇷👍🏽", "½²³①Ⅷ४", "\u00a0\u2003\u3000\u200b\ufeff\u0085\u2028", "\x00\x01\x1b\x7f\x1c", "\u0301\u0308\u20dd\u093f\u0903",
    "ʰʲˈᵃₐ", "𝒜𝔹𐐀𐐨𞤀", "ﺷﬁＡｚ０，。、“”‘’…「」", "ԱաႠ\u0378\ue000", "№™©°±×÷€£¥",
]
WORDS = [
    "the", " The", " of", " world", "don't", "I'll", "we've", "'s", "'S", "'LL", "'Re", "n't", "12345678901", "3.14159",
    "  ", "   ", "\n\n", " \n \n", "\t\t", "\r\n", "ABCabcABC", "CamelCaseÉcole", "ÉCOLE", "foo_bar", "x' y", "a/b//\n", "...\r\n/", "$100",
]


def texts(seed, n):
    rng = random.Random(seed)
    everything = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and same_class(chr(c))]
    assigned = [c for c in everything if ud.category(c) not in ("Cn", "Co")]
    for _ in range(n):
        text = ""
        for _ in range(rng.randint(1, rng.choice([3, 8, 20]))):
            kind = rng.random()
            if kind < 0.3:
                text += rng.choice(WORDS)
            elif kind < 0.9:
                alphabet = rng.choice(ALPHABETS)
                text += "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 6)))
            else:
                text += rng.choice(assigned)
        yield "".join(c for c in text if same_class(c))


def base36(n):
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return (base36(n // 36) if n >= 36 else "") + digits[n % 36]


if __name__ == "__main__":
    n, seed, path = (int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]) if len(sys.argv) > 1 else (250, 1, "tokenizer_splits.txt")
    corpus = [t for t in texts(seed, n) if t]
    with open(path, "w", encoding="ascii") as f:
        for text in corpus:
            f.write("T " + json.dumps(text) + "\n")
        for name in PATTERNS:
            f.write(f"P {name}\n")
            for text in corpus:
                f.write(" ".join(base36(len(p)) for p in split(name, text)) + "\n")
