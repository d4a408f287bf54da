//! `for`.

use std::panic::Location;

use tegula_ir::{Block, Opcode, Type, Value};

use super::carry::{Carries, Carry, Variables, Watch, Watches};
use crate::range::{DeviceRange, IndexElement};
use crate::session;
use crate::tile::{Scalar, Tile};

/// What a `for` goes over.
#[diagnostic::on_unimplemented(
    message = "`for` cannot go over `{Self}`",
    label = "neither a device range nor something that can be iterated on the host",
    note = "a device range is `lo..hi` written in the head of the `for`, or `range(lo, hi)`"
)]
pub trait IntoLoop {
    /// The state of the loop.
    type Loop: StagedLoop;
    /// Begins.
    #[track_caller]
    fn begin(self) -> Self::Loop;
}

/// The state of a `for`.
pub trait StagedLoop {
    /// What the pattern takes.
    type Item;
    /// The next item to run the body with.
    #[track_caller]
    fn next(&mut self) -> Option<Self::Item>;
}

/// Begins a `for`.
#[track_caller]
pub fn for_loop<L: IntoLoop>(head: L) -> L::Loop {
    head.begin()
}

/// The next item to run the body with.
#[track_caller]
pub fn next<L: StagedLoop>(region: &mut L) -> Option<L::Item> {
    region.next()
}

/// A `for` over an iterator: Rust's.
pub struct HostLoop<I>(I);

#[diagnostic::do_not_recommend]
impl<I: IntoIterator> IntoLoop for I {
    type Loop = HostLoop<I::IntoIter>;
    fn begin(self) -> HostLoop<I::IntoIter> {
        HostLoop(self.into_iter())
    }
}

impl<I: Iterator> StagedLoop for HostLoop<I> {
    type Item = I::Item;
    fn next(&mut self) -> Option<I::Item> {
        self.0.next()
    }
}

#[diagnostic::do_not_recommend]
impl<I, V: ?Sized> Carries<V> for HostLoop<I> {
    fn carry(&mut self, _: &mut V, _: &'static str) {}
}

impl<I> Watches for HostLoop<I> {
    fn watch(&mut self, _: impl FnOnce() -> Vec<Value>, _: &'static str, _: &'static Location<'static>) {}
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Before,
    Body,
    After,
}

/// A `for` over a range of device integers. The body is staged once.
pub struct DeviceLoop<T: IndexElement> {
    range: DeviceRange<T>,
    at: &'static Location<'static>,
    index: Scalar<T>,
    phase: Phase,
    region: Block,
    variables: Variables,
    watch: Watch,
    yields: Vec<Value>,
    results: Vec<Value>,
}

impl<T: IndexElement> StagedLoop for DeviceLoop<T> {
    type Item = Scalar<T>;

    #[track_caller]
    fn next(&mut self) -> Option<Scalar<T>> {
        self.variables.rewind();
        if self.phase == Phase::Before {
            self.phase = Phase::Body;
            return Some(self.index);
        }
        self.variables.check_types(&mut self.yields, "its body", self.at);
        session::leave_region(self.region, Opcode::Yield, &self.yields);
        let bounds = [self.range.lo(), self.range.hi(), self.range.step()].map(Tile::value);
        let operands: Vec<Value> = bounds.iter().chain(&self.variables.entry).copied().collect();
        let types: Vec<Type> = self.variables.entry.iter().map(|&v| session::ty(v)).collect();
        self.results =
            session::emit_with_regions(self.range.opcode(), &operands, &types, &[self.region]).to_vec();
        self.phase = Phase::After;
        None
    }
}

#[diagnostic::do_not_recommend]
impl<T: IndexElement, V: Carry + ?Sized> Carries<V> for DeviceLoop<T> {
    fn carry(&mut self, variable: &mut V, name: &'static str) {
        let at = self.at;
        match self.phase {
            Phase::Before => {
                let region = self.region;
                self.variables.enter(variable, name, |v| session::region_arg(region, session::ty(v)));
            }
            Phase::Body => self.variables.pass(variable, at, |_, value| {
                self.yields.push(value);
                value
            }),
            Phase::After => {
                let results = &self.results;
                self.variables.pass(variable, at, |position, _| results[position]);
            }
        }
    }
}

impl<T: IndexElement> Watches for DeviceLoop<T> {
    fn watch(
        &mut self,
        handles: impl FnOnce() -> Vec<Value>,
        name: &'static str,
        at: &'static Location<'static>,
    ) {
        match self.phase {
            Phase::Before => self.watch.before(name, handles()),
            Phase::Body => self.watch.after(name, handles(), at),
            Phase::After => {}
        }
    }
}

impl<T: IndexElement> IntoLoop for DeviceRange<T> {
    type Loop = DeviceLoop<T>;
    #[track_caller]
    fn begin(self) -> DeviceLoop<T> {
        let region = session::new_region();
        let index = session::region_arg(region, Type::scalar(T::ELEM));
        session::enter_region(region);
        DeviceLoop {
            range: self,
            at: Location::caller(),
            index: Tile::from_value(index),
            phase: Phase::Before,
            region,
            variables: Variables::default(),
            watch: Watch::default(),
            yields: Vec::new(),
            results: Vec::new(),
        }
    }
}
