//! Every elementwise operation on every type it is defined on.

use half::{bf16, f16};

use super::*;
use crate::numerics::{bits_to_f64, convert::bits_to_int, convert_bits, f64_to_bits};
use crate::op::{BinaryOp, CmpOp, Literal, Rounding, UnaryOp};

const INTS: [Elem; 8] =
    [Elem::I8, Elem::U8, Elem::I16, Elem::U16, Elem::I32, Elem::U32, Elem::I64, Elem::U64];
const FLOATS: [Elem; 4] = [Elem::F16, Elem::BF16, Elem::F32, Elem::F64];

/// Interesting values first, then random patterns.
fn samples(elem: Elem, n: usize, seed: u64) -> Vec<u64> {
    let mask = u64::MAX >> (64 - elem.bits());
    let mut out: Vec<u64> = if elem.is_float() {
        [0.0, -0.0, 1.0, -1.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 2.5, 3.5, 1e-7, 100.25]
            .iter()
            .map(|&x| f64_to_bits(elem, x, Rounding::Default))
            .collect()
    } else {
        vec![0, 1, mask, mask >> 1, (mask >> 1) + 1, 3, 7, elem.bits() as u64, elem.bits() as u64 - 1]
    };
    let mut rng = Rng(seed);
    while out.len() < n {
        let x = rng.next() & mask;
        // Half of the floats of moderate size.
        let moderate = elem.is_float() && rng.below(2) == 0;
        out.push(if moderate {
            f64_to_bits(elem, (x % 2000) as f64 / 64.0 - 15.0, Rounding::Default)
        } else {
            x
        });
    }
    out
}

/// All pairs of samples.
fn pairs(elem: Elem) -> (Data, Data) {
    let s = samples(elem, 32, 7);
    let shape = Shape::new(&[32, 32]);
    let a = s.iter().flat_map(|&x| std::iter::repeat_n(x, 32)).collect();
    let b = (0..32).flat_map(|_| s.iter().copied()).collect();
    (Data { elem, shape, bits: a }, Data { elem, shape, bits: b })
}

fn int_binary(op: BinaryOp, elem: Elem, a: i128, b: i128) -> i128 {
    let bits = elem.bits() as i128;
    let count = if b < 0 || b >= bits { bits } else { b };
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div => {
            if b == 0 {
                0
            } else {
                a / b
            }
        }
        BinaryOp::Rem => {
            if b == 0 {
                0
            } else {
                a % b
            }
        }
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl => {
            if count == bits {
                0
            } else {
                a << count
            }
        }
        BinaryOp::Shr => a >> count.min(bits),
        BinaryOp::Min => a.min(b),
        BinaryOp::Max => a.max(b),
        BinaryOp::MulHi => a.wrapping_mul(b) >> bits, // wrong for u64 × u64, which is tested apart
        BinaryOp::Minimum | BinaryOp::Maximum | BinaryOp::Rescale => unreachable!(),
    }
}

#[test]
fn integer_operations_wrap_and_shift_as_specified() {
    use BinaryOp::*;
    for elem in INTS {
        let (a, b) = pairs(elem);
        for op in [Add, Sub, Mul, Div, Rem, And, Or, Xor, Shl, Shr, Min, Max, MulHi] {
            if op == MulHi && (elem.bits() < 32 || elem == Elem::U64) {
                continue;
            }
            let got = eval1(&[a.clone(), b.clone()], |k, v| k.binary(op, v[0], v[1]));
            for i in 0..got.bits.len() {
                let (x, y) = (bits_to_int(elem, a.bits[i]), bits_to_int(elem, b.bits[i]));
                let want = int_binary(op, elem, x, y) as u64 & (u64::MAX >> (64 - elem.bits()));
                assert_eq!(got.bits[i], want, "{op:?} {elem} {x} {y}");
            }
        }
    }
    let big = data(&[1], &[u64::MAX]);
    let got = eval1(&[big.clone(), big], |k, v| k.binary(MulHi, v[0], v[1]));
    assert_eq!(got.bits, [u64::MAX - 1]);
}

fn number(a: f64, b: f64, pick: fn(f64, f64) -> bool) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if pick(a.signum(), b.signum()) {
                a
            } else {
                b
            }
        }
        _ => {
            if pick(a, b) {
                a
            } else {
                b
            }
        }
    }
}

fn float_binary(op: BinaryOp, a: f64, b: f64) -> f64 {
    let nan = a.is_nan() || b.is_nan();
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul | BinaryOp::Rescale => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Rem => a % b,
        BinaryOp::Min => number(a, b, |a, b| a < b),
        BinaryOp::Max => number(a, b, |a, b| a > b),
        BinaryOp::Minimum => {
            if nan {
                f64::NAN
            } else {
                number(a, b, |a, b| a < b)
            }
        }
        BinaryOp::Maximum => {
            if nan {
                f64::NAN
            } else {
                number(a, b, |a, b| a > b)
            }
        }
        _ => unreachable!(),
    }
}

/// Equal patterns, or both NaN.
fn same(elem: Elem, a: u64, b: u64) -> bool {
    a == b || bits_to_f64(elem, a).is_nan() && bits_to_f64(elem, b).is_nan()
}

#[test]
fn float_operations_round_once() {
    use BinaryOp::*;
    for elem in FLOATS {
        let (a, b) = pairs(elem);
        for op in [Add, Sub, Mul, Div, Rem, Min, Max, Minimum, Maximum, Rescale] {
            let got = eval1(&[a.clone(), b.clone()], |k, v| k.binary(op, v[0], v[1]));
            for i in 0..got.bits.len() {
                let (x, y) = (bits_to_f64(elem, a.bits[i]), bits_to_f64(elem, b.bits[i]));
                // In f64 and rounded: innocuous for these operations on f32 and narrower.
                let want = f64_to_bits(elem, float_binary(op, x, y), Rounding::Default);
                assert!(
                    same(elem, got.bits[i], want),
                    "{op:?} {elem} {x:e} {y:e}: {:x} {want:x}",
                    got.bits[i]
                );
            }
        }
    }
}

#[test]
fn comparisons_are_ordered_but_for_ne() {
    for elem in INTS.into_iter().chain(FLOATS) {
        let (a, b) = pairs(elem);
        for op in [CmpOp::Eq, CmpOp::Ne, CmpOp::Lt, CmpOp::Le, CmpOp::Gt, CmpOp::Ge] {
            let got = eval1(&[a.clone(), b.clone()], |k, v| k.cmp(op, v[0], v[1]));
            for i in 0..got.bits.len() {
                let order = if elem.is_float() {
                    bits_to_f64(elem, a.bits[i]).partial_cmp(&bits_to_f64(elem, b.bits[i]))
                } else {
                    Some(bits_to_int(elem, a.bits[i]).cmp(&bits_to_int(elem, b.bits[i])))
                };
                let want = match op {
                    CmpOp::Eq => order.is_some_and(|o| o.is_eq()),
                    CmpOp::Ne => order.is_none_or(|o| o.is_ne()),
                    CmpOp::Lt => order.is_some_and(|o| o.is_lt()),
                    CmpOp::Le => order.is_some_and(|o| o.is_le()),
                    CmpOp::Gt => order.is_some_and(|o| o.is_gt()),
                    CmpOp::Ge => order.is_some_and(|o| o.is_ge()),
                };
                assert_eq!(got.bits[i], want as u64, "{op:?} {elem} {i}");
            }
        }
    }
}

#[test]
fn float_functions_are_near_the_exact_ones() {
    use UnaryOp::*;
    type Function = fn(f64) -> f64;
    let functions: [(UnaryOp, Function); 17] = [
        (Neg, |x| -x),
        (Abs, f64::abs),
        (Exp, f64::exp),
        (Exp2, f64::exp2),
        (Log, f64::ln),
        (Log2, f64::log2),
        (Sqrt, f64::sqrt),
        (Rsqrt, |x| 1.0 / x.sqrt()),
        (Sin, f64::sin),
        (Cos, f64::cos),
        (Tanh, f64::tanh),
        (Erf, libm::erf),
        (Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (Floor, f64::floor),
        (Ceil, f64::ceil),
        (Round, f64::round_ties_even),
        (Trunc, f64::trunc),
    ];
    for elem in FLOATS {
        let x = Data { elem, shape: Shape::new(&[512]), bits: samples(elem, 512, 3) };
        for (op, exact) in functions {
            let got = eval1(std::slice::from_ref(&x), |k, v| k.unary(op, v[0]));
            for (&x, &got) in x.bits.iter().zip(&got.bits) {
                let x = bits_to_f64(elem, x);
                let want = f64_to_bits(elem, exact(x), Rounding::Default);
                let off = got.abs_diff(want);
                assert!(same(elem, got, want) || off <= 1, "{op:?} {elem} {x:e}: {got:x} {want:x}");
            }
        }
    }
}

#[test]
fn integer_functions() {
    for elem in INTS {
        let x = Data { elem, shape: Shape::new(&[64]), bits: samples(elem, 64, 5) };
        let mask = u64::MAX >> (64 - elem.bits());
        let functions: [(UnaryOp, &dyn Fn(u64) -> u64); 5] = [
            (UnaryOp::Neg, &|x| x.wrapping_neg() & mask),
            (UnaryOp::Abs, &|x| bits_to_int(elem, x).unsigned_abs() as u64 & mask),
            (UnaryOp::Not, &|x| !x & mask),
            (UnaryOp::PopCount, &|x| x.count_ones() as u64),
            (UnaryOp::LeadingZeros, &|x| (x.leading_zeros() - (64 - elem.bits())) as u64),
        ];
        for (op, f) in functions {
            let got = eval1(std::slice::from_ref(&x), |k, v| k.unary(op, v[0]));
            let want: Vec<u64> = x.bits.iter().map(|&x| f(x)).collect();
            assert_eq!(got.bits, want, "{op:?} {elem}");
        }
    }
    let bools = data(&[2], &[false, true]);
    assert_eq!(eval1(&[bools], |k, v| k.unary(UnaryOp::Not, v[0])).bits, [1, 0]);
}

#[test]
fn casts_between_all_types_agree_with_the_exact_conversion() {
    let storable = Elem::ALL.into_iter().filter(|e| e.size_of().is_some());
    for from in storable.clone() {
        let bits = if from == Elem::I1 { [0, 1].repeat(64) } else { samples(from, 128, 11) };
        let x = Data { elem: from, shape: Shape::new(&[128]), bits };
        for to in storable.clone() {
            for rounding in [Rounding::Default, Rounding::TowardZero] {
                let got = eval1(std::slice::from_ref(&x), |k, v| {
                    let ty = k.kernel.ty(v[0]).with_elem(to);
                    k.value(Opcode::Cast(rounding), &[v[0]], ty)
                });
                for (&x, &got) in x.bits.iter().zip(&got.bits) {
                    let want = convert_bits(from, to, x, rounding);
                    let ok = got == want || to.is_float() && same(to, got, want);
                    assert!(ok, "{from} {x:#x} to {to} {rounding:?}: {got:#x} {want:#x}");
                }
            }
        }
    }
}

#[test]
fn packed_types_cast_in_registers() {
    let x = data(&[16], &(0..16u8).collect::<Vec<_>>());
    let got = eval1(&[x], |k, v| {
        let code = k.cast(v[0], Elem::I4);
        k.cast(code, Elem::F32)
    });
    let want: Vec<f32> = (0..16).map(|i| if i < 8 { i as f32 } else { i as f32 - 16.0 }).collect();
    assert_eq!(got.values::<f32>(), want);
}

#[test]
fn fused_multiply_add_rounds_once() {
    // a·b = 1 + 2⁻¹¹ + 2⁻²⁴ in exact arithmetic; the product alone rounds the last term away.
    let a = data(&[1], &[1.0f32 + 2f32.powi(-12)]);
    let c = data(&[1], &[-1.0f32 - 2f32.powi(-11)]);
    let got = eval1(&[a.clone(), a, c], |k, v| k.fma(v[0], v[1], v[2]));
    assert_eq!(got.values::<f32>(), [2f32.powi(-24)]);
    let h = |x: f32| data(&[1], &[f16::from_f32(x)]);
    let got =
        eval1(&[h(2049.0 / 2048.0 * 1024.0), h(2.0), h(2f32.powi(-24))], |k, v| k.fma(v[0], v[1], v[2]));
    // 1024.5 is not an f16: it rounds to 1024 first, so the product is 2048 exactly.
    assert_eq!(got.values::<f16>(), [f16::from_f32(2048.0)]);
    let b = |x: f32| data(&[1], &[bf16::from_f32(x)]);
    let got = eval1(&[b(3.0), b(5.0), b(-15.0)], |k, v| k.fma(v[0], v[1], v[2]));
    assert_eq!(got.values::<bf16>(), [bf16::from_f32(0.0)]);
}

#[test]
fn select_bitcast_and_constants() {
    let cond = data(&[4], &[true, false, false, true]);
    let x = data(&[4], &[1.0f32, 2.0, 3.0, 4.0]);
    let got = eval(&[cond, x], |k, v| {
        let ty = k.kernel.ty(v[1]);
        let nine = k.constant(Literal::float(9.0), ty);
        let picked = k.select(v[0], v[1], nine);
        let bits = k.value(Opcode::Bitcast, &[v[1]], ty.with_elem(Elem::U32));
        let one = k.constant(Literal::Int(1), ty.with_elem(Elem::U32));
        let changed = k.binary(BinaryOp::Xor, bits, one);
        smallvec::smallvec![picked, k.value(Opcode::Bitcast, &[changed], ty)]
    });
    assert_eq!(got[0].values::<f32>(), [1.0, 9.0, 9.0, 4.0]);
    assert_eq!(got[1].values::<f32>(), [1.0f32, 2.0, 3.0, 4.0].map(f32::next_up));
}

#[test]
fn large_tiles_with_every_kind_of_broadcast() {
    // Longer than a chunk, rows that are no multiple of it.
    for (rows, columns) in [(2, 1024), (64, 8), (1, 512), (512, 1), (8, 64)] {
        let x: Vec<i32> = (0..(rows * columns) as i32).collect();
        let row: Vec<i32> = (0..columns as i32).map(|i| i * 1000).collect();
        let column: Vec<i32> = (0..rows as i32).map(|i| i * 1_000_000).collect();
        let inputs = [data(&[rows, columns], &x), data(&[1, columns], &row), data(&[rows, 1], &column)];
        let got = eval1(&inputs, |k, v| {
            let shape = Shape::new(&[rows, columns]);
            let (r, c) = (k.broadcast(v[1], shape), k.broadcast(v[2], shape));
            let s = k.int(5, Elem::I32);
            let s = k.broadcast(s, shape);
            let sum = k.binary(BinaryOp::Add, r, c);
            let sum = k.binary(BinaryOp::Add, sum, v[0]);
            k.binary(BinaryOp::Sub, s, sum)
        });
        let want: Vec<i32> = x
            .iter()
            .enumerate()
            .map(|(i, x)| {
                let (r, c) = (i / columns as usize, i % columns as usize);
                5i32.wrapping_sub(row[c].wrapping_add(column[r]).wrapping_add(*x))
            })
            .collect();
        assert_eq!(got.values::<i32>(), want, "{rows}×{columns}");
    }
}
