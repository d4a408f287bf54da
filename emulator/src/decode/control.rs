//! Branches, calls, exits, barriers of a CTA, and launch directives.

use super::LaunchBounds;
use super::function::Decoder;
use super::modifiers::Modifiers;
use super::op::{Barrier, BarrierMode, Call, Op, PredIn};
use super::types::Type;
use crate::error::PtxError;
use crate::ptx::ast::{Function, Instruction, Operand};

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    Ok(Some(match inst.opcode {
        "bra" => {
            mods.take("uni");
            let [Operand::Name(label)] = d.operands(inst)? else { return d.error("expected a label") };
            Op::Branch { target: d.label(label)? }
        }
        "brx" => {
            if !mods.take("idx") {
                return d.error("expected `brx.idx`");
            }
            mods.take("uni");
            let [index, Operand::Name(table)] = d.operands(inst)? else {
                return d.error("expected an index and a table of targets");
            };
            let (start, len) = d.target_table(table)?;
            Op::BranchIndexed { index: d.source(index, Type::U32)?, start, len }
        }
        "ret" => {
            mods.take("uni");
            d.operands::<0>(inst)?;
            Op::Ret
        }
        "exit" => {
            d.operands::<0>(inst)?;
            Op::Exit
        }
        "trap" => Op::Trap,
        "brkpt" => Op::Brkpt,
        "nanosleep" => {
            let ty = d.at(mods.ty())?;
            let [t] = d.operands(inst)?;
            d.source(t, ty)?;
            Op::Nanosleep
        }
        "call" => call(d, inst, mods)?,
        "bar" if mods.peek() == Some("warp") => {
            mods.take_any();
            if !mods.take("sync") {
                return d.error("expected `.sync`");
            }
            let [members] = d.operands(inst)?;
            Op::WarpSync { members: d.source(members, Type::B32)? }
        }
        "bar" => barrier(d, inst, mods, true)?,
        "barrier" if mods.peek() != Some("cluster") => barrier(d, inst, mods, false)?,
        _ => return Ok(None),
    }))
}

fn call<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Op, PtxError> {
    mods.take("uni");
    let none: &[Operand<'a>] = &[];
    let (returns, name, arguments) = match inst.operands.as_slice() {
        [Operand::Name(name)] => (none, *name, none),
        [Operand::Name(name), Operand::List(arguments)] => (none, *name, arguments.as_slice()),
        [Operand::List(returns), Operand::Name(name)] => (returns.as_slice(), *name, none),
        [Operand::List(returns), Operand::Name(name), Operand::List(arguments)] => {
            (returns.as_slice(), *name, arguments.as_slice())
        }
        _ => return d.error("only direct calls are supported: `call (results), name, (arguments)`"),
    };
    let offsets = |d: &Decoder<'a, '_>, operands: &[Operand<'a>]| -> Result<Vec<u32>, PtxError> {
        operands
            .iter()
            .map(|o| match o {
                Operand::Name(name) => d.frame_offset(name),
                _ => d.error("arguments and results are variables of `.param` space"),
            })
            .collect()
    };
    let (returns, arguments) = (offsets(d, returns)?, offsets(d, arguments)?);
    if name == "vprintf" {
        // (format: u64, arguments: u64) -> s32
        let ([to], [format, values]) = (returns.as_slice(), arguments.as_slice()) else {
            return d.error("`vprintf` takes a format and a buffer, and returns a number");
        };
        return Ok(Op::Call(Box::new(Call {
            function: None,
            arguments: vec![(*format, 0, 8), (*values, 8, 8)],
            returns: vec![(0, *to, 4)],
        })));
    }
    let Some((index, callee)) = d.callee(name) else {
        return d.error(format!("`{name}` has no body in this module"));
    };
    if callee.is_entry {
        return d.error("a kernel cannot be called");
    }
    if callee.params.len() != arguments.len() || callee.returns.len() != returns.len() {
        return d.error(format!(
            "`{name}` takes {} arguments and returns {}",
            callee.params.len(),
            callee.returns.len()
        ));
    }
    // Parameters come first in the callee's frame, in the order in which `Decoder` lays them out.
    let mut end = 0u64;
    let mut place = |d: &Decoder<'a, '_>, v| -> Result<(u32, u32), PtxError> {
        let (size, align) = d.layout(v)?;
        let offset = end.next_multiple_of(align);
        end = offset + size;
        Ok((offset as u32, size as u32))
    };
    let mut call = Call { function: Some(index), arguments: vec![], returns: vec![] };
    for (v, from) in callee.params.iter().zip(arguments) {
        let (to, size) = place(d, v)?;
        call.arguments.push((from, to, size));
    }
    for (v, to) in callee.returns.iter().zip(returns) {
        let (from, size) = place(d, v)?;
        call.returns.push((from, to, size));
    }
    if !d.out.calls.contains(&index) {
        d.out.calls.push(index);
    }
    Ok(Op::Call(Box::new(call)))
}

fn barrier<'a>(
    d: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    is_bar: bool,
) -> Result<Op, PtxError> {
    mods.take("cta");
    let kind = d.at(mods.expect(&[("sync", 0), ("arrive", 1), ("red", 2)]))?;
    let reduction = if kind == 2 { d.at(mods.expect(&[("popc", 0), ("and", 1), ("or", 2)]))? } else { 0 };
    // `bar` is `barrier.….aligned`.
    let aligned = mods.take("aligned") || is_bar;
    let mut operands = inst.operands.as_slice();
    let (mut mode, mut input) =
        (if kind == 0 { BarrierMode::Sync } else { BarrierMode::Arrive }, PredIn::TRUE);
    if kind == 2 {
        let ty = d.at(mods.ty())?;
        let [to, rest @ .., p] = operands else {
            return d.error("expected a result, a barrier and a predicate");
        };
        mode = match (reduction, ty) {
            (0, Type::U32) => BarrierMode::RedPopc(d.dest(to, ty)?),
            (1, Type::Pred) => BarrierMode::RedAnd(d.pred_dest(to)?),
            (2, Type::Pred) => BarrierMode::RedOr(d.pred_dest(to)?),
            _ => return d.error("`.popc` gives a u32, `.and` and `.or` a predicate"),
        };
        input = d.pred_source(p)?;
        operands = rest;
    }
    let (id, count) = match operands {
        [id] if kind != 1 => (id, None),
        [id, count] => (id, Some(count)),
        _ => return d.error("expected a barrier and a number of threads"),
    };
    let count = match count {
        Some(count) => Some(d.source(count, Type::U32)?),
        None => None,
    };
    Ok(Op::Barrier(Box::new(Barrier { mode, id: d.source(id, Type::U32)?, count, input, aligned })))
}

/// What the directives of a kernel ask of its launches.
pub(super) fn launch_bounds(d: &Decoder<'_, '_>, f: &Function<'_>) -> Result<LaunchBounds, PtxError> {
    let mut bounds = LaunchBounds::default();
    let triple = |numbers: &[u64]| -> Result<[u32; 3], PtxError> {
        let mut out = [1u32; 3];
        if numbers.is_empty()
            || numbers.len() > 3
            || numbers.iter().any(|&n| n == 0 || n > u64::from(u32::MAX))
        {
            return d.error("expected one to three positive numbers");
        }
        for (to, &n) in out.iter_mut().zip(numbers) {
            *to = n as u32;
        }
        Ok(out)
    };
    for (word, numbers) in &f.directives {
        match *word {
            ".reqntid" => bounds.required_threads = Some(triple(numbers)?),
            ".maxntid" => {
                bounds.max_threads = Some(triple(numbers)?.iter().fold(1, |a, &b| a.saturating_mul(b)));
            }
            ".reqnctapercluster" => bounds.required_cluster = Some(triple(numbers)?),
            ".maxnreg" => bounds.max_registers = Some(triple(numbers)?[0]),
            ".minnctapersm" => bounds.min_ctas_per_sm = Some(triple(numbers)?[0]),
            // They say how the launch may be made, or are for the assembler.
            ".explicitcluster" | ".maxclusterrank" | ".maxnctapersm" | ".noreturn" => {}
            word => return d.error(format!("`{word}` is not supported")),
        }
    }
    Ok(bounds)
}
