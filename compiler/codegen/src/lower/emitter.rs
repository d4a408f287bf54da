//! Appends MLIR operations: the per-thread scalar code that every other file of `lower/` is written in.
//!
//! Operations are built by name. Integer identities and constants are folded on the way, since layouts produce a
//! great many additions of 0 and multiplications by 1, and what is never built need not be removed by a pass.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use melior::Context;
use melior::ir::attribute::{
    DenseI32ArrayAttribute, FloatAttribute, IntegerAttribute, StringAttribute, TypeAttribute,
};
use melior::ir::block::BlockLike;
use melior::ir::operation::OperationBuilder;
use melior::ir::r#type::IntegerType;
use melior::ir::{
    Attribute, Block, BlockRef, Identifier, Location, Operation, Region, RegionLike, Type, TypeLike, Value,
    ValueLike,
};

use crate::ffi;

/// An MLIR value. Its second lifetime is that of the context: `ffi::detach` says why that is sound here.
pub type V<'c> = Value<'c, 'c>;

/// Named attributes of an operation.
pub type Attrs<'c, 'n> = &'n [(&'n str, Attribute<'c>)];

/// Types in constant use.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Types<'c> {
    pub i1: Type<'c>,
    pub i8: Type<'c>,
    pub i16: Type<'c>,
    pub i32: Type<'c>,
    pub i64: Type<'c>,
    pub f16: Type<'c>,
    pub bf16: Type<'c>,
    pub f32: Type<'c>,
    pub f64: Type<'c>,
    /// Pointer to global memory.
    pub global: Type<'c>,
    /// Pointer to shared memory.
    pub shared: Type<'c>,
    /// Generic pointer.
    pub generic: Type<'c>,
}

impl<'c> Types<'c> {
    /// The types of a context.
    pub fn of(context: &'c Context) -> Types<'c> {
        let int = |bits| IntegerType::new(context, bits).into();
        let ptr = |text| Type::parse(context, text).expect("the llvm dialect is loaded");
        Types {
            i1: int(1),
            i8: int(8),
            i16: int(16),
            i32: int(32),
            i64: int(64),
            f16: Type::float16(context),
            bf16: Type::bfloat16(context),
            f32: Type::float32(context),
            f64: Type::float64(context),
            global: ptr("!llvm.ptr<1>"),
            shared: ptr("!llvm.ptr<3>"),
            generic: ptr("!llvm.ptr"),
        }
    }
}

/// Integer comparisons, by MLIR's number.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub enum IntCmp {
    Eq = 0,
    Ne = 1,
    Slt = 2,
    Sle = 3,
    Sgt = 4,
    Sge = 5,
    Ult = 6,
    Ule = 7,
    Ugt = 8,
    Uge = 9,
}

/// Builds operations at the end of one block at a time.
pub struct Emitter<'c> {
    /// The context that everything lives in.
    pub context: &'c Context,
    /// Types in constant use.
    pub t: Types<'c>,
    /// The location that new operations get.
    pub loc: Location<'c>,
    /// The block at work.
    pub block: BlockRef<'c, 'c>,
    /// Constants stand at the start of the function, so that every region may use them.
    entry: BlockRef<'c, 'c>,
    constants: RefCell<HashMap<(usize, u64), V<'c>>>,
    known: RefCell<HashMap<usize, i64>>,
    globals: RefCell<Vec<Operation<'c>>>,
    declared: RefCell<HashSet<String>>,
    /// The threads that work together, if they are not the whole CTA: which barrier they meet at, and how many they are.
    group: Option<(V<'c>, u32)>,
}

impl<'c> Emitter<'c> {
    /// Builds into `entry`, the first block of a function.
    pub fn new(context: &'c Context, entry: BlockRef<'c, 'c>) -> Emitter<'c> {
        Emitter {
            context,
            t: Types::of(context),
            loc: Location::unknown(context),
            block: entry,
            entry,
            constants: RefCell::default(),
            known: RefCell::default(),
            globals: RefCell::default(),
            declared: RefCell::default(),
            group: None,
        }
    }

    /// Makes the entry block the block at work; gives the one that was.
    pub fn enter_entry(&mut self) -> BlockRef<'c, 'c> {
        std::mem::replace(&mut self.block, self.entry)
    }

    /// Adds an operation beside the function, such as a constant string; `take_globals` collects them.
    pub fn global(&self, op: Operation<'c>) {
        self.globals.borrow_mut().push(op);
    }

    /// Is this the first call with this name? For what must be declared once.
    pub fn first_time(&self, name: &str) -> bool {
        self.declared.borrow_mut().insert(name.to_owned())
    }

    /// The operations that belong beside the function.
    pub fn take_globals(&self) -> Vec<Operation<'c>> {
        self.globals.take()
    }

    // ---- operations

    /// Appends an operation.
    pub fn op(
        &self,
        name: &str,
        operands: &[V<'c>],
        results: &[Type<'c>],
        attrs: Attrs<'c, '_>,
    ) -> Vec<V<'c>> {
        self.op_with_regions(name, operands, results, attrs, Vec::new())
    }

    /// Appends an operation with regions.
    pub fn op_with_regions(
        &self,
        name: &str,
        operands: &[V<'c>],
        results: &[Type<'c>],
        attrs: Attrs<'c, '_>,
        regions: Vec<Region<'c>>,
    ) -> Vec<V<'c>> {
        let named: Vec<(Identifier<'c>, Attribute<'c>)> =
            attrs.iter().map(|&(n, a)| (Identifier::new(self.context, n), a)).collect();
        let op = OperationBuilder::new(name, self.loc)
            .add_operands(operands)
            .add_results(results)
            .add_attributes(&named)
            .add_regions_vec(regions)
            .build()
            .expect("results are given, nothing is inferred");
        let op = self.block.append_operation(op);
        (0..results.len())
            .map(|i| ffi::detach(op.result(i).expect("as many results as types").into()))
            .collect()
    }

    /// Appends an operation with one result.
    pub fn one(&self, name: &str, operands: &[V<'c>], result: Type<'c>) -> V<'c> {
        self.op(name, operands, &[result], &[])[0]
    }

    /// Appends an operation with one result and attributes.
    pub fn one_with(&self, name: &str, operands: &[V<'c>], result: Type<'c>, attrs: Attrs<'c, '_>) -> V<'c> {
        self.op(name, operands, &[result], attrs)[0]
    }

    /// An attribute in MLIR's text form.
    pub fn attr(&self, text: &str) -> Attribute<'c> {
        Attribute::parse(self.context, text).unwrap_or_else(|| panic!("malformed attribute: {text}"))
    }

    /// A type in MLIR's text form.
    pub fn ty(&self, text: &str) -> Type<'c> {
        Type::parse(self.context, text).unwrap_or_else(|| panic!("malformed type: {text}"))
    }

    /// A string attribute.
    pub fn string(&self, text: &str) -> Attribute<'c> {
        StringAttribute::new(self.context, text).into()
    }

    /// A type as an attribute.
    pub fn type_attr(&self, ty: Type<'c>) -> Attribute<'c> {
        TypeAttribute::new(ty).into()
    }

    /// A 64-bit integer attribute.
    pub fn i64_attr(&self, x: i64) -> Attribute<'c> {
        IntegerAttribute::new(self.t.i64, x).into()
    }

    // ---- constants

    fn constant(&self, ty: Type<'c>, bits: u64, attr: Attribute<'c>) -> V<'c> {
        let key = (key(ty), bits);
        if let Some(&v) = self.constants.borrow().get(&key) {
            return v;
        }
        let op = OperationBuilder::new("arith.constant", Location::unknown(self.context))
            .add_results(&[ty])
            .add_attributes(&[(Identifier::new(self.context, "value"), attr)])
            .build()
            .expect("a constant");
        let op = self.entry.insert_operation(0, op);
        let v: V<'c> = ffi::detach(op.result(0).expect("one result").into());
        self.constants.borrow_mut().insert(key, v);
        v
    }

    /// An integer constant of an integer type. It is known by its sign-extended value (but for `i1`: 0 or 1), whichever way it is
    /// written: 255 and −1 are one constant of 8 bits, and both orders of 64-bit numbers are those of the narrow type.
    pub fn int(&self, ty: Type<'c>, x: i64) -> V<'c> {
        let width = IntegerType::try_from(ty).expect("an integer").width();
        let x = match width {
            1 => x & 1,
            2..64 => x << (64 - width) >> (64 - width),
            _ => x,
        };
        let v = self.constant(ty, x as u64, IntegerAttribute::new(ty, x).into());
        self.known.borrow_mut().insert(v.to_raw().ptr as usize, x);
        v
    }

    /// A 32-bit constant.
    pub fn i32(&self, x: i64) -> V<'c> {
        self.int(self.t.i32, x)
    }

    /// A 64-bit constant.
    pub fn i64(&self, x: i64) -> V<'c> {
        self.int(self.t.i64, x)
    }

    /// A truth value.
    pub fn bool(&self, x: bool) -> V<'c> {
        self.int(self.t.i1, x.into())
    }

    /// A float constant of a float type.
    pub fn float(&self, ty: Type<'c>, x: f64) -> V<'c> {
        self.constant(ty, x.to_bits(), FloatAttribute::new(self.context, ty, x).into())
    }

    /// The value of an integer constant made here.
    pub fn known(&self, v: V<'c>) -> Option<i64> {
        self.known.borrow().get(&(v.to_raw().ptr as usize)).copied()
    }

    // ---- integers

    fn int_op(&self, name: &str, a: V<'c>, b: V<'c>) -> V<'c> {
        self.one(name, &[a, b], a.r#type())
    }

    fn both_known(&self, a: V<'c>, b: V<'c>) -> Option<(i64, i64)> {
        Some((self.known(a)?, self.known(b)?))
    }

    /// a + b.
    pub fn add(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        match (self.known(a), self.known(b)) {
            (Some(0), _) => b,
            (_, Some(0)) => a,
            (Some(x), Some(y)) if a.r#type() == self.t.i32 => {
                self.i32((x as i32).wrapping_add(y as i32).into())
            }
            _ => self.int_op("arith.addi", a, b),
        }
    }

    /// a − b.
    pub fn sub(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        if self.known(b) == Some(0) { a } else { self.int_op("arith.subi", a, b) }
    }

    /// a · b.
    pub fn mul(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        match (self.known(a), self.known(b)) {
            (Some(0), _) | (_, Some(1)) => a,
            (Some(1), _) | (_, Some(0)) => b,
            (Some(x), Some(y)) if a.r#type() == self.t.i32 => {
                self.i32((x as i32).wrapping_mul(y as i32).into())
            }
            _ => self.int_op("arith.muli", a, b),
        }
    }

    /// a & b.
    pub fn and(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        let all_ones = if a.r#type() == self.t.i1 { 1 } else { -1 };
        match (self.known(a), self.known(b)) {
            (Some(0), _) => a,
            (_, Some(0)) => b,
            (Some(x), _) if x == all_ones => b,
            (_, Some(y)) if y == all_ones => a,
            _ => self.int_op("arith.andi", a, b),
        }
    }

    /// a | b.
    pub fn or(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        match (self.known(a), self.known(b)) {
            (Some(0), _) => b,
            (_, Some(0)) => a,
            _ => self.int_op("arith.ori", a, b),
        }
    }

    /// a ^ b.
    pub fn xor(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        match (self.known(a), self.known(b)) {
            (Some(0), _) => b,
            (_, Some(0)) => a,
            _ => self.int_op("arith.xori", a, b),
        }
    }

    /// a << by, for a constant below the width.
    pub fn shl(&self, a: V<'c>, by: u32) -> V<'c> {
        if by == 0 { a } else { self.int_op("arith.shli", a, self.int(a.r#type(), by.into())) }
    }

    /// a >> by (logical), for a constant below the width.
    pub fn shr(&self, a: V<'c>, by: u32) -> V<'c> {
        if by == 0 { a } else { self.int_op("arith.shrui", a, self.int(a.r#type(), by.into())) }
    }

    /// Compares integers or pointers of one type.
    pub fn icmp(&self, cmp: IntCmp, a: V<'c>, b: V<'c>) -> V<'c> {
        if let Some((x, y)) = self.both_known(a, b) {
            let (ux, uy) = (x as u64, y as u64);
            return self.bool(match cmp {
                IntCmp::Eq => x == y,
                IntCmp::Ne => x != y,
                IntCmp::Slt => x < y,
                IntCmp::Sle => x <= y,
                IntCmp::Sgt => x > y,
                IntCmp::Sge => x >= y,
                IntCmp::Ult => ux < uy,
                IntCmp::Ule => ux <= uy,
                IntCmp::Ugt => ux > uy,
                IntCmp::Uge => ux >= uy,
            });
        }
        self.one_with("arith.cmpi", &[a, b], self.t.i1, &[("predicate", self.i64_attr(cmp as i64))])
    }

    /// cond ? a : b.
    pub fn select(&self, cond: V<'c>, a: V<'c>, b: V<'c>) -> V<'c> {
        match self.known(cond) {
            Some(0) => b,
            Some(_) => a,
            None if a == b => a,
            None => self.one("arith.select", &[cond, a, b], a.r#type()),
        }
    }

    /// Converts between integer widths; `signed` says how to widen.
    pub fn resize(&self, a: V<'c>, to: Type<'c>, signed: bool) -> V<'c> {
        let from = a.r#type();
        if from == to {
            return a;
        }
        let width = |t: Type<'c>| IntegerType::try_from(t).expect("an integer").width();
        if let Some(x) = self.known(a)
            && (signed || x >= 0)
            && width(from) < width(to)
            && from != self.t.i1
        {
            return self.int(to, x);
        }
        let name = match (width(from) < width(to), signed) {
            (true, true) => "arith.extsi",
            (true, false) => "arith.extui",
            (false, _) => "arith.trunci",
        };
        self.one(name, &[a], to)
    }

    // ---- pointers and memory

    /// `ptr + offset` bytes; `offset` is an i32 (sign-extended) or i64.
    pub fn byte_offset(&self, ptr: V<'c>, offset: V<'c>) -> V<'c> {
        match self.known(offset) {
            Some(0) => ptr,
            Some(x) if i32::try_from(x).is_ok() => self.const_byte_offset(ptr, x as i32),
            _ => self.gep(ptr, &[offset], i32::MIN),
        }
    }

    /// `ptr + offset` bytes for a constant.
    pub fn const_byte_offset(&self, ptr: V<'c>, offset: i32) -> V<'c> {
        if offset == 0 { ptr } else { self.gep(ptr, &[], offset) }
    }

    /// A getelementptr over bytes. `i32::MIN` in the constant index list means "the dynamic operand".
    fn gep(&self, ptr: V<'c>, dynamic: &[V<'c>], index: i32) -> V<'c> {
        let operands: Vec<V<'c>> = std::iter::once(ptr).chain(dynamic.iter().copied()).collect();
        self.one_with(
            "llvm.getelementptr",
            &operands,
            ptr.r#type(),
            &[
                ("elem_type", self.type_attr(self.t.i8)),
                ("rawConstantIndices", DenseI32ArrayAttribute::new(self.context, &[index]).into()),
            ],
        )
    }

    /// Loads a value, aligned to `align` bytes.
    pub fn load(&self, ty: Type<'c>, ptr: V<'c>, align: u32) -> V<'c> {
        self.one_with("llvm.load", &[ptr], ty, &[("alignment", self.i64_attr(align.into()))])
    }

    /// Stores a value, aligned to `align` bytes.
    pub fn store(&self, value: V<'c>, ptr: V<'c>, align: u32) {
        self.op("llvm.store", &[value, ptr], &[], &[("alignment", self.i64_attr(align.into()))]);
    }

    /// A vector type.
    pub fn vector(&self, n: u32, elem: Type<'c>) -> Type<'c> {
        Type::vector(&[n.into()], elem)
    }

    /// Reinterprets bits (scalars and vectors of equal size; not pointers).
    pub fn bitcast(&self, v: V<'c>, ty: Type<'c>) -> V<'c> {
        if v.r#type() == ty { v } else { self.one("llvm.bitcast", &[v], ty) }
    }

    /// An element of a vector.
    pub fn extract(&self, vector: V<'c>, index: u32, elem: Type<'c>) -> V<'c> {
        self.one("llvm.extractelement", &[vector, self.i32(index.into())], elem)
    }

    /// A vector of these elements.
    pub fn build_vector(&self, elems: &[V<'c>]) -> V<'c> {
        let ty = self.vector(elems.len() as u32, elems[0].r#type());
        let mut v = self.one("llvm.mlir.poison", &[], ty);
        for (i, &e) in elems.iter().enumerate() {
            v = self.one("llvm.insertelement", &[v, e, self.i32(i as i64)], ty);
        }
        v
    }

    /// A field of a struct.
    pub fn field(&self, aggregate: V<'c>, index: i64, ty: Type<'c>) -> V<'c> {
        let position = self.attr(&format!("array<i64: {index}>"));
        self.one_with("llvm.extractvalue", &[aggregate], ty, &[("position", position)])
    }

    // ---- calls out of the dialects

    /// Inline PTX. `results` are its output registers; `effects` marks assembly that must stay where it is and may touch memory.
    pub fn asm(
        &self,
        text: &str,
        constraints: &str,
        operands: &[V<'c>],
        results: &[Type<'c>],
        effects: bool,
    ) -> Vec<V<'c>> {
        let mut attrs = vec![("asm_string", self.string(text)), ("constraints", self.string(constraints))];
        if effects {
            attrs.push(("has_side_effects", Attribute::unit(self.context)));
        }
        match results {
            [] | [_] => self.op("llvm.inline_asm", operands, results, &attrs),
            _ => {
                let fields: Vec<String> = results.iter().map(|t| t.to_string()).collect();
                let ty = self.ty(&format!("!llvm.struct<({})>", fields.join(", ")));
                let packed = self.op("llvm.inline_asm", operands, &[ty], &attrs)[0];
                results.iter().enumerate().map(|(i, &t)| self.field(packed, i as i64, t)).collect()
            }
        }
    }

    /// A call of an LLVM intrinsic with one result.
    pub fn intrinsic(&self, name: &str, operands: &[V<'c>], result: Type<'c>) -> V<'c> {
        self.call_intrinsic(name, operands, &[result])[0]
    }

    /// A call of an LLVM intrinsic.
    pub fn call_intrinsic(&self, name: &str, operands: &[V<'c>], results: &[Type<'c>]) -> Vec<V<'c>> {
        let segments = DenseI32ArrayAttribute::new(self.context, &[operands.len() as i32, 0]).into();
        self.op(
            "llvm.call_intrinsic",
            operands,
            results,
            &[
                ("intrin", self.string(name)),
                ("operandSegmentSizes", segments),
                ("op_bundle_sizes", DenseI32ArrayAttribute::new(self.context, &[]).into()),
            ],
        )
    }

    /// A special register, by the name of its `nvvm` operation.
    pub fn special_register(&self, name: &str) -> V<'c> {
        self.one(&format!("nvvm.read.ptx.sreg.{name}"), &[], self.t.i32)
    }

    /// Code from here on is run by a group of the CTA's threads, so many of them, which meet at barrier `id` (or by all again).
    pub fn set_group(&mut self, group: Option<(V<'c>, u32)>) {
        self.group = group;
    }

    /// All threads of the CTA, or of the group at work, meet.
    pub fn barrier(&self) {
        if let Some((id, threads)) = self.group {
            return super::nvvm::named_barrier(self, id, threads);
        }
        self.call_intrinsic("llvm.nvvm.barrier.cta.sync.aligned.all", &[self.i32(0)], &[]);
    }

    // ---- regions

    /// Starts a region of one block, which becomes the block at work until [`Emitter::close`].
    pub fn open(&mut self, args: &[Type<'c>]) -> OpenRegion<'c> {
        let args: Vec<(Type<'c>, Location<'c>)> = args.iter().map(|&t| (t, self.loc)).collect();
        let region = Region::new();
        let block = ffi::detach_block(region.append_block(Block::new(&args)));
        let args = (0..args.len())
            .map(|i| ffi::detach(block.argument(i).expect("an argument a type").into()))
            .collect();
        OpenRegion { region, args, outer: std::mem::replace(&mut self.block, block) }
    }

    /// Ends a region; the block around it is at work again.
    pub fn close(&mut self, open: OpenRegion<'c>) -> Region<'c> {
        self.block = open.outer;
        open.region
    }
}

/// A region being filled.
pub struct OpenRegion<'c> {
    region: Region<'c>,
    /// The arguments of its block.
    pub args: Vec<V<'c>>,
    outer: BlockRef<'c, 'c>,
}

/// What a type is hashed by.
fn key(ty: Type<'_>) -> usize {
    ty.to_raw().ptr as usize
}
