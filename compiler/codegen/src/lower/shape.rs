//! Operations that only rename: the threads hold the elements already, under other register numbers.

use tegula_ir::kernel::Op;
use tegula_ir::layout::{LinearLayout, Space};
use tegula_ir::op::Opcode;

use super::emitter::V;
use super::values::Lowered;
use super::{Lowering, Result};

impl<'c> Lowering<'c, '_> {
    /// Lowers a change of shape.
    pub fn shape(&mut self, op: Op) -> Result {
        let data = &self.kernel.ops[op];
        let operand = data.operands[0];
        let result = data.results[0];
        if let Some(Lowered::Words(words, block)) = self.values[operand].clone()
            && self.keeps_order(op)
        {
            self.values[result] = Some(Lowered::Words(words, block));
            return Ok(());
        }
        let regs = self.regs(operand);
        match data.opcode {
            Opcode::Broadcast if self.layout(operand).is_none() => {
                self.set(result, vec![regs[0]; self.num_registers(result)]);
            }
            // A scalar grows a dimension of extent 1: every thread holds it.
            Opcode::Expand { .. } | Opcode::Reshape if self.layout(operand).is_none() => {
                self.set(result, vec![regs[0]; self.num_registers(result)]);
            }
            Opcode::Reshape if self.layout(result).is_none() => {
                // One element: every thread that holds a copy has it in register 0 once replicated to all.
                self.set(result, vec![regs[0]]);
            }
            Opcode::Broadcast | Opcode::Expand { .. } | Opcode::Reshape | Opcode::Permute { .. } => {
                let from = self.kernel.layouts[self.layout(operand).expect("a tile")].clone();
                let to = self.kernel.layouts[self.layout(result).expect("a tile")].clone();
                let source = source_registers(&data.opcode, &from, &to);
                self.set(result, source.into_iter().map(|r| regs[r as usize]).collect());
            }
            // Two scalars and the tile of both: every thread has them, in the order of the layout's one register bit.
            Opcode::Join if self.layout(operand).is_none() => {
                let second = self.regs(data.operands[1]);
                self.set(result, vec![regs[0], second[0]]);
            }
            Opcode::Split if self.layout(result).is_none() => {
                for (&part, &register) in data.results.iter().zip(&regs) {
                    self.set(part, vec![register]);
                }
            }
            Opcode::Join => {
                let second = self.regs(data.operands[1]);
                let half = self.kernel.layouts[self.layout(operand).expect("a tile")].clone();
                let whole = self.kernel.layouts[self.layout(result).expect("a tile")].clone();
                let count = whole.size(Space::Register);
                let out = (0..count)
                    .map(|r| {
                        let flat = whole.flat(u64::from(r));
                        let from = register_of(&half, flat >> 1);
                        if flat & 1 == 0 { regs[from] } else { second[from] }
                    })
                    .collect();
                self.set(result, out);
            }
            Opcode::Split => {
                let whole = self.kernel.layouts[self.layout(operand).expect("a tile")].clone();
                let half = self.kernel.layouts[self.layout(result).expect("a tile")].clone();
                for (which, &part) in data.results.iter().enumerate() {
                    let out: Vec<V<'c>> = (0..half.size(Space::Register))
                        .map(|r| regs[register_of(&whole, half.flat(u64::from(r)) << 1 | which as u64)])
                        .collect();
                    self.set(part, out);
                }
            }
            _ => unreachable!("dispatched in `op`"),
        }
        Ok(())
    }
}

impl Lowering<'_, '_> {
    /// Is every register of the result the operand's register of the same number?
    fn keeps_order(&self, op: Op) -> bool {
        let data = &self.kernel.ops[op];
        let (operand, result) = (data.operands[0], data.results[0]);
        let (Some(from), Some(to)) = (self.layout(operand), self.layout(result)) else { return false };
        matches!(data.opcode, Opcode::Reshape | Opcode::Permute { .. })
            && self.num_registers(operand) == self.num_registers(result)
            && source_registers(&data.opcode, &self.kernel.layouts[from], &self.kernel.layouts[to])
                .into_iter()
                .eq(0..self.num_registers(result) as u64)
    }
}

/// The register of thread 0 that holds an element. The layouts of renamed tiles differ only in their registers, so what holds for
/// thread 0 holds for all.
fn register_of(layout: &LinearLayout, flat: u64) -> usize {
    let registers = layout.restricted(|s| s == Space::Register);
    registers.preimage(flat).expect("layout assignment keeps the element in the thread") as usize
}

/// For each register of the result, the operand's register that it renames.
fn source_registers(opcode: &Opcode, from: &LinearLayout, to: &LinearLayout) -> Vec<u64> {
    let registers = from.restricted(|s| s == Space::Register);
    let basis = registers.basis();
    let (from_dims, to_dims) = (from.dims(), to.dims());
    (0..to.size(Space::Register))
        .map(|r| {
            let flat = to.flat(u64::from(r));
            let wanted = match opcode {
                // Row-major order does not change, and a dimension of extent 1 has no bits.
                Opcode::Reshape | Opcode::Expand { .. } => flat,
                Opcode::Permute { perm } => {
                    let coords = to_dims.unpack(flat);
                    let mut source = coords.clone();
                    for (i, &p) in perm.iter().enumerate() {
                        source[p as usize] = coords[i];
                    }
                    from_dims.pack(&source)
                }
                Opcode::Broadcast => {
                    let mut coords = to_dims.unpack(flat);
                    for (d, c) in coords.iter_mut().enumerate() {
                        if from_dims.extent(d) == 1 {
                            *c = 0;
                        }
                    }
                    from_dims.pack(&coords)
                }
                _ => unreachable!("dispatched in `shape`"),
            };
            basis.solve(wanted).expect("layout assignment keeps the element in the thread")
        })
        .collect()
}
