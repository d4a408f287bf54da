//! Scheduled tile IR to MLIR: what one thread does.
//!
//! Every tile has a layout by now, so each thread holds a known list of its elements, in registers; a tile operation
//! becomes that many scalar operations, plus what the threads must exchange. One file a family of operations:
//!
//! | file | operations |
//! |---|---|
//! | [`elementwise`], [`remainder`], [`cast`] | arithmetic, comparisons, conversions |
//! | [`shape`] | broadcast, expand, reshape, permute, join, split: renaming of registers, no code |
//! | [`memory`], [`view`] | loads, stores and atomics, through pointers and views |
//! | [`shared`], [`convert`] | shared-memory buffers, async copies, layout conversions |
//! | [`reduce`], [`scan`] | along a dimension: thread, lanes, warps |
//! | [`dot`] | tensor cores, and the FMA path |
//! | [`warp_groups`], [`channel`], [`tensor`], [`async_dot`] | warp specialisation: who runs what, barriers of rings, tensor copies, dots of warpgroups |
//! | [`control`] | loops and branches |
//! | [`debug`] | print and assert |
//!
//! [`emitter`] appends MLIR; [`thread`] knows who this thread is; `nvvm/` has every PTX instruction that is written as
//! assembly, and nothing else does.

mod async_dot;
mod cast;
mod channel;
mod control;
mod convert;
mod debug;
mod dot;
mod elementwise;
pub(crate) mod emitter;
mod memory;
mod nvvm;
mod reduce;
mod remainder;
mod scan;
mod shape;
mod shared;
mod tensor;
mod thread;
mod values;
mod view;
mod warp_groups;

use cranelift_entity::SecondaryMap;
use melior::Context;
use melior::ir::attribute::{DenseI32ArrayAttribute, StringAttribute, TypeAttribute};
use melior::ir::block::BlockLike;
use melior::ir::operation::OperationBuilder;
use melior::ir::{Attribute, Block, Identifier, Location, Module, Region, RegionLike, Type};
use tegula_ir::analysis::axis_info::AxisInfoMap;
use tegula_ir::artifact::{AbiSlot, CompileError, TENSOR_MAP_ALIGN, TENSOR_MAP_BYTES, TensorMapSpec};
use tegula_ir::kernel::{Block as TileBlock, Kernel, Op, Value};
use tegula_ir::op::Opcode;
use tegula_ir::transform::plan_shared_memory::{SharedPlan, uses_tensor_cores};

use crate::ffi;
use crate::target::Target;
use emitter::{Emitter, V};
use values::Lowered;

/// A kernel as an MLIR module, with what a launch must know of it.
pub struct LoweredKernel<'c> {
    /// One `llvm.func`, the kernel.
    pub module: Module<'c>,
    /// Its arguments.
    pub abi: Vec<AbiSlot>,
}

/// The result of lowering one operation.
pub(crate) type Result<T = ()> = std::result::Result<T, CompileError>;

/// Lowers a kernel whose tiles all have layouts and whose shared memory is planned.
pub fn lower<'c>(
    context: &'c Context,
    kernel: &Kernel,
    plan: &SharedPlan,
    target: &Target,
) -> Result<LoweredKernel<'c>> {
    let module = Module::new(Location::unknown(context));
    let (abi, arg_types) = values::abi(context, kernel);
    let args: Vec<(Type<'c>, Location<'c>)> =
        arg_types.iter().map(|&t| (t, Location::unknown(context))).collect();

    let region = Region::new();
    let entry = ffi::detach_block(region.append_block(Block::new(&args)));
    let body = ffi::detach_block(region.append_block(Block::new(&[])));
    let mut emitter = Emitter::new(context, entry);
    let arguments: Vec<V<'c>> =
        (0..args.len()).map(|i| ffi::detach(entry.argument(i).expect("declared above").into())).collect();

    let thread = thread::Thread::new(&emitter, kernel);
    let shared = emitter.one_with(
        "llvm.mlir.addressof",
        &[],
        emitter.t.shared,
        &[("global_name", emitter.attr(&format!("@{SHARED_MEMORY}")))],
    );
    emitter.block = body;
    let mut lowering = Lowering {
        kernel,
        target,
        plan,
        info: AxisInfoMap::compute(kernel),
        values: SecondaryMap::new(),
        thread,
        waits: target.features.dependent_launch,
        loops: 0,
        crowded: false,
        shared,
        maps: abi
            .iter()
            .zip(&arguments)
            .filter_map(|(slot, &v)| match *slot {
                AbiSlot::TensorMap { param, map } => Some(((param, map), v)),
                _ => None,
            })
            .collect(),
        block_of: SecondaryMap::new(),
        current: None,
        e: emitter,
    };
    lowering.bind_params(&abi, &arguments);
    lowering.launch_dependents();
    lowering.block(kernel.body)?;
    lowering.wait_for_launches_before();
    lowering.e.op("llvm.return", &[], &[], &[]);
    let messages = lowering.e.take_globals();

    // The entry block holds constants and what depends on the thread alone; it ends by entering the body.
    let jump = OperationBuilder::new("llvm.br", Location::unknown(context))
        .add_successors(&[&body])
        .build()
        .expect("a branch without operands");
    entry.append_operation(jump);

    let top = module.body();
    top.append_operation(shared_memory(context));
    for message in messages {
        top.append_operation(message);
    }
    top.append_operation(function(context, kernel, &abi, &arg_types, region));
    Ok(LoweredKernel { module, abi })
}

/// The name of the dynamic shared memory.
const SHARED_MEMORY: &str = "tegula_shared";

/// Dynamic shared memory: an external array of unknown size, as CUDA C++ declares it.
fn shared_memory(context: &Context) -> melior::ir::Operation<'_> {
    let attr = |text: &str| Attribute::parse(context, text).expect("well-formed");
    let named = |name: &str, a| (Identifier::new(context, name), a);
    OperationBuilder::new("llvm.mlir.global", Location::unknown(context))
        .add_attributes(&[
            named("sym_name", StringAttribute::new(context, SHARED_MEMORY).into()),
            named("global_type", attr("!llvm.array<0 x i8>")),
            named("linkage", attr("#llvm.linkage<external>")),
            named("addr_space", attr("3 : i32")),
            named("alignment", attr("1024 : i64")),
        ])
        .add_regions([Region::new()])
        .build()
        .expect("a global")
}

fn function<'c>(
    context: &'c Context,
    kernel: &Kernel,
    abi: &[AbiSlot],
    args: &[Type<'c>],
    region: Region<'c>,
) -> melior::ir::Operation<'c> {
    let types: Vec<String> = args.iter().map(|t| t.to_string()).collect();
    let ty =
        Type::parse(context, &format!("!llvm.func<void ({})>", types.join(", "))).expect("a function type");
    let unit = Attribute::unit(context);
    let threads = DenseI32ArrayAttribute::new(context, &[32 * kernel.all_warps() as i32]).into();
    let i32_attr = |x: u32| Attribute::parse(context, &format!("{x} : i32")).expect("an integer");
    let mut attrs = vec![
        ("sym_name", StringAttribute::new(context, &kernel.name).into()),
        ("function_type", TypeAttribute::new(ty).into()),
        ("nvvm.kernel", unit),
        ("nvvm.reqntid", threads),
        ("nvvm.minctasm", i32_attr(kernel.hints.min_ctas.unwrap_or(1))),
    ];
    if abi.iter().any(|slot| matches!(slot, AbiSlot::TensorMap { .. })) {
        // Passed by value and never written: so the copies take the map from where the launch has put it.
        let map = format!(
            "{{llvm.align = {TENSOR_MAP_ALIGN} : i64, llvm.byval = !llvm.array<{TENSOR_MAP_BYTES} x i8>, nvvm.grid_constant}}"
        );
        let each: Vec<&str> = abi
            .iter()
            .map(|slot| if matches!(slot, AbiSlot::TensorMap { .. }) { map.as_str() } else { "{}" })
            .collect();
        let list = format!("[{}]", each.join(", "));
        attrs.push(("arg_attrs", Attribute::parse(context, &list).expect("a list of dictionaries")));
    }
    if kernel.ctas() > 1 {
        let cluster = DenseI32ArrayAttribute::new(context, &[kernel.ctas() as i32, 1, 1]).into();
        attrs.push(("nvvm.cluster_dim", cluster));
    }
    if let Some(most) = kernel.hints.max_registers {
        attrs.push(("nvvm.maxnreg", i32_attr(most)));
    }
    let attrs: Vec<(Identifier<'c>, Attribute<'c>)> =
        attrs.into_iter().map(|(n, a)| (Identifier::new(context, n), a)).collect();
    OperationBuilder::new("llvm.func", Location::unknown(context))
        .add_attributes(&attrs)
        .add_regions([region])
        .build()
        .expect("a function")
}

/// The state of one lowering.
pub(crate) struct Lowering<'c, 'k> {
    pub kernel: &'k Kernel,
    pub target: &'k Target,
    pub plan: &'k SharedPlan,
    pub info: AxisInfoMap,
    pub values: SecondaryMap<Value, Option<Lowered<'c>>>,
    pub thread: thread::Thread<'c>,
    /// Has it to wait for the launches before this one?
    waits: bool,
    /// How many loops are around the block at work.
    loops: u32,
    /// Does the loop at work fill the registers? Then what can be computed again in an iteration is, and not kept around the loop.
    pub crowded: bool,
    /// The start of dynamic shared memory.
    pub shared: V<'c>,
    /// The tensor maps among the arguments, in their order: it is the order in which they are prefetched, and code must not change from run to run.
    pub maps: Vec<((u16, TensorMapSpec), V<'c>)>,
    /// The block that each operation stands in, and the one being lowered: they tell what is invariant in a loop.
    pub block_of: SecondaryMap<Op, Option<TileBlock>>,
    pub current: Option<TileBlock>,
    pub e: Emitter<'c>,
}

impl<'c> Lowering<'c, '_> {
    /// Lowers every operation of a block but its terminator, which belongs to the operation that has the block.
    pub fn block(&mut self, block: TileBlock) -> Result {
        let outer = self.current.replace(block);
        let last_dots = self.last_loop_with_dots(block);
        let mut outer_thread = None;
        for &op in &self.kernel.blocks[block].ops {
            self.block_of[op] = Some(block);
            if !self.kernel.ops[op].opcode.is_terminator() {
                self.op(op)?;
            }
            if last_dots == Some(op) {
                let again = thread::Thread::again(&self.e, self.kernel);
                outer_thread = Some(std::mem::replace(&mut self.thread, again));
            }
        }
        if let Some(thread) = outer_thread {
            self.thread = thread;
        }
        self.current = outer;
        Ok(())
    }

    /// The next kernel of a stream may be launched while this one runs, which saves the time that a launch takes: it waits, as this one does, for the end of those before
    /// it.
    fn launch_dependents(&self) {
        if self.waits {
            nvvm::launch_dependents(&self.e);
        }
    }

    /// Waits for the end of the launches before this one, once: before the first operation that could see what they do, or that has regions. Every thread waits, so that a kernel
    /// ends after those before it in any case, and what waits for its end has waited for theirs.
    pub fn wait_for_launches_before(&mut self) {
        if std::mem::take(&mut self.waits) {
            nvvm::wait_for_launches_before(&self.e);
        }
    }

    /// Must an operation see what the launches before this one did, or not be seen by them?
    fn is_after_launches_before(&self, op: Op) -> bool {
        match self.kernel.ops[op].opcode {
            // What it brings may still be written, and comes again then.
            Opcode::ViewPrefetch { .. } | Opcode::SharedAlloc | Opcode::ChannelAlloc => false,
            // It prepares what its warps share, and waits then.
            Opcode::WarpSpecialize(_) => false,
            ref other => !other.is_pure() || !self.kernel.ops[op].regions.is_empty(),
        }
    }

    /// The last loop of a block that computes with dots' results: what follows is the epilogue, of a persistent kernel if the block is a loop's body. (Loops that only add up products have
    /// registers to spare for its addresses.)
    fn last_loop_with_dots(&self, block: TileBlock) -> Option<Op> {
        let computes = |op: Op| {
            let (mut waits, mut dots) = (false, 0);
            for &region in &self.kernel.ops[op].regions {
                self.kernel.walk(region, &mut |inner| {
                    let data = &self.kernel.ops[inner];
                    waits |= matches!(data.opcode, Opcode::AsyncDotWait(_)) && !data.operands.is_empty();
                    dots += usize::from(uses_tensor_cores(self.kernel, inner));
                });
            }
            self.loops > 0 && waits || dots > 1
        };
        let is_for = |op: Op| matches!(self.kernel.ops[op].opcode, Opcode::For(_));
        let ops = self.kernel.blocks[block].ops.iter().copied();
        ops.rev().find(|&op| is_for(op) && computes(op))
    }

    fn op(&mut self, op: Op) -> Result {
        let source = self.kernel.source(op);
        self.e.loc = if source.line == 0 {
            Location::unknown(self.e.context)
        } else {
            Location::new(self.e.context, &source.file, source.line as usize, source.column as usize)
        };
        if self.waits && self.is_after_launches_before(op) {
            self.wait_for_launches_before();
        }
        match &self.kernel.ops[op].opcode {
            Opcode::Const(_) | Opcode::Iota { .. } | Opcode::ProgramId(_) | Opcode::NumPrograms(_) => {
                self.source(op)
            }
            Opcode::Unary(_)
            | Opcode::Binary(_)
            | Opcode::Cmp(_)
            | Opcode::Select
            | Opcode::Fma
            | Opcode::PtrAdd
            | Opcode::Assume(_) => self.elementwise(op),
            Opcode::Cast(_) | Opcode::Bitcast => self.cast(op),
            Opcode::Broadcast
            | Opcode::Expand { .. }
            | Opcode::Reshape
            | Opcode::Permute { .. }
            | Opcode::Join
            | Opcode::Split => self.shape(op),
            Opcode::Reduce { axis } => self.reduce(op, *axis as usize),
            Opcode::Scan { axis, reverse } => self.scan(op, *axis as usize, *reverse),
            Opcode::Gather { axis } => self.gather(op, *axis as usize),
            Opcode::Dot(_) => self.dot(op),
            Opcode::ViewDim(_) | Opcode::ViewStride(_) | Opcode::ViewBase | Opcode::MakeView => {
                self.view_value(op)
            }
            Opcode::ViewLoad { .. } => self.view_load(op),
            Opcode::ViewPrefetch { .. } => self.view_prefetch(op),
            Opcode::ViewStore { .. } => self.view_store(op),
            Opcode::ViewReduceAdd => self.view_reduce_add(op),
            Opcode::Load { .. } => self.pointer_load(op),
            Opcode::Store { .. } => self.pointer_store(op),
            Opcode::AtomicRmw { .. } => self.atomic_rmw(op),
            Opcode::AtomicCas { .. } => self.atomic_cas(op),
            Opcode::For(_) => self.for_loop(op),
            Opcode::While => self.while_loop(op),
            Opcode::If => self.branch(op),
            Opcode::Print { .. } => self.print(op),
            Opcode::Assert { .. } => self.assert(op),
            Opcode::ConvertLayout => self.convert_layout(op),
            Opcode::SharedAlloc => self.shared_alloc(op),
            Opcode::SharedStore => self.shared_store(op),
            Opcode::SharedLoad { .. } => self.shared_load(op),
            Opcode::AsyncCopyView { .. } => self.async_copy_view(op),
            Opcode::AsyncCopyPtr { .. } => self.async_copy_ptr(op),
            Opcode::AsyncCommit => {
                nvvm::cp_async_commit(&self.e);
                Ok(())
            }
            Opcode::AsyncWait(n) => {
                nvvm::cp_async_wait(&self.e, *n);
                Ok(())
            }
            Opcode::Barrier => {
                self.e.barrier();
                Ok(())
            }
            Opcode::WarpSpecialize(groups) => self.warp_specialize(op, *groups),
            Opcode::GroupIndex => self.group_index(op),
            Opcode::CtaRank => self.cta_rank(op),
            Opcode::ChannelAlloc => self.channel_alloc(op),
            Opcode::ChannelAcquire { bytes } => self.channel_acquire(op, *bytes),
            Opcode::ChannelWait => self.channel_wait(op),
            Opcode::ChannelStage => self.channel_stage(op),
            Opcode::StagedStore { add, .. } => self.staged_store(op, *add),
            Opcode::ChannelRelease { by_warps } => self.channel_release(op, *by_warps),
            Opcode::SharedTurn => self.shared_turn(op),
            Opcode::ChannelStore => self.channel_store(op),
            Opcode::TensorLoad { cache, .. } => self.tensor_load(op, *cache),
            Opcode::TensorStore { .. } => self.tensor_store(op),
            Opcode::AsyncDot { .. } => self.async_dot(op),
            Opcode::AsyncDotWait(n) => self.async_dot_wait(op, *n),
            Opcode::TurnWait => self.turn_wait(),
            Opcode::TurnPass => self.turn_pass(),
            Opcode::Yield | Opcode::Condition => unreachable!("terminators are lowered with their region"),
            Opcode::Channel
            | Opcode::WarpGroups(_)
            | Opcode::SlotAcquire
            | Opcode::SlotCopy { .. }
            | Opcode::SlotCommit
            | Opcode::SlotWait
            | Opcode::SlotRead
            | Opcode::SlotRelease => {
                Err(self.error(op, "groups are put on warps, or merged, by the scheduling passes"))
            }
        }
    }

    /// An error at an operation.
    pub fn error(&self, op: Op, message: impl std::fmt::Display) -> CompileError {
        CompileError {
            kernel: self.kernel.name.clone(),
            message: format!("{}: {message}", self.kernel.source(op)),
        }
    }
}
