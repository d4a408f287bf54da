//! Small programs: control flow, values from nothing, promises, prints and assertions.
//!
//! Each `op` is one kernel, described at its builder below. All take `a: view<?xE>`, `n: i32` and `b: view_mut<?xE>`; `shapes` are the extents
//! of `a`, and `counts` the values of `n` (trip counts mostly). One program, unless the operation is about several.

use smallvec::smallvec;
use tegula_ir::builder::Builder;
use tegula_ir::kernel::Value;
use tegula_ir::op::{Assumption, BinaryOp, CmpOp, LoopHints, Opcode, Padding};
use tegula_ir::types::{Elem, Shape, Type};

use super::{inputs, shape_name, tile_of};
use crate::case::Rule;
use crate::draft::{dense, kernel, plain, program_id, view_load, view_store};
use crate::inputs::{Rng, value};
use crate::number::from_int;
use crate::reference::elementwise::binary;
use crate::sink::{Array, Call, Sink};
use crate::spec::Entry;

/// Expands an entry.
pub fn expand(entry: &Entry, sink: &mut Sink) -> Result<(), String> {
    for op in entry.op.list() {
        for elem in entry.dtypes.elems()? {
            for dims in &entry.shapes {
                for &count in &entry.counts {
                    one(entry, sink, op, elem, dims, count)?;
                }
            }
        }
    }
    Ok(())
}

/// What a program builds and what it gives.
struct Context<'a> {
    elem: Elem,
    tile: &'a [u32],
}

impl Context<'_> {
    fn shape(&self) -> Shape {
        Shape::new(self.tile)
    }

    fn ty(&self) -> Type {
        Type::tile(self.elem, self.shape())
    }

    /// A number as a tile.
    fn number(&self, b: &mut Builder<'_>, x: i64) -> Value {
        let scalar = if self.elem.is_float() { b.float(x as f64, self.elem) } else { b.int(x, self.elem) };
        b.broadcast(scalar, self.shape())
    }

    /// `for i in lo..hi step step { carried = body(i, carried) }`
    fn repeat(
        &self,
        b: &mut Builder<'_>,
        [lo, hi, step]: [Value; 3],
        carried: &[Value],
        body: impl FnOnce(&mut Builder<'_>, Value, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let tys: Vec<Type> = carried.iter().map(|&v| b.kernel.ty(v)).collect();
        let operands = [&[lo, hi, step][..], carried].concat();
        let op = b.op(Opcode::For(LoopHints::default()), &operands, tys.iter().copied());
        let index = b.kernel.ty(lo);
        let region = b.region([index].into_iter().chain(tys), Opcode::Yield, |b, args| {
            body(b, args[0], &args[1..]).into_iter().collect()
        });
        b.kernel.ops[op].regions.push(region);
        b.kernel.ops[op].results.to_vec()
    }

    fn branch(
        &self,
        b: &mut Builder<'_>,
        condition: Value,
        tys: &[Type],
        then: impl FnOnce(&mut Builder<'_>) -> Vec<Value>,
        otherwise: impl FnOnce(&mut Builder<'_>) -> Vec<Value>,
    ) -> Vec<Value> {
        let op = b.op(Opcode::If, &[condition], tys.iter().copied());
        let then = b.region([], Opcode::Yield, |b, _| then(b).into_iter().collect());
        let otherwise = b.region([], Opcode::Yield, |b, _| otherwise(b).into_iter().collect());
        b.kernel.ops[op].regions.extend([then, otherwise]);
        b.kernel.ops[op].results.to_vec()
    }

    fn build(&self, b: &mut Builder<'_>, op: &str, x: Value, n: Value) -> Result<Value, String> {
        let (zero, one) = (b.int(0, Elem::I32), b.int(1, Elem::I32));
        let add = BinaryOp::Add;
        Ok(match op {
            // x + n·x by repeated addition; no trips for n ≤ 0.
            "for_sum" => self.repeat(b, [zero, n, one], &[x], |b, _, v| vec![b.binary(add, v[0], x)])[0],
            // From −3 in steps of 2: adds each index.
            "for_step" => {
                let (lo, step) = (b.int(-3, Elem::I32), b.int(2, Elem::I32));
                self.repeat(b, [lo, n, step], &[x], |b, i, v| {
                    let i = b.cast(i, self.elem);
                    let i = b.broadcast(i, self.shape());
                    vec![b.binary(add, v[0], i)]
                })[0]
            }
            // The bounds as i64.
            "for_wide" => {
                let bounds = [zero, n, one].map(|v| b.cast(v, Elem::I64));
                self.repeat(b, bounds, &[x], |b, _, v| vec![b.binary(add, v[0], x)])[0]
            }
            // (p, q) = (q, p + q), n times from (x, 1): all carried values change at once.
            "for_swap" => {
                let start = self.number(b, 1);
                self.repeat(b, [zero, n, one], &[x, start], |b, _, v| vec![v[1], b.binary(add, v[0], v[1])])
                    [0]
            }
            // Two loops, the inner one as long as the outer index.
            "for_nested" => self.repeat(b, [zero, n, one], &[x], |b, i, v| {
                self.repeat(b, [zero, i, one], &[v[0]], |b, _, v| vec![b.binary(add, v[0], x)])
            })[0],
            // A loop whose body branches on the index's parity.
            "for_if" => self.repeat(b, [zero, n, one], &[x], |b, i, v| {
                let odd = b.binary(BinaryOp::And, i, one);
                let odd = b.cmp(CmpOp::Eq, odd, one);
                let carried = v[0];
                self.branch(b, odd, &[self.ty()], |b| vec![b.binary(add, carried, x)], |_| vec![carried])
            })[0],
            // While count < n: adds x. The condition is asked before the first trip.
            "while_count" | "while_tile" => {
                let i32 = Type::scalar(Elem::I32);
                let tys = [i32, self.ty()];
                let op = b.op(Opcode::While, &[zero, x], tys);
                let before = b.region(tys, Opcode::Condition, |b, v| {
                    let more = b.cmp(CmpOp::Lt, v[0], n);
                    smallvec![more, v[0], v[1]]
                });
                let body = b.region(tys, Opcode::Yield, |b, v| {
                    smallvec![b.binary(add, v[0], one), b.binary(add, v[1], x)]
                });
                b.kernel.ops[op].regions.extend([before, body]);
                b.kernel.ops[op].results[1]
            }
            // x + x if n > 0, else x; nested: 1 more if n > 5.
            "if_nested" => {
                let (positive, five) = (b.cmp(CmpOp::Gt, n, zero), b.int(5, Elem::I32));
                let large = b.cmp(CmpOp::Gt, n, five);
                let more = self.number(b, 1);
                let ty = [self.ty()];
                self.branch(
                    b,
                    positive,
                    &ty,
                    |b| {
                        let sum = b.binary(add, x, x);
                        self.branch(b, large, &ty, |b| vec![b.binary(add, sum, more)], |_| vec![sum])
                    },
                    |_| vec![x],
                )[0]
            }
            // A scalar result, one value of a tile's sum.
            "if_scalar" => {
                let positive = b.cmp(CmpOp::Gt, n, zero);
                let (three, four) = (b.int(3, Elem::I32), b.int(4, Elem::I32));
                let chosen =
                    self.branch(b, positive, &[Type::scalar(Elem::I32)], |_| vec![three], |_| vec![four])[0];
                let chosen = b.cast(chosen, self.elem);
                let chosen = b.broadcast(chosen, self.shape());
                b.binary(add, x, chosen)
            }
            "full" => self.number(b, 7),
            "arange" => {
                let iota = b.iota(-2, self.tile[0]);
                b.cast(iota, self.elem)
            }
            // Promises that hold: n is a multiple of 1, the positions are consecutive.
            "assume" => {
                let n = b.value(Opcode::Assume(Assumption::MultipleOf(1)), &[n], Type::scalar(Elem::I32));
                let iota = b.iota(0, self.tile[0]);
                let ty = b.kernel.ty(iota);
                let run = Assumption::Contiguous(u64::from(self.tile[0]));
                let iota = b.value(Opcode::Assume(run), &[iota], ty);
                let n = b.broadcast(n, self.shape());
                let sum = b.binary(add, iota, n);
                let sum = b.cast(sum, self.elem);
                b.binary(add, x, sum)
            }
            "print" => {
                b.effect(Opcode::Print { message: "n is {} and x".to_owned() }, &[n, x]);
                b.binary(add, x, x)
            }
            "assert" => {
                let holds = b.cmp(CmpOp::Eq, x, x);
                b.effect(Opcode::Assert { message: "x is x".to_owned() }, &[holds]);
                let small = b.int(1000, Elem::I32);
                let small = b.cmp(CmpOp::Lt, n, small);
                b.effect(Opcode::Assert { message: "n is small".to_owned() }, &[small]);
                b.binary(add, x, x)
            }
            _ => return Err(format!("there is no operation `{op}`")),
        })
    }

    /// What element `i` becomes.
    fn reference(&self, op: &str, i: usize, x: u64, n: i32) -> u64 {
        let e = self.elem;
        let add = |a, b| binary(BinaryOp::Add, e, a, b).expect("defined everywhere");
        let times = |count: i32| (0..count).fold(x, |sum, _| add(sum, x));
        match op {
            "for_sum" | "for_wide" | "while_count" | "while_tile" => times(n),
            "for_step" => (-3..n).step_by(2).fold(x, |sum, i| add(sum, value(e, i.into()))),
            "for_swap" => (0..n).fold((x, value(e, 1.0)), |(p, q), _| (q, add(p, q))).0,
            "for_nested" => times((0..n).sum()),
            "for_if" => times(n.max(0) / 2),
            "if_nested" => match n {
                6.. => add(add(x, x), value(e, 1.0)),
                1.. => add(x, x),
                _ => x,
            },
            "if_scalar" => add(x, value(e, if n > 0 { 3.0 } else { 4.0 })),
            "full" => value(e, 7.0),
            "arange" => value(e, i as f64 - 2.0),
            "assume" => add(x, value(e, (i as i32 + n).into())),
            _ => add(x, x),
        }
    }
}

fn one(entry: &Entry, sink: &mut Sink, op: &str, elem: Elem, dims: &[u32], n: i32) -> Result<(), String> {
    let count = format!("n{n}");
    let Some(name) = sink.name(&[op, elem.name(), &count, &shape_name(dims)]) else { return Ok(()) };
    if op == "programs" {
        return programs(entry, sink, name, dims);
    }
    let (tile, rank) = (tile_of(dims), dims.len());
    let context = Context { elem, tile: &tile };
    let mut failure = None;
    let kernel = sink.kernel(&[op, elem.name(), &shape_name(&tile)], |name| {
        let params = [
            (Type::view(elem, rank, false), dense(rank)),
            plain(Type::scalar(Elem::I32)),
            (Type::view(elem, rank, true), dense(rank)),
        ];
        kernel(name, 4, &params, |b, p| {
            let zeros: Vec<Value> = (0..rank).map(|_| b.int(0, Elem::I32)).collect();
            let x = view_load(b, p[0], &zeros, &tile, Padding::Zero);
            match context.build(b, op, x, p[1]) {
                Ok(y) => view_store(b, p[2], &zeros, y),
                Err(message) => failure = Some(message),
            }
        })
    });
    if let Some(message) = failure {
        return Err(message);
    }
    let array = inputs("integers(-2,2)", &[(elem, dims.to_vec())], &mut Rng::new(&name))?.remove(0);
    let bits = array.bits.iter().enumerate().map(|(i, &x)| context.reference(op, i, x, n)).collect();
    let mut call = Call::default();
    call.input_view(&array);
    call.i32(n);
    call.output_view(Array { bits, ..array }, Rule::Exact, Vec::new());
    sink.push(call.case(name, kernel, [1; 3], entry.min_sm()));
    Ok(())
}

/// Each program of a grid of three dimensions writes its index and the grid's extents.
fn programs(entry: &Entry, sink: &mut Sink, name: String, grid: &[u32]) -> Result<(), String> {
    let [x, y, z] = *grid else { return Err("a grid has three extents".to_owned()) };
    let kernel = sink.kernel(&["programs"], |name| {
        let params = [(Type::view(Elem::I32, 4, true), dense(4))];
        kernel(name, 1, &params, |b, p| {
            let ids: Vec<Value> = (0..3).map(|axis| program_id(b, axis)).collect();
            for axis in 0..3 {
                let total = b.value(Opcode::NumPrograms(axis), &[], Type::scalar(Elem::I32));
                for (at, v) in [(axis, ids[axis as usize]), (3 + axis, total)] {
                    let at = b.int(at.into(), Elem::I32);
                    let one = b.broadcast(v, Shape::new(&[1, 1, 1, 1]));
                    view_store(b, p[0], &[ids[0], ids[1], ids[2], at], one);
                }
            }
        })
    });
    let dims = vec![x, y, z, 6];
    let mut bits = Vec::new();
    for i in 0..x {
        for j in 0..y {
            for k in 0..z {
                bits.extend([i, j, k, x, y, z].map(|v| from_int(Elem::I32, v.into())));
            }
        }
    }
    let mut call = Call::default();
    call.output_view(Array { elem: Elem::I32, dims, bits }, Rule::Exact, Vec::new());
    sink.push(call.case(name, kernel, [x, y, z], entry.min_sm()));
    Ok(())
}
