//! Puts the layouts into the types, rebuilding or converting operands where an operation needs them elsewhere.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::anchors::{Anchors, intern};
use super::infer::{self, Homes};
use crate::kernel::{Block, Kernel, LayoutRef, Op, Value};
use crate::op::Opcode;
use crate::types::{ElemType, Shape, Type};

/// Rewrites the whole kernel. Values without a home are built where they are used; their own operations disappear.
pub(super) fn rewrite(kernel: &mut Kernel, anchors: &Anchors, homes: &Homes) {
    let mut rewriter = Rewriter { kernel, anchors, homes, made: vec![HashMap::new()], out: Vec::new() };
    rewriter.block(rewriter.kernel.body);
}

struct Rewriter<'a> {
    kernel: &'a mut Kernel,
    anchors: &'a Anchors,
    homes: &'a Homes,
    /// What has been built or converted so far, innermost region last.
    made: Vec<HashMap<(Value, LayoutRef), Value>>,
    /// The new list of the block at work.
    out: Vec<Op>,
}

impl Rewriter<'_> {
    fn block(&mut self, block: Block) {
        let ops = std::mem::take(&mut self.kernel.blocks[block].ops);
        let outer = std::mem::take(&mut self.out);
        self.made.push(HashMap::new());
        for op in ops {
            self.op(op);
        }
        self.made.pop();
        self.kernel.blocks[block].ops = std::mem::replace(&mut self.out, outer);
    }

    fn op(&mut self, op: Op) {
        let opcode = self.kernel.ops[op].opcode.clone();
        if self.is_rebuilt(op) {
            return;
        }
        match opcode {
            Opcode::For(_) => {
                let body = self.kernel.ops[op].regions[0];
                let args: Vec<Value> = self.kernel.blocks[body].args[1..].to_vec();
                self.fetch_like(op, 3, &args);
                self.set_homes(&args);
                self.set_homes(&self.kernel.ops[op].results.clone());
                self.region_yielding(body, 0, &args);
            }
            Opcode::While => {
                let (before, body) = (self.kernel.ops[op].regions[0], self.kernel.ops[op].regions[1]);
                let before_args: Vec<Value> = self.kernel.blocks[before].args.to_vec();
                let body_args: Vec<Value> = self.kernel.blocks[body].args.to_vec();
                self.fetch_like(op, 0, &before_args);
                self.set_homes(&before_args);
                self.set_homes(&body_args);
                self.set_homes(&self.kernel.ops[op].results.clone());
                self.region_yielding(before, 1, &body_args);
                self.region_yielding(body, 0, &before_args);
            }
            Opcode::If => {
                let results: Vec<Value> = self.kernel.ops[op].results.to_vec();
                self.set_homes(&results);
                for region in self.kernel.ops[op].regions.clone() {
                    self.region_yielding(region, 0, &results);
                }
            }
            Opcode::WarpSpecialize(_) => {
                for region in self.kernel.ops[op].regions.clone() {
                    self.region_yielding(region, 0, &[]);
                }
            }
            Opcode::AsyncDotWait(_) => {
                let results: Vec<Value> = self.kernel.ops[op].results.to_vec();
                self.fetch_like(op, 0, &results);
                self.set_homes(&results);
                // What is only held is held where it is.
                for i in results.len()..self.kernel.ops[op].operands.len() {
                    let value = self.kernel.ops[op].operands[i];
                    let home = self.at_home(value);
                    self.kernel.ops[op].operands[i] = self.fetch(value, home);
                }
            }
            _ => self.plain(op, &opcode),
        }
        self.out.push(op);
    }

    /// Fetches the operands of an operation in the layouts it needs and types its results.
    fn plain(&mut self, op: Op, opcode: &Opcode) {
        let wanted = self.operand_layouts(op, opcode);
        let operands = self.kernel.ops[op].operands.clone();
        for (index, (&operand, wanted)) in operands.iter().zip(wanted).enumerate() {
            if let Some(layout) = wanted {
                self.kernel.ops[op].operands[index] = self.fetch(operand, layout);
            }
        }
        self.set_homes(&self.kernel.ops[op].results.clone());
    }

    /// The layout that each operand must have; `None` for scalars, views and buffers.
    fn operand_layouts(&mut self, op: Op, opcode: &Opcode) -> SmallVec<[Option<LayoutRef>; 4]> {
        let operands = self.kernel.ops[op].operands.clone();
        let tile_shape = |k: &Kernel, v: Value| k.ty(v).shape().filter(|s| s.rank() > 0);
        let result_home = self.kernel.ops[op].results.first().and_then(|&r| self.homes[r]).map(|(l, _)| l);
        let shared: Option<LayoutRef> = match opcode {
            Opcode::Dot(_) => {
                let dot = self.anchors.dots[&op];
                if let Some((a, b)) = dot.operands {
                    return SmallVec::from_slice(&[Some(a), Some(b), Some(dot.acc)]);
                }
                let (a, b) = (self.at_home(operands[0]), self.at_home(operands[1]));
                return SmallVec::from_slice(&[Some(a), Some(b), Some(dot.acc)]);
            }
            Opcode::AsyncDot { .. } => {
                let dot = self.anchors.dots[&op];
                let mut wanted: SmallVec<[Option<LayoutRef>; 4]> = SmallVec::from_elem(None, operands.len());
                wanted[0] = dot.operands.map(|(a, _)| a);
                wanted[operands.len() - 1] = Some(dot.acc);
                return wanted;
            }
            Opcode::Gather { .. } => {
                let source = self.at_home(operands[0]);
                return SmallVec::from_slice(&[Some(source), result_home]);
            }
            Opcode::Reduce { .. } => {
                let source = self.dearest_home(&operands);
                Some(source)
            }
            Opcode::Expand { axis } => result_home.map(|l| self.derive(l, |l| l.slice(*axis as usize))),
            Opcode::Broadcast => {
                let target = tile_shape(self.kernel, self.kernel.result(op));
                result_home.map(|l| self.broadcast_operand(l, tile_shape(self.kernel, operands[0]), target))
            }
            Opcode::Permute { perm } => result_home.map(|l| {
                let inverse = invert(perm);
                self.derive(l, |l| l.transpose(&inverse))
            }),
            Opcode::Reshape => {
                let from = tile_shape(self.kernel, operands[0]);
                match (result_home, from) {
                    (Some(l), Some(from)) => Some(self.derive(l, |l| l.reshape(from.dims()))),
                    (None, Some(_)) => Some(self.at_home(operands[0])),
                    _ => None,
                }
            }
            Opcode::Join => result_home
                .map(|l| self.derive(l, |l| l.split().expect("a joined layout splits by construction").0)),
            Opcode::Split if result_home.is_none() => Some(infer::pair_layout(self.kernel)),
            Opcode::Split => {
                // The operand in its own layout if its halves share a thread there, else in the joined form of the result's.
                result_home.map(|l| {
                    let home = self.at_home(operands[0]);
                    let splits = self.kernel.layouts[home].split().is_some();
                    if splits { home } else { self.derive(l, crate::layout::LinearLayout::join) }
                })
            }
            Opcode::Load { .. }
            | Opcode::AtomicRmw { .. }
            | Opcode::AtomicCas { .. }
            | Opcode::Store { .. }
            | Opcode::ViewStore { .. }
            | Opcode::ViewReduceAdd
            | Opcode::TensorStore { .. }
            | Opcode::AsyncCopyPtr { .. } => self.anchors.memory.get(&op).copied(),
            // Values of one shape are printed side by side.
            Opcode::Print { .. } => {
                let mut by_shape: HashMap<Shape, LayoutRef> = HashMap::new();
                let shapes: Vec<Option<Shape>> =
                    operands.iter().map(|&v| tile_shape(self.kernel, v)).collect();
                return operands
                    .iter()
                    .zip(shapes)
                    .map(|(&v, shape)| {
                        let shape = shape?;
                        let home = self.at_home(v);
                        Some(*by_shape.entry(shape).or_insert(home))
                    })
                    .collect();
            }
            Opcode::ChannelStage => {
                let &stored = operands.last().expect("verified");
                let home = self.at_home(stored);
                let own_rows = Some(home).filter(|&home| infer::divides_rows(&self.kernel.layouts[home]));
                let layout = own_rows.or(self.anchors.memory.get(&op).copied());
                return operands.iter().map(|&v| if v == stored { layout } else { None }).collect();
            }
            Opcode::SharedStore | Opcode::ChannelStore | Opcode::Assert { .. } => {
                let each: Vec<Value> = operands.to_vec();
                return each
                    .iter()
                    .map(|&v| tile_shape(self.kernel, v).is_some().then(|| self.at_home(v)))
                    .collect();
            }
            _ => result_home,
        };
        operands.iter().map(|&v| if tile_shape(self.kernel, v).is_some() { shared } else { None }).collect()
    }

    /// The value in a layout: itself, rebuilt, or converted.
    fn fetch(&mut self, value: Value, layout: LayoutRef) -> Value {
        let Type::Tile(tile) = self.kernel.ty(value) else { return value };
        if tile.shape.rank() == 0 {
            return value;
        }
        if let Some(&made) = self.made.iter().rev().find_map(|m| m.get(&(value, layout))) {
            return made;
        }
        let made = match self.kernel.def_op(value) {
            Some(op) if self.is_rebuilt(op) => self.rebuild(op, layout),
            // Redone from its smaller operand, a broadcast moves less.
            Some(op)
                if matches!(self.kernel.ops[op].opcode, Opcode::Broadcast | Opcode::Expand { .. })
                    && tile.layout != Some(layout) =>
            {
                self.rebuild(op, layout)
            }
            _ if tile.layout == Some(layout) => value,
            // Addresses and masks that are made of rows and columns: these are fewer.
            Some(op) if self.is_spread(value, 16) => self.rebuild(op, layout),
            _ => {
                let ty = self.kernel.ty(value).with_layout(Some(layout));
                let loc =
                    self.kernel.def_op(value).map_or(self.kernel.unknown_loc(), |op| self.kernel.ops[op].loc);
                let convert = self.kernel.make_op(Opcode::ConvertLayout, [value], [ty], loc);
                self.out.push(convert);
                self.kernel.result(convert)
            }
        };
        self.made.last_mut().expect("inside a block").insert((value, layout), made);
        made
    }

    /// Builds the value of a cheap operation again, in `layout`.
    fn rebuild(&mut self, op: Op, layout: LayoutRef) -> Value {
        let data = self.kernel.ops[op].clone();
        let result = data.results[0];
        let target = self.kernel.ty(result).shape().expect("only tiles are rebuilt");
        let operands: Vec<Value> = data
            .operands
            .iter()
            .map(|&operand| {
                let Some(shape) = self.kernel.ty(operand).shape().filter(|s| s.rank() > 0) else {
                    return operand;
                };
                let wanted = match data.opcode {
                    Opcode::Expand { axis } => self.derive(layout, |l| l.slice(axis as usize)),
                    Opcode::Broadcast => self.broadcast_operand(layout, Some(shape), Some(target)),
                    Opcode::Reshape => self.derive(layout, |l| l.reshape(shape.dims())),
                    _ => layout,
                };
                self.fetch(operand, wanted)
            })
            .collect();
        let ty = self.kernel.ty(result).with_layout(Some(layout));
        let copy = self.kernel.make_op(data.opcode, operands, [ty], data.loc);
        self.out.push(copy);
        self.kernel.result(copy)
    }

    fn is_rebuilt(&self, op: Op) -> bool {
        let data = &self.kernel.ops[op];
        infer::is_cheap(&data.opcode)
            && data
                .results
                .iter()
                .all(|&r| self.kernel.ty(r).shape().is_some_and(|s| s.rank() > 0) && self.homes[r].is_none())
    }

    /// Is it arithmetic of indices, conditions or pointers, all of which were spread out of smaller tiles, or can be rebuilt?
    fn is_spread(&self, value: Value, depth: u32) -> bool {
        let is_index = self.kernel.ty(value).as_tile().is_some_and(|tile| match tile.elem {
            ElemType::Value(elem) => !elem.is_float(),
            ElemType::Ptr(_) => true,
        });
        let Some(op) = self.kernel.def_op(value).filter(|_| is_index && depth > 0) else { return false };
        let data = &self.kernel.ops[op];
        // A reshape costs nothing: it names the same elements otherwise.
        (infer::is_cheap(&data.opcode) || data.opcode == Opcode::Reshape)
            && data.operands.iter().all(|&operand| {
                self.kernel.ty(operand).shape().is_none_or(|shape| shape.rank() == 0)
                    || self.kernel.def_op(operand).is_some_and(|of| {
                        matches!(self.kernel.ops[of].opcode, Opcode::Broadcast | Opcode::Expand { .. })
                            || self.is_rebuilt(of)
                    })
                    || self.is_spread(operand, depth - 1)
            })
    }

    /// The layout of an operand that must be there without a say of the operation.
    fn at_home(&mut self, value: Value) -> LayoutRef {
        match self.homes[value] {
            Some((layout, _)) => layout,
            None => {
                let shape = self.kernel.ty(value).shape().expect("a tile");
                self.anchors.default_layout(self.kernel, shape)
            }
        }
    }

    fn dearest_home(&mut self, values: &[Value]) -> LayoutRef {
        let mut best = None;
        for &v in values {
            if let Some((l, p)) = self.homes[v]
                && best.is_none_or(|(_, q)| p > q)
            {
                best = Some((l, p));
            }
        }
        best.map_or_else(|| self.at_home(values[0]), |(l, _)| l)
    }

    /// Where a broadcast's operand must live so that each thread only repeats what it holds.
    fn broadcast_operand(&mut self, result: LayoutRef, from: Option<Shape>, to: Option<Shape>) -> LayoutRef {
        let (Some(from), Some(to)) = (from, to) else { return result };
        self.derive(result, |l| {
            let mut l = l.clone();
            for axis in 0..to.rank() {
                if from.dims()[axis] != to.dims()[axis] {
                    l = l.slice(axis).expand_dims(axis);
                }
            }
            l
        })
    }

    fn derive(
        &mut self,
        layout: LayoutRef,
        f: impl FnOnce(&crate::layout::LinearLayout) -> crate::layout::LinearLayout,
    ) -> LayoutRef {
        let derived = f(&self.kernel.layouts[layout]);
        intern(self.kernel, derived)
    }

    /// Fetches the operands from `first` on in the homes of `targets`.
    fn fetch_like(&mut self, op: Op, first: usize, targets: &[Value]) {
        for (i, &target) in targets.iter().enumerate() {
            let operand = self.kernel.ops[op].operands[first + i];
            if let Some((layout, _)) = self.homes[target] {
                self.kernel.ops[op].operands[first + i] = self.fetch(operand, layout);
            }
        }
    }

    fn set_homes(&mut self, values: &[Value]) {
        for &value in values {
            if let Some((layout, _)) = self.homes[value] {
                self.kernel.values[value].ty = self.kernel.ty(value).with_layout(Some(layout));
            }
        }
    }

    /// Rewrites a region whose terminator's operands (after `skip`) must have the homes of `targets`.
    fn region_yielding(&mut self, block: Block, skip: usize, targets: &[Value]) {
        let terminator = self.kernel.blocks[block].ops.pop().expect("verified: regions end in a terminator");
        let ops = std::mem::take(&mut self.kernel.blocks[block].ops);
        let outer = std::mem::take(&mut self.out);
        self.made.push(HashMap::new());
        for op in ops {
            self.op(op);
        }
        self.fetch_like(terminator, skip, targets);
        self.made.pop();
        self.out.push(terminator);
        self.kernel.blocks[block].ops = std::mem::replace(&mut self.out, outer);
    }
}

fn invert(perm: &[u32]) -> Vec<usize> {
    let mut inverse = vec![0; perm.len()];
    for (i, &p) in perm.iter().enumerate() {
        inverse[p as usize] = i;
    }
    inverse
}
