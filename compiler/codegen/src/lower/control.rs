//! Loops and branches: `scf` operations whose carried values are the registers of the carried tiles.

use melior::ir::{Type, ValueLike};
use tegula_ir::kernel::{Block, Op, Value};
use tegula_ir::op::Opcode;
use tegula_ir::transform::plan_shared_memory::uses_tensor_cores;

use super::emitter::{IntCmp, V};
use super::values::Lowered;
use super::{Lowering, Result};

/// Registers of a thread, of 255, that sums and other results of dots may take in a loop before it is crowded.
const CROWDED: u32 = 160;

impl<'c> Lowering<'c, '_> {
    /// A counted loop.
    pub fn for_loop(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let body = data.regions[0];
        let signed = self.elem(data.operands[0]).is_signed();
        let bounds: Vec<V<'c>> = data.operands[..3].iter().map(|&v| self.scalar(v)).collect();
        // Fragments, and bytes, stay packed around the loop: unpacked, every part of a word would be a value of its own.
        let args = self.kernel.blocks[body].args.clone();
        let packed: Vec<bool> = data.operands[3..]
            .iter()
            .zip(&args[1..])
            .map(|(&v, &arg)| {
                matches!(self.values[v], Some(Lowered::Words(..)))
                    || self.is_fragment(arg, body)
                    || self.are_bytes(arg)
            })
            .collect();
        let inits = self.flatten_as(&data.operands[3..], &packed);
        let mut arg_types = vec![bounds[0].r#type()];
        arg_types.extend(inits.iter().map(|v| v.r#type()));

        // `scf.for` compares signed; bounds of unsigned types above the signed range do not occur in indices, but a loop must not
        // go wrong silently: unsigned loops are written as `scf.while`.
        if !signed {
            let inits = self.flatten(&data.operands[3..]);
            return self.unsigned_for(op, body, &bounds, &inits);
        }
        let open = self.e.open(&arg_types);
        self.set(args[0], vec![open.args[0]]);
        self.bind_as(&args[1..], &open.args[1..], &packed);
        self.loops += 1;
        let outer = self.crowded;
        self.crowded = self.is_crowded(body);
        self.block(body)?;
        self.crowded = outer;
        self.loops -= 1;
        let terminator = self.kernel.terminator(body).expect("verified: regions end in a terminator");
        let operands = self.kernel.ops[terminator].operands.clone();
        let yielded = self.flatten_as(&operands, &packed);
        self.e.op("scf.yield", &yielded, &[], &[]);
        let region = self.e.close(open);
        let operands: Vec<V<'c>> = bounds.iter().chain(&inits).copied().collect();
        let results = self.e.op_with_regions("scf.for", &operands, &arg_types[1..], &[], vec![region]);
        self.bind_as(&data.results, &results, &packed);
        Ok(())
    }

    /// Do what a loop carries and the largest other result of its dots on tensor cores leave less than [`CROWDED`] registers for all else?
    fn is_crowded(&self, body: Block) -> bool {
        let registers = |value: Value| match self.kernel.ty(value).as_tile() {
            Some(tile) => self.num_registers(value) as u32 * tile.elem.bits().max(8) / 32,
            None => 0,
        };
        let args = &self.kernel.blocks[body].args;
        let carried: u32 = args.iter().map(|&arg| registers(arg)).sum();
        let layout_of = |value: Value| self.layout(value);
        let results = self.kernel.blocks[body].ops.iter().filter(|&&op| uses_tensor_cores(self.kernel, op));
        let results = results.map(|&op| self.kernel.result(op));
        // A sum takes the registers of the one before.
        let others = results.filter(|&v| args.iter().all(|&arg| layout_of(arg) != layout_of(v)));
        others.map(registers).max().is_some_and(|most| carried + most > CROWDED)
    }

    /// Is a value operand A of an asynchronous dot of this block?
    fn is_fragment(&self, value: Value, block: Block) -> bool {
        self.kernel.blocks[block].ops.iter().any(|&op| {
            let data = &self.kernel.ops[op];
            matches!(data.opcode, Opcode::AsyncDot { .. }) && data.operands[0] == value
        })
    }

    /// Are these elements of 8 bits that fill whole words?
    fn are_bytes(&self, value: Value) -> bool {
        let elem = self.kernel.ty(value).value_elem();
        elem.is_some_and(|elem| elem.bits() == 8) && self.num_registers(value).is_multiple_of(4)
    }

    fn unsigned_for(&mut self, op: Op, body: Block, bounds: &[V<'c>], inits: &[V<'c>]) -> Result {
        let data = self.kernel.ops[op].clone();
        let start: Vec<V<'c>> = std::iter::once(bounds[0]).chain(inits.iter().copied()).collect();
        let types: Vec<Type<'c>> = start.iter().map(|v| v.r#type()).collect();
        let before = self.e.open(&types);
        let go_on = self.e.icmp(IntCmp::Ult, before.args[0], bounds[1]);
        let passed: Vec<V<'c>> = std::iter::once(go_on).chain(before.args.iter().copied()).collect();
        self.e.op("scf.condition", &passed, &[], &[]);
        let before = self.e.close(before);

        let after = self.e.open(&types);
        let args = self.kernel.blocks[body].args.clone();
        self.set(args[0], vec![after.args[0]]);
        self.bind(&args[1..], &after.args[1..]);
        self.block(body)?;
        let next = self.e.add(after.args[0], bounds[2]);
        let mut yielded = vec![next];
        yielded.extend(self.yielded(body, 0));
        self.e.op("scf.yield", &yielded, &[], &[]);
        let after = self.e.close(after);
        let results = self.e.op_with_regions("scf.while", &start, &types, &[], vec![before, after]);
        self.bind(&data.results, &results[1..]);
        Ok(())
    }

    /// A loop with a condition.
    pub fn while_loop(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let (before_block, body) = (data.regions[0], data.regions[1]);
        let inits = self.flatten(&data.operands);
        let types: Vec<Type<'c>> = inits.iter().map(|v| v.r#type()).collect();

        let before = self.e.open(&types);
        let args = self.kernel.blocks[before_block].args.clone();
        self.bind(&args, &before.args);
        self.block(before_block)?;
        let passed = self.yielded(before_block, 0);
        let passed_types: Vec<Type<'c>> = passed[1..].iter().map(|v| v.r#type()).collect();
        self.e.op("scf.condition", &passed, &[], &[]);
        let before = self.e.close(before);

        let after = self.e.open(&passed_types);
        let args = self.kernel.blocks[body].args.clone();
        self.bind(&args, &after.args);
        self.block(body)?;
        let yielded = self.yielded(body, 0);
        self.e.op("scf.yield", &yielded, &[], &[]);
        let after = self.e.close(after);
        let results = self.e.op_with_regions("scf.while", &inits, &passed_types, &[], vec![before, after]);
        self.bind(&data.results, &results);
        Ok(())
    }

    /// A branch on a scalar.
    pub fn branch(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let condition = self.scalar(data.operands[0]);
        let mut regions = Vec::new();
        let mut types = Vec::new();
        for &block in &data.regions {
            let open = self.e.open(&[]);
            self.block(block)?;
            let yielded = self.yielded(block, 0);
            types = yielded.iter().map(|v| v.r#type()).collect();
            self.e.op("scf.yield", &yielded, &[], &[]);
            regions.push(self.e.close(open));
        }
        let results = self.e.op_with_regions("scf.if", &[condition], &types, &[], regions);
        self.bind(&data.results, &results);
        Ok(())
    }

    /// All registers of these values, in order.
    fn flatten(&mut self, values: &[Value]) -> Vec<V<'c>> {
        values.iter().flat_map(|&v| self.regs(v)).collect()
    }

    /// The same, with some values in words.
    fn flatten_as(&mut self, values: &[Value], packed: &[bool]) -> Vec<V<'c>> {
        let each = values.iter().zip(packed);
        each.flat_map(|(&v, &packed)| if packed { self.words(v) } else { self.regs(v) }).collect()
    }

    /// Gives values their registers or words from a flat list.
    fn bind_as(&mut self, values: &[Value], flat: &[V<'c>], packed: &[bool]) {
        let mut rest = flat;
        for (&value, &packed) in values.iter().zip(packed) {
            let registers = self.num_registers(value);
            let own =
                if packed { registers * self.elem(value).bits().max(8) as usize / 32 } else { registers };
            let (own, others) = rest.split_at(own);
            if packed {
                self.values[value] = Some(Lowered::Words(own.to_vec(), self.e.block));
            } else {
                self.set(value, own.to_vec());
            }
            rest = others;
        }
    }

    /// Gives values their registers from a flat list.
    fn bind(&mut self, values: &[Value], flat: &[V<'c>]) {
        let mut rest = flat;
        for &value in values {
            let (own, others) = rest.split_at(self.num_registers(value));
            self.set(value, own.to_vec());
            rest = others;
        }
    }

    /// The registers that a block's terminator yields, its operands from `skip` on.
    fn yielded(&mut self, block: Block, skip: usize) -> Vec<V<'c>> {
        let terminator = self.kernel.terminator(block).expect("verified: regions end in a terminator");
        let operands = self.kernel.ops[terminator].operands.clone();
        self.flatten(&operands[skip..])
    }
}
