//! The staging session: the kernel under construction, one a thread.
//!
//! Handles like `Tile<T>` are plain ids, so that they can be `Copy` and overloaded operators can take them by value; the kernel they
//! belong to is found here, thread-locally. A session lasts for one call of [`stage`]. Sessions do not nest, and a panic in the
//! kernel's body ends its session (nothing of it stays behind on the thread).
//!
//! Everything that appends an operation is `#[track_caller]`, so the operation gets the place of the user's own expression.
//!
//! # Poison
//! A fault found while staging is recorded with [`report`], and the faulty operation returns [`poison`]: a value of the expected type that no
//! operation defines. Whatever is computed from poison is poison, and [`report`] stays silent about it: one mistake, one message. Since any
//! fault makes [`stage`] return an error, poison never leaves it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::panic::Location;

use cranelift_entity::{SecondaryMap, packed_option::PackedOption};
use smallvec::SmallVec;
use tegula_ir::kernel::{KernelHints, ValueDef};
use tegula_ir::{Block, Kernel, Loc, Op, Opcode, SourceLoc, Type, Value};

use crate::diagnostic::{Diagnostic, Diagnostics, source_loc};

thread_local!(static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) });

/// Values of one operation.
pub type Values = SmallVec<[Value; 4]>;

struct Session {
    kernel: Kernel,
    /// Blocks being filled, the kernel's body first. Operations go to the last.
    open: Vec<Block>,
    /// The block that holds each operation; operations not yet placed have none.
    home: SecondaryMap<Op, PackedOption<Block>>,
    poisoned: HashSet<Value>,
    diagnostics: Vec<Diagnostic>,
    /// Where operations are said to be made, instead of their callers: see [`at`].
    place: Option<&'static Location<'static>>,
    /// `Location`s are static, but one place may have several: compared by content.
    locs: HashMap<Location<'static>, Loc>,
}

impl Session {
    fn intern(&mut self, caller: &'static Location<'static>) -> Loc {
        let locs = &mut self.kernel.locs;
        *self.locs.entry(*caller).or_insert_with(|| locs.push(source_loc(caller)))
    }

    /// Records a fault, at the place of the library function that is running, if one is.
    fn fault(&mut self, mut fault: Diagnostic) {
        if let Some(place) = self.place {
            fault.primary.loc = source_loc(place);
        }
        self.diagnostics.push(fault);
    }

    fn append(&mut self, op: Op) {
        let block = *self.open.last().expect("the body stays open");
        self.home[op] = block.into();
        self.kernel.append_op(block, op);
    }

    /// Is the value's block still open? (Appending only to open blocks makes that the same as dominance.)
    fn visible(&self, value: Value) -> bool {
        match self.kernel.values[value].def {
            ValueDef::Arg(block, _) => self.open.contains(&block),
            ValueDef::Result(op, _) => self.home[op].expand().is_none_or(|b| self.open.contains(&b)),
        }
    }

    /// The place where a value was made: unknown for parameters and carried values.
    fn origin(&self, value: Value) -> Option<SourceLoc> {
        self.kernel.def_op(value).map(|op| self.kernel.source(op).clone()).filter(|l| l.line != 0)
    }

    fn make_poison(&mut self, ty: Type) -> Value {
        let op = self.kernel.make_op(Opcode::Yield, [], [ty], self.kernel.unknown_loc());
        let value = self.kernel.result(op);
        self.poisoned.insert(value);
        value
    }
}

/// Takes the session off the thread, also when the kernel's body panics.
struct Scope;

impl Scope {
    fn finish(self) -> Session {
        SESSION.with(|s| s.borrow_mut().take()).expect("a scope holds its session")
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        SESSION.with(|s| s.borrow_mut().take());
    }
}

/// Stages a kernel: runs `body`, which declares the run-time arguments with [`param`] and then does the kernel's work, and returns what it
/// built.
///
/// # Errors
/// Everything that was found wrong while staging, in program order; without that, every rule of the IR that the kernel breaks. Staging inside
/// staging is an error, too.
#[track_caller]
pub fn stage(name: &str, hints: KernelHints, body: impl FnOnce()) -> Result<Kernel, Diagnostics> {
    let caller = Location::caller();
    let fail = |list| Diagnostics { kernel: name.to_owned(), list };
    if is_active() {
        let nested = Diagnostic::at("a kernel is already being staged on this thread", caller)
            .help("kernels do not call kernels: write what they share as a plain Rust function over tiles");
        return Err(fail(vec![nested]));
    }
    let mut kernel = Kernel::new(name);
    kernel.hints = hints;
    let open = vec![kernel.body];
    SESSION.with(|s| {
        *s.borrow_mut() = Some(Session {
            kernel,
            open,
            home: SecondaryMap::new(),
            poisoned: HashSet::new(),
            diagnostics: Vec::new(),
            place: None,
            locs: HashMap::new(),
        });
    });
    let scope = Scope;
    body();
    let session = scope.finish();
    debug_assert_eq!(session.open.len(), 1, "a region was left open");
    if !session.diagnostics.is_empty() {
        return Err(fail(session.diagnostics));
    }
    match tegula_ir::verify::verify(&session.kernel) {
        Ok(()) => Ok(session.kernel),
        Err(errors) => Err(fail(errors.into_iter().map(|e| rule_broken(e, caller)).collect())),
    }
}

/// A rule of the IR that no function of this crate checked before: said in terms of the IR, but at the user's place, or that of [`stage`] for the
/// kernel as a whole.
fn rule_broken(error: tegula_ir::verify::VerifyError, stage: &Location<'_>) -> Diagnostic {
    let place = if error.loc.line == 0 { source_loc(stage) } else { error.loc };
    Diagnostic::new(error.message, place).note("found when the finished kernel was verified")
}

/// Is a kernel being staged on this thread?
pub fn is_active() -> bool {
    SESSION.with(|s| s.borrow().is_some())
}

#[track_caller]
fn with<R>(f: impl FnOnce(&mut Session) -> R) -> R {
    assert!(
        is_active(),
        "a device operation was called outside of a kernel: tiles, views and pointers exist only while a kernel is staged"
    );
    SESSION.with(|s| f(s.borrow_mut().as_mut().expect("checked above")))
}

/// Declares the next run-time argument.
#[track_caller]
pub fn param(name: &str, ty: Type) -> Value {
    with(|s| s.kernel.add_param(name, ty))
}

/// Appends an operation and returns its results.
#[track_caller]
pub fn emit(opcode: Opcode, operands: &[Value], results: &[Type]) -> Values {
    emit_with_regions(opcode, operands, results, &[])
}

/// Appends an operation with one result and returns that.
#[track_caller]
pub fn emit_value(opcode: Opcode, operands: &[Value], result: Type) -> Value {
    emit(opcode, operands, &[result])[0]
}

/// Appends an operation that has regions (made with [`region`] before) and returns its results.
///
/// Operands that were made in a region which has ended are reported here.
#[track_caller]
pub fn emit_with_regions(opcode: Opcode, operands: &[Value], results: &[Type], regions: &[Block]) -> Values {
    let op = emit_op(opcode, operands, results, regions);
    inspect(|kernel| kernel.ops[op].results.iter().copied().collect())
}

/// As [`emit_with_regions`], but returns the operation.
#[track_caller]
pub fn emit_op(opcode: Opcode, operands: &[Value], results: &[Type], regions: &[Block]) -> Op {
    let caller = Location::caller();
    with(|s| {
        let mut tainted = operands.iter().any(|v| s.poisoned.contains(v));
        if let Some(&gone) = operands.iter().find(|&&v| !s.visible(v)) {
            let mut fault = Diagnostic::at("a value is used after the loop or branch that made it", caller)
                .help("declare it with `let mut` before the loop or branch and assign to it inside");
            if let Some(made) = s.origin(gone) {
                fault = fault.also(made, "made here");
            }
            s.fault(fault);
            tainted = true;
        }
        let loc = s.intern(s.place.unwrap_or(caller));
        let op = s.kernel.make_op(opcode, operands.iter().copied(), results.iter().copied(), loc);
        s.kernel.ops[op].regions.extend(regions.iter().copied());
        s.append(op);
        if tainted {
            s.poisoned.extend(s.kernel.ops[op].results.iter().copied());
        }
        op
    })
}

/// Fills a region: a block with arguments of these types. `fill` gets the arguments, and returns what it computed beside the values that the
/// `terminator` takes.
///
/// The region belongs to no operation yet: pass the block to [`emit_with_regions`].
#[track_caller]
pub fn region<R>(
    arguments: &[Type],
    terminator: Opcode,
    fill: impl FnOnce(&[Value]) -> (Values, R),
) -> (Block, R) {
    let block = new_region();
    let args: Values = arguments.iter().map(|&t| region_arg(block, t)).collect();
    enter_region(block);
    let (yielded, out) = fill(&args);
    leave_region(block, terminator, &yielded);
    (block, out)
}

/// Makes a region that is filled step by step: [`region_arg`], [`enter_region`], operations, [`leave_region`]. For control flow whose body is no
/// closure; otherwise [`region`] is shorter.
#[track_caller]
pub fn new_region() -> Block {
    with(|s| s.kernel.add_block())
}

/// Adds an argument to a region.
#[track_caller]
pub fn region_arg(region: Block, ty: Type) -> Value {
    with(|s| s.kernel.add_block_arg(region, ty))
}

/// From here on, operations go to this region.
#[track_caller]
pub fn enter_region(region: Block) {
    with(|s| s.open.push(region));
}

/// Ends the region that was entered last with a terminator of these operands.
#[track_caller]
pub fn leave_region(region: Block, terminator: Opcode, operands: &[Value]) {
    emit(terminator, operands, &[]);
    with(|s| {
        let closed = s.open.pop();
        debug_assert_eq!(closed, Some(region), "regions close in the order opposite to their opening");
    });
}

/// Runs a library function's inside with everything in it placed where the user called it: closures, and functions written as kernels
/// are, cannot pass the caller on by `#[track_caller]`. Inside another `at`, the outer place holds.
#[track_caller]
pub fn at<R>(place: &'static Location<'static>, f: impl FnOnce() -> R) -> R {
    let outer = with(|s| {
        let outer = s.place;
        s.place = outer.or(Some(place));
        outer
    });
    let result = f();
    with(|s| s.place = outer);
    result
}

/// The type of a value.
#[track_caller]
pub fn ty(value: Value) -> Type {
    with(|s| s.kernel.ty(value))
}

/// Reads the kernel under construction.
#[track_caller]
pub fn inspect<R>(f: impl FnOnce(&Kernel) -> R) -> R {
    with(|s| f(&s.kernel))
}

/// Changes an operation that was just made: so that `x.load(..).evict_first()` and `dot(a, b).tf32()` can say more of it. `change` returns
/// false for an operation that it does not apply to.
///
/// Returns whether it was changed; an operation that is not the last one of the block being filled is left alone.
#[track_caller]
pub fn amend_last(op: Op, change: impl FnOnce(&mut Opcode) -> bool) -> bool {
    with(|s| {
        let block = *s.open.last().expect("the body stays open");
        s.kernel.blocks[block].ops.last() == Some(&op) && change(&mut s.kernel.ops[op].opcode)
    })
}

/// Records a fault, unless one of the values it is about is poison.
#[track_caller]
pub fn report(about: &[Value], fault: Diagnostic) {
    with(|s| {
        if !about.iter().any(|v| s.poisoned.contains(v)) {
            s.fault(fault);
        }
    });
}

/// A value of this type that stands for the result of a faulty operation.
#[track_caller]
pub fn poison(ty: Type) -> Value {
    with(|s| s.make_poison(ty))
}

/// Is the value poison?
#[track_caller]
pub fn is_poison(value: Value) -> bool {
    with(|s| s.poisoned.contains(&value))
}

/// Where a value was made, if an operation made it.
#[track_caller]
pub fn origin(value: Value) -> Option<SourceLoc> {
    with(|s| s.origin(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Argument, Tile};
    use tegula_ir::{Elem, Shape};

    #[test]
    fn operations_carry_the_place_of_the_users_operator() {
        let line = line!() + 3;
        let kernel = stage("k", KernelHints::default(), || {
            let x = Tile::<f32>::declare("x");
            let _ = (x * 2.0).lt(x);
        })
        .unwrap();
        let ops: Vec<_> = kernel.blocks[kernel.body].ops.iter().map(|&op| kernel.source(op)).collect();
        assert_eq!(ops.len(), 3, "constant, product, comparison");
        assert!(ops.iter().all(|l| l.line == line && l.file.ends_with("session.rs")), "{ops:?}");
        assert!(ops[2].column > ops[1].column, "a method call is at the method's name");
    }

    #[test]
    fn a_panic_leaves_no_session_behind() {
        let panicked =
            std::panic::catch_unwind(|| stage("k", KernelHints::default(), || panic!("in the body")));
        assert!(panicked.is_err() && !is_active());
        assert!(stage("k", KernelHints::default(), || ()).is_ok());
    }

    #[test]
    fn nested_staging_is_refused_and_the_outer_session_lives() {
        let outer = stage("outer", KernelHints::default(), || {
            let inner = stage("inner", KernelHints::default(), || ());
            assert!(inner.unwrap_err().list[0].message.contains("already being staged"));
            Tile::<i32>::declare("x");
        });
        assert_eq!(outer.unwrap().params.len(), 1);
    }

    #[test]
    fn all_faults_are_found_but_none_that_follows_from_another() {
        let shape = |n| Type::tile(Elem::F32, Shape::new(&[n]));
        let staged = stage("k", KernelHints::default(), || {
            let [a, b, c] = [4, 8, 16].map(|n| Tile::<f32>::from_value(param("p", shape(n))));
            let bad = a + b;
            let _ = bad * c;
            let _ = b - c;
        });
        let messages: Vec<_> = staged.unwrap_err().list.into_iter().map(|d| d.message).collect();
        assert_eq!(
            messages,
            [
                "tiles of shapes [4] and [8] do not broadcast together",
                "tiles of shapes [8] and [16] do not broadcast together"
            ]
        );
    }

    #[test]
    fn the_finished_kernel_is_verified() {
        let line = line!() + 1;
        let staged = stage("k", KernelHints::default(), || {
            Tile::<f32>::declare("x");
            Tile::<f32>::declare("x");
        });
        let faults = staged.unwrap_err().list;
        assert_eq!(faults.len(), 1);
        assert_eq!((faults[0].primary.loc.line, &*faults[0].primary.loc.file), (line, file!()));
        assert!(faults[0].message.contains("%x"), "{}", faults[0].message);
    }

    #[test]
    fn a_value_of_a_closed_region_is_reported() {
        let staged = stage("k", KernelHints::default(), || {
            let x = Tile::<f32>::declare("x");
            let (_, leaked) = region(&[], Opcode::Yield, |_| (Values::new(), x + 1.0));
            let _ = leaked * 2.0;
        });
        let faults = staged.unwrap_err();
        assert_eq!(faults.list.len(), 1);
        assert_eq!(faults.list[0].secondary[0].text, "made here");
    }
}
