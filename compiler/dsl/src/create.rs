//! Tiles from nothing: the program's place in the grid, index tiles, constants.

use std::panic::Location;

use tegula_ir::element::{Element, Int};
use tegula_ir::{Elem, Opcode, Shape, Type};

use crate::broadcast::{shape_of, stretch};
use crate::diagnostic::Diagnostic;
use crate::session::{self, emit_value};
use crate::shape::{IntoShape, check_shape};
use crate::tile::{Operand, Scalar, Tile};

/// Grids have three axes.
#[track_caller]
fn grid_axis(axis: usize, opcode: fn(u8) -> Opcode) -> Scalar<i32> {
    let ty = Type::scalar(Elem::I32);
    if axis > 2 {
        let fault = Diagnostic::at(format!("there is no grid axis {axis}"), Location::caller())
            .label("grid axes are 0, 1 and 2");
        session::report(&[], fault);
        return Tile::from_value(session::poison(ty));
    }
    Tile::from_value(emit_value(opcode(axis as u8), &[], ty))
}

/// This program's index along a grid axis (0, 1 or 2).
#[track_caller]
pub fn program_id(axis: usize) -> Scalar<i32> {
    grid_axis(axis, Opcode::ProgramId)
}

/// The grid's extent along an axis (0, 1 or 2).
#[track_caller]
pub fn num_programs(axis: usize) -> Scalar<i32> {
    grid_axis(axis, Opcode::NumPrograms)
}

/// `start, start + 1, …, end − 1`. The length is a power of two.
#[track_caller]
pub fn arange(start: usize, end: usize) -> Tile<i32> {
    let ty = |shape| Type::tile(Elem::I32, shape);
    if start >= end || end > i32::MAX as usize {
        let fault =
            Diagnostic::at(format!("`arange({start}, {end})` is no range of indices"), Location::caller());
        session::report(&[], fault.label("the end must be after the start, and both fit in 31 bits"));
        return Tile::from_value(session::poison(ty(Shape::new(&[1]))));
    }
    match check_shape("`arange`", &[end - start]) {
        Ok(shape) => Tile::from_value(emit_value(Opcode::Iota { start: start as i32 }, &[], ty(shape))),
        Err(nearest) => Tile::from_value(session::poison(ty(nearest))),
    }
}

/// A tile with `value` (a host number or a scalar) everywhere.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// let m = full::<f32>([128], f64::NEG_INFINITY);
/// # }).unwrap();
/// ```
#[track_caller]
pub fn full<T: Element>(shape: impl IntoShape, value: impl Operand<T>) -> Tile<T> {
    match check_shape("`full`", &shape) {
        Ok(shape) => {
            let value = value.stage_like(shape);
            let from = shape_of(value);
            if from.broadcast(&shape) == Some(shape) {
                return Tile::from_value(stretch(value, shape));
            }
            let fault = Diagnostic::at(
                format!("`full` of shape {shape} from a tile of shape {from}"),
                Location::caller(),
            )
            .label("the value must be a host number or a scalar");
            session::report(&[value], fault);
            Tile::from_value(session::poison(Type::tile(T::ELEM, shape)))
        }
        Err(nearest) => Tile::from_value(session::poison(Type::tile(T::ELEM, nearest))),
    }
}

/// A tile of zeros (`false`, for truth values).
#[track_caller]
pub fn zeros<T: Element>(shape: impl IntoShape) -> Tile<T> {
    match check_shape("`zeros`", &shape) {
        Ok(shape) => {
            let ty = Type::tile(T::ELEM, shape);
            Tile::from_value(emit_value(Opcode::Const(T::from_f64(0.0).to_literal()), &[], ty))
        }
        Err(nearest) => Tile::from_value(session::poison(Type::tile(T::ELEM, nearest))),
    }
}

/// A tile of zeros with the shape of another of the element type.
#[track_caller]
pub fn zeros_like<T: Element>(x: Tile<T>) -> Tile<T> {
    zeros(x.shape())
}

/// A tile with `value` everywhere, of the shape of another of the element type.
#[track_caller]
pub fn full_like<T: Element>(x: Tile<T>, value: impl Operand<T>) -> Tile<T> {
    full(x.shape(), value)
}

/// A host value as a scalar of the kernel: what gives a `let mut` that changes in a device loop its element type, as in
/// `let mut m = constant(f32::NEG_INFINITY);`.
#[track_caller]
pub fn constant<T: Element>(value: T) -> Scalar<T> {
    Tile::from_value(emit_value(Opcode::Const(value.to_literal()), &[], Type::scalar(T::ELEM)))
}

/// Division that rounds up, of host integers and of device ones: see [`cdiv`].
pub trait CeilDiv<D> {
    /// The quotient's type.
    type Output;
    /// The quotient, rounded up.
    #[track_caller]
    fn ceil_div(self, divisor: D) -> Self::Output;
}

impl CeilDiv<usize> for usize {
    type Output = usize;
    #[track_caller]
    fn ceil_div(self, divisor: usize) -> usize {
        self.div_ceil(divisor)
    }
}

impl<T: Int, D: Operand<T>> CeilDiv<D> for Tile<T> {
    type Output = Tile<T>;
    #[track_caller]
    fn ceil_div(self, divisor: D) -> Tile<T> {
        let divisor = Tile::<T>::from_value(divisor.stage_like(self.shape()));
        (self + (divisor - 1)) / divisor
    }
}

/// ⌈a / b⌉ for a ≥ 0 and b > 0: of host sizes, giving a host size, or of a tile and anything that combines with it.
#[track_caller]
pub fn cdiv<A: CeilDiv<B>, B>(a: A, b: B) -> A::Output {
    a.ceil_div(b)
}
