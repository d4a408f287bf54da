//! Dots: a·b + c for all pairs of operand and accumulator types, single, batched, and in a loop over K.
//!
//! `shapes` are `[M, K, N]` or `[B, M, K, N]`; tiles are padded to powers of two. `op` is `dot` or `dot_tf32`; `places` say how a and b lie in
//! memory (separated by `|`), and with `tile = [BK]` the kernel walks along K in steps of BK, which is what gets pipelined.

use smallvec::smallvec;
use tegula_ir::builder::Builder;
use tegula_ir::kernel::Value;
use tegula_ir::op::{DotPrecision, LoopHints, Opcode, Padding};
use tegula_ir::types::{Elem, Type};

use super::{inputs, shape_name, tile_of};
use crate::case::Rule;
use crate::draft::{kernel, view_load, view_store};
use crate::inputs::Rng;
use crate::number::{float, from_float, from_int, int};
use crate::place::Place;
use crate::sink::{Array, Call, Sink};
use crate::spec::{Entry, Tolerance};

/// Expands an entry.
pub fn expand(entry: &Entry, sink: &mut Sink) -> Result<(), String> {
    for op in entry.op.list() {
        for elem in entry.dtypes.elems()? {
            for acc in entry.to.elems()? {
                for places in entry.places.list() {
                    for dims in &entry.shapes {
                        for warps in entry.warps() {
                            for pattern in entry.inputs.list() {
                                one(entry, sink, (op, elem, acc), (places, dims, warps), pattern)?;
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Extents of a, b and c.
fn operands(dims: &[u32]) -> Result<[Vec<u32>; 3], String> {
    match *dims {
        [m, k, n] => Ok([vec![m, k], vec![k, n], vec![m, n]]),
        [b, m, k, n] => Ok([vec![b, m, k], vec![b, k, n], vec![b, m, n]]),
        _ => Err("a dot's shape is [M, K, N] or [B, M, K, N]".to_owned()),
    }
}

fn body(b: &mut Builder<'_>, tile: &[Vec<u32>; 3], step: Option<u32>, precision: DotPrecision, p: &[Value]) {
    let rank = tile[0].len();
    let zeros: Vec<Value> = (0..rank).map(|_| b.int(0, Elem::I32)).collect();
    let c = view_load(b, p[2], &zeros, &tile[2], Padding::Zero);
    let Some(step) = step else {
        let [x, y] = [0, 1].map(|i| view_load(b, p[i], &zeros, &tile[i], Padding::Zero));
        let d = b.dot(x, y, c, precision);
        return view_store(b, p[3], &zeros, d);
    };
    let (mut x_tile, mut y_tile) = (tile[0].clone(), tile[1].clone());
    (x_tile[rank - 1], y_tile[rank - 2]) = (step, step);
    let k = b.value(Opcode::ViewDim(rank as u8 - 1), &p[..1], Type::scalar(Elem::I64));
    let k = b.cast(k, Elem::I32);
    let (lo, step) = (b.int(0, Elem::I32), b.int(step.into(), Elem::I32));
    let c_ty = b.kernel.ty(c);
    let loop_op = b.op(Opcode::For(LoopHints::default()), &[lo, k, step, c], [c_ty]);
    let region = b.region([Type::scalar(Elem::I32), c_ty], Opcode::Yield, |b, args| {
        let (mut x_at, mut y_at) = (zeros.clone(), zeros.clone());
        (x_at[rank - 1], y_at[rank - 2]) = (args[0], args[0]);
        let x = view_load(b, p[0], &x_at, &x_tile, Padding::Zero);
        let y = view_load(b, p[1], &y_at, &y_tile, Padding::Zero);
        smallvec![b.dot(x, y, args[1], precision)]
    });
    b.kernel.ops[loop_op].regions.push(region);
    let d = b.kernel.result(loop_op);
    view_store(b, p[3], &zeros, d);
}

fn one(
    entry: &Entry,
    sink: &mut Sink,
    (op, elem, acc): (&str, Elem, Elem),
    (places, dims, warps): (&str, &[u32], u32),
    pattern: &str,
) -> Result<(), String> {
    let precision = match op {
        "dot" => DotPrecision::Ieee,
        "dot_tf32" => DotPrecision::Tf32,
        _ => return Err(format!("there is no operation `{op}`")),
    };
    let (a_place, b_place) = places.split_once('|').unwrap_or((places, places));
    let (a_place, b_place) = (Place::parse(a_place)?, Place::parse(b_place)?);
    let step = entry.tile.first().copied();
    let loop_name = step.map_or(String::new(), |s| format!("loop{s}"));
    let types = format!("{elem}-{acc}");
    let warps_name = format!("w{warps}");
    let parts = [op, &types, places, &loop_name, &warps_name];
    let Some(name) = sink.name(&[&parts[..], &[pattern, &shape_name(dims)]].concat()) else { return Ok(()) };
    let extents = operands(dims)?;
    let tile = extents.each_ref().map(|d| tile_of(d));
    let rank = extents[0].len();
    let kernel = sink.kernel(&[&parts[..], &[&shape_name(&tile_of(dims))]].concat(), |name| {
        let view = |elem, mutable, place: Place| (Type::view(elem, rank, mutable), place.facts(rank));
        let params = [
            view(elem, false, a_place),
            view(elem, false, b_place),
            view(acc, false, Place::Dense),
            view(acc, true, Place::Dense),
        ];
        kernel(name, warps, &params, |b, p| body(b, &tile, step, precision, p))
    });
    let shapes = [(elem, extents[0].clone()), (elem, extents[1].clone()), (acc, extents[2].clone())];
    let arrays = inputs(pattern, &shapes, &mut Rng::new(&name))?;
    let (wanted, magnitudes) = reference(&arrays, dims);
    let rule = match entry.tolerance {
        Some(Tolerance::Relative(r)) => Rule::Within(magnitudes.into_iter().map(|m| r * m).collect()),
        tolerance => super::rule(tolerance, acc)?,
    };
    let mut call = Call::default();
    a_place.input(&mut call, &arrays[0]);
    b_place.input(&mut call, &arrays[1]);
    Place::Dense.input(&mut call, &arrays[2]);
    Place::Dense.output(&mut call, &wanted, rule);
    sink.push(call.case(name, kernel, [1; 3], entry.min_sm()));
    Ok(())
}

/// a·b + c in f64, or in wrapping integers; and the sum of the magnitudes of what was added.
fn reference(arrays: &[Array], dims: &[u32]) -> (Array, Vec<f64>) {
    let [a, b, c] = [&arrays[0], &arrays[1], &arrays[2]];
    let (m, k, n) = match *dims {
        [m, k, n] | [_, m, k, n] => (m as usize, k as usize, n as usize),
        _ => unreachable!("checked by `operands`"),
    };
    let (mut bits, mut magnitudes) = (Vec::new(), Vec::new());
    for (p, &start) in c.bits.iter().enumerate() {
        let (batch, row, column) = (p / (m * n), p / n % m, p % n);
        let pairs = (0..k).map(|i| (a.bits[(batch * m + row) * k + i], b.bits[(batch * k + i) * n + column]));
        if c.elem.is_float() {
            let products = pairs.map(|(x, y)| float(a.elem, x) * float(b.elem, y));
            let (mut sum, mut magnitude) = (float(c.elem, start), float(c.elem, start).abs());
            for product in products {
                sum += product;
                magnitude += product.abs();
            }
            bits.push(from_float(c.elem, sum, Default::default()));
            magnitudes.push(magnitude);
        } else {
            let sum = pairs.map(|(x, y)| int(a.elem, x) * int(b.elem, y)).sum::<i128>();
            bits.push(from_int(c.elem, int(c.elem, start) + sum));
        }
    }
    (Array { bits, ..c.clone() }, magnitudes)
}
