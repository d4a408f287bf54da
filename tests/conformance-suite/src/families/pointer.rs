//! Loads and stores through tiles of pointers, with masks.
//!
//! `op` says how: `masked`; `other` (a replacement where the mask is false); `wide` and `unsigned` (i64 and u32 offsets); `strided`;
//! `gather`; `scatter`; `scalar` (one element a program); `compare` (of addresses). Programs cover `shapes` (of one dimension) tile by
//! tile.

use tegula_ir::builder::Builder;
use tegula_ir::kernel::{ParamFacts, Value};
use tegula_ir::op::{BinaryOp, CmpOp, Literal};
use tegula_ir::types::{Elem, Shape, Type};

use super::shape_name;
use crate::case::Rule;
use crate::draft::{kernel, load, plain, pointers, program_id, store};
use crate::inputs::{Rng, generate};
use crate::number::{from_float, from_int};
use crate::sink::{Call, Sink, poison};
use crate::spec::Entry;

/// Distance of elements in `strided`.
const STRIDE: usize = 3;

/// Expands an entry.
pub fn expand(entry: &Entry, sink: &mut Sink) -> Result<(), String> {
    for op in entry.op.list() {
        for elem in entry.dtypes.elems()? {
            for dims in &entry.shapes {
                let [n] = dims[..] else { return Err("pointer cases have one dimension".to_owned()) };
                one(entry, sink, op, elem, n)?;
            }
        }
    }
    Ok(())
}

/// The position of each element of this program's tile, and whether it is below `n`.
fn positions(b: &mut Builder<'_>, tile: u32, n: Value) -> (Value, Value) {
    let shape = Shape::new(&[tile]);
    let (id, extent) = (program_id(b, 0), b.int(tile.into(), Elem::I32));
    let first = b.binary(BinaryOp::Mul, id, extent);
    let (iota, first, n) = (b.iota(0, tile), b.broadcast(first, shape), b.broadcast(n, shape));
    let at = b.binary(BinaryOp::Add, iota, first);
    (at, b.cmp(CmpOp::Lt, at, n))
}

fn body(b: &mut Builder<'_>, op: &str, elem: Elem, tile: u32, p: &[Value]) {
    let (from, to, index, n) = (p[0], p[1], p[2], p[3]);
    if op == "scalar" {
        let id = program_id(b, 0);
        let (from, to) = (b.ptr_add(from, id), b.ptr_add(to, id));
        let x = load(b, &[from]);
        return store(b, &[to, x]);
    }
    let (at, inside) = positions(b, tile, n);
    let shape = Shape::new(&[tile]);
    match op {
        "masked" | "wide" | "unsigned" => {
            let at = match op {
                "wide" => b.cast(at, Elem::I64),
                "unsigned" => b.cast(at, Elem::U32),
                _ => at,
            };
            let (from, to) = (pointers(b, from, at), pointers(b, to, at));
            let x = load(b, &[from, inside]);
            store(b, &[to, x, inside]);
        }
        "other" => {
            let (from, to) = (pointers(b, from, at), pointers(b, to, at));
            let literal = if elem.is_float() { Literal::float(1.0) } else { Literal::Int(1) };
            let other = b.constant(literal, Type::tile(elem, shape));
            let x = load(b, &[from, inside, other]);
            store(b, &[to, x]);
        }
        "strided" => {
            let stride = b.int(STRIDE as i64, Elem::I32);
            let stride = b.broadcast(stride, shape);
            let far = b.binary(BinaryOp::Mul, at, stride);
            let (from, to) = (pointers(b, from, far), pointers(b, to, far));
            let x = load(b, &[from, inside]);
            store(b, &[to, x, inside]);
        }
        "gather" | "scatter" => {
            let zero = b.constant(Literal::Int(0), Type::tile(Elem::I32, shape));
            let index = pointers(b, index, at);
            let index = load(b, &[index, inside, zero]);
            let (near, far) = if op == "gather" { (index, at) } else { (at, index) };
            let (from, to) = (pointers(b, from, near), pointers(b, to, far));
            let x = load(b, &[from, inside]);
            store(b, &[to, x, inside]);
        }
        _ => {
            // compare: which addresses lie below the one of element n.
            let (here, end) = (pointers(b, from, at), b.ptr_add(from, n));
            let end = b.broadcast(end, shape);
            let (below, to) = (b.cmp(CmpOp::Lt, here, end), pointers(b, to, at));
            store(b, &[to, below]);
        }
    }
}

fn one(entry: &Entry, sink: &mut Sink, op: &str, elem: Elem, n: u32) -> Result<(), String> {
    let tile = entry.tile.first().copied().ok_or("a tile is needed")?;
    let known = ["masked", "other", "wide", "unsigned", "strided", "gather", "scatter", "scalar", "compare"];
    if !known.contains(&op) {
        return Err(format!("there is no operation `{op}`"));
    }
    let Some(name) = sink.name(&[op, elem.name(), &format!("t{tile}"), &shape_name(&[n])]) else {
        return Ok(());
    };
    let out_elem = if op == "compare" { Elem::I1 } else { elem };
    let kernel = sink.kernel(&[op, elem.name(), &tile.to_string()], |name| {
        let aligned = || ParamFacts { align: 16, ..ParamFacts::default() };
        let params = [
            (Type::ptr(elem), aligned()),
            (Type::ptr(out_elem), aligned()),
            (Type::ptr(Elem::I32), aligned()),
            plain(Type::scalar(Elem::I32)),
        ];
        kernel(name, 4, &params, |b, p| body(b, op, elem, tile, p))
    });
    let n = n as usize;
    let programs = if op == "scalar" { n } else { n.div_ceil(tile as usize) };
    let covered = programs * tile as usize;
    let mut rng = Rng::new(&name);
    let length = if op == "strided" { n * STRIDE } else { n };
    let data = generate("bits", elem, length, (0, 1), &mut rng)?;
    // A permutation: each place is written once.
    let mut index: Vec<usize> = (0..n).collect();
    (1..n).rev().for_each(|i| index.swap(i, rng.below(i as u64 + 1) as usize));
    let untouched = poison(out_elem);
    let wanted: Vec<u64> = match op {
        "other" => {
            let one = if elem.is_float() { from_float(elem, 1.0, Default::default()) } else { 1 };
            (0..covered).map(|i| data.get(i).copied().unwrap_or(one)).collect()
        }
        "compare" => (0..covered).map(|i| u64::from(i < n)).collect(),
        "strided" => (0..length).map(|i| if i % STRIDE == 0 { data[i] } else { untouched }).collect(),
        "gather" => index.iter().map(|&i| data[i]).collect(),
        "scatter" => {
            let mut out = vec![0; n];
            index.iter().zip(&data).for_each(|(&i, &x)| out[i] = x);
            out
        }
        _ => data.clone(),
    };
    let mut call = Call::default();
    let from = call.input(elem, data);
    let to = call.output(out_elem, wanted, Rule::Exact, Vec::new());
    let index = call.input(Elem::I32, index.into_iter().map(|i| from_int(Elem::I32, i as i128)).collect());
    call.ptr(from);
    call.ptr(to);
    call.ptr(index);
    call.i32(n as i32);
    sink.push(call.case(name, kernel, [programs as u32, 1, 1], entry.min_sm()));
    Ok(())
}
