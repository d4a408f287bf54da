//! Conversions: `cast` between any two types (perhaps through a third that exists only in registers), with both roundings, and
//! `bitcast`.

use tegula_ir::op::{Opcode, Padding, Rounding};
use tegula_ir::types::Elem;

use super::{inputs, rule, shape_name};
use crate::draft::{TileKernel, grid};
use crate::inputs::Rng;
use crate::number;
use crate::sink::{Array, Call, Sink};
use crate::spec::Entry;

/// Expands an entry.
pub fn expand(entry: &Entry, sink: &mut Sink) -> Result<(), String> {
    let vias: Vec<Option<Elem>> = match entry.via.elems()? {
        list if list.is_empty() => vec![None],
        list => list.into_iter().map(Some).collect(),
    };
    for op in entry.op.list() {
        for from in entry.dtypes.elems()? {
            for &via in &vias {
                for to in entry.to.elems()? {
                    one(entry, sink, op, from, via, to)?;
                }
            }
        }
    }
    Ok(())
}

fn one(
    entry: &Entry,
    sink: &mut Sink,
    op: &str,
    from: Elem,
    via: Option<Elem>,
    to: Elem,
) -> Result<(), String> {
    let (opcode, rounding) = match op {
        "cast" => (Opcode::Cast(Rounding::Default), Rounding::Default),
        "cast_toward_zero" => (Opcode::Cast(Rounding::TowardZero), Rounding::TowardZero),
        "bitcast" => (Opcode::Bitcast, Rounding::Default),
        _ => return Err(format!("there is no operation `{op}`")),
    };
    if from == to && via.is_none() || op == "bitcast" && from.bits() != to.bits() {
        return Ok(());
    }
    let route = match via {
        Some(via) => format!("{from}-{via}-{to}"),
        None => format!("{from}-{to}"),
    };
    let steps: Vec<Elem> = via.into_iter().chain([to]).collect();
    for pattern in entry.inputs.list() {
        for dims in &entry.shapes {
            let Some(name) = sink.name(&[op, &route, pattern, &shape_name(dims)]) else { continue };
            let tile = &entry.tile;
            let kernel =
                sink.kernel(&[op, &route, &shape_name(tile)], |name| {
                    let (inputs, outputs) = ([(from, tile.clone())], [(to, tile.len())]);
                    let padding = Padding::Zero;
                    TileKernel { inputs: &inputs, outputs: &outputs, padding, warps: 4, programs: true }
                        .build(name, |b, v| {
                            let convert = |b: &mut tegula_ir::builder::Builder<'_>, v, &to: &Elem| {
                                let ty = b.kernel.ty(v).with_elem(to);
                                b.value(opcode.clone(), &[v], ty)
                            };
                            vec![steps.iter().fold(v[0], |v, to| convert(b, v, to))]
                        })
                });
            let arrays = inputs(pattern, &[(from, dims.clone())], &mut Rng::new(&name))?;
            let convert = |&bits: &u64| {
                if op == "bitcast" {
                    return bits;
                }
                let step =
                    |(from, bits): (Elem, u64), &to: &Elem| (to, number::cast(from, to, bits, rounding));
                steps.iter().fold((from, bits), step).1
            };
            let bits = arrays[0].bits.iter().map(convert).collect();
            let mut call = Call::default();
            call.input_view(&arrays[0]);
            let wanted = Array { elem: to, dims: dims.clone(), bits };
            call.output_view(wanted, rule(entry.tolerance, to)?, Vec::new());
            sink.push(call.case(name, kernel, grid(dims, tile), entry.min_sm()));
        }
    }
    Ok(())
}
