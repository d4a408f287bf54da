//! Pointers: tiles of addresses of global memory, with masks; for gathers and for those who come from Triton.
//!
//! Unlike views they are checked against nothing: a wrong address is a fault on a GPU, and a report on the host and the emulator.

use std::marker::PhantomData;
use std::ops::{Add, AddAssign};
use std::panic::Location;

use tegula_ir::element::{Element, Int};
use tegula_ir::op::CacheHint;
use tegula_ir::{Elem, ElemType, Opcode, Shape, Type, Value};

use crate::argument::Argument;
use crate::broadcast::{shape_of, unify};
use crate::diagnostic::Diagnostic;
use crate::modifier::Stored;
use crate::session::{self, emit_value};
use crate::shape::{IntoAxis, IntoShape};
use crate::tile::{Operand, Tile, int_constant};

/// A tile (or a scalar) of pointers to elements that are only read.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let (x, n) = (Ptr::<f32>::declare("x"), Scalar::<i32>::declare("n"));
/// let at = program_id(0) * 256 + arange(0, 256);
/// let values = (x + at).load_masked(at.lt(n), 0.0);
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Ptr<T: Element> {
    value: Value,
    elem: PhantomData<T>,
}

/// A tile (or a scalar) of pointers to elements that are read and written.
#[derive(Debug)]
pub struct PtrMut<T: Element> {
    value: Value,
    elem: PhantomData<T>,
}

/// What moves a pointer, by a number of elements: an integer tile, or a host integer.
#[diagnostic::on_unimplemented(
    message = "a pointer cannot be moved by `{Self}`",
    note = "pointers move by integer tiles and host integers, in elements"
)]
pub trait PtrOffset: Copy {
    /// The value in the kernel.
    #[track_caller]
    fn stage_offset(self) -> Value;
}

impl<I: Int> PtrOffset for Tile<I> {
    fn stage_offset(self) -> Value {
        self.value()
    }
}

macro_rules! host_offsets {
    ($($ty:ty)+) => {$(
        impl PtrOffset for $ty {
            #[track_caller]
            fn stage_offset(self) -> Value {
                int_constant(self as i128, Elem::I64, Shape::SCALAR)
            }
        }
    )+};
}

host_offsets!(i32 i64 u32 usize);

macro_rules! pointers {
    ($($ptr:ident)+) => {$(
        impl<T: Element> Clone for $ptr<T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T: Element> Copy for $ptr<T> {}

        impl<T: Element> Argument for $ptr<T> {
            #[track_caller]
            fn declare(name: &str) -> Self {
                $ptr::from_value(session::param(name, Type::ptr(T::ELEM)))
            }
        }

        impl<T: Element> $ptr<T> {
            /// The handle of a value of the kernel being staged.
            ///
            /// # Panics
            /// If the value is no tile of pointers to `T`.
            #[track_caller]
            pub fn from_value(value: Value) -> Self {
                let found = session::ty(value);
                let elem = found.as_tile().map(|t| t.elem);
                assert_eq!(elem, Some(ElemType::Ptr(T::ELEM)), "a handle for pointers got a {found}");
                $ptr { value, elem: PhantomData }
            }

            /// The value in the kernel being staged.
            pub fn value(self) -> Value {
                self.value
            }

            /// The extents; `[]` for a scalar.
            #[track_caller]
            pub fn shape(self) -> Shape {
                shape_of(self.value)
            }

            /// The value, which must be a scalar.
            #[track_caller]
            pub(crate) fn scalar_value(self, operation: &str) -> Value {
                scalar_pointer(operation, self.value)
            }

            /// Loads from all addresses.
            #[track_caller]
            pub fn load(self) -> Tile<T> {
                load(&[self.value])
            }

            /// Loads where `mask` holds, and gives `other` elsewhere; all broadcast together.
            #[track_caller]
            pub fn load_masked(self, mask: Tile<bool>, other: impl Operand<T>) -> Tile<T> {
                let like = self.shape().broadcast(&mask.shape()).unwrap_or(Shape::SCALAR);
                load(&[self.value, mask.value(), other.stage_like(like)])
            }

            /// Inserts a dimension of extent 1 before dimension `axis`.
            #[track_caller]
            pub fn expand(self, axis: impl IntoAxis) -> Self {
                $ptr::from_value(crate::shape::expand(self.value, axis))
            }

            /// Stretches to `shape`: dimensions of extent 1, and missing leading ones.
            #[track_caller]
            pub fn broadcast_to(self, shape: impl IntoShape) -> Self {
                $ptr::from_value(crate::shape::broadcast_to(self.value, shape))
            }
        }

        impl<T: Element, O: PtrOffset> Add<O> for $ptr<T> {
            type Output = $ptr<T>;
            #[track_caller]
            fn add(self, offset: O) -> $ptr<T> {
                $ptr::from_value(moved("`+`", self.value, offset.stage_offset()))
            }
        }

        impl<T: Element, O: PtrOffset> AddAssign<O> for $ptr<T> {
            #[track_caller]
            fn add_assign(&mut self, offset: O) {
                self.value = moved("`+=`", self.value, offset.stage_offset());
            }
        }
    )+};
}

pointers!(Ptr PtrMut);

#[track_caller]
fn moved(operation: &str, ptr: Value, offset: Value) -> Value {
    let both = unify(operation, &[ptr, offset]);
    emit_value(Opcode::PtrAdd, &both, session::ty(both[0]))
}

#[track_caller]
fn scalar_pointer(operation: &str, ptr: Value) -> Value {
    let shape = shape_of(ptr);
    if shape.rank() == 0 {
        return ptr;
    }
    let fault = Diagnostic::at(format!("{operation} takes one pointer"), Location::caller())
        .label(format!("this is a tile of pointers of shape {shape}"));
    session::report(&[ptr], fault);
    session::poison(session::ty(ptr).with_shape(Shape::SCALAR))
}

#[track_caller]
fn load<T: Element>(operands: &[Value]) -> Tile<T> {
    let operands = unify("`load`", operands);
    let ty = session::ty(operands[0]).with_elem(T::ELEM);
    Tile::from_value(emit_value(Opcode::Load { cache: CacheHint::Normal }, &operands, ty))
}

/// Stretches what is stored to the shape of the pointers. Several values for one address are a mistake, and are reported.
#[track_caller]
pub(crate) fn unify_with_pointers(operation: &str, operands: &[Value]) -> Option<session::Values> {
    let pointers = shape_of(operands[0]);
    let all = unify(operation, operands);
    let common = shape_of(all[0]);
    if common == pointers {
        return Some(all);
    }
    let fault = Diagnostic::at(
        format!("{operation} of shape {common} through pointers of shape {pointers}"),
        Location::caller(),
    )
    .label("several elements would go to one address")
    .help("add a tile of offsets to the pointer: `ptr + arange(0, n)`");
    session::report(&all, fault);
    None
}

impl<T: Element> PtrMut<T> {
    /// Stores to all addresses; the value broadcasts to the pointers' shape.
    #[track_caller]
    pub fn store(self, value: impl Operand<T>) -> Stored {
        store(&[self.value, value.stage_like(self.shape())])
    }

    /// Stores where `mask` holds; value and mask broadcast to the pointers' shape.
    #[track_caller]
    pub fn store_masked(self, value: impl Operand<T>, mask: Tile<bool>) -> Stored {
        store(&[self.value, value.stage_like(self.shape()), mask.value()])
    }

    /// The same pointers, to read only.
    pub fn as_const(self) -> Ptr<T> {
        Ptr { value: self.value, elem: PhantomData }
    }
}

#[track_caller]
fn store(operands: &[Value]) -> Stored {
    let Some(operands) = unify_with_pointers("`store`", operands) else { return Stored(None) };
    Stored(Some(session::emit_op(Opcode::Store { cache: CacheHint::Normal }, &operands, &[], &[])))
}

/// Pointers that can be stored through. `Ptr` is not one; [`Ptr::store`] exists so that rustc can say so.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is read-only: take a `PtrMut` to store",
    label = "this pointer cannot be stored through"
)]
pub trait WritablePtr {}

impl<T: Element> WritablePtr for PtrMut<T> {}

impl<T: Element> Ptr<T> {
    /// Does not compile: `Ptr` is read-only.
    #[doc(hidden)]
    pub fn store<V>(self, _value: V)
    where
        Self: WritablePtr,
    {
    }

    /// Does not compile: `Ptr` is read-only.
    #[doc(hidden)]
    pub fn store_masked<V>(self, _value: V, _mask: Tile<bool>)
    where
        Self: WritablePtr,
    {
    }
}
