//! Random operands against definitions: integers in 128 bits, and f32 results against the exact value, kept as a sum of two f64.

use std::fmt::Write;

use tegula_emulator::Rng;

use crate::harness::Test;

/// Rows of one launch.
const ROWS: usize = 512;

/// Runs `instruction` on `a`, `b`, `c` (as many as it has operands) of each thread.
fn run(instruction: &str, operands: usize, inputs: &[[u32; 3]]) -> Vec<u32> {
    let mut body = String::from("mov.u32 %r9, %tid.x;\nmul.wide.u32 %rd1, %r9, 4;\n");
    let mut list = String::from("%r0");
    for i in 0..operands {
        let _ = writeln!(body, "add.s64 %rd2, %p{i}, %rd1;\nld.global.b32 %r{}, [%rd2];", i + 1);
        let _ = write!(list, ", %r{}", i + 1);
    }
    let _ =
        writeln!(body, "{instruction} {list};\nadd.s64 %rd2, %p3, %rd1;\nst.global.b32 [%rd2], %r0;\nret;");
    let column = |i: usize| inputs.iter().map(|row| row[i]).collect::<Vec<_>>();
    let (a, b, c) = (column(0), column(1), column(2));
    let test = Test { block: inputs.len() as u32, ..Test::new(&body) };
    test.clean(&[&a, &b, &c, &vec![0; inputs.len()]]).remove(3)
}

fn random(seed: u64, make: impl Fn(&mut Rng) -> u32) -> Vec<[u32; 3]> {
    let mut rng = Rng::new(seed, 0);
    (0..ROWS).map(|_| [make(&mut rng), make(&mut rng), make(&mut rng)]).collect()
}

#[test]
fn integers() {
    let inputs = random(3, |rng| {
        let bits = rng.bits() as u32;
        // Small ones, and those at the edges, too.
        match rng.below(4) {
            0 => bits % 40,
            1 => (bits % 5).wrapping_sub(2),
            2 => 0x8000_0000u32.wrapping_add(bits % 5).wrapping_sub(2),
            _ => bits,
        }
    });
    type Reference = fn(u32, u32, u32) -> u32;
    let table: [(&str, usize, Reference); 14] = [
        ("add.s32", 2, |a, b, _| (i128::from(a) + i128::from(b)) as u32),
        ("sub.s32", 2, |a, b, _| (i128::from(a) - i128::from(b)) as u32),
        ("mul.hi.s32", 2, |a, b, _| ((i128::from(a as i32) * i128::from(b as i32)) >> 32) as u32),
        ("mul.hi.u32", 2, |a, b, _| ((i128::from(a) * i128::from(b)) >> 32) as u32),
        ("mad.lo.s32", 3, |a, b, c| (i128::from(a) * i128::from(b) + i128::from(c)) as u32),
        ("mad.hi.s32", 3, |a, b, c| {
            (((i128::from(a as i32) * i128::from(b as i32)) >> 32) + i128::from(c)) as u32
        }),
        ("sad.s32", 3, |a, b, c| {
            (i128::from(c) + (i128::from(a as i32) - i128::from(b as i32)).abs()) as u32
        }),
        ("shl.b32", 2, |a, b, _| if b > 31 { 0 } else { a << b }),
        ("shr.s32", 2, |a, b, _| (i128::from(a as i32) >> b.min(100)) as u32),
        ("shf.l.wrap.b32", 3, |a, b, c| (((u64::from(b) << 32 | u64::from(a)) << (c & 31)) >> 32) as u32),
        ("shf.r.clamp.b32", 3, |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32),
        ("bfe.u32", 3, |a, b, c| {
            let (at, n) = (b & 0xFF, c & 0xFF);
            (0..n.min(32)).filter(|i| at + i < 32 && a >> (at + i) & 1 != 0).map(|i| 1 << i).sum()
        }),
        ("bfe.s32", 3, |a, b, c| {
            let (at, n) = (b & 0xFF, c & 0xFF);
            let sign = if n == 0 { 0 } else { a >> (at + n - 1).min(31) & 1 };
            (0..32).map(|i| if n > 0 && i < n && at + i < 32 { a >> (at + i) & 1 } else { sign } << i).sum()
        }),
        ("max.s32", 2, |a, b, _| (a as i32).max(b as i32) as u32),
    ];
    for (instruction, operands, reference) in table {
        for (row, got) in inputs.iter().zip(run(instruction, operands, &inputs)) {
            let want = reference(row[0], row[1], row[2]);
            assert_eq!(got, want, "{instruction} {row:x?}: {got:x}, not {want:x}");
        }
    }
}

/// The sum a + b exactly, as a rounded part and what is left (Knuth); of finite values far from overflow.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}

/// The sign of (exact value − r), where the value is the sum of two f64.
fn compare(value: (f64, f64), r: f32) -> i32 {
    let (high, rest) = two_sum(value.0, -f64::from(r));
    // `high` and `rest` do not overlap, and value.1 is far below value.0's last place: signs decide in this order once they are summed.
    let (top, low) = two_sum(rest, value.1);
    let (sum, left) = two_sum(high, top);
    [sum, left, low].iter().find(|&&x| x != 0.0).map_or(0, |&x| if x > 0.0 { 1 } else { -1 })
}

#[test]
fn f32_in_every_rounding_mode() {
    let inputs = random(5, |rng| {
        let bits = rng.bits() as u32;
        // Exponents near each other, so that sums round; some tiny ones.
        let exponent = if rng.one_in(6) { rng.below(3) as u32 } else { 110 + rng.below(30) as u32 };
        bits & 0x807F_FFFF | exponent << 23
    });
    let value = |x: u32| f64::from(f32::from_bits(x));
    type Exact<'f> = &'f dyn Fn(&[u32; 3]) -> (f64, f64);
    let sum: Exact<'_> = &|r| two_sum(value(r[0]), value(r[1]));
    let difference: Exact<'_> = &|r| two_sum(value(r[0]), -value(r[1]));
    // Products of two 24-bit significands are exact in f64.
    let product: Exact<'_> = &|r| (value(r[0]) * value(r[1]), 0.0);
    let fma: Exact<'_> = &|r| two_sum(value(r[0]) * value(r[1]), value(r[2]));
    for (name, operands, exact) in
        [("add", 2, sum), ("sub", 2, difference), ("mul", 2, product), ("fma", 3, fma)]
    {
        for mode in ["rn", "rz", "rm", "rp"] {
            let instruction = format!("{name}.{mode}.f32");
            for (row, bits) in inputs.iter().zip(run(&instruction, operands, &inputs)) {
                let (value, r) = (exact(row), f32::from_bits(bits));
                let side = compare(value, r);
                let (down, up) = (r.next_down(), r.next_up());
                let ok = match mode {
                    "rm" => side >= 0 && compare(value, up) < 0 || side == 0,
                    "rp" => side <= 0 && compare(value, down) > 0 || side == 0,
                    "rz" if value.0 > 0.0 => side >= 0 && compare(value, up) < 0 || side == 0,
                    "rz" => side <= 0 && compare(value, down) > 0 || side == 0,
                    _ => {
                        // Twice the distance to the result is at most a step, and a tie is even.
                        let (neighbour, step_side) = if side > 0 { (up, 1) } else { (down, -1) };
                        let middle = (f64::from(r) + f64::from(neighbour)) / 2.0;
                        let beyond = {
                            let (high, rest) = two_sum(value.0, -middle);
                            let (top, low) = two_sum(rest, value.1);
                            let (s, left) = two_sum(high, top);
                            [s, left, low]
                                .iter()
                                .find(|&&x| x != 0.0)
                                .map_or(0, |&x| if x > 0.0 { 1 } else { -1 })
                        };
                        side == 0 || beyond == -step_side || (beyond == 0 && bits & 1 == 0)
                    }
                };
                assert!(ok, "{instruction} {row:x?}: {bits:x}");
            }
        }
    }
}
