//! The kernel as a whole: its head, the tree of its blocks, and where values are visible.

use cranelift_entity::EntitySet;

use super::regions::check_in_combine;
use super::types::{check_layout, check_type};
use super::{Check, VerifyError, check_op, ensure};
use crate::artifact::TENSOR_MAP_RANK;
use crate::kernel::{Block, Kernel, Op, Param, Value, ValueDef};
use crate::numerics::is_representable;
use crate::op::{Literal, Opcode};
use crate::types::{Elem, ElemType, Type};

/// Deeper nesting than any kernel has; passes recurse over regions.
const MAX_DEPTH: usize = 64;

pub(super) fn check_kernel(kernel: &Kernel) -> Vec<VerifyError> {
    let mut verifier = Verifier {
        kernel,
        errors: Vec::new(),
        visible: EntitySet::new(),
        seen_ops: EntitySet::new(),
        seen_blocks: EntitySet::new(),
    };
    verifier.head();
    verifier.block(kernel.body, Place { depth: 0, in_combine: false });
    verifier.errors
}

/// Where a block stands.
#[derive(Clone, Copy)]
struct Place {
    depth: usize,
    /// Inside the region of a `reduce` or `scan`?
    in_combine: bool,
}

struct Verifier<'k> {
    kernel: &'k Kernel,
    errors: Vec<VerifyError>,
    /// Values that can be used at the point the walk has reached.
    visible: EntitySet<Value>,
    seen_ops: EntitySet<Op>,
    seen_blocks: EntitySet<Block>,
}

impl Verifier<'_> {
    fn report(&mut self, op: Option<Op>, outcome: Check) {
        let Err(what) = outcome else { return };
        let kernel = self.kernel;
        let loc = kernel.locs[op.map_or(kernel.unknown_loc(), |op| kernel.ops[op].loc)].clone();
        let message = match op {
            Some(op) => format!("`{}`: {what}", kernel.ops[op].opcode.mnemonic()),
            None => what,
        };
        self.errors.push(VerifyError { op, loc, message });
    }

    fn head(&mut self) {
        let kernel = self.kernel;
        self.report(None, check_name(&kernel.name, "kernel"));
        self.report(None, check_hints(kernel));
        let values = kernel.params.iter().map(|p| p.value);
        if !values.eq(kernel.blocks[kernel.body].args.iter().copied()) {
            self.report(None, Err("the arguments of the body are not the parameters".to_owned()));
        }
        for (index, param) in kernel.params.iter().enumerate() {
            self.report(None, check_param(kernel, param));
            if kernel.params[..index].iter().any(|other| other.name == param.name) {
                self.report(None, Err(format!("two parameters are named %{}", param.name)));
            }
        }
    }

    /// Walks a block with the values defined outside it visible; its own are forgotten afterwards.
    fn block(&mut self, block: Block, place: Place) {
        let kernel = self.kernel;
        if !self.seen_blocks.insert(block) {
            return self.report(None, Err(format!("{block} is a region twice")));
        }
        if place.depth > MAX_DEPTH {
            return self.report(None, Err(format!("regions are nested more than {MAX_DEPTH} deep")));
        }
        let data = &kernel.blocks[block];
        let mut defined: Vec<Value> = Vec::new();
        for (index, &arg) in data.args.iter().enumerate() {
            if kernel.values[arg].def != ValueDef::Arg(block, index as u16) {
                self.report(None, Err(format!("argument {index} of {block} is defined elsewhere")));
            }
            let ty = kernel.ty(arg);
            self.report(None, check_type(ty).and_then(|()| check_layout(kernel, ty)));
            self.visible.insert(arg);
            defined.push(arg);
        }
        for (index, &op) in data.ops.iter().enumerate() {
            let is_last = index + 1 == data.ops.len();
            let outcome = self.op(op, block, is_last, place);
            self.report(Some(op), outcome);
            if self.seen_ops.insert(op) {
                let in_combine = place.in_combine || is_combine(&kernel.ops[op].opcode);
                for &region in &kernel.ops[op].regions {
                    self.block(region, Place { depth: place.depth + 1, in_combine });
                }
            }
            for &result in &kernel.ops[op].results {
                self.visible.insert(result);
                defined.push(result);
            }
        }
        for value in defined {
            self.visible.remove(value);
        }
    }

    fn op(&self, op: Op, block: Block, is_last: bool, place: Place) -> Check {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        ensure!(!self.seen_ops.contains(op), "stands in two places");
        if data.opcode.is_terminator() {
            ensure!(block != kernel.body, "has no place in the kernel's own body");
            ensure!(is_last, "is not the last of its region");
        }
        for (index, &operand) in data.operands.iter().enumerate() {
            ensure!(self.visible.contains(operand), "operand {index} is not visible here");
        }
        for (index, &result) in data.results.iter().enumerate() {
            let own = kernel.values[result].def == ValueDef::Result(op, index as u16);
            ensure!(own, "result {index} is defined elsewhere");
        }
        check_op(kernel, op)?;
        if place.in_combine { check_in_combine(kernel, op) } else { Ok(()) }
    }
}

fn is_combine(opcode: &Opcode) -> bool {
    matches!(opcode, Opcode::Reduce { .. } | Opcode::Scan { .. })
}

/// Names end up in PTX, where they must be identifiers.
fn check_name(name: &str, of: &str) -> Check {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '$');
    let ok = starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$');
    ensure!(ok, "the {of} name `{name}` is no identifier");
    Ok(())
}

fn check_hints(kernel: &Kernel) -> Check {
    let hints = &kernel.hints;
    let warps = hints.num_warps;
    ensure!(warps.is_power_of_two() && warps <= 32, "num_warps is a power of two up to 32, not {warps}");
    let cluster = hints.cluster;
    ensure!(cluster.is_power_of_two() && cluster <= 16, "cluster is a power of two up to 16, not {cluster}");
    ensure!(hints.num_stages >= 1, "num_stages is at least 1");
    ensure!(
        hints.max_registers.is_none_or(|n| (16..=255).contains(&n)),
        "max_registers lies between 16 and 255"
    );
    ensure!(hints.min_ctas.is_none_or(|n| (1..=32).contains(&n)), "min_ctas lies between 1 and 32");
    Ok(())
}

fn check_param(kernel: &Kernel, param: &Param) -> Check {
    check_name(&param.name, "parameter")?;
    let (name, facts) = (&param.name, &param.facts);
    let ty = kernel.ty(param.value);
    let rank = match ty {
        Type::View(view) => view.rank as usize,
        Type::Tile(t) if t.shape.rank() == 0 => {
            let addressable = t.elem.value().is_none_or(|e| e.size_of().is_some());
            ensure!(addressable, "%{name}: {} is no type of a parameter", t.elem);
            0
        }
        _ => return Err(format!("%{name}: a parameter is a scalar, a pointer or a view, not `{ty}`")),
    };
    let is_view = ty.as_view().is_some();
    let is_pointer = matches!(ty.as_tile().map(|t| t.elem), Some(ElemType::Ptr(_)));
    let is_integer = ty.value_elem().is_some_and(|e| e.is_int() || e == Elem::I1);
    ensure!(facts.align == 0 || facts.align.is_power_of_two(), "%{name}: align is a power of two");
    ensure!(facts.align == 0 || is_view || is_pointer, "%{name}: align is for views and pointers");
    ensure!(facts.divisible == 0 || is_integer, "%{name}: divisible is for integers");
    ensure!(facts.value.is_none() || is_integer, "%{name}: value is for integers");
    if let (Some(value), Some(elem)) = (facts.value, ty.value_elem()) {
        ensure!(is_representable(elem, Literal::Int(value)), "%{name}: {value} is no value of {elem}");
    }
    for (key, list) in
        [("stride_divisible", &facts.stride_divisible), ("dim_divisible", &facts.dim_divisible)]
    {
        ensure!(list.is_empty() || is_view, "%{name}: {key} is for views");
        ensure!(list.is_empty() || list.len() == rank, "%{name}: {key} has one entry a dimension");
    }
    ensure!(
        facts.unit_stride.is_none_or(|d| is_view && (d as usize) < rank),
        "%{name}: unit_stride is a dimension of a view"
    );
    ensure!(!facts.small || is_view, "%{name}: small is for views");
    let long = &facts.long_strides;
    ensure!(
        long.is_empty() || facts.small && long.iter().all(|&d| (d as usize) < rank),
        "%{name}: long_strides are dimensions of a small view"
    );
    ensure!(
        !facts.tensor_map || facts.unit_stride.is_some() && rank <= TENSOR_MAP_RANK,
        "%{name}: tensor_map is for views of at most {TENSOR_MAP_RANK} dimensions with a unit_stride"
    );
    Ok(())
}
