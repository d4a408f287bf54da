//! Variables that change inside device regions.

use std::cell::Cell;
use std::panic::Location;

use tegula_ir::Value;

use crate::diagnostic::Diagnostic;
use crate::pointer::{Ptr, PtrMut};
use crate::session;
use crate::tile::Tile;
use tegula_ir::element::Element;

/// A variable that may change inside a device loop or branch: it consists of handles of the kernel's values.
///
/// `#[derive(Carry)]` implements it for structs.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot change inside a device loop or branch",
    label = "not made of tiles",
    note = "tiles can, and arrays, tuples, `Vec`, `Option` and structs with `#[derive(Carry)]` of them"
)]
pub trait Carry {
    /// Calls `f` on every handle, always in the same order; `f` may replace it by one of the same type.
    fn visit(&mut self, f: &mut dyn FnMut(&mut Value));
}

impl<T: Element> Carry for Tile<T> {
    fn visit(&mut self, f: &mut dyn FnMut(&mut Value)) {
        let mut value = self.value();
        f(&mut value);
        *self = Tile::from_value(value);
    }
}

macro_rules! pointers {
    ($($ptr:ident)+) => {$(
        impl<T: Element> Carry for $ptr<T> {
            fn visit(&mut self, f: &mut dyn FnMut(&mut Value)) {
                let mut value = self.value();
                f(&mut value);
                *self = $ptr::from_value(value);
            }
        }
    )+};
}

pointers!(Ptr PtrMut);

impl<C: Carry> Carry for [C] {
    fn visit(&mut self, f: &mut dyn FnMut(&mut Value)) {
        self.iter_mut().for_each(|c| c.visit(f));
    }
}

impl<C: Carry, const N: usize> Carry for [C; N] {
    fn visit(&mut self, f: &mut dyn FnMut(&mut Value)) {
        self.as_mut_slice().visit(f);
    }
}

impl<C: Carry> Carry for Vec<C> {
    fn visit(&mut self, f: &mut dyn FnMut(&mut Value)) {
        self.as_mut_slice().visit(f);
    }
}

impl<C: Carry> Carry for Option<C> {
    fn visit(&mut self, f: &mut dyn FnMut(&mut Value)) {
        self.iter_mut().for_each(|c| c.visit(f));
    }
}

impl<C: Carry + ?Sized> Carry for Box<C> {
    fn visit(&mut self, f: &mut dyn FnMut(&mut Value)) {
        (**self).visit(f);
    }
}

impl<C: Carry + ?Sized> Carry for &mut C {
    fn visit(&mut self, f: &mut dyn FnMut(&mut Value)) {
        (**self).visit(f);
    }
}

macro_rules! tuples {
    ($($($name:ident)*;)+) => {$(
        impl<$($name: Carry),*> Carry for ($($name,)*) {
            #[allow(non_snake_case, unused_variables)]
            fn visit(&mut self, f: &mut dyn FnMut(&mut Value)) {
                let ($($name,)*) = self;
                $($name.visit(f);)*
            }
        }
    )+};
}

tuples!(; A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H;);

/// A region that a variable of type `V` may change in.
#[diagnostic::on_unimplemented(
    message = "`{V}` cannot change inside a device loop or branch",
    label = "changed on the host, while the loop or branch around it runs on the device",
    note = "tiles can, and arrays, tuples, `Vec`, `Option` and structs with `#[derive(Carry)]` of them",
    note = "a number that counts along on the device starts as a tile: `let mut i = constant(0);`"
)]
pub trait Carries<V: ?Sized> {
    /// The next pass over the variable; see the module's table.
    fn carry(&mut self, variable: &mut V, name: &'static str);
}

/// Hands a variable to a region.
pub fn carry<R: Carries<V>, V: ?Sized>(region: &mut R, variable: &mut V, name: &'static str) {
    region.carry(variable, name);
}

/// A look at a variable that a loop does not carry: which tiles does it hold? The macro cannot see every change (a macro's or a method's is out of its sight), and
/// one that it does not see would be lost between two rounds of a device loop. So the variable is looked at before the body and after it.
///
/// Found by method lookup: what is made of tiles has [`Handles`], and everything else the [`NoHandles`] of a reference.
pub struct Watched<'a, V: ?Sized>(pub &'a V);

/// The tiles of a variable made of tiles.
pub trait Handles {
    /// Their handles.
    fn handles(&self) -> Vec<Value>;
}

impl<V: Carry + Clone> Handles for Watched<'_, V> {
    fn handles(&self) -> Vec<Value> {
        let mut handles = Vec::new();
        self.0.clone().visit(&mut |value| handles.push(*value));
        handles
    }
}

impl<V: Carry + Copy> Handles for Watched<'_, Cell<V>> {
    fn handles(&self) -> Vec<Value> {
        Watched(&self.0.get()).handles()
    }
}

/// What is not made of tiles: no device loop changes it.
pub trait NoHandles {
    /// None.
    fn handles(&self) -> Vec<Value>;
}

impl<V: ?Sized> NoHandles for &Watched<'_, V> {
    fn handles(&self) -> Vec<Value> {
        Vec::new()
    }
}

/// A loop that looks at variables that it does not carry.
pub trait Watches {
    /// Looks at one, before the loop and after each part of it, like [`Carries::carry`].
    fn watch(
        &mut self,
        handles: impl FnOnce() -> Vec<Value>,
        name: &'static str,
        at: &'static Location<'static>,
    );
}

/// Looks at a variable that the loop does not carry.
#[track_caller]
pub fn watch<R: Watches>(region: &mut R, handles: impl FnOnce() -> Vec<Value>, name: &'static str) {
    region.watch(handles, name, Location::caller());
}

/// What was seen of the variables that a loop does not carry.
#[derive(Default)]
pub(super) struct Watch(Vec<(&'static str, Vec<Value>)>);

impl Watch {
    /// The look before the loop.
    pub(super) fn before(&mut self, name: &'static str, handles: Vec<Value>) {
        self.0.push((name, handles));
    }

    /// A look after a part of it: the variable must hold what it held.
    pub(super) fn after(&mut self, name: &'static str, handles: Vec<Value>, at: &Location<'_>) {
        let Some(known) = self.0.iter_mut().find(|(known, _)| *known == name) else { return };
        if known.1 == handles {
            return;
        }
        let fault = Diagnostic::at(format!("`{name}` changes inside a device loop, unseen by `#[kernel]`"), at)
            .label("by a macro, or by a method that takes `&mut self` or is of a `Cell`")
            .note("the next round would see the tile of before the loop: only changes that the macro sees are carried from round to round")
            .help(format!("write `{name} = …` or `{name} += …` in the loop itself, or show the change with `&mut {name}`"));
        session::report(&handles, fault);
        // Once is enough.
        known.1 = handles;
    }
}

/// The variables of a region: which part of the flat list of values is whose.
#[derive(Default)]
pub(super) struct Variables {
    /// Name, first value and number of values of each.
    vars: Vec<(&'static str, usize, usize)>,
    /// The values before the region.
    pub(super) entry: Vec<Value>,
    /// The variable that comes next in this pass.
    next: usize,
}

impl Variables {
    /// The first pass over a variable.
    pub(super) fn enter<V: Carry + ?Sized>(
        &mut self,
        variable: &mut V,
        name: &'static str,
        mut replace: impl FnMut(Value) -> Value,
    ) {
        let first = self.entry.len();
        variable.visit(&mut |value| {
            self.entry.push(*value);
            *value = replace(*value);
        });
        self.vars.push((name, first, self.entry.len() - first));
    }

    /// Ends a pass.
    pub(super) fn rewind(&mut self) {
        self.next = 0;
    }

    /// A later pass over a variable: `f` gets the position in the flat list and the value, and returns what replaces it. It is called once for
    /// each position, whatever the variable holds by now.
    pub(super) fn pass<V: Carry + ?Sized>(
        &mut self,
        variable: &mut V,
        at: &Location<'_>,
        mut f: impl FnMut(usize, Value) -> Value,
    ) {
        let (name, first, count) = self.vars[self.next];
        self.next += 1;
        let mut seen: Vec<Value> = Vec::new();
        variable.visit(&mut |value| {
            if seen.len() < count {
                *value = f(first + seen.len(), *value);
            }
            seen.push(*value);
        });
        (seen.len()..count).for_each(|missing| {
            f(first + missing, self.entry[first + missing]);
        });
        if seen.len() != count {
            let found = seen.len();
            let fault = Diagnostic::at(format!("`{name}` changes its number of tiles inside a device loop or branch"), at)
                .label(format!("{count} before it, {found} at the end of a part of it"))
                .note("the part may run any number of times, or not at all; the tiles must be the same ones after it")
                .help("give it all its tiles before the loop or branch, and assign to them inside");
            session::report(&seen, fault);
            // What is around this region must not report it again.
            variable.visit(&mut |value| *value = session::poison(session::ty(*value)));
        }
    }

    /// The name of the variable that holds the value at a position of the flat list; `None` for a value that no variable holds.
    pub(super) fn name(&self, position: usize) -> Option<&'static str> {
        self.vars.iter().find(|(_, first, count)| (*first..first + count).contains(&position)).map(|v| v.0)
    }

    /// Checks that the values at the end of a loop's part have the types of those before the loop; replaces a wrong one by poison.
    pub(super) fn check_types(&self, ends: &mut [Value], what: &str, at: &Location<'_>) {
        for (position, (&before, end)) in self.entry.iter().zip(ends).enumerate() {
            let (expected, found) = (session::ty(before), session::ty(*end));
            if expected == found {
                continue;
            }
            let name = self.name(position).unwrap_or("a value");
            let shape = |ty: tegula_ir::Type| ty.shape().map_or(String::new(), |s| s.to_string());
            let mut fault = Diagnostic::at(format!("`{name}` changes its shape inside a device loop"), at)
                .label(format!("{} before the loop, {} at the end of {what}", shape(expected), shape(found)))
                .note("the loop's next round would get another type; every round must get the same");
            for (value, ty) in [(before, expected), (*end, found)] {
                if let Some(made) = session::origin(value) {
                    fault = fault.also(made, format!("this has shape {}", shape(ty)));
                }
            }
            session::report(&[before, *end], fault);
            *end = session::poison(expected);
        }
    }
}

/// Reports a condition that is not one truth value, and replaces it by poison that is.
#[track_caller]
pub(super) fn scalar_condition(condition: Tile<bool>, what: &str) -> Value {
    let shape = condition.shape();
    if shape.rank() == 0 {
        return condition.value();
    }
    let fault = Diagnostic::at(
        format!("the condition of a device `{what}` has shape {shape}"),
        Location::caller(),
    )
    .label("all elements take the same way, so this must be one truth value")
    .help("choose element by element with `select(condition, a, b)`, or reduce the condition to a scalar");
    session::report(&[condition.value()], fault);
    session::poison(tegula_ir::Type::scalar(tegula_ir::Elem::I1))
}
