"""Writes src/format/grids.rs: the point sets of the IQ formats, read from the `gguf` Python package.

Run with a Python that has `gguf` and `numpy`:  python3 gguf/tests/data/make_grids.py > gguf/src/format/grids.rs
"""

import numpy as np
from gguf import quants

GRIDS = [
    ("IQ2_XXS", quants.IQ2_XXS, 2),
    ("IQ2_XS", quants.IQ2_XS, 2),
    ("IQ2_S", quants.IQ2_S, 2),
    ("IQ3_XXS", quants.IQ3_XXS, 3),
    ("IQ3_S", quants.IQ3_S, 3),
    ("IQ1", quants.IQ1_S, 2),
]

print("//! Point sets of the IQ formats. Written by `tests/data/make_grids.py`; don't edit.")
print("//!")
print("//! A point is packed into a u16: the level of coordinate k at bit `bits * k`, 8 coordinates of 2 bits or 4 of 3 bits.")
for name, cls, bits in GRIDS:
    cls.init_grid()
    n, k = cls.grid_shape
    levels = [float(v) for v in cls.grid_map]
    points = cls.grid.reshape(n, k)
    packed = [sum(levels.index(float(v)) << (bits * i) for i, v in enumerate(p)) for p in points]
    print()
    print(f"/// {n} points of {k} coordinates, {bits} bits each.")
    print("#[rustfmt::skip]")
    print(f"pub(super) const {name}: [u16; {n}] = [")
    for i in range(0, n, 16):
        print("    " + ", ".join(f"0x{v:04x}" for v in packed[i : i + 16]) + ",")
    print("];")
