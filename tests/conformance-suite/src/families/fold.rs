//! Reductions and scans along each dimension.
//!
//! A program loads an array padded to powers of two and stores the whole result, so the padding takes part; `op` is:
//!
//! | `op` | values | combination |
//! |---|---|---|
//! | a mnemonic (`add`, `max`, …) | one | that operation |
//! | `argmax`, `argmin` | value, index | the better value; of equal ones the lower index |
//! | `count_max` | value, count | how often the largest value occurs |
//! | `complex_mul` | two | the product of complex numbers |
//! | `compose` | two | of the functions x ↦ a·x + b: associative, not commutative (scans only) |
//!
//! With the variant `scan` or `reverse_scan` prefixes or suffixes are combined; without, the dimension is folded away.

use smallvec::{SmallVec, smallvec};
use tegula_ir::builder::Builder;
use tegula_ir::kernel::Value;
use tegula_ir::op::{BinaryOp, CmpOp, Padding};
use tegula_ir::types::{Elem, Shape};

use super::{inputs, rule, shape_name, tile_of};
use crate::case::Rule;
use crate::draft::TileKernel;
use crate::inputs::Rng;
use crate::number::{float, from_int};
use crate::reference::elementwise::{binary, compare};
use crate::reference::tile::{self, narrowed, padded, widened};
use crate::sink::{Array, Call, Sink};
use crate::spec::{Entry, Tolerance};

#[derive(Clone, Copy, PartialEq)]
enum Fold {
    One(BinaryOp),
    /// The comparison that makes the second value the better one.
    Arg(CmpOp),
    CountMax,
    ComplexMul,
    Compose,
}

fn fold(name: &str) -> Result<Fold, String> {
    Ok(match name {
        "argmax" => Fold::Arg(CmpOp::Gt),
        "argmin" => Fold::Arg(CmpOp::Lt),
        "count_max" => Fold::CountMax,
        "complex_mul" => Fold::ComplexMul,
        "compose" => Fold::Compose,
        _ => Fold::One(BinaryOp::from_name(name).ok_or_else(|| format!("there is no operation `{name}`"))?),
    })
}

impl Fold {
    /// Types of the arrays loaded.
    fn loaded(self, elem: Elem) -> Vec<Elem> {
        match self {
            Fold::One(_) | Fold::Arg(_) | Fold::CountMax => vec![elem],
            Fold::ComplexMul | Fold::Compose => vec![elem; 2],
        }
    }

    /// Types of the values folded.
    fn folded(self, elem: Elem) -> Vec<Elem> {
        match self {
            Fold::Arg(_) | Fold::CountMax => vec![elem, Elem::I32],
            _ => self.loaded(elem),
        }
    }

    /// The values folded, from those loaded.
    fn operands(self, b: &mut Builder<'_>, v: &[Value], axis: usize) -> Vec<Value> {
        let shape = b.kernel.ty(v[0]).shape().expect("a tile");
        match self {
            Fold::Arg(_) => {
                let iota = b.iota(0, shape.dims()[axis]);
                let mut around = vec![1; shape.rank()];
                around[axis] = shape.dims()[axis];
                let index = b.reshape(iota, Shape::new(&around));
                vec![v[0], b.broadcast(index, shape)]
            }
            Fold::CountMax => {
                let one = b.int(1, Elem::I32);
                vec![v[0], b.broadcast(one, shape)]
            }
            _ => v.to_vec(),
        }
    }

    fn region(self, b: &mut Builder<'_>, v: &[Value]) -> SmallVec<[Value; 4]> {
        match self {
            Fold::One(op) => smallvec![b.binary(op, v[0], v[1])],
            Fold::Arg(better) => {
                let (beats, equal, lower) =
                    (b.cmp(better, v[2], v[0]), b.cmp(CmpOp::Eq, v[2], v[0]), b.cmp(CmpOp::Lt, v[3], v[1]));
                let tie = b.binary(BinaryOp::And, equal, lower);
                let second = b.binary(BinaryOp::Or, beats, tie);
                smallvec![b.select(second, v[2], v[0]), b.select(second, v[3], v[1])]
            }
            Fold::CountMax => {
                let (first, second) = (b.cmp(CmpOp::Gt, v[0], v[2]), b.cmp(CmpOp::Gt, v[2], v[0]));
                let both = b.binary(BinaryOp::Add, v[1], v[3]);
                let not_second = b.select(first, v[1], both);
                smallvec![b.select(second, v[2], v[0]), b.select(second, v[3], not_second)]
            }
            Fold::ComplexMul => {
                let mut mul = |x, y| b.binary(BinaryOp::Mul, x, y);
                let (rr, ii, ri, ir) = (mul(v[0], v[2]), mul(v[1], v[3]), mul(v[0], v[3]), mul(v[1], v[2]));
                smallvec![b.binary(BinaryOp::Sub, rr, ii), b.binary(BinaryOp::Add, ri, ir)]
            }
            Fold::Compose => {
                // First the running function, then the element's: a₂·(a₁x + b₁) + b₂.
                let scaled = b.binary(BinaryOp::Mul, v[2], v[1]);
                smallvec![b.binary(BinaryOp::Mul, v[0], v[2]), b.binary(BinaryOp::Add, scaled, v[3])]
            }
        }
    }

    fn combine(self, elem: Elem, x: &[u64], y: &[u64]) -> Vec<u64> {
        let f = |op, a, b| binary(op, elem, a, b).expect("defined everywhere");
        match self {
            Fold::One(op) => vec![f(op, x[0], y[0])],
            Fold::Arg(better) => {
                let tie = compare(CmpOp::Eq, elem, y[0], x[0]) && y[1] < x[1];
                if compare(better, elem, y[0], x[0]) || tie { y.to_vec() } else { x.to_vec() }
            }
            Fold::CountMax if compare(CmpOp::Gt, elem, x[0], y[0]) => x.to_vec(),
            Fold::CountMax if compare(CmpOp::Gt, elem, y[0], x[0]) => y.to_vec(),
            Fold::CountMax => vec![x[0], x[1] + y[1]],
            Fold::ComplexMul => {
                let m = |a, b| f(BinaryOp::Mul, a, b);
                let real = f(BinaryOp::Sub, m(x[0], y[0]), m(x[1], y[1]));
                vec![real, f(BinaryOp::Add, m(x[0], y[1]), m(x[1], y[0]))]
            }
            Fold::Compose => {
                vec![f(BinaryOp::Mul, x[0], y[0]), f(BinaryOp::Add, f(BinaryOp::Mul, y[0], x[1]), y[1])]
            }
        }
    }

    /// The values folded, as arrays.
    fn reference_operands(self, tiles: Vec<Array>, axis: usize) -> Vec<Array> {
        let (dims, count) = (tiles[0].dims.clone(), tiles[0].bits.len());
        let extra = |bits: Vec<u64>| Array { elem: Elem::I32, dims: dims.clone(), bits };
        let mut all = tiles;
        match self {
            Fold::Arg(_) => {
                all.push(extra((0..count).map(|p| tile::coordinates(p, &dims)[axis] as u64).collect()));
            }
            Fold::CountMax => all.push(extra(vec![from_int(Elem::I32, 1); count])),
            _ => {}
        }
        all
    }
}

/// Expands an entry.
pub fn expand(entry: &Entry, sink: &mut Sink) -> Result<(), String> {
    for op in entry.op.list() {
        for variant in entry.variants() {
            for elem in entry.dtypes.elems()? {
                for dims in &entry.shapes {
                    let axes =
                        if entry.axes.is_empty() { (0..dims.len()).collect() } else { entry.axes.clone() };
                    for axis in axes.into_iter().filter(|&a| a < dims.len()) {
                        for warps in entry.warps() {
                            for pattern in entry.inputs.list() {
                                one(entry, sink, (op, variant, elem), (dims, axis, warps), pattern)?;
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

fn one(
    entry: &Entry,
    sink: &mut Sink,
    (op, variant, elem): (&str, &str, Elem),
    (dims, axis, warps): (&[u32], usize, u32),
    pattern: &str,
) -> Result<(), String> {
    let fold = fold(op)?;
    let reverse = match variant {
        "" => None,
        "scan" => Some(false),
        "reverse_scan" => Some(true),
        _ => return Err(format!("there is no variant `{variant}`")),
    };
    let tile = tile_of(dims);
    let (axis_name, warps_name) = (format!("axis{axis}"), format!("w{warps}"));
    let parts = [op, variant, elem.name(), &axis_name, &warps_name];
    let Some(name) = sink.name(&[&parts[..], &[pattern, &shape_name(dims)]].concat()) else { return Ok(()) };

    let folded = fold.folded(elem);
    let kernel = sink.kernel(&[&parts[..], &[&shape_name(&tile)]].concat(), |name| {
        let inputs: Vec<_> = fold.loaded(elem).into_iter().map(|e| (e, tile.clone())).collect();
        let rank = if reverse.is_some() { tile.len() } else { tile.len() - 1 };
        let outputs: Vec<_> = folded.iter().map(|&e| (e, rank)).collect();
        TileKernel { inputs: &inputs, outputs: &outputs, padding: Padding::Zero, warps, programs: false }
            .build(name, |b, v| {
                let operands = fold.operands(b, v, axis);
                let region = |b: &mut Builder<'_>, v: &[Value]| fold.region(b, v);
                match reverse {
                    None => b.reduce(axis, &operands, region).to_vec(),
                    Some(reverse) => b.scan(axis, reverse, &operands, region).to_vec(),
                }
            })
    });

    let shapes: Vec<_> = fold.loaded(elem).into_iter().map(|e| (e, dims.to_vec())).collect();
    let arrays = inputs(pattern, &shapes, &mut Rng::new(&name))?;
    let tiles: Vec<Array> = arrays.iter().map(|a| padded(a, &tile, 0)).collect();
    let along = |inputs: &[Array], combine: &tile::Combine<'_>| match reverse {
        None => tile::reduce(inputs, axis, combine),
        Some(reverse) => tile::scan(inputs, axis, reverse, combine),
    };
    // The order is open, so float sums are compared with the exact one, or to within what any order can lose.
    let sums = fold == Fold::One(BinaryOp::Add) && elem.is_float();
    let (results, within) = if sums {
        let wide = widened(&tiles[0]);
        let sum: &tile::Combine<'_> = &|x, y| fold.combine(Elem::F64, x, y);
        let magnitudes = Array { bits: wide.bits.iter().map(|b| b & !(1 << 63)).collect(), ..wide.clone() };
        let exact = along(&[wide], sum).remove(0);
        let bounds = along(&[magnitudes], sum).remove(0);
        (vec![narrowed(&exact, elem)], Some(bounds))
    } else {
        let operands = fold.reference_operands(tiles, axis);
        (along(&operands, &|x, y| fold.combine(elem, x, y)), None)
    };
    let mut call = Call::default();
    arrays.iter().for_each(|a| call.input_view(a));
    for result in results {
        let rule = match (entry.tolerance, &within) {
            (Some(Tolerance::Relative(r)), Some(bounds)) => {
                Rule::Within(bounds.bits.iter().map(|&b| r * float(Elem::F64, b)).collect())
            }
            (tolerance, _) => rule(tolerance, elem)?,
        };
        call.output_view(result.at_least_one_dimension(), rule, Vec::new());
    }
    sink.push(call.case(name, kernel, [1; 3], entry.min_sm()));
    Ok(())
}
