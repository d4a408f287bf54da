//! Loads and stores through views: what lies outside is padded or dropped, on every side.
//!
//! `op` is `load` (`variants`: the padding), `store`, `add` (three programs add one tile), `facts` (extents, strides and address as values) or `make` (a view made in the
//! kernel). `shapes` are the views, `tile` is loaded at each of `offsets`; `places` say how the view lies in memory and `to` which
//! type the offsets have.

use tegula_ir::builder::Builder;
use tegula_ir::kernel::Value;
use tegula_ir::op::{Opcode, Padding};
use tegula_ir::types::{Elem, Type};

use super::{inputs, shape_name};
use crate::case::{HostArg, Rule};
use crate::draft::{kernel, plain, view_load, view_store};
use crate::inputs::Rng;
use crate::number::{float, from_float, from_int};
use crate::place::Place;
use crate::reference::tile::coordinates;
use crate::sink::{Array, Call, Sink, poison};
use crate::spec::Entry;

/// Expands an entry.
pub fn expand(entry: &Entry, sink: &mut Sink) -> Result<(), String> {
    for op in entry.op.list() {
        for elem in entry.dtypes.elems()? {
            for place in entry.places.list() {
                for dims in entry.shapes.iter() {
                    match op {
                        "load" | "store" => moves(entry, sink, op, elem, place, dims)?,
                        "add" => adds(entry, sink, elem, place, dims)?,
                        "facts" => facts(entry, sink, elem, place, dims)?,
                        "make" => make(entry, sink, elem, place, dims)?,
                        _ => return Err(format!("there is no operation `{op}`")),
                    }
                }
            }
        }
    }
    Ok(())
}

/// The pattern that a padding stands for.
fn padding_bits(padding: Padding, elem: Elem) -> u64 {
    match padding {
        Padding::Zero => 0,
        Padding::NegInf => from_float(elem, f64::NEG_INFINITY, Default::default()),
        Padding::PosInf => from_float(elem, f64::INFINITY, Default::default()),
        Padding::NaN => from_float(elem, f64::NAN, Default::default()),
    }
}

fn moves(
    entry: &Entry,
    sink: &mut Sink,
    op: &str,
    elem: Elem,
    place_name: &str,
    dims: &[u32],
) -> Result<(), String> {
    let place = Place::parse(place_name)?;
    let (tile, rank) = (&entry.tile, dims.len());
    if tile.len() != rank {
        return Ok(());
    }
    let offset_elem = entry.to.elems()?.first().copied().unwrap_or(Elem::I32);
    for variant in entry.variants() {
        let padding = match variant {
            "" => Padding::Zero,
            name => Padding::from_name(name).ok_or_else(|| format!("there is no padding `{name}`"))?,
        };
        for offsets in entry.offsets.iter().filter(|o| o.len() == rank) {
            let at = offsets.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
            let parts = [op, variant, elem.name(), place_name, offset_elem.name(), &shape_name(tile)];
            let Some(name) = sink.name(&[&parts[..], &[&shape_name(dims), &format!("at({at})")]].concat())
            else {
                continue;
            };
            let kernel = sink.kernel(&parts, |name| {
                let view = |mutable: bool, place: Place| (Type::view(elem, rank, mutable), place.facts(rank));
                let (from, to) = if op == "load" { (place, Place::Dense) } else { (Place::Dense, place) };
                let mut params = vec![view(false, from), view(true, to)];
                params.extend((0..rank).map(|_| plain(Type::scalar(offset_elem))));
                kernel(name, 4, &params, |b, p| {
                    let zeros: Vec<Value> = (0..rank).map(|_| b.int(0, offset_elem)).collect();
                    let (from, to) = if op == "load" { (&p[2..], &zeros[..]) } else { (&zeros[..], &p[2..]) };
                    let value = view_load(b, p[0], from, tile, padding);
                    view_store(b, p[1], to, value);
                })
            });
            let mut rng = Rng::new(&name);
            let mut call = Call::default();
            // The place in the view of each element of the tile.
            let target = |p: usize| -> Option<usize> {
                let at: Vec<i64> =
                    coordinates(p, tile).iter().zip(offsets).map(|(&c, &o)| c as i64 + o).collect();
                let inside = at.iter().zip(dims).all(|(&c, &d)| (0..i64::from(d)).contains(&c));
                inside.then(|| at.iter().zip(dims).fold(0, |p, (&c, &d)| p * d as usize + c as usize))
            };
            let count = Array::count(tile);
            if op == "load" {
                let array = inputs("bits", &[(elem, dims.to_vec())], &mut rng)?.remove(0);
                let outside = padding_bits(padding, elem);
                let bits = (0..count).map(|p| target(p).map_or(outside, |q| array.bits[q])).collect();
                place.input(&mut call, &array);
                Place::Dense.output(&mut call, &Array { elem, dims: tile.clone(), bits }, Rule::Exact);
            } else {
                let array = inputs("bits", &[(elem, tile.clone())], &mut rng)?.remove(0);
                let mut wanted =
                    Array { elem, dims: dims.to_vec(), bits: vec![poison(elem); Array::count(dims)] };
                for p in 0..count {
                    if let Some(q) = target(p) {
                        wanted.bits[q] = array.bits[p];
                    }
                }
                Place::Dense.input(&mut call, &array);
                place.output(&mut call, &wanted, Rule::Exact);
            }
            for &offset in offsets {
                call.args
                    .push(HostArg::Scalar { elem: offset_elem, bits: from_int(offset_elem, offset.into()) });
            }
            sink.push(call.case(name, kernel, [1; 3], entry.min_sm()));
        }
    }
    Ok(())
}

/// Programs that add the same tile at each of `offsets`, in whatever order they come to it. Whole numbers, whose sums are exact.
const ADDERS: u32 = 3;

fn adds(entry: &Entry, sink: &mut Sink, elem: Elem, place_name: &str, dims: &[u32]) -> Result<(), String> {
    let (place, tile, rank) = (Place::parse(place_name)?, &entry.tile, dims.len());
    if tile.len() != rank {
        return Ok(());
    }
    for offsets in entry.offsets.iter().filter(|o| o.len() == rank) {
        let at = offsets.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let parts = ["add", elem.name(), place_name, &shape_name(tile)];
        let Some(name) = sink.name(&[&parts[..], &[&shape_name(dims), &format!("at({at})")]].concat()) else {
            continue;
        };
        let kernel = sink.kernel(&parts, |name| {
            let view = |mutable: bool, place: Place| (Type::view(elem, rank, mutable), place.facts(rank));
            let mut params = vec![view(false, Place::Dense), view(true, place)];
            params.extend((0..rank).map(|_| plain(Type::scalar(Elem::I32))));
            kernel(name, 4, &params, |b, p| {
                let zeros: Vec<Value> = (0..rank).map(|_| b.int(0, Elem::I32)).collect();
                let value = view_load(b, p[0], &zeros, tile, Padding::Zero);
                let operands = [&[p[1]], &p[2..], &[value]].concat();
                b.effect(Opcode::ViewReduceAdd, &operands);
            })
        });
        let mut rng = Rng::new(&name);
        let mut whole = |dims: &[u32]| {
            let numbers = (0..Array::count(dims)).map(|_| rng.below(200) as f64 - 100.0);
            let bits = numbers.map(|x| from_float(elem, x, Default::default())).collect();
            Array { elem, dims: dims.to_vec(), bits }
        };
        let (added, before) = (whole(tile), whole(dims));
        let mut after = before.clone();
        for p in 0..Array::count(tile) {
            let at: Vec<i64> =
                coordinates(p, tile).iter().zip(offsets).map(|(&c, &o)| c as i64 + o).collect();
            if at.iter().zip(dims).all(|(&c, &d)| (0..i64::from(d)).contains(&c)) {
                let q = at.iter().zip(dims).fold(0, |p, (&c, &d)| p * d as usize + c as usize);
                let sum = float(elem, after.bits[q]) + f64::from(ADDERS) * float(elem, added.bits[p]);
                after.bits[q] = from_float(elem, sum, Default::default());
            }
        }
        let mut call = Call::default();
        Place::Dense.input(&mut call, &added);
        place.update(&mut call, &before, &after);
        for &offset in offsets {
            call.args.push(HostArg::Scalar { elem: Elem::I32, bits: from_int(Elem::I32, offset.into()) });
        }
        sink.push(call.case(name, kernel, [ADDERS, 1, 1], entry.min_sm()));
    }
    Ok(())
}

/// Extents and strides as values, and the address: an element loaded through it.
fn facts(entry: &Entry, sink: &mut Sink, elem: Elem, place_name: &str, dims: &[u32]) -> Result<(), String> {
    let (place, rank) = (Place::parse(place_name)?, dims.len());
    let Some(name) = sink.name(&["facts", elem.name(), place_name, &shape_name(dims)]) else { return Ok(()) };
    let kernel = sink.kernel(&["facts", elem.name(), place_name, &rank.to_string()], |name| {
        let view = |elem, mutable, rank| Type::view(elem, rank, mutable);
        let params = [
            (view(elem, false, rank), place.facts(rank)),
            plain(view(Elem::I64, true, 1)),
            plain(view(elem, true, 1)),
        ];
        kernel(name, 4, &params, |b, p| {
            let i64 = Type::scalar(Elem::I64);
            for axis in 0..rank as u8 {
                for (at, opcode) in
                    [(2 * axis, Opcode::ViewDim(axis)), (2 * axis + 1, Opcode::ViewStride(axis))]
                {
                    let value = b.value(opcode, &p[..1], i64);
                    let at = b.int(at.into(), Elem::I32);
                    view_store(b, p[1], &[at], value);
                }
            }
            let base = b.value(Opcode::ViewBase, &p[..1], Type::ptr(elem));
            let first = crate::draft::load(b, &[base]);
            let zero = b.int(0, Elem::I32);
            view_store(b, p[2], &[zero], first);
        })
    });
    let array = inputs("bits", &[(elem, dims.to_vec())], &mut Rng::new(&name))?.remove(0);
    let strides = place.layout(dims).1;
    let both = dims.iter().zip(strides).flat_map(|(&d, s)| [u64::from(d), s as u64]).collect();
    let mut call = Call::default();
    place.input(&mut call, &array);
    let wanted = Array { elem: Elem::I64, dims: vec![2 * rank as u32], bits: both };
    call.output_view(wanted, Rule::Exact, Vec::new());
    call.output_view(Array { elem, dims: vec![1], bits: vec![array.bits[0]] }, Rule::Exact, Vec::new());
    sink.push(call.case(name, kernel, [1; 3], entry.min_sm()));
    Ok(())
}

/// A view made in the kernel, of the same memory with the dimensions in reverse.
fn make(entry: &Entry, sink: &mut Sink, elem: Elem, place_name: &str, dims: &[u32]) -> Result<(), String> {
    let (place, rank, tile) = (Place::parse(place_name)?, dims.len(), &entry.tile);
    if tile.len() != rank {
        return Ok(());
    }
    let Some(name) = sink.name(&["make", elem.name(), place_name, &shape_name(dims)]) else { return Ok(()) };
    let kernel = sink.kernel(&["make", elem.name(), place_name, &shape_name(tile)], |name| {
        let params = [
            (Type::view(elem, rank, false), place.facts(rank)),
            (Type::view(elem, rank, true), Place::Dense.facts(rank)),
        ];
        kernel(name, 4, &params, |b, p| {
            let base = b.value(Opcode::ViewBase, &p[..1], Type::ptr(elem));
            let reversed = |b: &mut Builder<'_>, opcode: fn(u8) -> Opcode| -> Vec<Value> {
                (0..rank as u8).rev().map(|d| b.value(opcode(d), &p[..1], Type::scalar(Elem::I64))).collect()
            };
            let (extents, strides) = (reversed(b, Opcode::ViewDim), reversed(b, Opcode::ViewStride));
            let operands = [&[base][..], &extents, &strides].concat();
            let view = b.value(Opcode::MakeView, &operands, Type::view(elem, rank, false));
            let zeros: Vec<Value> = (0..rank).map(|_| b.int(0, Elem::I64)).collect();
            let value = view_load(b, view, &zeros, tile, Padding::Zero);
            view_store(b, p[1], &zeros, value);
        })
    });
    let array = inputs("bits", &[(elem, dims.to_vec())], &mut Rng::new(&name))?.remove(0);
    let wanted = crate::reference::tile::rearranged(&array, tile, 0, |at| at.iter().rev().copied().collect());
    let mut call = Call::default();
    place.input(&mut call, &array);
    Place::Dense.output(&mut call, &wanted, Rule::Exact);
    sink.push(call.case(name, kernel, [1; 3], entry.min_sm()));
    Ok(())
}
