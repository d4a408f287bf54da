//! `while`.
//!
//! Whether it runs on the host or on the device is decided by its condition, whose type is known only after its expression has been
//! evaluated, and on the device that must happen inside a region. So the state is `While<C>` with a `C` that type inference finds
//! further down in the expansion.

use std::panic::Location;

use tegula_ir::{Block, Opcode, Type, Value};

use super::carry::{Carries, Carry, Variables, Watch, Watches, scalar_condition};
use crate::session;
use crate::tile::Tile;

/// The condition of a `while`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a condition",
    label = "expected a `bool` or a `Tile<bool>`"
)]
pub trait Condition: Sized {
    /// The state of the loop.
    type State;
    /// Begins.
    #[track_caller]
    fn begin() -> Self::State;
    /// Is the condition to be evaluated (again)?
    #[track_caller]
    fn again(state: &mut Self::State) -> bool;
    /// Takes the condition.
    #[track_caller]
    fn condition(self, state: &mut Self::State);
    /// Does the body run?
    #[track_caller]
    fn enter_body(state: &mut Self::State) -> bool;
}

/// The state of a `while` over a condition of type `C`.
pub struct While<C: Condition>(C::State);

/// Begins a `while`.
#[track_caller]
pub fn while_loop<C: Condition>() -> While<C> {
    While(C::begin())
}

/// Is the condition to be evaluated (again)?
#[track_caller]
pub fn again<C: Condition>(region: &mut While<C>) -> bool {
    C::again(&mut region.0)
}

/// Takes the condition.
#[track_caller]
pub fn condition<C: Condition>(region: &mut While<C>, condition: C) {
    condition.condition(&mut region.0);
}

/// Does the body run?
#[track_caller]
pub fn enter_body<C: Condition>(region: &mut While<C>) -> bool {
    C::enter_body(&mut region.0)
}

#[diagnostic::do_not_recommend]
impl<C: Condition, V: ?Sized> Carries<V> for While<C>
where
    C::State: Carries<V>,
{
    fn carry(&mut self, variable: &mut V, name: &'static str) {
        self.0.carry(variable, name);
    }
}

impl<C: Condition> Watches for While<C>
where
    C::State: Watches,
{
    fn watch(
        &mut self,
        handles: impl FnOnce() -> Vec<Value>,
        name: &'static str,
        at: &'static Location<'static>,
    ) {
        self.0.watch(handles, name, at);
    }
}

impl Watches for HostWhile {
    fn watch(&mut self, _: impl FnOnce() -> Vec<Value>, _: &'static str, _: &'static Location<'static>) {}
}

impl Watches for DeviceWhile {
    fn watch(
        &mut self,
        handles: impl FnOnce() -> Vec<Value>,
        name: &'static str,
        at: &'static Location<'static>,
    ) {
        match self.phase {
            Phase::Before => self.watch.before(name, handles()),
            Phase::Condition | Phase::Body => self.watch.after(name, handles(), at),
            Phase::After => {}
        }
    }
}

/// A `while` over a `bool`: Rust's.
pub struct HostWhile(bool);

impl Condition for bool {
    type State = HostWhile;
    fn begin() -> HostWhile {
        HostWhile(true)
    }
    fn again(_: &mut HostWhile) -> bool {
        true
    }
    fn condition(self, state: &mut HostWhile) {
        state.0 = self;
    }
    fn enter_body(state: &mut HostWhile) -> bool {
        state.0
    }
}

#[diagnostic::do_not_recommend]
impl<V: ?Sized> Carries<V> for HostWhile {
    fn carry(&mut self, _: &mut V, _: &'static str) {}
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Before,
    Condition,
    Body,
    After,
}

/// A `while` over a device value. Condition and body are staged once, each in its region.
pub struct DeviceWhile {
    at: &'static Location<'static>,
    phase: Phase,
    /// The condition's and the body's.
    regions: [Block; 2],
    variables: Variables,
    watch: Watch,
    /// The condition and what its region forwards.
    forwards: Vec<Value>,
    yields: Vec<Value>,
    results: Vec<Value>,
}

impl Condition for Tile<bool> {
    type State = DeviceWhile;

    #[track_caller]
    fn begin() -> DeviceWhile {
        let regions = [session::new_region(), session::new_region()];
        session::enter_region(regions[0]);
        DeviceWhile {
            at: Location::caller(),
            phase: Phase::Before,
            regions,
            variables: Variables::default(),
            watch: Watch::default(),
            forwards: Vec::new(),
            yields: Vec::new(),
            results: Vec::new(),
        }
    }

    #[track_caller]
    fn again(state: &mut DeviceWhile) -> bool {
        state.variables.rewind();
        if state.phase == Phase::Before {
            state.phase = Phase::Condition;
            return true;
        }
        state.variables.check_types(&mut state.yields, "its body", state.at);
        session::leave_region(state.regions[1], Opcode::Yield, &state.yields);
        let entry = &state.variables.entry;
        let types: Vec<Type> = entry.iter().map(|&v| session::ty(v)).collect();
        state.results = session::emit_with_regions(Opcode::While, entry, &types, &state.regions).to_vec();
        state.phase = Phase::After;
        false
    }

    #[track_caller]
    fn condition(self, state: &mut DeviceWhile) {
        state.forwards.push(scalar_condition(self, "while"));
    }

    #[track_caller]
    fn enter_body(state: &mut DeviceWhile) -> bool {
        state.variables.check_types(&mut state.forwards[1..], "its condition", state.at);
        session::leave_region(state.regions[0], Opcode::Condition, &state.forwards);
        session::enter_region(state.regions[1]);
        state.phase = Phase::Body;
        state.variables.rewind();
        true
    }
}

#[diagnostic::do_not_recommend]
impl<V: Carry + ?Sized> Carries<V> for DeviceWhile {
    fn carry(&mut self, variable: &mut V, name: &'static str) {
        let at = self.at;
        let [condition, body] = self.regions;
        match self.phase {
            Phase::Before => {
                self.variables.enter(variable, name, |v| session::region_arg(condition, session::ty(v)));
            }
            Phase::Condition => {
                let entry = self.variables.entry.clone();
                self.variables.pass(variable, at, |position, value| {
                    self.forwards.push(value);
                    session::region_arg(body, session::ty(entry[position]))
                });
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
