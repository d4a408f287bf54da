//! Reductions and scans along a dimension, of one tile or of several at once.

use std::panic::Location;

use tegula_ir::element::{Bits, Element, Num};
use tegula_ir::{Block, Opcode, Shape, Type, Value};

use crate::broadcast::{shape_of, unify};
use crate::compare::select;
use crate::diagnostic::Diagnostic;
use crate::session::{self, Values};
use crate::shape::{IntoAxis, check_axis};
use crate::tile::Tile;

/// A tile, or a tuple of tiles, that is reduced or scanned together.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be reduced or scanned",
    note = "a tile can, and a tuple of up to 6 tiles"
)]
pub trait Tiles: Copy {
    /// The values in the kernel.
    fn values(self) -> Values;
    /// Handles of as many values, of the same element types.
    #[track_caller]
    fn with_values(self, values: &[Value]) -> Self;
}

impl<T: Element> Tiles for Tile<T> {
    fn values(self) -> Values {
        Values::from_slice(&[self.value()])
    }

    #[track_caller]
    fn with_values(self, values: &[Value]) -> Self {
        Tile::from_value(values[0])
    }
}

macro_rules! tuples {
    ($($($name:ident $index:tt)+;)+) => {$(
        impl<$($name: Element),+> Tiles for ($(Tile<$name>,)+) {
            fn values(self) -> Values {
                Values::from_slice(&[$(self.$index.value()),+])
            }

            #[track_caller]
            fn with_values(self, values: &[Value]) -> Self {
                ($(Tile::<$name>::from_value(values[$index]),)+)
            }
        }
    )+};
}

tuples! {
    A 0;
    A 0 B 1;
    A 0 B 1 C 2;
    A 0 B 1 C 2 D 3;
    A 0 B 1 C 2 D 3 E 4;
    A 0 B 1 C 2 D 3 E 4 F 5;
}

/// The region of a reduction or a scan. What it yields must be scalars.
#[track_caller]
fn combine_region<X: Tiles>(
    operation: &str,
    inputs: X,
    types: &[Type],
    combine: impl FnOnce(X, X) -> X,
) -> Block {
    let n = types.len();
    let scalars: Vec<Type> = types.iter().chain(types).map(|t| t.with_shape(Shape::SCALAR)).collect();
    let caller = Location::caller();
    let (block, ()) = session::region(&scalars, Opcode::Yield, |args| {
        let running = inputs.with_values(&args[..n]);
        let mut yields = combine(running, inputs.with_values(&args[n..])).values();
        for y in &mut yields {
            let shape = shape_of(*y);
            if shape.rank() != 0 {
                let fault = Diagnostic::at(
                    format!("the combining function of {operation} gives a tile of shape {shape}"),
                    caller,
                )
                .note("it works on single elements, given as scalars, and gives scalars")
                .help("tiles from outside cannot be used in it; put them among the inputs");
                session::report(&[*y], fault);
                *y = session::poison(session::ty(*y).with_shape(Shape::SCALAR));
            }
        }
        (yields, ())
    });
    block
}

/// Folds dimension `axis` of a tile, or of several tiles at once, away with a function of two elements (of two tuples, for several), which
/// must be associative and commutative up to rounding; the order is unspecified.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let x = zeros::<f32>([16, 64]);
/// // The sum and the sum of squares, in one pass.
/// let (s, q) = reduce((x, x * x), 1, |a, b| (a.0 + b.0, a.1 + b.1));
/// # }).unwrap();
/// ```
#[track_caller]
pub fn reduce<X: Tiles>(inputs: X, axis: impl IntoAxis, combine: impl FnOnce(X, X) -> X) -> X {
    let values = unify("`reduce`", &inputs.values());
    let types: Vec<Type> = values.iter().map(|&v| session::ty(v)).collect();
    let shape = shape_of(values[0]);
    let Some(axis) = check_axis("a reduction", axis, shape.rank(), &values) else {
        let less = if shape.rank() == 0 { shape } else { shape.remove(shape.rank() - 1) };
        let poison: Values = types.iter().map(|t| session::poison(t.with_shape(less))).collect();
        return inputs.with_values(&poison);
    };
    let results: Vec<Type> = types.iter().map(|t| t.with_shape(shape.remove(axis))).collect();
    let block = combine_region("`reduce`", inputs, &types, combine);
    let opcode = Opcode::Reduce { axis: axis as u8 };
    inputs.with_values(&session::emit_with_regions(opcode, &values, &results, &[block]))
}

#[track_caller]
fn scan_along<X: Tiles>(inputs: X, axis: impl IntoAxis, reverse: bool, combine: impl FnOnce(X, X) -> X) -> X {
    let values = unify("`scan`", &inputs.values());
    let types: Vec<Type> = values.iter().map(|&v| session::ty(v)).collect();
    let Some(axis) = check_axis("a scan", axis, shape_of(values[0]).rank(), &values) else {
        let poison: Values = types.iter().map(|&t| session::poison(t)).collect();
        return inputs.with_values(&poison);
    };
    let block = combine_region("`scan`", inputs, &types, combine);
    let opcode = Opcode::Scan { axis: axis as u8, reverse };
    inputs.with_values(&session::emit_with_regions(opcode, &values, &types, &[block]))
}

/// The inclusive prefix combination along `axis`, of a tile or of several at once: element i of the result combines elements 0 to i. The function must
/// be associative.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let x = zeros::<f32>([16, 64]);
/// let running_maximum = scan(x, 1, |a, b| max(a, b));
/// # }).unwrap();
/// ```
#[track_caller]
pub fn scan<X: Tiles>(inputs: X, axis: impl IntoAxis, combine: impl FnOnce(X, X) -> X) -> X {
    scan_along(inputs, axis, false, combine)
}

/// [`scan`] from the end: element i of the result combines the last one down to i.
#[track_caller]
pub fn scan_reverse<X: Tiles>(inputs: X, axis: impl IntoAxis, combine: impl FnOnce(X, X) -> X) -> X {
    scan_along(inputs, axis, true, combine)
}

/// A library's combining function, all of whose operations are placed where the user called.
#[track_caller]
fn placed<X>(combine: impl FnOnce(X, X) -> X) -> impl FnOnce(X, X) -> X {
    let caller = Location::caller();
    move |a, b| session::at(caller, || combine(a, b))
}

impl<T: Element> Tile<T> {
    /// Folds dimension `axis` away with a function of two elements: see [`reduce`].
    #[track_caller]
    pub fn reduce(self, axis: impl IntoAxis, combine: impl FnOnce(Tile<T>, Tile<T>) -> Tile<T>) -> Tile<T> {
        reduce(self, axis, combine)
    }

    /// The inclusive prefix combination along `axis`: see [`scan`].
    #[track_caller]
    pub fn scan(self, axis: impl IntoAxis, combine: impl FnOnce(Tile<T>, Tile<T>) -> Tile<T>) -> Tile<T> {
        scan(self, axis, combine)
    }

    /// All elements in one dimension, in row-major order.
    #[track_caller]
    pub fn ravel(self) -> Tile<T> {
        self.reshape([self.shape().num_elements() as usize])
    }
}

impl<T: Num> Tile<T> {
    /// The sum along `axis`, in the element type: cast narrow floats to f32 before.
    #[track_caller]
    pub fn sum(self, axis: impl IntoAxis) -> Tile<T> {
        reduce(self, axis, placed(|a, b| a + b))
    }

    /// The product along `axis`.
    #[track_caller]
    pub fn prod(self, axis: impl IntoAxis) -> Tile<T> {
        reduce(self, axis, placed(|a, b| a * b))
    }

    /// The largest element along `axis`; NaN is passed over.
    #[track_caller]
    pub fn max(self, axis: impl IntoAxis) -> Tile<T> {
        reduce(self, axis, placed(|a, b| crate::math::max(a, b)))
    }

    /// The smallest element along `axis`; NaN is passed over.
    #[track_caller]
    pub fn min(self, axis: impl IntoAxis) -> Tile<T> {
        reduce(self, axis, placed(|a, b| crate::math::min(a, b)))
    }

    /// The sum of all elements: a scalar.
    #[track_caller]
    pub fn sum_all(self) -> Tile<T> {
        self.ravel().sum(0)
    }

    /// The largest of all elements: a scalar; NaN is passed over.
    #[track_caller]
    pub fn max_all(self) -> Tile<T> {
        self.ravel().max(0)
    }

    /// The smallest of all elements: a scalar; NaN is passed over.
    #[track_caller]
    pub fn min_all(self) -> Tile<T> {
        self.ravel().min(0)
    }

    /// The prefix sums along `axis`.
    #[track_caller]
    pub fn cumsum(self, axis: impl IntoAxis) -> Tile<T> {
        scan(self, axis, placed(|a, b| a + b))
    }

    /// The prefix products along `axis`.
    #[track_caller]
    pub fn cumprod(self, axis: impl IntoAxis) -> Tile<T> {
        scan(self, axis, placed(|a, b| a * b))
    }

    /// The index of the largest element along `axis`, the first of equals; NaN is passed over.
    #[track_caller]
    pub fn argmax(self, axis: impl IntoAxis) -> Tile<i32> {
        self.max_with_index(axis).1
    }

    /// The index of the smallest element along `axis`, the first of equals; NaN is passed over.
    #[track_caller]
    pub fn argmin(self, axis: impl IntoAxis) -> Tile<i32> {
        self.min_with_index(axis).1
    }

    /// The largest element along `axis` and its index, the first of equals; NaN is passed over.
    #[track_caller]
    pub fn max_with_index(self, axis: impl IntoAxis) -> (Tile<T>, Tile<i32>) {
        self.best(axis, |new, old| new.gt(old))
    }

    /// The smallest element along `axis` and its index, the first of equals; NaN is passed over.
    #[track_caller]
    pub fn min_with_index(self, axis: impl IntoAxis) -> (Tile<T>, Tile<i32>) {
        self.best(axis, |new, old| new.lt(old))
    }

    /// A total order, so that the order of combination does not show: a better value wins, a number wins over NaN, then the smaller index.
    #[track_caller]
    fn best(
        self,
        axis: impl IntoAxis,
        better: impl FnOnce(Tile<T>, Tile<T>) -> Tile<bool>,
    ) -> (Tile<T>, Tile<i32>) {
        let about = [self.value()];
        let Some(axis) = check_axis("a reduction", axis, self.rank(), &about) else {
            let shape = self.shape();
            let less = if shape.rank() == 0 { shape } else { shape.remove(shape.rank() - 1) };
            let poison = |elem| session::poison(Type::tile(elem, less));
            return (Tile::from_value(poison(T::ELEM)), Tile::from_value(poison(tegula_ir::Elem::I32)));
        };
        let combine = placed(|(a, i): (Tile<T>, Tile<i32>), (b, j): (Tile<T>, Tile<i32>)| {
            let (mut wins, mut ties) = (better(b, a), b.eq_(a));
            if T::ELEM.is_float() {
                let (a_nan, b_nan) = (a.ne_(a), b.ne_(b));
                wins |= a_nan & !b_nan;
                ties |= a_nan & b_nan;
            }
            let take = wins | (ties & j.lt(i));
            (select(take, b, a), select(take, j, i))
        });
        reduce((self, self.indices(axis)), axis, combine)
    }
}

impl<T: Bits> Tile<T> {
    /// The bitwise exclusive or along `axis`.
    #[track_caller]
    pub fn xor_sum(self, axis: impl IntoAxis) -> Tile<T> {
        reduce(self, axis, placed(|a, b| a ^ b))
    }
}

impl Tile<bool> {
    /// Does any element along `axis` hold?
    #[track_caller]
    pub fn any(self, axis: impl IntoAxis) -> Tile<bool> {
        reduce(self, axis, placed(|a, b| a | b))
    }

    /// Do all elements along `axis` hold?
    #[track_caller]
    pub fn all(self, axis: impl IntoAxis) -> Tile<bool> {
        reduce(self, axis, placed(|a, b| a & b))
    }
}
