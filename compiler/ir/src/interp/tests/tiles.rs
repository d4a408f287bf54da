//! Operations on whole tiles: shapes, folds, gathers, dots.

use smallvec::smallvec;

use super::*;
use crate::element::{f8e4m3, f8e5m2};
use crate::op::{BinaryOp, CmpOp, DotPrecision};
use half::{bf16, f16};

fn ints(shape: &[u32], seed: u64) -> Data {
    let mut rng = Rng(seed);
    let n = shape.iter().product::<u32>();
    data(shape, &(0..n).map(|_| rng.below(2000) as i32 - 1000).collect::<Vec<_>>())
}

#[test]
fn permute_join_split_gather() {
    let x = ints(&[2, 4, 8], 1);
    let v = x.values::<i32>();
    let got = eval1(std::slice::from_ref(&x), |b, v| b.permute(v[0], &[2, 0, 1]));
    let want: Vec<i32> = (0..64).map(|i| v[(i / 4 % 2) * 32 + (i % 4) * 8 + i / 8]).collect();
    assert_eq!((got.values::<i32>(), got.shape), (want, Shape::new(&[8, 2, 4])));

    let y = ints(&[2, 4, 8], 2);
    let got = eval(&[x.clone(), y.clone()], |b, v| {
        let ty = b.kernel.ty(v[0]);
        let joined = b.value(Opcode::Join, &[v[0], v[1]], ty.with_shape(Shape::new(&[2, 4, 8, 2])));
        let split = b.op(Opcode::Split, &[joined], [ty, ty]);
        let parts = b.kernel.ops[split].results.clone();
        smallvec![joined, parts[1], parts[0]]
    });
    let pairs: Vec<i32> = v.iter().zip(y.values::<i32>()).flat_map(|(&a, b)| [a, b]).collect();
    assert_eq!(got[0].values::<i32>(), pairs);
    assert_eq!((&got[1].bits, &got[2].bits), (&y.bits, &x.bits));

    let mut rng = Rng(3);
    let index = data(&[2, 2, 8], &(0..32).map(|_| rng.below(4) as u8).collect::<Vec<_>>());
    let at = index.values::<u8>();
    let got = eval1(&[x, index], |b, v| {
        let ty = b.kernel.ty(v[0]).with_shape(Shape::new(&[2, 2, 8]));
        b.value(Opcode::Gather { axis: 1 }, &[v[0], v[1]], ty)
    });
    let want: Vec<i32> = (0..32).map(|i| v[i / 16 * 32 + at[i] as usize * 8 + i % 8]).collect();
    assert_eq!(got.values::<i32>(), want);
}

#[test]
fn a_join_whose_dimension_moves_is_a_concatenation() {
    let (x, y) = (ints(&[2, 4, 8], 1), ints(&[2, 4, 8], 2));
    let values = [x.values::<i32>(), y.values::<i32>()];
    // The last does not keep the order of the other dimensions, so it is no concatenation.
    for perm in [[3, 0, 1, 2], [0, 3, 1, 2], [0, 1, 3, 2], [0, 1, 2, 3], [0, 3, 2, 1]] {
        let extents = perm.map(|p| [2, 4, 8, 2][p as usize]);
        let got = eval1(&[x.clone(), y.clone()], |b, v| {
            let ty = b.kernel.ty(v[0]);
            let joined = b.value(Opcode::Join, &[v[0], v[1]], ty.with_shape(Shape::new(&[2, 4, 8, 2])));
            b.permute(joined, &perm)
        });
        let want: Vec<i32> = (0..128)
            .map(|i| {
                let (mut rest, mut at) = (i, [0; 4]);
                for (&p, &d) in perm.iter().zip(&extents).rev() {
                    at[p as usize] = rest % d as usize;
                    rest /= d as usize;
                }
                values[at[3]][at[0] * 32 + at[1] * 8 + at[2]]
            })
            .collect();
        assert_eq!((got.values::<i32>(), got.shape), (want, Shape::new(&extents)), "{perm:?}");
    }
}

#[test]
fn broadcasts_in_the_middle() {
    let x = ints(&[4, 1, 8], 4);
    let v = x.values::<i32>();
    let got = eval1(&[x], |b, v| b.broadcast(v[0], Shape::new(&[4, 2, 8])));
    let want: Vec<i32> = (0..64).map(|i| v[i / 16 * 8 + i % 8]).collect();
    assert_eq!(got.values::<i32>(), want);
}

/// Folds each line of a 3-dimensional tile along `axis` from left to right.
fn lines(x: &[i64], dims: [usize; 3], axis: usize, mut f: impl FnMut(&[i64]) -> Vec<i64>) -> Vec<Vec<i64>> {
    let inner: usize = dims[axis + 1..].iter().product();
    let outer: usize = dims[..axis].iter().product();
    let n = dims[axis];
    let mut out = Vec::new();
    for o in 0..outer {
        for i in 0..inner {
            let line: Vec<i64> = (0..n).map(|k| x[(o * n + k) * inner + i]).collect();
            out.push(f(&line));
        }
    }
    out
}

#[test]
fn reductions_and_scans_along_each_dimension() {
    use BinaryOp::*;
    let dims = [4, 64, 2];
    let x = ints(&[4, 64, 2], 5);
    let v: Vec<i64> = x.values::<i32>().into_iter().map(|x| x as i64).collect();
    let apply = |op: BinaryOp, a: i64, b: i64| match op {
        Add => (a as i32).wrapping_add(b as i32) as i64,
        Mul => (a as i32).wrapping_mul(b as i32) as i64,
        Min => a.min(b),
        Max => a.max(b),
        And => a & b,
        Or => a | b,
        _ => a ^ b,
    };
    for axis in 0..3 {
        for op in [Add, Mul, Min, Max, And, Or, Xor] {
            for general in [false, true] {
                // The same function, but for a detour that keeps it from being recognised.
                let combine = |b: &mut Builder<'_>, v: &[Value]| {
                    let r = b.binary(op, v[0], v[1]);
                    let zero = b.int(0, Elem::I32);
                    smallvec![if general { b.binary(Add, r, zero) } else { r }]
                };
                let got = eval(std::slice::from_ref(&x), |b, v| {
                    let reduced = b.reduce(axis, &[v[0]], combine)[0];
                    let forward = b.scan(axis, false, &[v[0]], combine)[0];
                    let backward = b.scan(axis, true, &[v[0]], combine)[0];
                    // Transposed so that a line is a row.
                    let mut perm: Vec<u32> = (0..3).filter(|&d| d != axis as u32).collect();
                    perm.push(axis as u32);
                    smallvec![reduced, b.permute(forward, &perm), b.permute(backward, &perm)]
                });
                let fold = lines(&v, dims, axis, |l| {
                    vec![l.iter().copied().reduce(|a, b| apply(op, a, b)).unwrap()]
                });
                let prefix = |l: &[i64]| {
                    let mut out = vec![l[0]];
                    l[1..].iter().for_each(|&x| out.push(apply(op, out[out.len() - 1], x)));
                    out
                };
                let forward = lines(&v, dims, axis, prefix);
                let backward = lines(&v, dims, axis, |l| {
                    let reversed: Vec<i64> = l.iter().rev().copied().collect();
                    prefix(&reversed).into_iter().rev().collect()
                });
                for (got, want) in got.iter().zip([fold, forward, backward]) {
                    let got: Vec<i64> = got.values::<i32>().into_iter().map(|x| x as i64).collect();
                    assert_eq!(got, want.concat(), "{op:?} along {axis}, general: {general}");
                }
            }
        }
    }
}

#[test]
fn a_scan_need_not_commute() {
    // Affine maps x ↦ a·x + b, composed: first the earlier one.
    let (a, b) = (ints(&[16], 6), ints(&[16], 7));
    let got = eval(&[a.clone(), b.clone()], |k, v| {
        let r = k.scan(0, false, &[v[0], v[1]], |k, v| {
            let a = k.binary(BinaryOp::Mul, v[2], v[0]);
            let b = k.binary(BinaryOp::Mul, v[2], v[1]);
            smallvec![a, k.binary(BinaryOp::Add, b, v[3])]
        });
        smallvec![r[0], r[1]]
    });
    let (a, b) = (a.values::<i32>(), b.values::<i32>());
    let (mut x, mut y) = (vec![a[0]], vec![b[0]]);
    for i in 1..16 {
        y.push(a[i].wrapping_mul(y[i - 1]).wrapping_add(b[i]));
        x.push(a[i].wrapping_mul(x[i - 1]));
    }
    assert_eq!((got[0].values::<i32>(), got[1].values::<i32>()), (x, y));
}

#[test]
fn argmax_takes_the_first_of_equals() {
    let mut rng = Rng(8);
    let values: Vec<f32> = (0..512).map(|_| rng.below(20) as f32).collect();
    let x = data(&[8, 64], &values);
    let got = eval1(&[x], |b, v| {
        let iota = b.iota(0, 64);
        let row = b.expand(iota, 0);
        let index = b.broadcast(row, Shape::new(&[8, 64]));
        b.reduce(1, &[v[0], index], |b, v| {
            let above = b.cmp(CmpOp::Gt, v[0], v[2]);
            let equal = b.cmp(CmpOp::Eq, v[0], v[2]);
            let before = b.cmp(CmpOp::Lt, v[1], v[3]);
            let tie = b.binary(BinaryOp::And, equal, before);
            let first = b.binary(BinaryOp::Or, above, tie);
            smallvec![b.select(first, v[0], v[2]), b.select(first, v[1], v[3])]
        })[1]
    });
    for (row, &i) in values.chunks(64).zip(&got.values::<i32>()) {
        let top = row.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(row.iter().position(|&x| x == top), Some(i as usize));
    }
}

#[test]
fn a_region_with_control_flow_runs_element_by_element() {
    let x = ints(&[4, 8], 9);
    let v = x.values::<i32>();
    let got = eval1(&[x], |b, v| {
        b.reduce(1, &[v[0]], |b, v| {
            let above = b.cmp(CmpOp::Gt, v[0], v[1]);
            let branch = b.op(Opcode::If, &[above], [Type::scalar(Elem::I32)]);
            for x in [v[0], v[1]] {
                let region = b.region([], Opcode::Yield, |_, _| smallvec![x]);
                b.kernel.ops[branch].regions.push(region);
            }
            smallvec![b.kernel.result(branch)]
        })[0]
    });
    let want: Vec<i32> = v.chunks(8).map(|r| *r.iter().max().unwrap()).collect();
    assert_eq!(got.values::<i32>(), want);
}

/// Small integers as any type: products and sums of them are exact.
fn small<T: Element>(shape: &[u32], seed: u64) -> Data {
    let mut rng = Rng(seed);
    let range = if T::ELEM == Elem::U8 { (0, 16) } else { (-7, 15) };
    let n = shape.iter().product::<u32>();
    let values: Vec<T> = (0..n).map(|_| T::from_f64(rng.below(range.1) as f64 + range.0 as f64)).collect();
    data(shape, &values)
}

fn check_dot<A: Element, C: Element>() {
    // Few rows and many, all transposes, with and without a batch, sizes that are no multiples of the kernels' blocks.
    for (batch, m, n, k) in [
        (1, 1, 64, 32),
        (1, 2, 128, 16),
        (2, 4, 8, 4),
        (4, 4, 32, 16),
        (1, 16, 32, 8),
        (4, 8, 16, 64),
        (1, 1, 1, 1),
    ] {
        for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
            let shape = |r: u32, c: u32, t: bool| {
                let (r, c) = if t { (c, r) } else { (r, c) };
                if batch == 1 { vec![r, c] } else { vec![batch, r, c] }
            };
            let (a, b) = (small::<A>(&shape(m, k, ta), 1), small::<A>(&shape(k, n, tb), 2));
            let c = small::<C>(&shape(m, n, false), 3);
            let got = eval1(&[a.clone(), b.clone(), c.clone()], |e, v| {
                let perm: &[u32] = if batch == 1 { &[1, 0] } else { &[0, 2, 1] };
                let x = if ta { e.permute(v[0], perm) } else { v[0] };
                let y = if tb { e.permute(v[1], perm) } else { v[1] };
                e.dot(x, y, v[2], DotPrecision::Ieee)
            });
            let (a, b, c) = (a.values::<A>(), b.values::<A>(), c.values::<C>());
            let (m, n, k) = (m as usize, n as usize, k as usize);
            for (i, &got) in got.values::<C>().iter().enumerate() {
                let (s, row, column) = (i / (m * n), i / n % m, i % n);
                let mut want = c[i].to_f64();
                for j in 0..k {
                    let x = a[s * m * k + if ta { j * m + row } else { row * k + j }];
                    let y = b[s * k * n + if tb { column * k + j } else { j * n + column }];
                    want += x.to_f64() * y.to_f64();
                }
                assert_eq!(
                    got.to_f64(),
                    C::from_f64(want).to_f64(),
                    "{} {batch} {m} {n} {k} {ta} {tb}",
                    A::ELEM
                );
            }
        }
    }
}

#[test]
fn dots_of_all_types() {
    check_dot::<f64, f64>();
    check_dot::<f32, f32>();
    check_dot::<f16, f32>();
    check_dot::<bf16, f32>();
    check_dot::<f16, f16>();
    check_dot::<i8, i32>();
    check_dot::<u8, i32>();
    check_dot::<f8e4m3, f32>();
    check_dot::<f8e5m2, f32>();
}

#[test]
fn tf32_rounds_its_operands() {
    let x = 1.0 + 2f32.powi(-11); // half a unit of TF32
    let (a, b) = (data(&[1, 1], &[x]), data(&[1, 1], &[1.0f32]));
    let zero = data(&[1, 1], &[0f32]);
    for (precision, want) in [(DotPrecision::Ieee, x), (DotPrecision::Tf32, 1.0 + 2f32.powi(-10))] {
        let got = eval1(&[a.clone(), b.clone(), zero.clone()], |e, v| e.dot(v[0], v[1], v[2], precision));
        assert_eq!(got.values::<f32>(), [want]);
    }
}
