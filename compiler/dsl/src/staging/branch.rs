//! `if`.

use std::panic::Location;

use tegula_ir::{Block, Opcode, Type, Value};

use super::carry::{Carries, Carry, Variables, scalar_condition};
use crate::diagnostic::Diagnostic;
use crate::session;
use crate::tile::Tile;

/// The condition of an `if`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a condition",
    label = "expected a `bool` or a `Tile<bool>`"
)]
pub trait Branch<R: Region> {
    /// Begins; returns the state of the `if`.
    #[track_caller]
    fn begin(self) -> R;
}

/// The state of an `if`.
pub trait Region {
    /// Does the first branch run?
    #[track_caller]
    fn enter_then(&mut self) -> bool;
    /// Does the second branch run?
    #[track_caller]
    fn enter_else(&mut self) -> bool;
    /// Ends it.
    #[track_caller]
    fn close(&mut self);
}

/// An `if` that can have a value of type `V`.
#[diagnostic::on_unimplemented(
    message = "`{V}` cannot be the value of an `if` whose condition is on the device",
    label = "the two values are merged on the device, so they must be tiles",
    note = "tiles can, and arrays, tuples, `Vec`, `Option` and structs with `#[derive(Carry)]` of them"
)]
pub trait Gives<V>: Region {
    /// The value of the branch that is being left.
    fn give(&mut self, value: V) -> V;
    /// Ends the `if`; its value.
    #[track_caller]
    fn merge(&mut self, then: Option<V>, otherwise: Option<V>) -> V;
}

/// Begins an `if`.
#[track_caller]
pub fn branch<C: Branch<R>, R: Region>(condition: C) -> R {
    condition.begin()
}

/// Does the first branch run?
#[track_caller]
pub fn enter_then(region: &mut impl Region) -> bool {
    region.enter_then()
}

/// Does the second branch run?
#[track_caller]
pub fn enter_else(region: &mut impl Region) -> bool {
    region.enter_else()
}

/// Ends an `if` without a value.
#[track_caller]
pub fn close(region: &mut impl Region) {
    region.close();
}

/// The value of the branch that is being left. (The value comes first: the branch may still look at the region.)
pub fn give<R: Gives<V>, V>(value: V, region: &mut R) -> V {
    region.give(value)
}

/// Ends an `if` with a value.
#[track_caller]
pub fn merge<R: Gives<V>, V>(region: &mut R, then: Option<V>, otherwise: Option<V>) -> V {
    region.merge(then, otherwise)
}

/// An `if` over a `bool`: Rust's.
pub struct HostBranch(bool);

#[diagnostic::do_not_recommend]
impl Branch<HostBranch> for bool {
    fn begin(self) -> HostBranch {
        HostBranch(self)
    }
}

impl Region for HostBranch {
    fn enter_then(&mut self) -> bool {
        self.0
    }
    fn enter_else(&mut self) -> bool {
        !self.0
    }
    fn close(&mut self) {}
}

#[diagnostic::do_not_recommend]
impl<V> Gives<V> for HostBranch {
    fn give(&mut self, value: V) -> V {
        value
    }
    fn merge(&mut self, then: Option<V>, otherwise: Option<V>) -> V {
        then.or(otherwise).expect("one of the branches ran")
    }
}

#[diagnostic::do_not_recommend]
impl<V: ?Sized> Carries<V> for HostBranch {
    fn carry(&mut self, _: &mut V, _: &'static str) {}
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Before,
    Then,
    Else,
    After,
}

/// An `if` over a device value. Both branches are staged, each in its region.
pub struct DeviceBranch {
    condition: Value,
    at: &'static Location<'static>,
    phase: Phase,
    regions: [Block; 2],
    variables: Variables,
    /// What each branch yields: the variables, then the value.
    yields: [Vec<Value>; 2],
    /// What the variables are after it.
    results: Vec<Value>,
}

#[diagnostic::do_not_recommend]
impl Branch<DeviceBranch> for Tile<bool> {
    #[track_caller]
    fn begin(self) -> DeviceBranch {
        DeviceBranch {
            condition: scalar_condition(self, "if"),
            at: Location::caller(),
            phase: Phase::Before,
            regions: [session::new_region(), session::new_region()],
            variables: Variables::default(),
            yields: [Vec::new(), Vec::new()],
            results: Vec::new(),
        }
    }
}

impl DeviceBranch {
    /// What the branch that is being left has yielded so far. Its value is given before its variables, but yielded after them.
    #[track_caller]
    fn end_branch(&mut self, which: usize) {
        let carried = self.variables.entry.len();
        let given = self.yields[which].len() - carried;
        self.yields[which].rotate_left(given);
        session::leave_region(self.regions[which], Opcode::Yield, &self.yields[which]);
    }

    /// Appends the operation and returns its results: those of the variables and those of the value.
    #[track_caller]
    fn finish(&mut self) -> Vec<Value> {
        let [then, otherwise] = &self.yields;
        let types: Vec<Type> = then.iter().map(|&v| session::ty(v)).collect();
        for (position, (&a, &b)) in then.iter().zip(otherwise).enumerate() {
            if session::ty(a) != session::ty(b) {
                self.report_mismatch(position, a, b);
            }
        }
        let all = session::emit_with_regions(Opcode::If, &[self.condition], &types, &self.regions).to_vec();
        self.results = all[..self.variables.entry.len()].to_vec();
        self.phase = Phase::After;
        self.variables.rewind();
        all
    }

    fn report_mismatch(&self, position: usize, then: Value, otherwise: Value) {
        let shape = |v| session::ty(v).shape().map_or(String::new(), |s| s.to_string());
        let whose = self.variables.name(position).map_or(String::new(), |name| format!(" to `{name}`"));
        let mut fault = Diagnostic::at(format!("the branches give different shapes{whose}"), self.at)
            .label(format!("{} if true, {} otherwise", shape(then), shape(otherwise)))
            .help(
                "give both the same shape, with `.expand(axis)`, `.broadcast(shape)` or `full(shape, value)`",
            );
        for value in [then, otherwise] {
            if let Some(made) = session::origin(value) {
                fault = fault.also(made, format!("this has shape {}", shape(value)));
            }
        }
        session::report(&[then, otherwise], fault);
    }
}

impl Region for DeviceBranch {
    #[track_caller]
    fn enter_then(&mut self) -> bool {
        session::enter_region(self.regions[0]);
        self.phase = Phase::Then;
        self.variables.rewind();
        true
    }

    #[track_caller]
    fn enter_else(&mut self) -> bool {
        self.end_branch(0);
        session::enter_region(self.regions[1]);
        self.phase = Phase::Else;
        self.variables.rewind();
        true
    }

    #[track_caller]
    fn close(&mut self) {
        self.end_branch(1);
        self.finish();
    }
}

#[diagnostic::do_not_recommend]
impl<V: Carry> Gives<V> for DeviceBranch {
    fn give(&mut self, mut value: V) -> V {
        let yields = &mut self.yields[(self.phase == Phase::Else) as usize];
        value.visit(&mut |v| yields.push(*v));
        value
    }

    #[track_caller]
    fn merge(&mut self, then: Option<V>, otherwise: Option<V>) -> V {
        self.end_branch(1);
        let [a, b] = self.yields.each_ref().map(Vec::len);
        if a != b {
            let carried = self.variables.entry.len();
            let fault = Diagnostic::at("the branches give different numbers of tiles", self.at)
                .label(format!("{} if true, {} otherwise", a - carried, b - carried));
            session::report(&[], fault);
        }
        let all = self.finish();
        let mut results = all[self.results.len()..].iter();
        let mut value = then.or(otherwise).expect("both branches of a device `if` are staged");
        value.visit(&mut |v| *v = *results.next().expect("as many results as the first branch gives"));
        value
    }
}

#[diagnostic::do_not_recommend]
impl<V: Carry + ?Sized> Carries<V> for DeviceBranch {
    fn carry(&mut self, variable: &mut V, name: &'static str) {
        match self.phase {
            Phase::Before => self.variables.enter(variable, name, |v| v),
            Phase::Then => {
                let entry = self.variables.entry.clone();
                self.variables.pass(variable, self.at, |position, value| {
                    self.yields[0].push(value);
                    entry[position]
                });
            }
            Phase::Else => self.variables.pass(variable, self.at, |_, value| {
                self.yields[1].push(value);
                value
            }),
            Phase::After => {
                let results = &self.results;
                self.variables.pass(variable, self.at, |position, _| results[position]);
            }
        }
    }
}
