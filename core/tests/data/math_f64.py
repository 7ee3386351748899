"""Writes math_f64.txt: inputs and correctly rounded results of the f64 functions, computed with mpmath (60 digits).

Run `python3 math_f64.py > math_f64.txt`. A line: function, input bits (two inputs for pow), result bits, in hex.
"""
import random
import struct

import mpmath as mp

mp.mp.dps = 400  # the largest sine argument needs its multiple of pi, and results near zero 60 digits after that
rng = random.Random(20260101)


def bits(x):
    return struct.unpack("<Q", struct.pack("<d", x))[0]


def line(name, args, value):
    print(name, *(f"{bits(a):016x}" for a in args), f"{bits(float(value)):016x}")


def spread(lo, hi):
    """A number whose magnitude is log-uniform in [lo, hi]."""
    return float(mp.exp(mp.mpf(rng.uniform(float(mp.log(lo)), float(mp.log(hi))))))


xs = [0.0, 1.0, -1.0, 0.5, -0.5, 709.782712893384, -708.39, -745.1, 1e-300, -1e-20, 88.7, -87.3]
xs += [rng.uniform(-745, 709.7) for _ in range(200)] + [rng.choice((-1, 1)) * spread(1e-12, 10) for _ in range(200)]
for x in xs:
    line("exp", [x], mp.exp(mp.mpf(x)))
xs = [1.0, 2.0, 0.5, 10.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.7071067811865475, 0.7071067811865476]
xs += [1 + rng.choice((-1, 1)) * spread(1e-16, 0.5) for _ in range(200)] + [spread(1e-320, 1e308) for _ in range(200)]
for x in xs:
    line("ln", [x], mp.log(mp.mpf(x)))
for base in (1e4, 5e5, 1e6, 1.5e5, 5e6, 1e7, 10.0, 2.0):
    for d in (32, 64, 80, 96, 128, 256):
        for i in range(0, d // 2, 7):
            y = -2.0 * i / d
            line("pow", [base, y], mp.mpf(base) ** mp.mpf(y))
for _ in range(300):
    x = spread(1e-300, 1e300)
    y = rng.uniform(-700, 700) / float(mp.log(mp.mpf(x)))
    line("pow", [x, y], mp.mpf(x) ** mp.mpf(y))
for _ in range(100):
    x = 1 + rng.choice((-1, 1)) * spread(1e-15, 1e-3)
    y = rng.uniform(-700, 700) / float(mp.log(mp.mpf(x)))
    line("pow", [x, y], mp.mpf(x) ** mp.mpf(y))
xs = [0.0, 1e-300, 1e-9, 0.5, 1.0, 4294967296.0, -4294967295.5]
xs += [float(k * mp.pi / 2) for k in list(range(-20, 21)) + [rng.randrange(1, 2 ** 31) for _ in range(100)]]
xs += [float(k * mp.pi / 4) for k in [rng.randrange(1, 2 ** 32) for _ in range(50)]]
xs += [rng.choice((-1, 1)) * spread(1e-6, 2.0 ** 32) for _ in range(300)] + [float(rng.randrange(1 << 32)) for _ in range(100)]
for x in xs:
    line("sin", [x], mp.sin(mp.mpf(x)))
    line("cos", [x], mp.cos(mp.mpf(x)))
