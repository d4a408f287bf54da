//! Rearrangements: broadcast, splat, expand, reshape, permute, join, split, gather.
//!
//! `shapes` are the arrays; a program loads one padded to powers of two and stores the whole result. `to_shapes` are the shapes
//! broadcast or reshaped to, the permutations, or the shapes of gather's indices.

use tegula_ir::builder::Builder;
use tegula_ir::kernel::Value;
use tegula_ir::op::{Opcode, Padding};
use tegula_ir::types::{Elem, Shape};

use super::{inputs, shape_name, tile_of};
use crate::case::Rule;
use crate::draft::TileKernel;
use crate::inputs::{Rng, value};
use crate::reference::tile::{padded, position, rearranged};
use crate::sink::{Array, Call, Sink};
use crate::spec::Entry;

/// One rearrangement of a tile of given shape.
#[derive(Clone, Debug)]
enum Move {
    Broadcast(Vec<u32>),
    Splat(Vec<u32>),
    Expand(usize),
    Reshape(Vec<u32>),
    Permute(Vec<u32>),
    Join,
    Split,
    Gather { axis: usize, index: Vec<u32> },
}

/// The moves of an entry that fit a tile.
fn moves(entry: &Entry, op: &str, tile: &[u32]) -> Result<Vec<Move>, String> {
    let same_rank = |to: &&Vec<u32>| to.len() == tile.len();
    let count = |dims: &[u32]| Array::count(dims);
    let targets = entry.to_shapes.iter();
    Ok(match op {
        "broadcast" => targets
            .filter(same_rank)
            .filter(|to| tile.iter().zip(*to).all(|(&a, &b)| a == b || a == 1))
            .map(|to| Move::Broadcast(to.clone()))
            .collect(),
        "splat" => targets.map(|to| Move::Splat(to.clone())).collect(),
        "expand" => (0..=tile.len()).map(Move::Expand).collect(),
        "reshape" => {
            targets.filter(|to| count(to) == count(tile)).map(|to| Move::Reshape(to.clone())).collect()
        }
        "permute" => targets.filter(same_rank).map(|to| Move::Permute(to.clone())).collect(),
        "join" => vec![Move::Join],
        "split" => vec![Move::Split],
        "gather" => {
            let fits = |axis: usize, to: &&Vec<u32>| {
                to.len() == tile.len() && (0..to.len()).all(|d| d == axis || to[d] == tile[d])
            };
            let axes = if entry.axes.is_empty() { (0..tile.len()).collect() } else { entry.axes.clone() };
            axes.into_iter()
                .flat_map(|axis| {
                    let index = entry.to_shapes.iter().filter(move |to| fits(axis, to));
                    index.map(move |to| Move::Gather { axis, index: to.clone() })
                })
                .collect()
        }
        _ => return Err(format!("there is no operation `{op}`")),
    })
}

impl Move {
    /// As part of a name.
    fn name(&self) -> String {
        match self {
            Move::Broadcast(to) | Move::Splat(to) | Move::Reshape(to) => format!("to{}", shape_name(to)),
            Move::Expand(axis) => format!("axis{axis}"),
            Move::Permute(perm) => {
                format!("by{}", perm.iter().map(u32::to_string).collect::<Vec<_>>().concat())
            }
            Move::Join | Move::Split => String::new(),
            Move::Gather { axis, index } => format!("axis{axis}-index{}", shape_name(index)),
        }
    }

    fn build(&self, b: &mut Builder<'_>, v: &[Value]) -> Vec<Value> {
        let ty = b.kernel.ty(v[0]);
        let dims = ty.shape().expect("a tile").dims().to_vec();
        match self {
            Move::Broadcast(to) => vec![b.broadcast(v[0], Shape::new(to))],
            Move::Splat(to) => {
                let scalar = b.reshape(v[0], Shape::SCALAR);
                vec![b.broadcast(scalar, Shape::new(to))]
            }
            Move::Expand(axis) => vec![b.expand(v[0], *axis)],
            Move::Reshape(to) => vec![b.reshape(v[0], Shape::new(to))],
            Move::Permute(perm) => vec![b.permute(v[0], perm)],
            Move::Join => {
                let shape = Shape::new(&[&dims[..], &[2]].concat());
                vec![b.value(Opcode::Join, v, ty.with_shape(shape))]
            }
            Move::Split => {
                let half = ty.with_shape(Shape::new(&dims[..dims.len() - 1]));
                let op = b.op(Opcode::Split, v, [half, half]);
                b.kernel.ops[op].results.to_vec()
            }
            Move::Gather { axis, index } => {
                let ty = ty.with_shape(Shape::new(index));
                vec![b.value(Opcode::Gather { axis: *axis as u8 }, v, ty)]
            }
        }
    }

    fn reference(&self, tiles: &[Array]) -> Vec<Array> {
        let tile = &tiles[0];
        let from = |dims: &[u32], source: &dyn Fn(&[usize]) -> Vec<usize>| rearranged(tile, dims, 0, source);
        match self {
            Move::Broadcast(to) => {
                let at = |at: &[usize]| {
                    at.iter().zip(&tile.dims).map(|(&c, &d)| if d == 1 { 0 } else { c }).collect()
                };
                vec![from(to, &at)]
            }
            Move::Splat(to) => vec![from(to, &|_| vec![0])],
            Move::Expand(axis) => {
                let mut dims = tile.dims.clone();
                dims.insert(*axis, 1);
                vec![Array { dims, ..tile.clone() }]
            }
            Move::Reshape(to) => vec![Array { dims: to.clone(), ..tile.clone() }],
            Move::Permute(perm) => {
                let dims: Vec<u32> = perm.iter().map(|&p| tile.dims[p as usize]).collect();
                let source = |at: &[usize]| {
                    let mut source = vec![0; at.len()];
                    perm.iter().zip(at).for_each(|(&p, &c)| source[p as usize] = c);
                    source
                };
                vec![from(&dims, &source)]
            }
            Move::Join => {
                let bits = tile.bits.iter().zip(&tiles[1].bits).flat_map(|(&a, &b)| [a, b]).collect();
                vec![Array { elem: tile.elem, dims: [&tile.dims[..], &[2]].concat(), bits }]
            }
            Move::Split => {
                let dims = &tile.dims[..tile.dims.len() - 1];
                (0..2).map(|half| from(dims, &|at| [at, &[half]].concat())).collect()
            }
            Move::Gather { axis, index } => {
                let source = |at: &[usize]| {
                    let mut source = at.to_vec();
                    source[*axis] = tiles[1].bits[position(at, index)] as usize;
                    source
                };
                vec![from(index, &source)]
            }
        }
    }
}

/// Expands an entry.
pub fn expand(entry: &Entry, sink: &mut Sink) -> Result<(), String> {
    for op in entry.op.list() {
        for elem in entry.dtypes.elems()? {
            for dims in &entry.shapes {
                for how in moves(entry, op, &tile_of(dims))? {
                    for warps in entry.warps() {
                        one(entry, sink, (op, elem, dims), &how, warps)?;
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
    (op, elem, dims): (&str, Elem, &[u32]),
    how: &Move,
    warps: u32,
) -> Result<(), String> {
    let tile = tile_of(dims);
    let (how_name, warps_name) = (how.name(), format!("w{warps}"));
    let index_elem = entry.to.elems()?.first().copied().unwrap_or(Elem::I32);
    let index_name = if matches!(how, Move::Gather { .. }) { index_elem.name() } else { "" };
    let names = [op, elem.name(), index_name, &how_name, &warps_name, &shape_name(dims)];
    let Some(name) = sink.name(&names) else { return Ok(()) };
    let mut rng = Rng::new(&name);
    let mut operands = vec![(elem, dims.to_vec())];
    if matches!(how, Move::Join) {
        operands.push((elem, dims.to_vec()));
    }
    let mut arrays = inputs("bits", &operands, &mut rng)?;
    let mut tiles: Vec<Array> = arrays.iter().map(|a| padded(a, &tile, 0)).collect();
    if let Move::Gather { axis, index } = how {
        let bits = (0..Array::count(index)).map(|_| value(index_elem, rng.below(tile[*axis].into()) as f64));
        let index = Array { elem: index_elem, dims: index.clone(), bits: bits.collect() };
        arrays.push(index.clone());
        tiles.push(index);
    }
    let results = how.reference(&tiles);
    let kernel =
        sink.kernel(&[op, elem.name(), index_name, &how_name, &warps_name, &shape_name(&tile)], |name| {
            let inputs: Vec<_> = tiles.iter().map(|t| (t.elem, t.dims.clone())).collect();
            let outputs: Vec<_> = results.iter().map(|r| (r.elem, r.dims.len())).collect();
            TileKernel { inputs: &inputs, outputs: &outputs, padding: Padding::Zero, warps, programs: false }
                .build(name, |b, v| how.build(b, v))
        });
    let mut call = Call::default();
    arrays.iter().for_each(|a| call.input_view(a));
    for result in results {
        call.output_view(result.at_least_one_dimension(), Rule::Exact, Vec::new());
    }
    sink.push(call.case(name, kernel, [1; 3], entry.min_sm()));
    Ok(())
}
