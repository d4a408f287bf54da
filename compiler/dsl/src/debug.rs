//! Help for finding mistakes: prints, checks, and promises to the compiler.

use std::panic::Location;

use tegula_ir::element::{Element, Int};
use tegula_ir::op::Assumption;
use tegula_ir::{Opcode, Shape, Value};

use crate::broadcast::{shape_of, unify};
use crate::diagnostic::Diagnostic;
use crate::pointer::{Ptr, PtrMut};
use crate::session::{self, Values, emit_value};
use crate::tile::Tile;

/// What [`print()`] can show.
pub trait Printable {
    /// The value in the kernel.
    fn printed(&self) -> Value;
}

impl<T: Element> Printable for Tile<T> {
    fn printed(&self) -> Value {
        self.value()
    }
}

impl<T: Element> Printable for Ptr<T> {
    fn printed(&self) -> Value {
        self.value()
    }
}

impl<T: Element> Printable for PtrMut<T> {
    fn printed(&self) -> Value {
        self.value()
    }
}

/// Prints a message and values when the kernel runs, one line an element, prefixed with the program and the element's index. Values whose
/// shapes broadcast together are printed side by side.
///
/// A `{}` in the message stands for the next value; without any, the values follow the message.
#[track_caller]
pub fn print(message: &str, values: &[&dyn Printable]) {
    let values: Vec<Value> = values.iter().map(|v| v.printed()).collect();
    let places = message.matches("{}").count();
    if places != 0 && places != values.len() {
        let fault = Diagnostic::at("a print's message and its values do not match", Location::caller())
            .label(format!("{places} `{{}}` in the message, {} values", values.len()));
        session::report(&values, fault);
        return;
    }
    let shapes: Vec<Shape> = values.iter().map(|&v| shape_of(v)).collect();
    let values = match shapes.iter().try_fold(Shape::SCALAR, |all, s| all.broadcast(s)) {
        Some(_) => unify("`print`", &values),
        None => Values::from_vec(values),
    };
    session::emit(Opcode::Print { message: message.to_owned() }, &values, &[]);
}

/// Prints when the kernel runs. See [`print`](crate::print()).
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let x = arange(0, 8);
/// device_print!("row {}: {}", program_id(0), x);
/// # }).unwrap();
/// ```
#[macro_export]
macro_rules! device_print {
    ($message:expr $(, $value:expr)* $(,)?) => {
        $crate::print($message, &[$(&$value),*])
    };
}

/// Stops the kernel with this message where an element of `condition` is false.
#[track_caller]
pub fn device_assert(condition: Tile<bool>, message: &str) {
    session::emit(Opcode::Assert { message: message.to_owned() }, &[condition.value()], &[]);
}

/// What [`multiple_of`] and [`max_contiguous`] say something of: integer tiles and pointers.
pub trait Assumable: Copy {
    /// The same with a promise.
    #[track_caller]
    fn assume(self, promise: Assumption) -> Self;
}

#[track_caller]
fn assume(value: Value, promise: Assumption) -> Value {
    if let Assumption::MultipleOf(0) | Assumption::Contiguous(0) = promise {
        let fault = Diagnostic::at("a promise of multiples or runs of 0", Location::caller());
        session::report(&[value], fault);
        return value;
    }
    if matches!(promise, Assumption::Contiguous(_)) && shape_of(value).rank() == 0 {
        let fault = Diagnostic::at("a scalar has no runs of consecutive elements", Location::caller());
        session::report(&[value], fault.help("`multiple_of` says something of a scalar"));
        return value;
    }
    emit_value(Opcode::Assume(promise), &[value], session::ty(value))
}

impl<T: Int> Assumable for Tile<T> {
    #[track_caller]
    fn assume(self, promise: Assumption) -> Self {
        Tile::from_value(assume(self.value(), promise))
    }
}

impl<T: Element> Assumable for Ptr<T> {
    #[track_caller]
    fn assume(self, promise: Assumption) -> Self {
        Ptr::from_value(assume(self.value(), promise))
    }
}

impl<T: Element> Assumable for PtrMut<T> {
    #[track_caller]
    fn assume(self, promise: Assumption) -> Self {
        PtrMut::from_value(assume(self.value(), promise))
    }
}

/// Promises that every element (for pointers: the address, in elements) is a multiple of `n`. A wrong promise is undefined on a GPU; the
/// host device checks it.
#[track_caller]
pub fn multiple_of<A: Assumable>(x: A, n: usize) -> A {
    x.assume(Assumption::MultipleOf(n as u64))
}

/// Promises that along the last dimension, runs of `n` elements are consecutive. A wrong promise is undefined on a GPU; the host device
/// checks it.
#[track_caller]
pub fn max_contiguous<A: Assumable>(x: A, n: usize) -> A {
    x.assume(Assumption::Contiguous(n as u64))
}
