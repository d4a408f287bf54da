#!/usr/bin/env python3
"""Computes the polynomials and constants of `legalize_math` and writes them to `coefficients.rs`.

    pip install mpmath gmpy2        (gmpy2 is optional: it is only faster)
    python3 coefficients.py > coefficients.rs
    python3 coefficients.py angles > tests/angles.rs        (references for huge angles)
    cargo fmt

Each polynomial is the minimax one (Remez exchange on a dense grid, 50 digits) for the error that matters: the error of
the final result, relative to the final result. So the error of P in f(x) = x + x^3 P(x^2) is weighted by x^3 / f(x).
Coefficients are rounded to their format from the lowest up, and those above are fitted again after each rounding; what the
rounding of one costs, the rest takes back. The comment on each array is the largest remaining relative error, with the rounded
coefficients and exact arithmetic, over the interval.
"""

import random
import struct
import sys
from mpmath import mp, mpf, cos, erf, erfc, exp, floor, log, pi, sin, sqrt, tanh

mp.dps = 50
LN2 = log(2)


def to_f32(x):
    return mpf(struct.unpack("f", struct.pack("f", float(x)))[0])


def to_f64(x):
    return mpf(float(x))


def horner(c, x):
    r = mpf(0)
    for a in reversed(c):
        r = r * x + a
    return r


def solve_alternation(points, target, weight, first, n):
    """Coefficients first..n-1 and the level E such that the weighted error is ±E, alternating, on n - first + 1 points."""
    m = n - first
    a, b = mp.matrix(m + 1, m + 1), mp.matrix(m + 1, 1)
    for row, (x, f, w) in enumerate(zip(points, target, weight)):
        p = x**first
        for k in range(m):
            a[row, k] = p
            p *= x
        a[row, m] = (-1) ** row / w
        b[row] = f
    s = mp.lu_solve(a, b)
    return [s[k] for k in range(m)], s[m]


def remez(xs, fs, ws, fixed, n):
    """Minimax coefficients of degree < n on the grid xs for target fs and weight ws; the lowest are `fixed`."""
    first = len(fixed)
    rest = [f - horner(fixed, x) for x, f in zip(xs, fs)]
    m = n - first + 1
    picks = [round(i * (len(xs) - 1) / (m - 1)) for i in range(m)] if m > 1 else [len(xs) // 2]
    for _ in range(30):
        c, level = solve_alternation(
            [xs[i] for i in picks], [rest[i] for i in picks], [ws[i] for i in picks], first, n
        )
        p = list(fixed) + c
        err = [(f - horner(p, x)) * w for x, f, w in zip(xs, fs, ws)]
        # One extremum in each run of equal sign.
        runs, sign = [], 0
        for i, e in enumerate(err):
            s = 1 if e > 0 else -1
            if s != sign:
                runs.append(i)
                sign = s
            elif abs(e) > abs(err[runs[-1]]):
                runs[-1] = i
        if len(runs) < m:
            break
        while len(runs) > m:
            runs.pop(0 if abs(err[runs[0]]) < abs(err[runs[-1]]) else -1)
        done = max(map(abs, err)) < abs(level) * mpf("1.02")
        picks = runs
        if done:
            break
    return p


def fit(name, what, n, lo, hi, target, weight, rounding, points=700):
    lo, hi = mpf(lo), mpf(hi)
    xs = [(lo + hi) / 2 - (hi - lo) / 2 * cos(pi * (2 * i + 1) / (2 * points)) for i in range(points)]
    fs, ws = [target(x) for x in xs], [abs(weight(x)) for x in xs]
    p = []
    if rounding is to_f32:
        while len(p) < n:
            p.append(to_f32(remez(xs, fs, ws, p, n)[len(p)]))
    else:
        p = [to_f64(c) for c in remez(xs, fs, ws, [], n)]
    worst = max(abs(f - horner(p, x)) * w for x, f, w in zip(xs, fs, ws))
    ty = "f32" if rounding is to_f32 else "f64"
    print(f"/// {what}; error 2^{float(log(worst, 2)):.1f}.")
    print(f"pub const {name}: [{ty}; {n}] = [")
    for c in p:
        print(f"    {literal(c, ty)},")
    print("];")


def literal(c, ty):
    x = float(c)
    if ty == "f64":
        return repr(x)
    # The shortest decimal that reads back as this f32.
    for digits in range(1, 12):
        s = f"{x:.{digits}e}"
        if struct.pack("f", float(s)) == struct.pack("f", x):
            return s
    raise ValueError(c)


def split(name, what, value, rounding, ty, keep=None):
    """The constant as a sum of two of the format; the first keeps only `keep` bits, if given."""
    hi = rounding(value) if keep is None else floor(value * mpf(2) ** keep) / mpf(2) ** keep
    lo = rounding(value - hi)
    print(f"/// {what}: high and low part.")
    print(f"pub const {name}: [{ty}; 2] = [{literal(hi, ty)}, {literal(lo, ty)}];")


def bits_of_two_over_pi(name, what, leading_zeros, words, bits):
    old, mp.dps = mp.dps, 500
    n = int(floor(2 / pi * mpf(2) ** (words * bits - leading_zeros)))
    mp.dps = old
    print(f"/// {what}")
    print(f"pub const {name}: [u{bits}; {words}] = [")
    for i in range(words):
        w = n >> (bits * (words - 1 - i)) & ((1 << bits) - 1)
        print(f"    0x{w:0{bits // 4}x},")
    print("];")


def between_zero_and(x):
    """A polynomial in z = x^2 is fitted for x up to this; 0 itself has no relative error."""
    return mpf(10) ** -12, mpf(x) ** 2


def main():
    print("//! Polynomials and constants; written by `coefficients.py`, which says how they are found. Do not edit.")
    print("#![allow(clippy::approx_constant, clippy::excessive_precision)]\n")
    r2 = sqrt(mpf(2))
    quarter = pi / 4 * mpf("1.0001")
    log_range = (r2 / 2 - 1, r2 - 1)
    tiny = mpf(10) ** -20

    def near(x):  # removable singularity at 0
        return x if abs(x) > tiny else tiny

    def in_root(f):  # a function of x, of z = x^2
        return lambda z: f(sqrt(z))

    for bits, ty, rounding in ((32, "f32", to_f32), (64, "f64", to_f64)):
        F = ty.upper()
        single = bits == 32
        split(f"LN2_{F}", "ln 2", LN2, rounding, ty, keep=None if single else 42)
        split(f"LOG2E_{F}", "log₂ e", 1 / LN2, rounding, ty)
        split(f"HALF_PI_{F}", "π/2", pi / 2, rounding, ty)
        fit(f"SIN_{F}", "(sin x − x)/x³ in x², |x| ≤ π/4", 3 if single else 7, *between_zero_and(quarter),
            in_root(lambda x: (sin(x) - x) / x**3), in_root(lambda x: x**3 / sin(x)), rounding)
        fit(f"COS_{F}", "(cos x − 1)/x² in x², |x| ≤ π/4", 4 if single else 7, *between_zero_and(quarter),
            in_root(lambda x: (cos(x) - 1) / x**2), in_root(lambda x: x**2 / cos(x)), rounding)
        small = mpf("0.6") if single else mpf("0.55")
        fit(f"TANH_{F}", f"(tanh x − x)/x³ in x², |x| ≤ {float(small)}", 5 if single else 13, *between_zero_and(small),
            in_root(lambda x: (tanh(x) - x) / x**3), in_root(lambda x: x**3 / tanh(x)), rounding)
        fit(f"ERF_{F}", "(erf x − x)/x in x², |x| ≤ 1", 7 if single else 14, *between_zero_and(1),
            in_root(lambda x: erf(x) / x - 1), in_root(lambda x: x / erf(x)), rounding)

    fit("LOG_F32", "(ln(1 + x) − x)/x², √½ ≤ 1 + x ≤ √2", 9, *log_range,
        lambda x: (log(1 + near(x)) - near(x)) / near(x) ** 2, lambda x: near(x) ** 2 / log(1 + near(x)), to_f32)
    fit("LOG2_F32", "(log₂(1 + x) − x·log₂ e)/x², √½ ≤ 1 + x ≤ √2", 9, *log_range,
        lambda x: (log(1 + near(x)) - near(x)) / near(x) ** 2 / LN2, lambda x: near(x) ** 2 / log(1 + near(x)) * LN2, to_f32)
    fit("ERFC_LOG2_F32", "log₂ erfc x, 1 ≤ x ≤ 4, relative to erf x", 6, 1, 4,
        lambda x: log(erfc(x)) / LN2, lambda x: erfc(x) * LN2 / erf(x), to_f32)

    half = LN2 / 2 * mpf("1.0001")
    fit("EXP_F64", "(e^x − 1 − x)/x², |x| ≤ ln 2 / 2", 10, -half, half,
        lambda x: (exp(near(x)) - 1 - near(x)) / near(x) ** 2, lambda x: x**2 / exp(x), to_f64)
    fit("EXP2_F64", "(2^x − 1)/x, |x| ≤ ½", 12, mpf("-0.5"), mpf("0.5"),
        lambda x: (2 ** near(x) - 1) / near(x), lambda x: x / 2**x, to_f64)
    s = (r2 - 1) / (r2 + 1)
    fit("LOG_F64", "(2·atanh s − 2s)/s³ in s², |s| ≤ (√2 − 1)/(√2 + 1)", 7, *between_zero_and(s),
        in_root(lambda s: (log((1 + s) / (1 - s)) - 2 * s) / s**3), in_root(lambda s: s**3 / (2 * s)), to_f64)
    fit("ERFC_LOG_F64", "ln erfc(x + 1.5), 1 ≤ x + 1.5 ≤ 6, relative to erf", 21, mpf("-0.5"), mpf("4.5"),
        lambda x: log(erfc(x + mpf("1.5"))), lambda x: erfc(x + mpf("1.5")) / erf(x + mpf("1.5")), to_f64)

    bits_of_two_over_pi("TWO_OVER_PI_F32", "The binary digits of 2/π after 32 zeros.", 32, 8, 32)
    bits_of_two_over_pi("TWO_OVER_PI_F64", "The binary digits of 2/π after 64 zeros.", 64, 20, 64)


def angles():
    """f64 angles of all sizes with their sines and cosines as sums of two f64: C libraries are not reliable enough here."""
    mp.dps = 400
    random.seed(1)
    # 6381956970095103 * 2^797 is the f64 closest to a multiple of pi/2; then multiples of pi/2 rounded to f64, and random ones.
    xs = [6381956970095103.0 * 2.0**797]
    xs += [float(pi / 2 * (random.getrandbits(53) | 1) * mpf(2) ** e) for e in range(-40, 960, 25)]
    xs += [random.uniform(1, 2) * 2.0 ** random.randrange(20, 1023) * random.choice((-1, 1)) for _ in range(40)]
    print("//! Huge angles x (bits) with sin x and cos x, each a sum of two f64 (bits); written by `../coefficients.py angles`.\n")
    print(f"pub const ANGLES: [[u64; 5]; {len(xs)}] = [")
    for x in xs:
        row = [x]
        for y in (sin(mpf(x)), cos(mpf(x))):
            row += [float(y), float(y - mpf(float(y)))]
        print("    [" + ", ".join(f"0x{struct.unpack('Q', struct.pack('d', v))[0]:016x}" for v in row) + "],")
    print("];")


if sys.argv[1:] == ["angles"]:
    angles()
else:
    main()
