#!/usr/bin/env python3
"""Writes tokenizer_ids.txt: hashes of the ids that llama.cpp gives for 2 000 texts made here.

Usage: tokenizer_ids.py LIBRARY OFFSET FILE...   LIBRARY is a shared library that exports llama.h (the one of the
package xllamacpp does), OFFSET the place of `vocab_only` in its llama_model_params (72 in 2026.10), the files are
vocabulary files and models. The texts are those of `random_texts` in tests/tokenizer.rs.
"""
import ctypes as C
import json
import os
import sys

BLOCK = 50


class Rng:
    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n


def random_texts(seed, n):
    lines = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer_texts.txt")).read().splitlines()
    words = [json.loads(line[2:]) for line in lines if line.startswith("W ")]
    alphabets = [json.loads(line[2:]) for line in lines if line.startswith("A ")]
    rng = Rng(seed)
    for _ in range(n):
        text = ""
        longest = [3, 8, 30][rng.below(3)]
        for _ in range(rng.below(longest) + 1):
            if rng.below(3) == 0:
                text += words[rng.below(len(words))]
            else:
                alphabet = alphabets[rng.below(len(alphabets))]
                for _ in range(rng.below(7) + 1):
                    text += alphabet[rng.below(len(alphabet))]
        yield text


class Params(C.Structure):
    _fields_ = [("words", C.c_uint64 * 64)]


def main(library, offset, files):
    lib = C.CDLL(library)
    lib.llama_model_default_params.restype = Params
    lib.llama_model_load_from_file.restype = C.c_void_p
    lib.llama_model_load_from_file.argtypes = [C.c_char_p, Params]
    lib.llama_model_get_vocab.restype = C.c_void_p
    lib.llama_model_get_vocab.argtypes = [C.c_void_p]
    lib.llama_tokenize.argtypes = [C.c_void_p, C.c_char_p, C.c_int32, C.POINTER(C.c_int32), C.c_int32, C.c_bool, C.c_bool]
    lib.llama_backend_init()
    texts = list(random_texts(1, 2000))
    ids = (C.c_int32 * 65536)()
    with open("tokenizer_ids.txt", "w") as out:
        for file in files:
            params = lib.llama_model_default_params()
            (C.c_uint8 * 512).from_buffer(params)[offset] = 1
            vocab = lib.llama_model_get_vocab(lib.llama_model_load_from_file(file.encode(), params))
            out.write(f"F {os.path.basename(file)}\n")
            for at in range(0, len(texts), BLOCK):
                h = 0xCBF29CE484222325
                for text in texts[at:at + BLOCK]:
                    text = text.encode()
                    n = lib.llama_tokenize(vocab, text, len(text), ids, 65536, False, False)
                    for i in ids[:n] + [0xFFFFFFFF]:
                        for byte in i.to_bytes(4, "little"):
                            h = (h ^ byte) * 0x100000001B3 % 2**64
                out.write(f"{h:016x}" + ("\n" if (at // BLOCK) % 5 == 4 else " "))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
