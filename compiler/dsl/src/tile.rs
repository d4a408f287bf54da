//! `Tile<T>`: the handle that kernels compute with.

use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

use tegula_ir::numerics::round_to;
use tegula_ir::op::Literal;
use tegula_ir::{Elem, Opcode, Shape, Type, Value};

use crate::diagnostic::Diagnostic;
use crate::session;
use tegula_ir::element::{Element, Float, Num, bf16, f8e4m3, f8e5m2, f16};

/// A tile of elements of type `T`, or a scalar: a handle, copied freely.
///
/// Its shape is known when the kernel is staged ([`Tile::shape`]); every extent is a power of two.
///
/// Operators work element by element on tiles of one element type. Shapes broadcast as in NumPy: aligned at the last dimension, extents of 1
/// stretch. Host numbers can stand on either side; on the left of an operator a host float is an `f64` and a host integer a
/// `usize`, so that rustc knows the type of a literal there.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let x = zeros::<f32>([16, 64]);
/// let y = 1.0 - x * 0.5; // for every float type
/// let scores = y / y.sum(1).expand(1); // [16, 64] / [16, 1]
/// # }).unwrap();
/// ```
pub struct Tile<T: Element> {
    value: Value,
    elem: PhantomData<T>,
}

/// A scalar is a tile of rank 0.
pub type Scalar<T> = Tile<T>;

impl<T: Element> Clone for Tile<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element> Copy for Tile<T> {}

impl<T: Element> fmt::Debug for Tile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.value, T::ELEM)
    }
}

impl<T: Element> Tile<T> {
    /// The handle of a value of the kernel being staged.
    ///
    /// # Panics
    /// If the value is no tile of `T`.
    #[track_caller]
    pub fn from_value(value: Value) -> Tile<T> {
        let found = session::ty(value);
        assert_eq!(found.value_elem(), Some(T::ELEM), "a handle for tiles of {} got a {found}", T::ELEM);
        Tile { value, elem: PhantomData }
    }

    /// The value in the kernel being staged.
    pub fn value(self) -> Value {
        self.value
    }

    /// The extents; `[]` for a scalar.
    #[track_caller]
    pub fn shape(self) -> Shape {
        session::ty(self.value).shape().expect("a tile has a shape")
    }

    /// The number of dimensions; 0 for a scalar.
    #[track_caller]
    pub fn rank(self) -> usize {
        self.shape().rank()
    }
}

/// What can stand beside a `Tile<T>` in an operator: a tile of the same element type, or a host number.
///
/// Operators have one implementation, generic over this trait, so that rustc knows the result's type before it has decided the type of a
/// literal: `(x * 2.0).exp()` needs no annotations.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be combined with a tile of `{T}`",
    label = "neither a tile of `{T}` nor a host number that converts to `{T}`",
    note = "element types are converted explicitly: `.cast::<{T}>()` here, or `.cast::<…>()` on the left for a result of the right one's type"
)]
pub trait Operand<T: Element>: Copy {
    /// The value in the kernel; a host number becomes a constant of the shape `like`.
    #[track_caller]
    fn stage_like(self, like: Shape) -> Value;
}

impl<T: Element> Operand<T> for Tile<T> {
    #[track_caller]
    fn stage_like(self, _: Shape) -> Value {
        self.value
    }
}

/// A narrower index beside a 64-bit one is widened: no value changes.
impl Operand<i64> for Tile<i32> {
    #[track_caller]
    fn stage_like(self, _: Shape) -> Value {
        widen(self).value
    }
}

/// i32 → i64.
#[track_caller]
pub(crate) fn widen(narrow: Tile<i32>) -> Tile<i64> {
    let ty = session::ty(narrow.value).with_elem(Elem::I64);
    Tile::from_value(session::emit_value(Opcode::Cast(Default::default()), &[narrow.value], ty))
}

macro_rules! host_numbers {
    ($bound:ident: $($ty:ty as $wide:ty => $make:ident),+) => {$(
        impl<T: $bound> Operand<T> for $ty {
            #[track_caller]
            fn stage_like(self, like: Shape) -> Value {
                $make(self as $wide, T::ELEM, like)
            }
        }
    )+};
}

host_numbers!(Float: f32 as f64 => float_constant, f64 as f64 => float_constant);
host_numbers!(Num: i32 as i128 => int_constant, u32 as i128 => int_constant,
    i64 as i128 => int_constant, u64 as i128 => int_constant, usize as i128 => int_constant);

/// Values of the tile's own type. (For the types above, literals among them, there is one implementation for all tiles.)
macro_rules! own_values {
    ($($ty:ty, $x:ident => $literal:expr);+) => {$(
        impl Operand<$ty> for $ty {
            #[track_caller]
            fn stage_like(self, like: Shape) -> Value {
                let $x = self;
                constant($literal, <$ty as Element>::ELEM, like)
            }
        }
    )+};
}

own_values!(i8, x => Literal::Int(x.into()); i16, x => Literal::Int(x.into()); u8, x => Literal::Int(x.into());
    u16, x => Literal::Int(x.into()); f16, x => Literal::float(x.to_f64()); bf16, x => Literal::float(x.to_f64());
    f8e4m3, x => Literal::float(Element::to_f64(x)); f8e5m2, x => Literal::float(Element::to_f64(x)));

impl Operand<bool> for bool {
    #[track_caller]
    fn stage_like(self, like: Shape) -> Value {
        constant(Literal::Int(self as i64), Elem::I1, like)
    }
}

#[track_caller]
fn constant(literal: Literal, elem: Elem, shape: Shape) -> Value {
    session::emit_value(Opcode::Const(literal), &[], Type::tile(elem, shape))
}

/// A float constant, rounded to the element type (a literal such as 0.1 is no value of f16, and nobody wants to write it as one).
#[track_caller]
pub(crate) fn float_constant(x: f64, elem: Elem, shape: Shape) -> Value {
    constant(Literal::float(round_to(elem, x)), elem, shape)
}

/// An integer constant; one that the element type cannot hold is a fault, also for floats.
#[track_caller]
pub(crate) fn int_constant(x: i128, elem: Elem, shape: Shape) -> Value {
    let literal = if elem.is_float() {
        let rounded = round_to(elem, x as f64);
        (rounded as i128 == x).then(|| Literal::float(rounded))
    } else {
        // An i64 or, by its bit pattern, a u64.
        range(elem).contains(&x).then_some(Literal::Int(x as i64))
    };
    match literal {
        Some(literal) => constant(literal, elem, shape),
        None => {
            let fault = Diagnostic::at(format!("{x} is not representable in {elem}"), Location::caller())
                .label(format!("this needs the value {x} as {elem}"));
            session::report(&[], fault);
            session::poison(Type::tile(elem, shape))
        }
    }
}

/// The values of an integer type.
fn range(elem: Elem) -> std::ops::RangeInclusive<i128> {
    match (elem.is_signed(), elem.bits()) {
        (true, bits) => -(1 << (bits - 1))..=(1 << (bits - 1)) - 1,
        (false, bits) => 0..=(1 << bits) - 1,
    }
}
