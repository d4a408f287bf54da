//! Appends operations at an insertion point; used by the language front end, the parser and the passes.
//!
//! The builder infers result types where the operands determine them and trusts its caller otherwise: what is built is checked by the
//! verifier, and the front end checks before it builds so as to speak of the user's source.

use smallvec::SmallVec;

use crate::kernel::{Block, Kernel, Loc, Op, Value};
use crate::op::*;
use crate::types::{Elem, Shape, Type};

/// A kernel under construction, with a place to insert at and the source location that new operations get.
pub struct Builder<'k> {
    /// The kernel.
    pub kernel: &'k mut Kernel,
    /// Where operations are appended.
    pub block: Block,
    /// The location they get.
    pub loc: Loc,
}

impl<'k> Builder<'k> {
    /// Appends to the end of `block`.
    pub fn at_end(kernel: &'k mut Kernel, block: Block) -> Builder<'k> {
        let loc = kernel.unknown_loc();
        Builder { kernel, block, loc }
    }

    /// Appends an operation with any number of results.
    pub fn op(
        &mut self,
        opcode: Opcode,
        operands: &[Value],
        result_types: impl IntoIterator<Item = Type>,
    ) -> Op {
        let op = self.kernel.make_op(opcode, operands.iter().copied(), result_types, self.loc);
        self.kernel.append_op(self.block, op);
        op
    }

    /// Appends an operation with one result.
    pub fn value(&mut self, opcode: Opcode, operands: &[Value], result_type: Type) -> Value {
        let op = self.op(opcode, operands, [result_type]);
        self.kernel.result(op)
    }

    /// Appends an operation without results.
    pub fn effect(&mut self, opcode: Opcode, operands: &[Value]) -> Op {
        self.op(opcode, operands, [])
    }

    /// Builds a region: a block with these arguments, filled by `fill`, which returns what it yields.
    pub fn region(
        &mut self,
        arg_types: impl IntoIterator<Item = Type>,
        terminator: Opcode,
        fill: impl FnOnce(&mut Builder<'_>, &[Value]) -> SmallVec<[Value; 4]>,
    ) -> Block {
        let block = self.kernel.add_block();
        let args: SmallVec<[Value; 4]> =
            arg_types.into_iter().map(|t| self.kernel.add_block_arg(block, t)).collect();
        let loc = self.loc;
        let mut inner = Builder { kernel: self.kernel, block, loc };
        let yields = fill(&mut inner, &args);
        inner.effect(terminator, &yields);
        block
    }

    fn ty(&self, v: Value) -> Type {
        self.kernel.ty(v)
    }

    /// A constant of the type `ty`; the literal must fit the element type.
    pub fn constant(&mut self, literal: Literal, ty: Type) -> Value {
        self.value(Opcode::Const(literal), &[], ty)
    }

    /// An integer scalar.
    pub fn int(&mut self, x: i64, elem: Elem) -> Value {
        self.constant(Literal::Int(x), Type::scalar(elem))
    }

    /// A float scalar.
    pub fn float(&mut self, x: f64, elem: Elem) -> Value {
        self.constant(Literal::float(x), Type::scalar(elem))
    }

    /// `start, start + 1, …`, `n` of them.
    pub fn iota(&mut self, start: i32, n: u32) -> Value {
        self.value(Opcode::Iota { start }, &[], Type::tile(Elem::I32, Shape::new(&[n])))
    }

    /// An operation on one value.
    pub fn unary(&mut self, op: UnaryOp, a: Value) -> Value {
        self.value(Opcode::Unary(op), &[a], self.ty(a))
    }

    /// An operation on two values of one type.
    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        self.value(Opcode::Binary(op), &[a, b], self.ty(a))
    }

    /// A comparison.
    pub fn cmp(&mut self, op: CmpOp, a: Value, b: Value) -> Value {
        let ty = self.ty(a).with_elem(Elem::I1);
        self.value(Opcode::Cmp(op), &[a, b], ty)
    }

    /// `cond ? a : b`, element by element.
    pub fn select(&mut self, cond: Value, a: Value, b: Value) -> Value {
        self.value(Opcode::Select, &[cond, a, b], self.ty(a))
    }

    /// `a · b + c` with one rounding.
    pub fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        self.value(Opcode::Fma, &[a, b, c], self.ty(a))
    }

    /// A numeric conversion.
    pub fn cast(&mut self, a: Value, to: Elem) -> Value {
        let ty = self.ty(a).with_elem(to);
        self.value(Opcode::Cast(Rounding::Default), &[a], ty)
    }

    /// Moves pointers by a number of elements.
    pub fn ptr_add(&mut self, ptr: Value, offset: Value) -> Value {
        self.value(Opcode::PtrAdd, &[ptr, offset], self.ty(ptr))
    }

    /// Stretches to `shape`; nothing is built if the value has it.
    pub fn broadcast(&mut self, a: Value, shape: Shape) -> Value {
        let ty = self.ty(a);
        if ty.shape() == Some(shape) {
            return a;
        }
        self.value(Opcode::Broadcast, &[a], ty.with_shape(shape))
    }

    /// Inserts a dimension of extent 1.
    pub fn expand(&mut self, a: Value, axis: usize) -> Value {
        let ty = self.ty(a);
        let shape = ty.shape().expect("expand takes a tile").insert(axis, 1);
        self.value(Opcode::Expand { axis: axis as u8 }, &[a], ty.with_shape(shape))
    }

    /// The same elements in row-major order under another shape.
    pub fn reshape(&mut self, a: Value, shape: Shape) -> Value {
        let ty = self.ty(a).with_shape(shape);
        self.value(Opcode::Reshape, &[a], ty)
    }

    /// Reorders dimensions.
    pub fn permute(&mut self, a: Value, perm: &[u32]) -> Value {
        let ty = self.ty(a);
        let shape = ty.shape().expect("permute takes a tile").permute(perm);
        self.value(Opcode::Permute { perm: perm.iter().copied().collect() }, &[a], ty.with_shape(shape))
    }

    /// a · b + acc.
    pub fn dot(&mut self, a: Value, b: Value, acc: Value, precision: DotPrecision) -> Value {
        self.value(Opcode::Dot(precision), &[a, b, acc], self.ty(acc))
    }

    /// Folds dimension `axis` away with a combine function over scalars.
    pub fn reduce(
        &mut self,
        axis: usize,
        inputs: &[Value],
        combine: impl FnOnce(&mut Builder<'_>, &[Value]) -> SmallVec<[Value; 4]>,
    ) -> SmallVec<[Value; 2]> {
        let tys: SmallVec<[Type; 2]> = inputs.iter().map(|&v| self.ty(v)).collect();
        let results = tys.iter().map(|t| t.with_shape(t.shape().expect("reduce takes tiles").remove(axis)));
        let op = self.op(Opcode::Reduce { axis: axis as u8 }, inputs, results);
        self.combine_region(op, &tys, combine);
        self.kernel.ops[op].results.clone()
    }

    /// Inclusive prefix combination along `axis`.
    pub fn scan(
        &mut self,
        axis: usize,
        reverse: bool,
        inputs: &[Value],
        combine: impl FnOnce(&mut Builder<'_>, &[Value]) -> SmallVec<[Value; 4]>,
    ) -> SmallVec<[Value; 2]> {
        let tys: SmallVec<[Type; 2]> = inputs.iter().map(|&v| self.ty(v)).collect();
        let op = self.op(Opcode::Scan { axis: axis as u8, reverse }, inputs, tys.iter().copied());
        self.combine_region(op, &tys, combine);
        self.kernel.ops[op].results.clone()
    }

    fn combine_region(
        &mut self,
        op: Op,
        tys: &[Type],
        combine: impl FnOnce(&mut Builder<'_>, &[Value]) -> SmallVec<[Value; 4]>,
    ) {
        let scalars = tys.iter().chain(tys).map(|t| t.with_shape(Shape::SCALAR));
        let region = self.region(scalars.collect::<SmallVec<[Type; 4]>>(), Opcode::Yield, combine);
        self.kernel.ops[op].regions.push(region);
    }
}
