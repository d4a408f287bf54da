//! Floating-point arithmetic.
//!
//! f32 to nearest is the host's. Everything narrower is computed in f64, where sums and products of such values are exact or rounded to odd, and
//! rounded once ([`crate::numerics`]). The approximate instructions give the correctly rounded value of the exact result, which is well within
//! what the ISA grants; a GPU's may differ in the last bits.

use super::map1;
use crate::decode::op::{AtomicOp, FloatBinary, FloatClass, FloatTernary, FloatUnary, Op};
use crate::decode::types::{FloatMode, Rounding, Type};
use crate::machine::frame::{Frame, Lanes};
use crate::numerics::{Format, Overflow, decode, double, round, round_to_odd};

/// The NaN that f32 instructions give.
const NAN32: u32 = 0x7FFF_FFFF;

/// Executes an instruction of this family.
pub(super) fn execute(op: &Op, f: &mut Frame, exec: u32) {
    match *op {
        Op::FloatUnary { op, ty, mode, d, a } => {
            let g = unary_of(ty);
            map1(f, d, a, exec, |a| g(op, mode, a));
        }
        Op::FloatBinary { op, ty, mode, d, a, b } => {
            let (a, b) = (*f.read(a, exec), *f.read(b, exec));
            let mut out = [0; 32];
            binary_loop(op, ty, mode, &a, &b, &mut out);
            f.write(d, exec, &out);
        }
        Op::FloatTernary { op, ty, mode, d, a, b, c } => {
            let (a, b, c) = (*f.read(a, exec), *f.read(b, exec), *f.read(c, exec));
            let mut out = [0; 32];
            ternary_loop(op, ty, mode, &a, &b, &c, &mut out);
            f.write(d, exec, &out);
        }
        Op::Testp { class, ty, p, a } => {
            let a = *f.read(a, exec);
            let mut bits = 0;
            for (lane, &a) in a.iter().enumerate() {
                let category = if ty == Type::F64 {
                    f64::from_bits(a).classify()
                } else {
                    f32::from_bits(a as u32).classify()
                };
                use std::num::FpCategory as C;
                let holds = match class {
                    FloatClass::Finite => !matches!(category, C::Nan | C::Infinite),
                    FloatClass::Infinite => category == C::Infinite,
                    FloatClass::Number => category != C::Nan,
                    FloatClass::NotANumber => category == C::Nan,
                    // PTX ISA, "testp": zero is normal.
                    FloatClass::Normal => matches!(category, C::Normal | C::Zero),
                    FloatClass::Subnormal => category == C::Subnormal,
                };
                bits |= u32::from(holds) << lane;
            }
            f.write_pred(p, exec, bits);
        }
        _ => debug_assert!(false, "not a float instruction"),
    }
}

/// A subnormal becomes a zero of its sign.
#[inline]
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { f32::from_bits(x.to_bits() & 1 << 31) } else { x }
}

#[inline]
fn input(bits: u64, ftz: bool) -> f32 {
    let x = f32::from_bits(bits as u32);
    if ftz { flush(x) } else { x }
}

/// What every f32 result goes through: flush, saturate, one NaN.
#[inline]
fn output(x: f32, mode: FloatMode) -> u64 {
    let x = if mode.ftz { flush(x) } else { x };
    if x.is_nan() {
        return if mode.sat { 0 } else { u64::from(NAN32) };
    }
    let x = if mode.sat { x.clamp(0.0, 1.0) } else { x };
    let x = if mode.relu && x <= 0.0 { 0.0 } else { x };
    // The clamp keeps a negative zero.
    u64::from(if mode.sat && x == 0.0 { 0 } else { x.to_bits() })
}

#[inline]
fn rounded(x: f64, mode: FloatMode) -> f32 {
    if mode.rounding == Rounding::NearestEven {
        x as f32
    } else {
        f32::from_bits(round(x, Format::F32, mode.rounding, Overflow::Infinity))
    }
}

/// The directed sum of two f64 that are exact: an exact zero is −0 towards −∞ (IEEE 754, 6.3).
#[inline]
fn sum(a: f64, b: f64, mode: FloatMode) -> f64 {
    let s = round_to_odd(a, b);
    if s == 0.0
        && mode.rounding == Rounding::Down
        && !(a == 0.0 && b == 0.0 && a.is_sign_positive() && b.is_sign_positive())
    {
        -0.0
    } else {
        s
    }
}

fn format(ty: Type) -> Format {
    if matches!(ty, Type::Bf16 | Type::Bf16x2) { Format::Bf16 } else { Format::F16 }
}

fn binary_loop(op: FloatBinary, ty: Type, mode: FloatMode, a: &Lanes, b: &Lanes, out: &mut Lanes) {
    let each = |out: &mut Lanes, g: &dyn Fn(u64, u64) -> u64| {
        for i in 0..32 {
            out[i] = g(a[i], b[i]);
        }
    };
    let plain = !mode.nan && !mode.xorsign;
    let nearest = mode.rounding == Rounding::NearestEven;
    match (ty, op) {
        // The hot ones, as loops that the compiler can vectorise.
        (Type::F32, FloatBinary::Add) if nearest => {
            for i in 0..32 {
                out[i] = output(input(a[i], mode.ftz) + input(b[i], mode.ftz), mode);
            }
        }
        (Type::F32, FloatBinary::Sub) if nearest => {
            for i in 0..32 {
                out[i] = output(input(a[i], mode.ftz) - input(b[i], mode.ftz), mode);
            }
        }
        (Type::F32, FloatBinary::Min) if plain => {
            for i in 0..32 {
                out[i] = output(lesser(input(a[i], mode.ftz), input(b[i], mode.ftz)), mode);
            }
        }
        (Type::F32, FloatBinary::Max) if plain => {
            for i in 0..32 {
                // The greater one is the lesser one of the opposites.
                out[i] = output(-lesser(-input(a[i], mode.ftz), -input(b[i], mode.ftz)), mode);
            }
        }
        (Type::F32, FloatBinary::Mul) if nearest => {
            for i in 0..32 {
                out[i] = output(input(a[i], mode.ftz) * input(b[i], mode.ftz), mode);
            }
        }
        (Type::F32, _) => each(out, &|a, b| f32_binary(op, mode, a, b)),
        (Type::F64, _) => each(out, &|a, b| f64_binary(op, mode, a, b)),
        (Type::F32x2, _) => each(out, &|a, b| {
            f32_binary(op, mode, a & 0xFFFF_FFFF, b & 0xFFFF_FFFF)
                | f32_binary(op, mode, a >> 32, b >> 32) << 32
        }),
        (Type::F16x2 | Type::Bf16x2, _) => {
            let format = format(ty);
            each(out, &|a, b| {
                half_binary(op, format, mode, a & 0xFFFF, b & 0xFFFF)
                    | half_binary(op, format, mode, a >> 16, b >> 16) << 16
            });
        }
        _ => {
            let format = format(ty);
            each(out, &|a, b| half_binary(op, format, mode, a, b));
        }
    }
}

fn f32_binary(op: FloatBinary, mode: FloatMode, a: u64, b: u64) -> u64 {
    let (x, y) = (input(a, mode.ftz), input(b, mode.ftz));
    match op {
        FloatBinary::Add => output(rounded(sum(x.into(), y.into(), mode), mode), mode),
        FloatBinary::Sub => output(rounded(sum(x.into(), f64::from(-y), mode), mode), mode),
        FloatBinary::Mul => output(rounded(f64::from(x) * f64::from(y), mode), mode),
        FloatBinary::Min | FloatBinary::Max => min_max(op == FloatBinary::Max, mode, x, y),
        FloatBinary::Div | FloatBinary::DivFull => output(rounded(quotient(x, y, mode.rounding), mode), mode),
        FloatBinary::DivApprox => {
            // PTX ISA, "div": for |b| between 2^126 and 2^128 the result is 0, NaN for an infinite a.
            let result = if y.is_finite() && y.abs() > 2f32.powi(126) {
                if x.is_infinite() || x.is_nan() { f32::NAN } else { 0.0f32.copysign(x) * y.signum() }
            } else {
                quotient(x, y, Rounding::NearestEven) as f32
            };
            output(result, mode)
        }
        FloatBinary::Copysign => a & 0x8000_0000 | b & 0x7FFF_FFFF,
    }
}

/// In f64, to be rounded to f32 in the same mode. That is right: directed roundings compose, and a quotient of two f32 is either a tie of f32 or
/// farther from one than f64's last place (so is a square root).
fn quotient(x: f32, y: f32, mode: Rounding) -> f64 {
    let (x, y) = (f64::from(x), f64::from(y));
    if mode == Rounding::NearestEven { x / y } else { double::div(x, y, mode) }
}

/// Of two numbers, is `a` the greater one (or the lesser)? −0 is less than +0.
fn goes_first(max: bool, a: f64, b: f64) -> bool {
    if max { a > b || (a == b && a.is_sign_positive()) } else { a < b || (a == b && a.is_sign_negative()) }
}

/// As [`min_max`] without modifiers, without branches: the pattern of an f32 that is no NaN is a number of sign and magnitude.
#[inline]
fn lesser(x: f32, y: f32) -> f32 {
    let key = |x: f32| {
        let bits = x.to_bits() as i32;
        bits ^ (bits >> 31 & i32::MAX)
    };
    let least = if key(x) <= key(y) { x } else { y };
    let least = if x.is_nan() { y } else { least };
    if y.is_nan() { x } else { least }
}

/// PTX ISA, "min": −0 is less than +0; a NaN is left out, or wins with `.NaN`.
fn min_max(max: bool, mode: FloatMode, x: f32, y: f32) -> u64 {
    let (a, b) = if mode.xorsign { (x.abs(), y.abs()) } else { (x, y) };
    let result = match (a.is_nan(), b.is_nan()) {
        (true, true) => return u64::from(NAN32),
        (true, false) | (false, true) if mode.nan => return u64::from(NAN32),
        (true, false) => b,
        (false, true) => a,
        _ if goes_first(max, a.into(), b.into()) => a,
        _ => b,
    };
    let result =
        if mode.xorsign && (x.is_sign_negative() != y.is_sign_negative()) { -result } else { result };
    output(result, mode)
}

fn f64_binary(op: FloatBinary, mode: FloatMode, a: u64, b: u64) -> u64 {
    let (x, y) = (f64::from_bits(a), f64::from_bits(b));
    let nearest = mode.rounding == Rounding::NearestEven;
    let result = match op {
        FloatBinary::Add if nearest => x + y,
        FloatBinary::Sub if nearest => x - y,
        FloatBinary::Mul if nearest => x * y,
        FloatBinary::Add => double::add(x, y, mode.rounding),
        FloatBinary::Sub => double::add(x, -y, mode.rounding),
        FloatBinary::Mul => double::mul(x, y, mode.rounding),
        FloatBinary::Div | FloatBinary::DivFull | FloatBinary::DivApprox => double::div(x, y, mode.rounding),
        FloatBinary::Min | FloatBinary::Max => {
            let max = op == FloatBinary::Max;
            match (x.is_nan(), y.is_nan()) {
                (true, true) => f64::NAN,
                (true, false) => y,
                (false, true) => x,
                _ if goes_first(max, x, y) => x,
                _ => y,
            }
        }
        FloatBinary::Copysign => return a & 1 << 63 | b & !(1 << 63),
    };
    result.to_bits()
}

/// Of f16 and bf16.
fn half_binary(op: FloatBinary, format: Format, mode: FloatMode, a: u64, b: u64) -> u64 {
    let ftz = mode.ftz && format == Format::F16;
    let (x, y) = (half_input(a, format, ftz), half_input(b, format, ftz));
    let result = match op {
        FloatBinary::Add => round_to_odd(x, y),
        FloatBinary::Sub => round_to_odd(x, -y),
        FloatBinary::Mul => x * y,
        FloatBinary::Min | FloatBinary::Max => {
            return half_min_max(op == FloatBinary::Max, format, mode, x, y);
        }
        FloatBinary::Copysign | FloatBinary::Div | FloatBinary::DivApprox | FloatBinary::DivFull => x / y,
    };
    half_output(result, format, mode)
}

fn half_input(bits: u64, format: Format, ftz: bool) -> f64 {
    let bits = bits as u32 & 0xFFFF;
    let subnormal = bits & 0x7C00 == 0;
    decode(if ftz && subnormal { bits & 0x8000 } else { bits }, format)
}

fn half_output(x: f64, format: Format, mode: FloatMode) -> u64 {
    if mode.sat {
        return u64::from(round(
            if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) + 0.0 },
            format,
            Rounding::NearestEven,
            Overflow::Infinity,
        ));
    }
    // Of −0, too, it makes +0.
    let x = if mode.relu && x <= 0.0 { 0.0 } else { x };
    let bits = round(x, format, Rounding::NearestEven, Overflow::Infinity);
    // Of bf16, only `ex2.approx.ftz` flushes.
    let exponent = if format == Format::Bf16 { 0x7F80 } else { 0x7C00 };
    u64::from(if mode.ftz && bits & exponent == 0 { bits & 0x8000 } else { bits })
}

fn half_min_max(max: bool, format: Format, mode: FloatMode, x: f64, y: f64) -> u64 {
    let (a, b) = if mode.xorsign { (x.abs(), y.abs()) } else { (x, y) };
    let nan = u64::from(format.canonical_nan());
    let result = match (a.is_nan(), b.is_nan()) {
        (true, true) => return nan,
        (true, false) | (false, true) if mode.nan => return nan,
        (true, false) => b,
        (false, true) => a,
        _ if goes_first(max, a, b) => a,
        _ => b,
    };
    let result =
        if mode.xorsign && (x.is_sign_negative() != y.is_sign_negative()) { -result } else { result };
    half_output(result, format, mode)
}

fn ternary_loop(
    op: FloatTernary,
    ty: Type,
    mode: FloatMode,
    a: &Lanes,
    b: &Lanes,
    c: &Lanes,
    out: &mut Lanes,
) {
    let each = |out: &mut Lanes, g: &dyn Fn(u64, u64, u64) -> u64| {
        for i in 0..32 {
            out[i] = g(a[i], b[i], c[i]);
        }
    };
    let low = |x: u64| x & 0xFFFF_FFFF;
    match (op, ty) {
        (FloatTernary::Min | FloatTernary::Max, _) => {
            let op = if op == FloatTernary::Max { FloatBinary::Max } else { FloatBinary::Min };
            each(out, &|a, b, c| f32_binary(op, mode, f32_binary(op, mode, a, b), c));
        }
        (_, Type::F32) if mode.rounding == Rounding::NearestEven => {
            for i in 0..32 {
                let (x, y, z) = (input(a[i], mode.ftz), input(b[i], mode.ftz), input(c[i], mode.ftz));
                out[i] = output(round_to_odd(f64::from(x) * f64::from(y), f64::from(z)) as f32, mode);
            }
        }
        (_, Type::F32) => each(out, &|a, b, c| f32_fma(mode, a, b, c)),
        (_, Type::F32x2) => each(out, &|a, b, c| {
            f32_fma(mode, low(a), low(b), low(c)) | f32_fma(mode, a >> 32, b >> 32, c >> 32) << 32
        }),
        (_, Type::F64) => each(out, &|a, b, c| {
            double::fma(f64::from_bits(a), f64::from_bits(b), f64::from_bits(c), mode.rounding).to_bits()
        }),
        (_, Type::F16x2 | Type::Bf16x2) => {
            let f = format(ty);
            each(out, &|a, b, c| {
                half_fma(f, mode, a, b, c) | half_fma(f, mode, a >> 16, b >> 16, c >> 16) << 16
            });
        }
        _ => {
            let f = format(ty);
            each(out, &|a, b, c| half_fma(f, mode, a, b, c));
        }
    }
}

fn f32_fma(mode: FloatMode, a: u64, b: u64, c: u64) -> u64 {
    let (x, y, z) = (input(a, mode.ftz), input(b, mode.ftz), input(c, mode.ftz));
    output(rounded(sum(f64::from(x) * f64::from(y), z.into(), mode), mode), mode)
}

fn half_fma(format: Format, mode: FloatMode, a: u64, b: u64, c: u64) -> u64 {
    let ftz = mode.ftz && format == Format::F16;
    let (x, y, z) = (half_input(a, format, ftz), half_input(b, format, ftz), half_input(c, format, ftz));
    half_output(round_to_odd(x * y, z), format, mode)
}

type Unary = fn(FloatUnary, FloatMode, u64) -> u64;

fn unary_of(ty: Type) -> Unary {
    match ty {
        Type::F64 => f64_unary,
        Type::F16 => |op, mode, a| half_unary(op, Format::F16, mode, a),
        Type::Bf16 => |op, mode, a| half_unary(op, Format::Bf16, mode, a),
        Type::F16x2 => |op, mode, a| {
            half_unary(op, Format::F16, mode, a & 0xFFFF) | half_unary(op, Format::F16, mode, a >> 16) << 16
        },
        Type::Bf16x2 => |op, mode, a| {
            half_unary(op, Format::Bf16, mode, a & 0xFFFF) | half_unary(op, Format::Bf16, mode, a >> 16) << 16
        },
        Type::F32x2 => {
            |op, mode, a| f32_unary(op, mode, a & 0xFFFF_FFFF) | f32_unary(op, mode, a >> 32) << 32
        }
        _ => f32_unary,
    }
}

fn f32_unary(op: FloatUnary, mode: FloatMode, a: u64) -> u64 {
    let x = input(a, mode.ftz);
    let wide = f64::from(x);
    let result = match op {
        // They change the sign bit, of NaN too.
        FloatUnary::Neg => return u64::from((-x).to_bits()),
        FloatUnary::Abs => return u64::from(x.abs().to_bits()),
        FloatUnary::Sqrt if mode.rounding == Rounding::NearestEven => wide.sqrt(),
        FloatUnary::Sqrt => double::sqrt(wide, mode.rounding),
        FloatUnary::Rcp => quotient(1.0, x, mode.rounding),
        FloatUnary::RcpApprox => 1.0 / wide,
        FloatUnary::SqrtApprox => wide.sqrt(),
        FloatUnary::RsqrtApprox => 1.0 / wide.sqrt(),
        FloatUnary::Ex2Approx => wide.exp2(),
        FloatUnary::Lg2Approx => wide.log2(),
        FloatUnary::SinApprox => wide.sin(),
        FloatUnary::CosApprox => wide.cos(),
        FloatUnary::TanhApprox => wide.tanh(),
    };
    output(rounded(result, mode), mode)
}

fn f64_unary(op: FloatUnary, mode: FloatMode, a: u64) -> u64 {
    let x = f64::from_bits(a);
    // The approximations for f64 have 20 bits, and zeros below; subnormals are flushed (PTX ISA, "rcp.approx.ftz.f64").
    let gross = |value: f64| {
        let flushed = if value.is_subnormal() { 0.0f64.copysign(value) } else { value };
        flushed.to_bits() & !0xFFFF_FFFF
    };
    let x_flushed = if x.is_subnormal() { 0.0f64.copysign(x) } else { x };
    match op {
        FloatUnary::Neg => a ^ 1 << 63,
        FloatUnary::Abs => a & !(1 << 63),
        FloatUnary::Sqrt | FloatUnary::SqrtApprox => double::sqrt(x, mode.rounding).to_bits(),
        FloatUnary::Rcp => double::div(1.0, x, mode.rounding).to_bits(),
        FloatUnary::RcpApprox => gross(1.0 / x_flushed),
        FloatUnary::RsqrtApprox => gross(1.0 / x_flushed.sqrt()),
        FloatUnary::Ex2Approx => x.exp2().to_bits(),
        FloatUnary::Lg2Approx => x.log2().to_bits(),
        FloatUnary::SinApprox => x.sin().to_bits(),
        FloatUnary::CosApprox => x.cos().to_bits(),
        FloatUnary::TanhApprox => x.tanh().to_bits(),
    }
}

fn half_unary(op: FloatUnary, format: Format, mode: FloatMode, a: u64) -> u64 {
    let ftz = mode.ftz && format == Format::F16;
    let subnormal = ftz && a & 0x7C00 == 0;
    match op {
        FloatUnary::Neg => (if subnormal { a & 0x8000 } else { a & 0xFFFF }) ^ 0x8000,
        FloatUnary::Abs => {
            if subnormal {
                0
            } else {
                a & 0x7FFF
            }
        }
        FloatUnary::Ex2Approx => half_output(half_input(a, format, ftz).exp2(), format, mode),
        FloatUnary::TanhApprox => half_output(half_input(a, format, ftz).tanh(), format, mode),
        _ => u64::from(format.canonical_nan()),
    }
}

/// What an atomic operation makes of the old value `a` and the operand `b`, of a float type.
pub fn atomic(op: AtomicOp, ty: Type, ftz: bool, a: u64, b: u64) -> u64 {
    let mode = FloatMode {
        rounding: Rounding::NearestEven,
        ftz,
        sat: false,
        relu: false,
        nan: false,
        xorsign: false,
    };
    let op = match op {
        AtomicOp::Min => FloatBinary::Min,
        AtomicOp::Max => FloatBinary::Max,
        _ => FloatBinary::Add,
    };
    let (mut left, mut right, mut out) = ([0; 32], [0; 32], [0; 32]);
    (left[0], right[0]) = (a, b);
    binary_loop(op, ty, mode, &left, &right, &mut out);
    out[0]
}
