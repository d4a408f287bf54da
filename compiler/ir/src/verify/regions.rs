//! What the regions of an operation take, hold and yield.

use super::{Check, ensure};
use crate::kernel::{Block, Kernel, Op, Value};
use crate::op::Opcode;
use crate::types::{Shape, Type};

/// Checks the regions of an operation whose operands and results are checked: how many there are, the types of their arguments, and
/// what their terminators pass on.
pub fn check_regions(kernel: &Kernel, op: Op) -> Check {
    let data = &kernel.ops[op];
    let wanted = match data.opcode {
        Opcode::For(_) | Opcode::Reduce { .. } | Opcode::Scan { .. } => 1,
        Opcode::WarpSpecialize(_) => data.regions.len().clamp(2, 3),
        Opcode::While | Opcode::If | Opcode::WarpGroups(_) => 2,
        _ => 0,
    };
    ensure!(data.regions.len() == wanted, "has {} regions instead of {wanted}", data.regions.len());
    let results = types(kernel, &data.results);
    let operands = types(kernel, &data.operands);
    match data.opcode {
        Opcode::For(_) => {
            let args: Vec<Type> = std::iter::once(operands[0]).chain(results.iter().copied()).collect();
            check_args(kernel, data.regions[0], &args)?;
            check_end(kernel, data.regions[0], &Opcode::Yield, &results)
        }
        Opcode::While => {
            check_args(kernel, data.regions[0], &results)?;
            check_args(kernel, data.regions[1], &results)?;
            let condition = Type::scalar(crate::types::Elem::I1);
            let passed: Vec<Type> = std::iter::once(condition).chain(results.iter().copied()).collect();
            check_end(kernel, data.regions[0], &Opcode::Condition, &passed)?;
            check_end(kernel, data.regions[1], &Opcode::Yield, &results)
        }
        Opcode::If | Opcode::WarpSpecialize(_) | Opcode::WarpGroups(_) => {
            data.regions.iter().try_for_each(|&region| {
                check_args(kernel, region, &[])?;
                check_end(kernel, region, &Opcode::Yield, &results)
            })
        }
        Opcode::Reduce { .. } | Opcode::Scan { .. } => {
            let scalars: Vec<Type> = operands.iter().map(|t| t.with_shape(Shape::SCALAR)).collect();
            check_args(kernel, data.regions[0], &[scalars.clone(), scalars.clone()].concat())?;
            check_end(kernel, data.regions[0], &Opcode::Yield, &scalars)
        }
        _ => Ok(()),
    }
}

/// Checks one operation inside the region of a `reduce` or `scan`, at any depth: a code generator applies the region to the
/// registers of a thread, in any order.
pub(super) fn check_in_combine(kernel: &Kernel, op: Op) -> Check {
    let data = &kernel.ops[op];
    let touches =
        data.opcode.reads_memory() || data.opcode.writes_memory() || data.opcode.has_other_effects();
    ensure!(!touches, "has no place in the region of a reduce or scan, which only computes");
    let scalars = data.operands.iter().chain(&data.results).all(|&v| kernel.ty(v).is_scalar());
    ensure!(scalars, "works on a tile inside the region of a reduce or scan, which computes on scalars");
    Ok(())
}

fn types(kernel: &Kernel, values: &[Value]) -> Vec<Type> {
    values.iter().map(|&v| kernel.ty(v)).collect()
}

fn check_args(kernel: &Kernel, block: Block, wanted: &[Type]) -> Check {
    let args = types(kernel, &kernel.blocks[block].args);
    ensure!(args == wanted, "a region takes {}, but should take {}", list(&args), list(wanted));
    Ok(())
}

fn check_end(kernel: &Kernel, block: Block, terminator: &Opcode, wanted: &[Type]) -> Check {
    let end = kernel.terminator(block).filter(|&op| kernel.ops[op].opcode == *terminator);
    let Some(end) = end else {
        return Err(format!("a region does not end in `{}`", terminator.mnemonic()));
    };
    let passed = types(kernel, &kernel.ops[end].operands);
    let name = terminator.mnemonic();
    ensure!(passed == wanted, "`{name}` passes {}, but should pass {}", list(&passed), list(wanted));
    Ok(())
}

fn list(types: &[Type]) -> String {
    if types.is_empty() {
        return "nothing".to_owned();
    }
    types.iter().map(|t| format!("`{t}`")).collect::<Vec<_>>().join(", ")
}
