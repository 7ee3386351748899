"""Writes decode.bin, decode.txt and encode.txt: what the `gguf` Python package makes of generated blocks and values.

Run with a Python that has `gguf` and `numpy`:  python3 gguf/tests/data/make_fixtures.py
The test `formats.rs` has the same generator and compares.

decode.bin   per type: u32 id, u32 blocks, the blocks, their values as f32; little endian. Small, to see what differs.
decode.txt   per type: name, blocks, sha256 of the values. Every NaN counts as 0x7fc00000.
encode.txt   per type: name, values, sha256 of the blocks.
"""

import hashlib
import struct
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

HERE = Path(__file__).parent
N_SMALL = 2
N_BLOCKS = 2048
N_ENCODE_BLOCKS = 4096
ENCODED = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


class Xorshift:
    """xorshift64*"""

    def __init__(self, seed):
        self.x = seed

    def next(self):
        self.x ^= self.x >> 12
        self.x ^= (self.x << 25) & 0xFFFFFFFFFFFFFFFF
        self.x ^= self.x >> 27
        return (self.x * 0x2545F4914F6CDD1D) & 0xFFFFFFFFFFFFFFFF


def random_bytes(seed, n):
    rng = Xorshift(seed)
    return b"".join(struct.pack("<Q", rng.next()) for _ in range((n + 7) // 8))[:n]


def canonical(values):
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return bits.astype("<u4").tobytes()


def values_to_encode(seed, n_blocks):
    """Blocks of 32 values; most are sums of two uniform numbers, each 16th of some special kind."""
    rng = Xorshift(seed)
    out = np.zeros((n_blocks, 32), dtype=np.float32)
    for b in range(n_blocks):
        scale = np.float32(2.0 ** (rng.next() % 40 - 30.0))
        for i in range(32):
            u = rng.next()
            lo, hi = u & 0xFFFFFFFF, u >> 32
            lo = (lo ^ 0x80000000) - 0x80000000
            hi = (hi ^ 0x80000000) - 0x80000000
            wide = np.float32((lo >> 8) + (hi >> 8)) * np.float32(2.0**-24)
            kind = b % 16
            if kind == 0:
                v = np.float32(0.0)
            elif kind == 1:
                v = scale
            elif kind == 2:
                v = -scale if i == b % 32 else np.float32(-0.0)
            elif kind == 3:
                v = np.float32((lo >> 24) / 8.0)
            elif kind == 4:
                v = wide * np.float32(2.0**120)
            else:
                v = wide * scale
            out[b, i] = v
    return out


def main():
    small, hashes = b"", []
    for qtype, (n_elems, n_bytes) in GGML_QUANT_SIZES.items():
        try:
            quants.dequantize(np.zeros((1, n_bytes), dtype=np.uint8), qtype)
        except NotImplementedError:
            continue
        blocks = random_bytes(1000 + int(qtype), N_BLOCKS * n_bytes)
        rows = np.frombuffer(blocks, dtype=np.uint8).reshape(N_BLOCKS, n_bytes)
        values = quants.dequantize(rows, qtype)
        assert values.size == N_BLOCKS * n_elems and values.dtype == np.float32
        values = values.reshape(N_BLOCKS, n_elems)
        small += struct.pack("<II", int(qtype), N_SMALL) + blocks[: N_SMALL * n_bytes] + canonical(values[:N_SMALL])
        hashes.append(f"{qtype.name} {N_BLOCKS} {hashlib.sha256(canonical(values)).hexdigest()}")
    (HERE / "decode.bin").write_bytes(small)
    (HERE / "decode.txt").write_text("\n".join(hashes) + "\n")

    values = values_to_encode(7, N_ENCODE_BLOCKS)
    hashes = []
    for name in ENCODED:
        blocks = quants.quantize(values, GGMLQuantizationType[name])
        hashes.append(f"{name} {values.size} {hashlib.sha256(blocks.tobytes()).hexdigest()}")
    (HERE / "encode.txt").write_text("\n".join(hashes) + "\n")


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
