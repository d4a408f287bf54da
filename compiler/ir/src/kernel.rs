//! A kernel: values, operations and blocks in arenas, referred to by typed ids.
//!
//! Control flow is structured: a block is a straight list of operations that ends in a terminator (but for the kernel's own
//! body, which just ends), and only operations have regions, each of one block. There are no branches and no phi nodes, so a
//! pass is a walk over lists.

use std::fmt;
use std::sync::Arc;

use cranelift_entity::{PrimaryMap, entity_impl};
use smallvec::SmallVec;

use crate::op::{OpData, Opcode, WarpGroups};
use crate::types::Type;

/// A value: the result of an operation, or an argument of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(u32);
entity_impl!(Value, "v");

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Op(u32);
entity_impl!(Op, "op");

/// A block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block(u32);
entity_impl!(Block, "block");

/// A place in the source; see [`Kernel::locs`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Loc(u32);
entity_impl!(Loc, "loc");

/// A layout; see [`Kernel::layouts`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayoutRef(u32);
entity_impl!(LayoutRef, "#");

/// A place in a source file. Lines and columns count from 1; line 0 means unknown.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SourceLoc {
    /// The file, as rustc named it.
    pub file: Arc<str>,
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl fmt::Display for SourceLoc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            f.write_str("unknown")
        } else {
            write!(f, "{}:{}:{}", self.file, self.line, self.column)
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueDef {
    /// The n-th result of an operation.
    Result(Op, u16),
    /// The n-th argument of a block.
    Arg(Block, u16),
}

/// A value in the arena.
#[derive(Clone, Debug)]
pub struct ValueData {
    /// Its type.
    pub ty: Type,
    /// Its definition.
    pub def: ValueDef,
}

/// A block in the arena.
#[derive(Clone, Debug, Default)]
pub struct BlockData {
    /// Its arguments.
    pub args: SmallVec<[Value; 4]>,
    /// Its operations, in order; the last one is the terminator.
    pub ops: Vec<Op>,
}

/// The extent of tiles up to which small views have small distances between the elements of a tile, but along [`ParamFacts::long_strides`].
pub const SMALL_EXTENT: u32 = 4096;

/// What the launch knows about an argument and lets the compiler use. Part of the specialisation key; all empty is always right.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct ParamFacts {
    /// The address (views, pointers) is a multiple of this many bytes; 0 or 1: nothing known.
    pub align: u32,
    /// An integer scalar is a multiple of this; 0 or 1: nothing known.
    pub divisible: u32,
    /// For views, per dimension: the stride (in elements) is a multiple of this; 0 or 1: nothing known.
    pub stride_divisible: SmallVec<[u32; 4]>,
    /// For views, per dimension: the extent is a multiple of this; 0 or 1: nothing known.
    pub dim_divisible: SmallVec<[u32; 4]>,
    /// For views: the dimension whose stride is 1.
    pub unit_stride: Option<u8>,
    /// For views: every offset of an element, in bytes, fits in 31 bits, and so does every extent.
    pub small: bool,
    /// For small views: the dimensions whose stride, in bytes, times [`SMALL_EXTENT`] does not fit in 31 bits. A tile that begins at a negative
    /// offset may then have elements inside the view that are further from its start than small numbers can say.
    pub long_strides: SmallVec<[u32; 4]>,
    /// For views: a tensor map can describe it, if its address is a multiple of 16 bytes ([`ParamFacts::align`]): 1 to 5 dimensions, of which
    /// `unit_stride` is one and the strides of the others are multiples of 16 bytes below 2^40; extents fit in 31 bits.
    pub tensor_map: bool,
    /// An integer scalar's value, if the code is specialised on it (only done for 1).
    pub value: Option<i64>,
}

/// A run-time argument.
#[derive(Clone, Debug)]
pub struct Param {
    /// The programmer's name.
    pub name: String,
    /// The argument of the body block that holds it.
    pub value: Value,
    /// What is known of it.
    pub facts: ParamFacts,
}

/// Choices that hold for the whole kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KernelHints {
    /// Warps in a CTA.
    pub num_warps: u32,
    /// Depth of software pipelines in loops that do not say their own.
    pub num_stages: u32,
    /// Upper bound on registers a thread, if any.
    pub max_registers: Option<u32>,
    /// CTAs that should fit on one multiprocessor, if stated.
    pub min_ctas: Option<u32>,
    /// Whether loads and computation go to different warps, on GPUs that have the means for it.
    pub warp_specialize: WarpSpecialize,
    /// CTAs that share the work of one program of a specialised kernel, as a cluster: each computes some of the rows of its dots, and what all of them need is
    /// loaded once for all. Like specialisation itself, it changes nothing but speed.
    pub cluster: u32,
}

/// Whether, and how, a kernel's loads and its computation go to different warps (Hopper: TMA, mbarriers, wgmma). What a kernel computes does not depend on it;
/// where the GPU or the kernel does not allow it, the kernel is compiled as if it were off.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WarpSpecialize {
    /// All warps do the same.
    #[default]
    Off,
    /// One more warp loads; the kernel's `num_warps` warps compute together, a multiple of four.
    Cooperative,
    /// One more warp loads; two groups of `num_warps` warps take the iterations of the outermost loop in turn, so that one's epilogue runs under the
    /// other's dots.
    PingPong,
}

impl Default for KernelHints {
    fn default() -> KernelHints {
        KernelHints {
            num_warps: 4,
            num_stages: 3,
            max_registers: None,
            min_ctas: None,
            warp_specialize: WarpSpecialize::Off,
            cluster: 1,
        }
    }
}

/// A kernel in tile IR.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its name: an identifier, used as the PTX entry.
    pub name: String,
    /// Its run-time arguments, in order.
    pub params: Vec<Param>,
    /// Its choices.
    pub hints: KernelHints,
    /// The body; its arguments are the parameters.
    pub body: Block,
    /// All values.
    pub values: PrimaryMap<Value, ValueData>,
    /// All operations, removed ones included (a block's list says what is there).
    pub ops: PrimaryMap<Op, OpData>,
    /// All blocks.
    pub blocks: PrimaryMap<Block, BlockData>,
    /// Places in the source. Entry 0 is "unknown".
    pub locs: PrimaryMap<Loc, SourceLoc>,
    /// Layouts that types refer to.
    pub layouts: PrimaryMap<LayoutRef, crate::layout::LinearLayout>,
}

impl Kernel {
    /// An empty kernel.
    pub fn new(name: impl Into<String>) -> Kernel {
        let mut blocks = PrimaryMap::new();
        let body = blocks.push(BlockData::default());
        let mut locs = PrimaryMap::new();
        locs.push(SourceLoc { file: Arc::from(""), line: 0, column: 0 });
        Kernel {
            name: name.into(),
            params: Vec::new(),
            hints: KernelHints::default(),
            body,
            values: PrimaryMap::new(),
            ops: PrimaryMap::new(),
            blocks,
            locs,
            layouts: PrimaryMap::new(),
        }
    }

    /// The location "unknown".
    pub fn unknown_loc(&self) -> Loc {
        Loc::from_u32(0)
    }

    /// Adds a parameter.
    pub fn add_param(&mut self, name: impl Into<String>, ty: Type) -> Value {
        let value = self.add_block_arg(self.body, ty);
        self.params.push(Param { name: name.into(), value, facts: ParamFacts::default() });
        value
    }

    /// Makes an empty block.
    pub fn add_block(&mut self) -> Block {
        self.blocks.push(BlockData::default())
    }

    /// Adds an argument to a block.
    pub fn add_block_arg(&mut self, block: Block, ty: Type) -> Value {
        let index = self.blocks[block].args.len() as u16;
        let value = self.values.push(ValueData { ty, def: ValueDef::Arg(block, index) });
        self.blocks[block].args.push(value);
        value
    }

    /// Makes an operation with fresh results, not yet in any block.
    pub fn make_op(
        &mut self,
        opcode: Opcode,
        operands: impl IntoIterator<Item = Value>,
        result_types: impl IntoIterator<Item = Type>,
        loc: Loc,
    ) -> Op {
        let op = self.ops.push(OpData {
            opcode,
            operands: operands.into_iter().collect(),
            results: SmallVec::new(),
            regions: SmallVec::new(),
            loc,
        });
        for (index, ty) in result_types.into_iter().enumerate() {
            let value = self.values.push(ValueData { ty, def: ValueDef::Result(op, index as u16) });
            self.ops[op].results.push(value);
        }
        op
    }

    /// Appends an operation to a block.
    pub fn append_op(&mut self, block: Block, op: Op) {
        self.blocks[block].ops.push(op);
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> Type {
        self.values[value].ty
    }

    /// The first result of an operation.
    pub fn result(&self, op: Op) -> Value {
        self.ops[op].results[0]
    }

    /// The operation that defines a value, unless it is a block argument.
    pub fn def_op(&self, value: Value) -> Option<Op> {
        match self.values[value].def {
            ValueDef::Result(op, _) => Some(op),
            ValueDef::Arg(..) => None,
        }
    }

    /// The opcode that defines a value.
    pub fn def_opcode(&self, value: Value) -> Option<&Opcode> {
        self.def_op(value).map(|op| &self.ops[op].opcode)
    }

    /// The literal, if the value is a constant (splat).
    pub fn as_const(&self, value: Value) -> Option<crate::op::Literal> {
        match self.def_opcode(value) {
            Some(&Opcode::Const(l)) => Some(l),
            _ => None,
        }
    }

    /// The operation that ends a block, if it has one.
    pub fn terminator(&self, block: Block) -> Option<Op> {
        self.blocks[block].ops.last().copied().filter(|&op| self.ops[op].opcode.is_terminator())
    }

    /// How the kernel's warps are divided, if it is specialised.
    pub fn warp_groups(&self) -> Option<WarpGroups> {
        self.blocks[self.body].ops.iter().find_map(|&op| match self.ops[op].opcode {
            Opcode::WarpSpecialize(groups) => Some(groups),
            _ => None,
        })
    }

    /// The groups that the programmer wrote, if any.
    pub fn explicit_groups(&self) -> Option<Op> {
        let ops = &self.blocks[self.body].ops;
        ops.iter().copied().find(|&op| matches!(self.ops[op].opcode, Opcode::WarpGroups(_)))
    }

    /// CTAs that a program runs on.
    pub fn ctas(&self) -> u32 {
        self.warp_groups().map_or(1, |g| g.ctas)
    }

    /// Warps of a CTA, those of a producer included.
    pub fn all_warps(&self) -> u32 {
        self.warp_groups().map_or(self.hints.num_warps, |g| g.warps(self.hints.num_warps))
    }

    /// The place of an operation in the source.
    pub fn source(&self, op: Op) -> &SourceLoc {
        &self.locs[self.ops[op].loc]
    }

    /// Calls `f` on every operation in `block` and in its regions, in order, an operation before its regions.
    pub fn walk(&self, block: Block, f: &mut dyn FnMut(Op)) {
        for &op in &self.blocks[block].ops {
            f(op);
            for &region in &self.ops[op].regions {
                self.walk(region, f);
            }
        }
    }

    /// Adds a layout, or finds the equal one.
    pub fn intern_layout(&mut self, layout: crate::layout::LinearLayout) -> LayoutRef {
        match self.layouts.iter().find(|(_, l)| **l == layout) {
            Some((found, _)) => found,
            None => self.layouts.push(layout),
        }
    }

    /// Does the operation, or anything in its regions, have an effect besides its results?
    pub fn has_effects(&self, op: Op) -> bool {
        let data = &self.ops[op];
        data.opcode.writes_memory()
            || data.opcode.has_other_effects()
            || data.regions.iter().any(|&r| self.blocks[r].ops.iter().any(|&o| self.has_effects(o)))
    }
}
