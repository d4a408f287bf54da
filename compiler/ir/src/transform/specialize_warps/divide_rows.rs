//! Clusters: a program runs on several CTAs, each of which computes some of the rows of its dots. The rows of A are divided, B is the same for all: each CTA loads
//! a part of it for all of them (multicast), so that every byte comes from the second-level cache once a cluster.
//!
//! The kernel is rewritten to what *one* CTA does, before anything else: which dimension of each tile is divided follows from the dots, along the program
//! in both directions; its extent shrinks, and loads, stores and `iota`s begin further on, by the CTA's rank.
//!
//! What cannot be divided makes the whole pass give up: a reduction over rows, a divided dimension that meets an undivided one, and anything that would now be
//! done by each CTA although the program does it once (stores of undivided tiles, atomics, output).

use std::collections::HashMap;

use crate::builder::Builder;
use crate::kernel::{Block, Kernel, Op, Value};
use crate::op::{BinaryOp, Opcode};
use crate::types::{Elem, Shape, Type};

/// Rewrites the kernel for clusters of so many CTAs; `None`: it cannot be divided, and may have been changed.
pub(super) fn run(kernel: &mut Kernel, ctas: u32) -> Option<()> {
    own_constants(kernel, kernel.body);
    let mut division = Division { kernel, dims: HashMap::new(), changed: true };
    while std::mem::take(&mut division.changed) {
        let body = division.kernel.body;
        division.block(body)?;
    }
    let dims = division.dims;
    if dims.is_empty() {
        return None;
    }
    kernel.walk_all(|kernel, op| nothing_twice(kernel, &dims, op))?;
    // The rank stands first, where everything can use it.
    let body = kernel.body;
    let rank = kernel.make_op(Opcode::CtaRank, [], [Type::scalar(Elem::I32)], kernel.unknown_loc());
    kernel.blocks[body].ops.insert(0, rank);
    let rank = kernel.result(rank);
    for (&value, &dim) in &dims {
        let ty = kernel.ty(value);
        let mut extents = ty.shape()?.dims().to_vec();
        if !extents[dim].is_multiple_of(ctas) || extents[dim] == ctas {
            return None;
        }
        extents[dim] /= ctas;
        kernel.values[value].ty = ty.with_shape(Shape::new(&extents));
    }
    begin_further_on(kernel, body, &dims, rank);
    Some(())
}

/// Gives each use of a constant tile a constant of its own: one may be divided, another not.
fn own_constants(kernel: &mut Kernel, block: Block) {
    let mut index = 0;
    while index < kernel.blocks[block].ops.len() {
        let op = kernel.blocks[block].ops[index];
        for region in kernel.ops[op].regions.clone() {
            own_constants(kernel, region);
        }
        for operand in 0..kernel.ops[op].operands.len() {
            let value = kernel.ops[op].operands[operand];
            let Some(&Opcode::Const(literal)) = kernel.def_opcode(value) else { continue };
            let ty = kernel.ty(value);
            if ty.is_scalar() {
                continue;
            }
            let loc = kernel.ops[op].loc;
            let copy = kernel.make_op(Opcode::Const(literal), [], [ty], loc);
            kernel.ops[op].operands[operand] = kernel.result(copy);
            kernel.blocks[block].ops.insert(index, copy);
            index += 1;
        }
        index += 1;
    }
}

struct Division<'k> {
    kernel: &'k mut Kernel,
    /// The divided dimension of each tile that has one.
    dims: HashMap<Value, usize>,
    changed: bool,
}

impl Division<'_> {
    fn dim(&self, value: Value) -> Option<usize> {
        self.dims.get(&value).copied()
    }

    /// Notes that a tile is divided along a dimension; `None` if it already is along another.
    fn divide(&mut self, value: Value, dim: Option<usize>) -> Option<()> {
        let Some(dim) = dim else { return Some(()) };
        match self.dims.insert(value, dim) {
            Some(old) if old != dim => None,
            Some(_) => Some(()),
            None => {
                self.changed = true;
                Some(())
            }
        }
    }

    /// These are divided alike, as far as they are tiles.
    fn alike(&mut self, values: &[Value]) -> Option<()> {
        let is_tile = |kernel: &Kernel, v: Value| kernel.ty(v).shape().is_some_and(|s| s.rank() > 0);
        let found = values.iter().find_map(|&v| self.dim(v));
        let tiles: Vec<Value> = values.iter().copied().filter(|&v| is_tile(self.kernel, v)).collect();
        tiles.into_iter().try_for_each(|v| self.divide(v, found))
    }

    /// Two tiles whose dimensions correspond by these maps.
    fn related(
        &mut self,
        a: Value,
        b: Value,
        forth: impl Fn(usize) -> Option<usize>,
        back: impl Fn(usize) -> Option<usize>,
    ) -> Option<()> {
        if let Some(dim) = self.dim(a) {
            // What is divided has a counterpart, or is lost.
            let there = forth(dim)?;
            self.divide(b, Some(there))?;
        }
        if let Some(dim) = self.dim(b)
            && let Some(there) = back(dim)
        {
            self.divide(a, Some(there))?;
        }
        Some(())
    }

    fn block(&mut self, block: Block) -> Option<()> {
        for op in self.kernel.blocks[block].ops.clone() {
            for region in self.kernel.ops[op].regions.clone() {
                self.block(region)?;
            }
            self.op(op)?;
        }
        Some(())
    }

    fn op(&mut self, op: Op) -> Option<()> {
        let data = self.kernel.ops[op].clone();
        let (o, r) = (&data.operands, &data.results);
        let extents = |k: &Kernel, v: Value| k.ty(v).shape().map(|s| s.dims().to_vec()).unwrap_or_default();
        match &data.opcode {
            Opcode::Dot(_) => {
                if self.kernel.ty(r[0]).shape()?.rank() != 2 {
                    return None;
                }
                for value in [r[0], o[2], o[0]] {
                    self.divide(value, Some(0))?;
                }
                // B is whole.
                self.dim(o[1]).is_none().then_some(())
            }
            opcode if opcode.is_elementwise() => {
                let all: Vec<Value> = o.iter().chain(r).copied().collect();
                self.alike(&all)
            }
            Opcode::Load { .. } | Opcode::Store { .. } => {
                let all: Vec<Value> = o.iter().chain(r).copied().collect();
                self.alike(&all)
            }
            Opcode::Broadcast => {
                let (from, to) = (extents(self.kernel, o[0]), extents(self.kernel, r[0]));
                let same = |d: usize| (from.get(d) == to.get(d)).then_some(d);
                self.related(o[0], r[0], same, same)
            }
            Opcode::Expand { axis } => {
                let axis = *axis as usize;
                let forth = |d: usize| Some(if d < axis { d } else { d + 1 });
                let back = |d: usize| if d == axis { None } else { Some(if d < axis { d } else { d - 1 }) };
                self.related(o[0], r[0], forth, back)
            }
            Opcode::Permute { perm } => {
                let forth = |d: usize| perm.iter().position(|&p| p as usize == d);
                let back = |d: usize| Some(perm[d] as usize);
                self.related(o[0], r[0], forth, back)
            }
            // Dimensions of extent 1 come and go; all others keep their order.
            Opcode::Reshape => {
                let (from, to) = (extents(self.kernel, o[0]), extents(self.kernel, r[0]));
                let long = |e: &[u32]| e.iter().copied().filter(|&x| x > 1).collect::<Vec<u32>>();
                let keeps = long(&from) == long(&to);
                let map = |from: &[u32], to: &[u32], d: usize| {
                    let nth = from[..d].iter().filter(|&&x| x > 1).count();
                    to.iter().enumerate().filter(|(_, x)| **x > 1).nth(nth).map(|(i, _)| i)
                };
                let forth = |d: usize| if keeps { map(&from, &to, d) } else { None };
                let back = |d: usize| if keeps { map(&to, &from, d) } else { None };
                if !keeps && self.dim(r[0]).is_some() {
                    return None;
                }
                self.related(o[0], r[0], forth, back)
            }
            Opcode::Reduce { axis } => {
                let axis = *axis as usize;
                self.alike(o)?;
                for (&from, &to) in o.iter().zip(r) {
                    let forth =
                        |d: usize| if d == axis { None } else { Some(if d < axis { d } else { d - 1 }) };
                    let back = |d: usize| Some(if d < axis { d } else { d + 1 });
                    self.related(from, to, forth, back)?;
                }
                Some(())
            }
            Opcode::For(_) => {
                let body = data.regions[0];
                let args = self.kernel.blocks[body].args.clone();
                let end = self.kernel.terminator(body)?;
                let yields = self.kernel.ops[end].operands.clone();
                for i in 0..r.len() {
                    self.alike(&[o[3 + i], args[1 + i], yields[i], r[i]])?;
                }
                Some(())
            }
            Opcode::If => {
                for (i, &result) in r.iter().enumerate() {
                    let mut all = vec![result];
                    for &region in &data.regions {
                        let end = self.kernel.terminator(region)?;
                        all.push(self.kernel.ops[end].operands[i]);
                    }
                    self.alike(&all)?;
                }
                Some(())
            }
            Opcode::Const(_)
            | Opcode::Iota { .. }
            | Opcode::ViewLoad { .. }
            | Opcode::ViewStore { .. }
            | Opcode::ViewReduceAdd
            | Opcode::Yield => Some(()),
            _ => o.iter().chain(r).all(|&v| self.dim(v).is_none()).then_some(()),
        }
    }
}

/// Fails for what the CTAs of a cluster must not do each.
fn nothing_twice(kernel: &Kernel, dims: &HashMap<Value, usize>, op: Op) -> Option<()> {
    let data = &kernel.ops[op];
    match data.opcode {
        Opcode::ViewStore { .. } | Opcode::ViewReduceAdd => {
            dims.contains_key(data.operands.last()?).then_some(())
        }
        Opcode::Store { .. } => dims.contains_key(&data.operands[1]).then_some(()),
        Opcode::AtomicRmw { .. }
        | Opcode::AtomicCas { .. }
        | Opcode::Print { .. }
        | Opcode::Assert { .. }
        | Opcode::While => None,
        _ => Some(()),
    }
}

/// Loads, stores and `iota`s of divided tiles begin at this CTA's rows.
fn begin_further_on(kernel: &mut Kernel, block: Block, dims: &HashMap<Value, usize>, rank: Value) {
    let ops = std::mem::take(&mut kernel.blocks[block].ops);
    for op in ops {
        for region in kernel.ops[op].regions.clone() {
            begin_further_on(kernel, region, dims, rank);
        }
        let data = kernel.ops[op].clone();
        let divided = match data.opcode {
            Opcode::ViewLoad { .. } | Opcode::Iota { .. } => {
                dims.get(&data.results[0]).map(|&d| (data.results[0], d))
            }
            Opcode::ViewStore { .. } | Opcode::ViewReduceAdd => {
                data.operands.last().and_then(|v| dims.get(v).map(|&d| (*v, d)))
            }
            _ => None,
        };
        let Some((tile, dim)) = divided else {
            kernel.append_op(block, op);
            continue;
        };
        let part = kernel.ty(tile).shape().expect("a tile").dims()[dim];
        let mut b = Builder::at_end(kernel, block);
        b.loc = data.loc;
        let rows = b.int(part.into(), Elem::I32);
        let ahead = b.binary(BinaryOp::Mul, rank, rows);
        if let Opcode::Iota { start } = data.opcode {
            let own = b.iota(start, part);
            let wide = b.value(Opcode::Reshape, &[ahead], Type::tile(Elem::I32, Shape::new(&[1])));
            let wide = b.broadcast(wide, Shape::new(&[part]));
            // The old result stays, so that its users need no change.
            b.kernel.ops[op].opcode = Opcode::Binary(BinaryOp::Add);
            b.kernel.ops[op].operands = [own, wide].into_iter().collect();
        } else {
            let offset = data.operands[1 + dim];
            let elem = b.kernel.ty(offset).value_elem().expect("verified");
            let ahead = if elem == Elem::I32 { ahead } else { b.cast(ahead, elem) };
            b.kernel.ops[op].operands[1 + dim] = b.binary(BinaryOp::Add, offset, ahead);
        }
        kernel.append_op(block, op);
    }
}

impl Kernel {
    /// Asks `f` of every operation, until it fails.
    fn walk_all(&self, f: impl Fn(&Kernel, Op) -> Option<()>) -> Option<()> {
        let mut outcome = Some(());
        self.walk(self.body, &mut |op| {
            if outcome.is_some() {
                outcome = f(self, op);
            }
        });
        outcome
    }
}
