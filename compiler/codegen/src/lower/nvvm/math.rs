//! Approximations (9.7.3) and conversions (9.7.9.21).

use melior::ir::ValueLike;
use tegula_ir::types::Elem;

use crate::lower::emitter::{Emitter, V};

/// `ex2.approx.f32`: 2^x, relative error below 2^−22; subnormal results are kept.
pub fn ex2<'c>(e: &Emitter<'c>, x: V<'c>) -> V<'c> {
    e.asm("ex2.approx.f32 $0, $1;", "=f,f", &[x], &[e.t.f32], false)[0]
}

/// `ex2.approx.ftz.f32`: the same, with 0 for subnormal results.
pub fn ex2_ftz<'c>(e: &Emitter<'c>, x: V<'c>) -> V<'c> {
    e.asm("ex2.approx.ftz.f32 $0, $1;", "=f,f", &[x], &[e.t.f32], false)[0]
}

/// `rsqrt.approx.f32`: 1/√x, relative error below 2^−22.9.
pub fn rsqrt<'c>(e: &Emitter<'c>, x: V<'c>) -> V<'c> {
    e.asm("rsqrt.approx.f32 $0, $1;", "=f,f", &[x], &[e.t.f32], false)[0]
}

/// Two f32 to a word of two f16 or bf16, nearest even: `lo` in the lower half.
pub fn cvt_pair<'c>(e: &Emitter<'c>, bf16: bool, lo: V<'c>, hi: V<'c>) -> V<'c> {
    let text = if bf16 { "cvt.rn.bf16x2.f32 $0, $2, $1;" } else { "cvt.rn.f16x2.f32 $0, $2, $1;" };
    e.asm(text, "=r,f,f", &[lo, hi], &[e.t.i32], false)[0]
}

/// A float to a narrower one, towards zero.
pub fn cvt_toward_zero<'c>(e: &Emitter<'c>, v: V<'c>, from: Elem, to: Elem) -> V<'c> {
    let class = |elem| match elem {
        Elem::F64 => 'd',
        Elem::F32 => 'f',
        _ => 'h',
    };
    if (from, to) == (Elem::F64, Elem::BF16) {
        let mid = cvt_toward_zero(e, v, Elem::F64, Elem::F32);
        return cvt_toward_zero(e, mid, Elem::F32, Elem::BF16);
    }
    let text = format!("cvt.rz.{to}.{from} $0, $1;");
    let constraints = format!("={},{}", class(to), class(from));
    match class(to) {
        // 16-bit registers are untyped: through i16.
        'h' => {
            let bits = e.asm(&text, &constraints, &[v], &[e.t.i16], false)[0];
            e.bitcast(bits, if to == Elem::BF16 { e.t.bf16 } else { e.t.f16 })
        }
        _ => e.asm(&text, &constraints, &[v], &[e.t.f32], false)[0],
    }
}

/// A 32- or 64-bit integer to f32, towards zero.
pub fn int_to_f32_toward_zero<'c>(e: &Emitter<'c>, v: V<'c>, from: Elem) -> V<'c> {
    let kind = if from.is_signed() { 's' } else { 'u' };
    let class = if from.bits() == 64 { 'l' } else { 'r' };
    let text = format!("cvt.rz.f32.{kind}{} $0, $1;", from.bits());
    e.asm(&text, &format!("=f,{class}"), &[v], &[e.t.f32], false)[0]
}

/// A byte of FP8 to f32, exactly (sm_89 and up).
pub fn fp8_to_f32<'c>(e: &Emitter<'c>, v: V<'c>, e4m3: bool) -> V<'c> {
    let pair = fp8_pair_to_f16(e, e.resize(v, e.t.i16, false), e4m3);
    let half = e.extract(e.bitcast(pair, e.vector(2, e.t.f16)), 0, e.t.f16);
    e.one("arith.extf", &[half], e.t.f32)
}

/// Two bytes of FP8 to a word of f16, which holds all of them exactly.
pub fn fp8_pair_to_f16<'c>(e: &Emitter<'c>, pair: V<'c>, e4m3: bool) -> V<'c> {
    let kind = if e4m3 { "e4m3x2" } else { "e5m2x2" };
    e.asm(&format!("cvt.rn.f16x2.{kind} $0, $1;"), "=r,h", &[pair], &[e.t.i32], false)[0]
}

/// f32 to a byte of FP8, nearest even, finite overflow to the largest finite value (sm_89 and up).
pub fn f32_to_fp8<'c>(e: &Emitter<'c>, v: V<'c>, e4m3: bool) -> V<'c> {
    let kind = if e4m3 { "e4m3x2" } else { "e5m2x2" };
    debug_assert!(v.r#type() == e.t.f32);
    let text = format!("cvt.rn.satfinite.{kind}.f32 $0, $1, $2;");
    let zero = e.float(e.t.f32, 0.0);
    let pair = e.asm(&text, "=h,f,f", &[zero, v], &[e.t.i16], false)[0];
    e.one("arith.trunci", &[pair], e.t.i8)
}

/// Four f32 to a word of FP8, by the rules of [`f32_to_fp8`].
pub fn f32_to_fp8_word<'c>(e: &Emitter<'c>, values: &[V<'c>], e4m3: bool) -> V<'c> {
    let kind = if e4m3 { "e4m3x2" } else { "e5m2x2" };
    let text = format!(
        "{{\n\t.reg .b16 low, high;\n\tcvt.rn.satfinite.{kind}.f32 low, $2, $1;\n\tcvt.rn.satfinite.{kind}.f32 high, $4, $3;\n\tmov.b32 $0, {{low, high}};\n\t}}"
    );
    e.asm(&text, "=r,f,f,f,f", values, &[e.t.i32], false)[0]
}

/// A shift of a 64-bit integer by a 32-bit count; counts above 64 act as 64 (PTX ISA, 9.7.8.7 and 9.7.8.8): all bits are shifted out, and
/// the sign stays for an arithmetic one.
pub fn shift64<'c>(e: &Emitter<'c>, left: bool, arithmetic: bool, a: V<'c>, count: V<'c>) -> V<'c> {
    let text = match (left, arithmetic) {
        (true, _) => "shl.b64 $0, $1, $2;",
        (false, true) => "shr.s64 $0, $1, $2;",
        (false, false) => "shr.u64 $0, $1, $2;",
    };
    e.asm(text, "=l,l,r", &[a, count], &[e.t.i64], false)[0]
}
