//! Atomics: each operation on each type, on separate and on contended addresses, with results used and not.
//!
//! | `op` | what happens |
//! |---|---|
//! | an operation's name with variant `distinct` | each element updates its own address; the old values are stored |
//! | … with `masked` | the same, for elements below the extent only |
//! | … with `contended` | all elements of all programs update few addresses; nothing is stored |
//! | … with `tickets` | all add 1 to one address: the old values are 0, 1, 2, …, each once |
//! | … with `scalar` | as `tickets`, one a program |
//! | `cas` with `distinct` | half of the elements find what they expect |
//! | `cas` with `scalar` | each program adds 1 in a loop that retries |
//!
//! An exchange is not contended here: what is left would depend on the order.

use smallvec::smallvec;
use tegula_ir::builder::Builder;
use tegula_ir::kernel::{Kernel, ParamFacts, Value};
use tegula_ir::op::{AtomicOp, BinaryOp, CmpOp, MemOrder, MemScope, Opcode};
use tegula_ir::types::{Elem, Shape, Type};

use super::shape_name;
use crate::case::Rule;
use crate::draft::{kernel, load, plain, pointers, program_id, store};
use crate::inputs::{Rng, generate, value};
use crate::reference::elementwise::binary;
use crate::sink::{Call, Sink, poison};
use crate::spec::Entry;

/// Addresses that contended updates go to.
const CELLS: usize = 4;

/// Expands an entry.
pub fn expand(entry: &Entry, sink: &mut Sink) -> Result<(), String> {
    for op in entry.op.list() {
        let op = match op {
            "cas" => None,
            name => Some(AtomicOp::from_name(name).ok_or_else(|| format!("there is no operation `{name}`"))?),
        };
        for variant in entry.variants() {
            for elem in entry.dtypes.elems()? {
                for dims in &entry.shapes {
                    let [n] = dims[..] else { return Err("atomic cases have one dimension".to_owned()) };
                    one(entry, sink, op, variant, elem, n as usize)?;
                }
            }
        }
    }
    Ok(())
}

fn rmw(b: &mut Builder<'_>, op: AtomicOp, operands: &[Value]) -> Value {
    let ty = b.kernel.ty(operands[1]);
    b.value(Opcode::AtomicRmw { op, order: MemOrder::AcqRel, scope: MemScope::Gpu }, operands, ty)
}

fn cas(b: &mut Builder<'_>, operands: &[Value]) -> Value {
    let ty = b.kernel.ty(operands[1]);
    b.value(Opcode::AtomicCas { order: MemOrder::AcqRel, scope: MemScope::Gpu }, operands, ty)
}

/// A number in any type, as a tile or scalar.
fn number(b: &mut Builder<'_>, x: i64, elem: Elem, shape: Shape) -> Value {
    let scalar = if elem.is_float() { b.float(x as f64, elem) } else { b.int(x, elem) };
    b.broadcast(scalar, shape)
}

/// Parameters: target cells, operands, old values, and how many elements count.
fn build(name: &str, op: Option<AtomicOp>, variant: &str, elem: Elem, tile: u32) -> Kernel {
    let ptr = || (Type::ptr(elem), ParamFacts { align: 16, ..ParamFacts::default() });
    kernel(name, 4, &[ptr(), ptr(), ptr(), plain(Type::scalar(Elem::I32))], |b, p| {
        let (cells, operands, old, n) = (p[0], p[1], p[2], p[3]);
        let id = program_id(b, 0);
        if variant == "scalar" {
            let before = match op {
                Some(op) => {
                    let from = b.ptr_add(operands, id);
                    let x = load(b, &[from]);
                    rmw(b, op, &[cells, x])
                }
                None => increment(b, cells, elem),
            };
            let to = b.ptr_add(old, id);
            return store(b, &[to, before]);
        }
        let shape = Shape::new(&[tile]);
        let extent = b.int(tile.into(), Elem::I32);
        let first = b.binary(BinaryOp::Mul, id, extent);
        let (iota, first, n) = (b.iota(0, tile), b.broadcast(first, shape), b.broadcast(n, shape));
        let at = b.binary(BinaryOp::Add, iota, first);
        let inside = b.cmp(CmpOp::Lt, at, n);
        let from = pointers(b, operands, at);
        let x = load(b, &[from, inside]);
        let to = pointers(b, old, at);
        let cell = match variant {
            "contended" => {
                let few = number(b, CELLS as i64 - 1, Elem::I32, shape);
                b.binary(BinaryOp::And, at, few)
            }
            "tickets" => number(b, 0, Elem::I32, shape),
            _ => at,
        };
        let cell = pointers(b, cells, cell);
        let Some(op) = op else {
            let zero = number(b, 0, elem, shape);
            let before = cas(b, &[cell, zero, x]);
            return store(b, &[to, before, inside]);
        };
        let before = rmw(b, op, &[cell, x, inside]);
        if variant != "contended" {
            store(b, &[to, before, inside]);
        }
    })
}

/// Adds 1 to a cell by compare and swap, until nobody came between; gives the value before.
fn increment(b: &mut Builder<'_>, cell: Value, elem: Elem) -> Value {
    let ty = Type::scalar(elem);
    let assumed = number(b, 0, elem, Shape::SCALAR);
    let never = b.int(0, Elem::I1);
    let done_ty = Type::scalar(Elem::I1);
    let op = b.op(Opcode::While, &[assumed, never], [ty, done_ty]);
    let before = b.region([ty, done_ty], Opcode::Condition, |b, v| {
        let again = b.unary(tegula_ir::op::UnaryOp::Not, v[1]);
        smallvec![again, v[0], v[1]]
    });
    let body = b.region([ty, done_ty], Opcode::Yield, |b, v| {
        let one = number(b, 1, elem, Shape::SCALAR);
        let desired = b.binary(BinaryOp::Add, v[0], one);
        let found = cas(b, &[cell, v[0], desired]);
        let done = b.cmp(CmpOp::Eq, found, v[0]);
        smallvec![found, done]
    });
    b.kernel.ops[op].regions.extend([before, body]);
    b.kernel.result(op)
}

fn combine(op: AtomicOp, elem: Elem, old: u64, x: u64) -> u64 {
    let op = match op {
        AtomicOp::Add => BinaryOp::Add,
        AtomicOp::Min => BinaryOp::Min,
        AtomicOp::Max => BinaryOp::Max,
        AtomicOp::And => BinaryOp::And,
        AtomicOp::Or => BinaryOp::Or,
        AtomicOp::Xor => BinaryOp::Xor,
        AtomicOp::Xchg => return x,
    };
    binary(op, elem, old, x).expect("defined everywhere")
}

fn one(
    entry: &Entry,
    sink: &mut Sink,
    op: Option<AtomicOp>,
    variant: &str,
    elem: Elem,
    n: usize,
) -> Result<(), String> {
    let tile = entry.tile.first().copied().ok_or("a tile is needed")?;
    let op_name = op.map_or("cas", AtomicOp::name);
    if !["distinct", "masked", "contended", "tickets", "scalar"].contains(&variant) {
        return Err(format!("there is no variant `{variant}`"));
    }
    let Some(name) = sink.name(&[op_name, variant, elem.name(), &shape_name(&[n as u32])]) else {
        return Ok(());
    };
    let kernel = sink.kernel(&[op_name, variant, elem.name(), &tile.to_string()], |name| {
        build(name, op, variant, elem, tile)
    });
    let mut rng = Rng::new(&name);
    // `distinct` fills its tiles; the others leave a rest.
    let n = if variant == "distinct" { n.next_multiple_of(tile as usize) } else { n };
    let pattern = if elem.is_float() { "integers(-4,4)" } else { "bits" };
    let mut data = generate(pattern, elem, n, (0, 1), &mut rng)?;
    let mut cells = generate(pattern, elem, n.max(CELLS), (0, 1), &mut rng)?;
    let mut old = vec![poison(elem); n];
    let mut old_rule = Rule::Exact;
    let zero = value(elem, 0.0);
    match (op, variant) {
        (_, "tickets" | "scalar") => {
            data.fill(value(elem, 1.0));
            cells.fill(zero);
            old = (0..n).map(|i| value(elem, i as f64)).collect();
            old_rule = Rule::Multiset;
        }
        (None, _) => {
            // Half of the cells hold what is expected.
            cells.iter_mut().step_by(2).for_each(|c| *c = zero);
            old.copy_from_slice(&cells[..n]);
        }
        (_, "contended") => {}
        _ => old.copy_from_slice(&cells[..n]),
    }
    let mut wanted = cells.clone();
    for (i, &x) in data.iter().enumerate() {
        let cell = match variant {
            "contended" => i % CELLS,
            "tickets" | "scalar" => 0,
            _ => i,
        };
        wanted[cell] = match op {
            Some(op) => combine(op, elem, wanted[cell], x),
            None if variant == "scalar" => combine(AtomicOp::Add, elem, wanted[cell], x),
            None if wanted[cell] == zero => x,
            None => wanted[cell],
        };
    }
    let mut call = Call::default();
    let cells = call.update(elem, cells, wanted, Rule::Exact, Vec::new());
    let operands = call.input(elem, data);
    let old = call.output(elem, old, old_rule, Vec::new());
    [cells, operands, old].into_iter().for_each(|buffer| call.ptr(buffer));
    call.i32(n as i32);
    let programs = if variant == "scalar" { n } else { n.div_ceil(tile as usize) };
    sink.push(call.case(name, kernel, [programs as u32, 1, 1], entry.min_sm()));
    Ok(())
}
