//! Random kernels, run here and by a reference that knows nothing of slots, broadcasts kept small, or reuse: every value a vector of
//! all its elements in a map.

use std::collections::HashMap;

use smallvec::smallvec;

use super::*;
use crate::kernel::Block;
use crate::op::{BinaryOp, CmpOp, Literal, LoopHints};

type Env = HashMap<Value, Vec<i32>>;

/// Evaluates a block of the operations that [`Gen`] makes; gives the terminator's operands.
fn reference(kernel: &Kernel, block: Block, env: &mut Env) -> Vec<Vec<i32>> {
    for &op in &kernel.blocks[block].ops {
        let data = &kernel.ops[op];
        let x: Vec<Vec<i32>> =
            data.operands.iter().map(|v| env.get(v).cloned().unwrap_or_default()).collect();
        let dims = |v: Value| kernel.ty(v).shape().unwrap().dims().to_vec();
        let n = |v: Value| kernel.ty(v).shape().unwrap().num_elements() as usize;
        let one = |f: &dyn Fn(usize) -> i32| vec![(0..n(data.results[0])).map(f).collect::<Vec<i32>>()];
        let out: Vec<Vec<i32>> = match &data.opcode {
            Opcode::Const(Literal::Int(c)) => one(&|_| *c as i32),
            Opcode::Iota { start } => one(&|i| start + i as i32),
            Opcode::Binary(BinaryOp::Add) => one(&|i| x[0][i].wrapping_add(x[1][i])),
            Opcode::Binary(BinaryOp::Sub) => one(&|i| x[0][i].wrapping_sub(x[1][i])),
            Opcode::Binary(BinaryOp::Mul) => one(&|i| x[0][i].wrapping_mul(x[1][i])),
            Opcode::Binary(BinaryOp::Max) => one(&|i| x[0][i].max(x[1][i])),
            Opcode::Cmp(CmpOp::Lt) => one(&|i| (x[0][i] < x[1][i]) as i32),
            Opcode::Select => one(&|i| if x[0][i] != 0 { x[1][i] } else { x[2][i] }),
            Opcode::Reshape | Opcode::Expand { .. } => vec![x[0].clone()],
            Opcode::Broadcast => {
                let (from, to) = (dims(data.operands[0]), dims(data.results[0]));
                one(&|i| {
                    let (mut rest, mut at, mut stride) = (i, 0, 1);
                    for d in (0..from.len()).rev() {
                        let c = rest % to[d] as usize;
                        rest /= to[d] as usize;
                        at += if from[d] == 1 { 0 } else { c * stride };
                        stride *= from[d] as usize;
                    }
                    x[0][at]
                })
            }
            Opcode::Permute { .. } => {
                let d = dims(data.operands[0]);
                let (r, c) = (d[0] as usize, d[1] as usize);
                one(&|i| x[0][i % r * c + i / r])
            }
            Opcode::Reduce { axis } => {
                let d = dims(data.operands[0]);
                let (r, c) = (d[0] as usize, d[1] as usize);
                one(&|i| {
                    let line = |k: usize| if *axis == 0 { x[0][k * c + i] } else { x[0][i * c + k] };
                    (0..if *axis == 0 { r } else { c }).fold(0, |s, k| s.wrapping_add(line(k)))
                })
            }
            Opcode::For(_) => {
                let (region, mut carried) = (data.regions[0], x[3..].to_vec());
                for i in (x[0][0]..x[1][0]).step_by(x[2][0] as usize) {
                    let args = &kernel.blocks[region].args;
                    env.insert(args[0], vec![i]);
                    args[1..].iter().zip(carried).for_each(|(&a, c)| drop(env.insert(a, c)));
                    carried = reference(kernel, region, env);
                }
                carried
            }
            Opcode::If => reference(kernel, data.regions[(x[0][0] == 0) as usize], env),
            Opcode::Yield => return x,
            other => panic!("not generated: {other:?}"),
        };
        data.results.iter().zip(out).for_each(|(&r, o)| drop(env.insert(r, o)));
    }
    Vec::new()
}

/// Makes random operations on tiles of a few shapes.
struct Gen(Rng);

const SHAPES: [&[u32]; 9] = [&[], &[8], &[1, 8], &[4, 1], &[4, 8], &[8, 4], &[32], &[4, 1, 2], &[1, 16, 1]];

impl Gen {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.below(from.len() as u64) as usize]
    }

    /// A value in scope with this shape, or a constant.
    fn value(&mut self, b: &mut Builder<'_>, scope: &[Value], shape: Shape) -> Value {
        let fitting: Vec<Value> =
            scope.iter().copied().filter(|&v| b.kernel.ty(v).shape() == Some(shape)).collect();
        if fitting.is_empty() || self.0.below(8) == 0 {
            let literal = Literal::Int(self.0.below(100) as i64 - 50);
            return b.constant(literal, Type::tile(Elem::I32, shape));
        }
        // Later values more often: they are still to be used.
        let recent = &fitting[fitting.len().saturating_sub(4)..];
        if self.0.below(2) == 0 { self.pick(recent) } else { self.pick(&fitting) }
    }

    fn shape(&mut self) -> Shape {
        Shape::new(self.pick(&SHAPES))
    }

    /// Appends an operation (and its regions), and adds its results to the scope.
    fn op(&mut self, b: &mut Builder<'_>, scope: &mut Vec<Value>, depth: u32) {
        let shape = self.shape();
        let kinds = if depth < 3 { 11 } else { 9 };
        match self.0.below(kinds) {
            0..=3 => {
                let op = self.pick(&[BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Max]);
                let (x, y) = (self.value(b, scope, shape), self.value(b, scope, shape));
                scope.push(b.binary(op, x, y));
            }
            4 => {
                let [w, x, y, z] = [(); 4].map(|()| self.value(b, scope, shape));
                let less = b.cmp(CmpOp::Lt, w, x);
                scope.push(b.select(less, y, z));
            }
            5 | 6 => {
                let (from, to) = self.pick(&[
                    (&[][..], &[4u32, 8][..]),
                    (&[1, 8], &[4, 8]),
                    (&[4, 1], &[4, 8]),
                    (&[], &[8]),
                    (&[4, 1, 2], &[4, 4, 2]),
                    (&[1, 16, 1], &[2, 16, 2]),
                ]);
                let x = self.value(b, scope, Shape::new(from));
                scope.push(b.broadcast(x, Shape::new(to)));
            }
            7 => {
                let (from, to) = self.pick(&[
                    (&[4u32, 8][..], &[32u32][..]),
                    (&[32], &[8, 4]),
                    (&[8], &[1, 8]),
                    (&[8, 4], &[4, 8]),
                    (&[8], &[4, 1, 2]),
                    (&[4, 4, 2], &[4, 8]),
                    (&[2, 16, 2], &[8, 8]),
                ]);
                let x = self.value(b, scope, Shape::new(from));
                scope.push(b.reshape(x, Shape::new(to)));
            }
            8 => {
                let shape = Shape::new(self.pick(&[&[4, 8], &[8, 4]]));
                let x = self.value(b, scope, shape);
                if self.0.below(2) == 0 {
                    scope.push(b.permute(x, &[1, 0]));
                } else {
                    let axis = self.0.below(2) as usize;
                    let sum = b.reduce(axis, &[x], |b, v| smallvec![b.binary(BinaryOp::Add, v[0], v[1])]);
                    scope.push(sum[0]);
                }
            }
            9 => {
                let types: Vec<Type> =
                    (0..self.0.below(4)).map(|_| Type::tile(Elem::I32, self.shape())).collect();
                let bounds = [0, self.0.below(4) as i64, 1].map(|x| b.int(x, Elem::I32));
                let mut operands = bounds.to_vec();
                operands.extend(types.iter().map(|t| self.value(b, scope, t.shape().unwrap())));
                let op = b.op(Opcode::For(LoopHints::default()), &operands, types.iter().copied());
                let args = [Type::scalar(Elem::I32)].into_iter().chain(types.iter().copied());
                let region =
                    b.region(args, Opcode::Yield, |b, args| self.region(b, scope, args, &types, depth));
                b.kernel.ops[op].regions.push(region);
                scope.extend(b.kernel.ops[op].results.iter());
            }
            _ => {
                let types: Vec<Type> =
                    (0..self.0.below(3)).map(|_| Type::tile(Elem::I32, self.shape())).collect();
                let (x, y) = (self.value(b, scope, Shape::SCALAR), self.value(b, scope, Shape::SCALAR));
                let less = b.cmp(CmpOp::Lt, x, y);
                let op = b.op(Opcode::If, &[less], types.iter().copied());
                for _ in 0..2 {
                    let region =
                        b.region([], Opcode::Yield, |b, _| self.region(b, scope, &[], &types, depth));
                    b.kernel.ops[op].regions.push(region);
                }
                scope.extend(b.kernel.ops[op].results.iter());
            }
        }
    }

    /// Fills a region that yields these types.
    fn region(
        &mut self,
        b: &mut Builder<'_>,
        scope: &[Value],
        args: &[Value],
        types: &[Type],
        depth: u32,
    ) -> SmallVec<[Value; 4]> {
        let mut inner = scope.to_vec();
        inner.extend(args);
        for _ in 0..self.0.below(6) {
            self.op(b, &mut inner, depth + 1);
        }
        types.iter().map(|t| self.value(b, &inner, t.shape().unwrap())).collect()
    }
}

#[test]
fn random_kernels_agree_with_the_reference() {
    for seed in 0..400 {
        let mut gen_ = Gen(Rng(seed));
        let inputs: Vec<Data> = SHAPES
            .iter()
            .map(|s| {
                let n = s.iter().product::<u32>();
                data(s, &(0..n).map(|_| gen_.0.below(200) as i32 - 100).collect::<Vec<_>>())
            })
            .collect();
        let mut want = Vec::new();
        let got = eval(&inputs, |b, v| {
            let mut scope = v.to_vec();
            let first = b.kernel.blocks[b.block].ops.len();
            for _ in 0..30 {
                gen_.op(b, &mut scope, 0);
            }
            if let Err(errors) = crate::verify::verify(b.kernel) {
                panic!("seed {seed}: {errors:?}");
            }
            // The reference starts from the inputs: what loaded them is taken out of its copy.
            let mut copy = b.kernel.clone();
            copy.blocks[b.block].ops.drain(..first);
            let mut env: Env = v.iter().zip(&inputs).map(|(&v, d)| (v, d.values::<i32>())).collect();
            reference(&copy, b.block, &mut env);
            let all: Vec<Value> =
                scope.iter().copied().filter(|v| b.kernel.ty(*v).value_elem() == Some(Elem::I32)).collect();
            // A few results, so that most values die early.
            let results: SmallVec<[Value; 4]> = (0..6).map(|_| gen_.pick(&all)).collect();
            want = results.iter().map(|r| env[r].clone()).collect();
            results
        });
        let got: Vec<Vec<i32>> = got.iter().map(|d| d.values()).collect();
        assert_eq!(got, want, "seed {seed}");
    }
}
