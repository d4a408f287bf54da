//! Loops over a device range: `for k in range(0, n).step_by(block) { … }`.

use std::marker::PhantomData;
use std::panic::Location;

use tegula_ir::element::Int;
use tegula_ir::op::LoopHints;
use tegula_ir::{Opcode, Shape, Value};

use crate::broadcast::shape_of;
use crate::diagnostic::Diagnostic;
use crate::session;
use crate::tile::{Operand, Scalar, Tile};

/// Element types of loop indices: `i32` and `i64`.
#[diagnostic::on_unimplemented(message = "a loop's index is an `i32` or an `i64`, not `{Self}`")]
pub trait IndexElement: Int {}
impl IndexElement for i32 {}
impl IndexElement for i64 {}

/// What a range can end at: a scalar, whose type the index has, or a host size (the index is then `i32`).
#[diagnostic::on_unimplemented(
    message = "a device range cannot end at `{Self}`",
    note = "it can end at a `Scalar<i32>`, a `Scalar<i64>` or a `usize`"
)]
pub trait RangeEnd: Operand<Self::Index> {
    /// The index's type.
    type Index: IndexElement;
}

impl<T: IndexElement> RangeEnd for Tile<T> {
    type Index = T;
}

impl RangeEnd for usize {
    type Index = i32;
}

/// `lo, lo + step, …` below `hi`: a loop of the kernel, where `0..n` is one of the host.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRange<T: IndexElement = i32> {
    lo: Value,
    hi: Value,
    step: Value,
    hints: LoopHints,
    index: PhantomData<T>,
}

/// The device range from `lo` to below `hi`. Inside `#[kernel]`, `for k in range(0, n) { … }` is a loop of the kernel, also when both ends are
/// known when it is staged.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let x = View::<f32, 1>::declare("x");
/// let blocks = range(0, x.dim(0)).step_by(64).stages(3);
/// # }).unwrap();
/// ```
#[track_caller]
pub fn range<H: RangeEnd>(lo: impl Operand<H::Index>, hi: H) -> DeviceRange<H::Index> {
    DeviceRange {
        lo: bound::<H::Index>(lo, "start"),
        hi: bound::<H::Index>(hi, "end"),
        step: bound::<H::Index>(1, "step"),
        hints: LoopHints::default(),
        index: PhantomData,
    }
}

/// The tiles of a persistent kernel, `tiles` in all: this program takes every `num_programs(0)`-th one. Launched with as many programs as the GPU runs at once
/// (or any number), a program that has finished a tile goes on with its next one, whose loads may already be under way.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let x = View::<f32, 1>::declare("x");
/// let tiles = persistent(cdiv(x.dim(0), 64).cast::<i32>());
/// # }).unwrap();
/// ```
#[track_caller]
pub fn persistent(tiles: impl Operand<i32>) -> DeviceRange<i32> {
    let tiles = Tile::<i32>::from_value(tiles.stage_like(Shape::SCALAR));
    range(crate::create::program_id(0), tiles).step_by(crate::create::num_programs(0))
}

/// A bound, which must be a scalar.
#[track_caller]
fn bound<T: IndexElement>(x: impl Operand<T>, what: &str) -> Value {
    let value = x.stage_like(Shape::SCALAR);
    let shape = shape_of(value);
    if shape.rank() == 0 {
        return value;
    }
    let fault =
        Diagnostic::at(format!("the {what} of a range is a tile of shape {shape}"), Location::caller())
            .label("ranges go over scalars");
    session::report(&[value], fault);
    session::poison(session::ty(value).with_shape(Shape::SCALAR))
}

#[track_caller]
fn at_least_one(hint: &str, n: u32) {
    if n == 0 {
        let fault = Diagnostic::at(format!("`{hint}(0)`: a loop has at least one"), Location::caller());
        session::report(&[], fault.help(format!("`{hint}(1)` turns it off")));
    }
}

impl<T: IndexElement> DeviceRange<T> {
    /// Goes in steps of `n`, which is positive.
    #[track_caller]
    pub fn step_by(mut self, n: impl Operand<T>) -> DeviceRange<T> {
        self.step = bound(n, "step");
        let constant = session::inspect(|kernel| kernel.as_const(self.step));
        if let Some(tegula_ir::op::Literal::Int(n)) = constant
            && n <= 0
        {
            let fault = Diagnostic::at(format!("a loop with step {n} would not end"), Location::caller());
            session::report(&[self.step], fault.label("the step must be positive"));
        }
        self
    }

    /// Hint: software-pipeline the loop's loads `n` deep (1: not at all).
    #[track_caller]
    pub fn stages(mut self, n: u32) -> DeviceRange<T> {
        at_least_one("stages", n);
        self.hints.stages = Some(n);
        self
    }

    /// Promise: no iteration depends on what another one computes or stores, so that they may run in any order, or at the same time. Nothing is carried from one to the next.
    ///
    /// In kernels with `warp_specialize = WarpSpecialize::Cooperative`, on GPUs that have the means (compute capability 9.0), each iteration of `range(0, 2)` or `range(0, 3)` has `num_warps`
    /// warps of its own, which run at the same time; what is loaded for the dots of all of them alike is loaded once, if the loops around it run equally often in each. So the rows that
    /// a program computes need be no power of two: three tiles of 64 are 192. Everywhere else it is a loop, which the host
    /// runs backwards.
    ///
    /// ```
    /// # use tegula_dsl::{Argument, prelude::*};
    /// # tegula_dsl::stage("k", Default::default(), || {
    /// let tiles = range(0, 3_usize).parallel();
    /// # }).unwrap();
    /// ```
    pub fn parallel(mut self) -> DeviceRange<T> {
        self.hints.parallel = true;
        self
    }

    /// The first index.
    pub fn lo(self) -> Scalar<T> {
        Tile::from_value(self.lo)
    }

    /// The end, which is not reached.
    pub fn hi(self) -> Scalar<T> {
        Tile::from_value(self.hi)
    }

    /// The step.
    pub fn step(self) -> Scalar<T> {
        Tile::from_value(self.step)
    }

    /// The hints.
    pub fn hints(self) -> LoopHints {
        self.hints
    }

    /// The loop's operation; its operands are lo, hi, step and the initial values.
    pub fn opcode(self) -> Opcode {
        Opcode::For(self.hints)
    }
}
