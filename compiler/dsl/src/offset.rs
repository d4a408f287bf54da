//! Offsets into views: any mix of host integers and device scalars.
//!
//! Arrays of Rust have one element type, so a mixed offset is a tuple, `(row, 0)`, or an array of [`Offset`]s,
//! `[offset(row), offset(0)]`. Inside `#[kernel]` the array literal `[row, 0]` is rewritten to the latter.

use std::panic::Location;

use tegula_ir::{Elem, Shape, Value};

use crate::broadcast::shape_of;
use crate::diagnostic::Diagnostic;
use crate::session;
use crate::tile::{Operand, Tile, int_constant};

/// One offset, extent or stride: a host integer, or an `i32` or `i64` scalar of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Offset(Repr);

#[derive(Clone, Copy, Debug)]
enum Repr {
    Host(i64),
    Device(Value),
}

/// What can be an [`Offset`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an offset into a view",
    note = "offsets are `Scalar<i32>`, `Scalar<i64>` and host integers"
)]
pub trait IntoOffset: Copy {
    /// As an offset.
    fn into_offset(self) -> Offset;
}

impl IntoOffset for Offset {
    fn into_offset(self) -> Offset {
        self
    }
}

macro_rules! into_offset {
    ($($ty:ty: $x:ident => $repr:expr;)+) => {$(
        impl IntoOffset for $ty {
            fn into_offset(self) -> Offset {
                let $x = self;
                Offset($repr)
            }
        }
    )+};
}

into_offset! {
    Tile<i32>: x => Repr::Device(x.value());
    Tile<i64>: x => Repr::Device(x.value());
    i32: x => Repr::Host(x as i64);
    i64: x => Repr::Host(x);
    u32: x => Repr::Host(x as i64);
    usize: x => Repr::Host(x as i64);
}

/// Any offset as an [`Offset`], so that an array can hold a mix.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let x = View::<f32, 2>::declare("x");
/// let tile = x.load([offset(program_id(0)), offset(0)], [1, 64]);
/// # }).unwrap();
/// ```
pub fn offset(x: impl IntoOffset) -> Offset {
    x.into_offset()
}

/// `R` offsets: an array, or a tuple of any mix.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no place in a view of {R} dimensions",
    label = "{R} offsets are needed",
    note = "write an array, `[row, 0]`, or a tuple, `(row, 0)`, with one entry a dimension"
)]
pub trait Offsets<const R: usize> {
    /// As an array.
    fn offsets(self) -> [Offset; R];
}

impl<I: IntoOffset, const R: usize> Offsets<R> for [I; R] {
    fn offsets(self) -> [Offset; R] {
        self.map(I::into_offset)
    }
}

macro_rules! tuples {
    ($($rank:literal: $($name:ident)+;)+) => {$(
        impl<$($name: IntoOffset),+> Offsets<$rank> for ($($name,)+) {
            #[allow(non_snake_case)]
            fn offsets(self) -> [Offset; $rank] {
                let ($($name,)+) = self;
                [$($name.into_offset()),+]
            }
        }
    )+};
}

tuples! {
    1: A;
    2: A B;
    3: A B C;
    4: A B C D;
    5: A B C D E;
    6: A B C D E F;
    7: A B C D E F G;
    8: A B C D E F G H;
}

impl Offset {
    /// The scalar in the kernel, `i32` or `i64`.
    #[track_caller]
    pub(crate) fn stage(self, operation: &str, dimension: usize) -> Value {
        let value = match self.0 {
            Repr::Host(x) if i32::try_from(x).is_ok() => int_constant(x as i128, Elem::I32, Shape::SCALAR),
            Repr::Host(x) => int_constant(x as i128, Elem::I64, Shape::SCALAR),
            Repr::Device(value) => value,
        };
        let shape = shape_of(value);
        if shape.rank() == 0 {
            return value;
        }
        let fault = Diagnostic::at(
            format!("{operation}: number {dimension} is a tile of shape {shape}, not a scalar"),
            Location::caller(),
        )
        .note("a view's tile is a rectangle: scalars say where it starts, and its shape how far it goes")
        .help("to gather single elements, use pointers: `view.base_ptr() + indices`");
        session::report(&[value], fault);
        session::poison(session::ty(value).with_shape(Shape::SCALAR))
    }

    /// The scalar in the kernel, as `i64`.
    #[track_caller]
    pub(crate) fn stage_wide(self, operation: &str, dimension: usize) -> Value {
        match self.0 {
            Repr::Host(x) => int_constant(x as i128, Elem::I64, Shape::SCALAR),
            Repr::Device(_) => {
                let value = self.stage(operation, dimension);
                match session::ty(value).value_elem() {
                    Some(Elem::I32) => {
                        Operand::<i64>::stage_like(Tile::<i32>::from_value(value), Shape::SCALAR)
                    }
                    _ => value,
                }
            }
        }
    }
}
