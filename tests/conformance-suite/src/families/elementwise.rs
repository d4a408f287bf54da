//! Operations element by element: arithmetic, maths, comparisons, selection, bits and shifts.
//!
//! `op` is a mnemonic of the IR, or `clamp` (the composition that the language builds). Programs cover the array tile by tile, so odd
//! extents leave a partial tile at the end.

use tegula_ir::builder::Builder;
use tegula_ir::kernel::Value;
use tegula_ir::op::{BinaryOp, CmpOp, Padding, UnaryOp};
use tegula_ir::types::Elem;

use super::{inputs, rule, shape_name};
use crate::draft::{TileKernel, grid};
use crate::inputs::Rng;
use crate::reference::elementwise::{Function, evaluate};
use crate::sink::{Array, Call, Sink};
use crate::spec::Entry;

fn function(name: &str) -> Result<Function, String> {
    if let Some(op) = UnaryOp::from_name(name) {
        return Ok(Function::Unary(op));
    }
    if let Some(op) = BinaryOp::from_name(name) {
        return Ok(Function::Binary(op));
    }
    if let Some(op) = CmpOp::from_name(name) {
        return Ok(Function::Cmp(op));
    }
    match name {
        "select" => Ok(Function::Select),
        "fma" => Ok(Function::Fma),
        "clamp" => Ok(Function::Clamp),
        _ => Err(format!("there is no operation `{name}`")),
    }
}

fn build(b: &mut Builder<'_>, function: Function, v: &[Value]) -> Value {
    match function {
        Function::Unary(op) => b.unary(op, v[0]),
        Function::Binary(op) => b.binary(op, v[0], v[1]),
        Function::Cmp(op) => b.cmp(op, v[0], v[1]),
        Function::Select => b.select(v[0], v[1], v[2]),
        Function::Fma => b.fma(v[0], v[1], v[2]),
        Function::Clamp => {
            let raised = b.binary(BinaryOp::Max, v[0], v[1]);
            b.binary(BinaryOp::Min, raised, v[2])
        }
    }
}

/// Operand types and the result's.
fn signature(function: Function, elem: Elem) -> (Vec<Elem>, Elem) {
    match function {
        Function::Unary(_) => (vec![elem], elem),
        Function::Binary(_) => (vec![elem; 2], elem),
        Function::Cmp(_) => (vec![elem; 2], Elem::I1),
        Function::Select => (vec![Elem::I1, elem, elem], elem),
        Function::Fma | Function::Clamp => (vec![elem; 3], elem),
    }
}

/// Expands an entry.
pub fn expand(entry: &Entry, sink: &mut Sink) -> Result<(), String> {
    for op in entry.op.list() {
        let function = function(op)?;
        for elem in entry.dtypes.elems()? {
            let (operands, result) = signature(function, elem);
            for pattern in entry.inputs.list() {
                for dims in &entry.shapes {
                    let Some(name) = sink.name(&[op, elem.name(), pattern, &shape_name(dims)]) else {
                        continue;
                    };
                    let tile = &entry.tile;
                    let kernel = sink.kernel(&[op, elem.name(), &shape_name(tile)], |name| {
                        let inputs: Vec<_> = operands.iter().map(|&e| (e, tile.clone())).collect();
                        let (outputs, padding) = (&[(result, tile.len())][..], Padding::Zero);
                        TileKernel { inputs: &inputs, outputs, padding, warps: 4, programs: true }
                            .build(name, |b, v| vec![build(b, function, v)])
                    });
                    let shapes: Vec<_> = operands.iter().map(|&e| (e, dims.clone())).collect();
                    let arrays = inputs(pattern, &shapes, &mut Rng::new(&name))?;
                    let results: Vec<Option<u64>> = (0..Array::count(dims))
                        .map(|i| {
                            let args: Vec<u64> = arrays.iter().map(|a| a.bits[i]).collect();
                            evaluate(function, elem, &args)
                        })
                        .collect();
                    let mut call = Call::default();
                    arrays.iter().for_each(|a| call.input_view(a));
                    let ignore = results.iter().map(Option::is_none).collect();
                    let bits = results.into_iter().map(Option::unwrap_or_default).collect();
                    let wanted = Array { elem: result, dims: dims.clone(), bits };
                    call.output_view(wanted, rule(entry.tolerance, result)?, ignore);
                    sink.push(call.case(name, kernel, grid(dims, tile), entry.min_sm()));
                }
            }
        }
    }
    Ok(())
}
