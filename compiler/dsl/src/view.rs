//! Views: rectangles of global memory whose shape and strides are run-time arguments.
//!
//! A view is safe: what a load asks for outside of it is padding, and what a store writes outside is dropped; so the ragged edge of a
//! matrix needs no mask. Addresses are computed in 64 bits.

use std::marker::PhantomData;
use std::panic::Location;

use tegula_ir::element::Element;
use tegula_ir::numerics::is_representable;
use tegula_ir::op::{CacheHint, Literal, Padding};
use tegula_ir::types::MAX_RANK;
use tegula_ir::{Elem, Opcode, Shape, Type, Value};

use crate::argument::Argument;
use crate::broadcast::with_origins;
use crate::diagnostic::Diagnostic;
use crate::modifier::Stored;
use crate::offset::Offsets;
use crate::pointer::{Ptr, PtrMut};
use crate::session::{self, Values, emit_value};
use crate::shape::check_shape;
use crate::tile::{Scalar, Tile};

/// A view of `R` dimensions that is only read.
#[derive(Debug)]
pub struct View<T: Element, const R: usize> {
    value: Value,
    elem: PhantomData<T>,
}

/// A view of `R` dimensions that is read and written.
#[derive(Debug)]
pub struct ViewMut<T: Element, const R: usize> {
    value: Value,
    elem: PhantomData<T>,
}

macro_rules! views {
    ($($view:ident $mutable:literal $ptr:ident;)+) => {$(
        impl<T: Element, const R: usize> Clone for $view<T, R> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T: Element, const R: usize> Copy for $view<T, R> {}

        impl<T: Element, const R: usize> Argument for $view<T, R> {
            #[track_caller]
            fn declare(name: &str) -> Self {
                $view::of(session::param(name, Type::view(T::ELEM, R, $mutable)))
            }
        }

        impl<T: Element, const R: usize> $view<T, R> {
            fn of(value: Value) -> Self {
                const { assert!(R >= 1 && R <= MAX_RANK, "a view has 1 to 8 dimensions") };
                $view { value, elem: PhantomData }
            }

            /// The value in the kernel being staged.
            pub fn value(self) -> Value {
                self.value
            }

            /// The tile of this shape that starts at `offsets` (in elements). What lies outside of the view is 0.
            ///
            /// ```
            /// # use tegula_dsl::{Argument, prelude::*};
            /// # tegula_dsl::stage("k", Default::default(), || {
            /// # let x = View::<f32, 2>::declare("x");
            /// let row = x.load((program_id(0), 0), [1, 64]).evict_first();
            /// # }).unwrap();
            /// ```
            #[track_caller]
            pub fn load(self, offsets: impl Offsets<R>, shape: [usize; R]) -> Tile<T> {
                load(self.value, offsets, shape, Padding::Zero)
            }

            /// [`load`](Self::load) with a choice of what is read outside of the view: zero, or for floats an infinity or NaN.
            #[track_caller]
            pub fn load_padded(self, offsets: impl Offsets<R>, shape: [usize; R], padding: Padding) -> Tile<T> {
                load(self.value, offsets, shape, padding)
            }

            /// Says that the tile of this shape at `offsets` (in elements) will be loaded soon: the GPU brings it to its second-level cache. It is a hint, and safe: what lies
            /// outside of the view is left alone, and what is loaded later is what was stored last.
            ///
            /// At the start of a kernel, before it reads or writes anything, it is done while the kernels before it in the stream still run, on GPUs that let them overlap (compute
            /// capability 9.0 and later): say it of weights, which no kernel before this one makes.
            ///
            /// ```
            /// # use tegula_dsl::{Argument, prelude::*};
            /// # tegula_dsl::stage("k", Default::default(), || {
            /// # let weights = View::<f32, 2>::declare("weights");
            /// weights.prefetch((program_id(0) * 64, 0), [64, 256]);
            /// # }).unwrap();
            /// ```
            #[track_caller]
            pub fn prefetch(self, offsets: impl Offsets<R>, shape: [usize; R]) {
                if let Ok(shape) = check_shape("`prefetch`", &shape) {
                    let operands = place("offsets of `prefetch`", self.value, offsets);
                    session::emit_op(Opcode::ViewPrefetch { shape: shape.dims().into() }, &operands, &[], &[]);
                }
            }

            /// The element at `offsets`, 0 if it lies outside of the view: a scalar, where [`load`](Self::load) gives tiles. What a producer of
            /// `warp_groups!` needs of memory (a list of blocks, a page) it reads like this.
            #[track_caller]
            pub fn load_scalar(self, offsets: impl Offsets<R>) -> Scalar<T> {
                let zero = Tile::<i64>::from_value(session::emit_value(Opcode::Const(Literal::Int(0)), &[], Type::scalar(Elem::I64)));
                let (mut at, mut inside) = (zero, None);
                for (i, offset) in offsets.offsets().into_iter().enumerate() {
                    let index = Tile::<i64>::from_value(offset.stage_wide("offsets of `load_scalar`", i));
                    let here = index.ge(zero) & index.lt(self.dim(i));
                    inside = Some(inside.map_or(here, |others: Tile<bool>| others & here));
                    at += index * self.stride(i);
                }
                let pointer = (self.base_ptr() + at).value();
                let literal = if T::ELEM.is_float() { Literal::float(0.0) } else { Literal::Int(0) };
                let ty = Type::scalar(T::ELEM);
                let other = session::emit_value(Opcode::Const(literal), &[], ty);
                let mask = inside.expect("a view has dimensions").value();
                let opcode = Opcode::Load { cache: CacheHint::Normal };
                Tile::from_value(session::emit_value(opcode, &[pointer, mask, other], ty))
            }

            /// The extent of a dimension, in elements.
            #[track_caller]
            pub fn dim(self, dimension: usize) -> Scalar<i64> {
                property(self.value, R, dimension, "dim", Opcode::ViewDim)
            }

            /// The stride of a dimension, in elements.
            #[track_caller]
            pub fn stride(self, dimension: usize) -> Scalar<i64> {
                property(self.value, R, dimension, "stride", Opcode::ViewStride)
            }

            /// The address of the first element. What is done with it is not checked against the view's bounds.
            #[track_caller]
            pub fn base_ptr(self) -> $ptr<T> {
                $ptr::from_value(emit_value(Opcode::ViewBase, &[self.value], Type::ptr(T::ELEM)))
            }

            /// A view of memory at `ptr` with these extents and strides, in elements. It is as safe as they are right.
            #[track_caller]
            pub fn from_ptr(ptr: $ptr<T>, extents: impl Offsets<R>, strides: impl Offsets<R>) -> Self {
                let mut operands = Values::from_slice(&[ptr.scalar_value("`from_ptr`")]);
                for (i, extent) in extents.offsets().into_iter().enumerate() {
                    operands.push(extent.stage_wide("extents of `from_ptr`", i));
                }
                for (i, stride) in strides.offsets().into_iter().enumerate() {
                    operands.push(stride.stage_wide("strides of `from_ptr`", i));
                }
                $view::of(emit_value(Opcode::MakeView, &operands, Type::view(T::ELEM, R, $mutable)))
            }
        }
    )+};
}

views! {
    View false Ptr;
    ViewMut true PtrMut;
}

#[track_caller]
fn property(view: Value, rank: usize, dimension: usize, word: &str, opcode: fn(u8) -> Opcode) -> Scalar<i64> {
    let ty = Type::scalar(Elem::I64);
    if dimension < rank {
        return Tile::from_value(emit_value(opcode(dimension as u8), &[view], ty));
    }
    let fault = Diagnostic::at(format!("there is no dimension {dimension}"), Location::caller())
        .label(format!("`{word}` of a view of {rank} dimensions"));
    session::report(&[view], fault);
    Tile::from_value(session::poison(ty))
}

/// The view and the offsets, as operands.
#[track_caller]
fn place<const R: usize>(operation: &str, view: Value, offsets: impl Offsets<R>) -> Values {
    let mut operands = Values::from_slice(&[view]);
    for (i, offset) in offsets.offsets().into_iter().enumerate() {
        operands.push(offset.stage(operation, i));
    }
    operands
}

#[track_caller]
fn load<T: Element, const R: usize>(
    view: Value,
    offsets: impl Offsets<R>,
    shape: [usize; R],
    padding: Padding,
) -> Tile<T> {
    let representable = match padding {
        Padding::Zero => true,
        Padding::NegInf | Padding::PosInf => is_representable(T::ELEM, Literal::float(f64::INFINITY)),
        Padding::NaN => is_representable(T::ELEM, Literal::float(f64::NAN)),
    };
    if !representable {
        let fault = Diagnostic::at(format!("{} has no {padding:?} to pad with", T::ELEM), Location::caller())
            .help("pad with zero, and `select` another value where the index is outside");
        session::report(&[view], fault);
    }
    let shape = match check_shape("`load`", &shape) {
        Ok(shape) => shape,
        Err(nearest) => return Tile::from_value(session::poison(Type::tile(T::ELEM, nearest))),
    };
    let operands = place("offsets of `load`", view, offsets);
    let opcode = Opcode::ViewLoad { padding, cache: CacheHint::Normal };
    Tile::from_value(emit_value(opcode, &operands, Type::tile(T::ELEM, shape)))
}

impl<T: Element, const R: usize> ViewMut<T, R> {
    /// Stores a tile of `R` dimensions that starts at `offsets` (in elements). What lies outside of the view is dropped.
    #[track_caller]
    pub fn store(self, offsets: impl Offsets<R>, tile: Tile<T>) -> Stored {
        let shape = tile.shape();
        if shape.rank() != R {
            session::report(
                &[tile.value()],
                rank_mismatch("stored", shape, R, tile.value(), Location::caller()),
            );
            return Stored(None);
        }
        let mut operands = place("offsets of `store`", self.value, offsets);
        operands.push(tile.value());
        Stored(Some(session::emit_op(Opcode::ViewStore { cache: CacheHint::Normal }, &operands, &[], &[])))
    }

    /// The same view, to read only.
    pub fn as_view(self) -> View<T, R> {
        View::of(self.value)
    }
}

impl<const R: usize> ViewMut<f32, R> {
    /// Adds a tile of `R` dimensions to what is at `offsets` (in elements), each element atomically: several programs may add to one element, in whatever order they come to it, so that
    /// sums of floats may differ from run to run in their last digits. What lies outside of the view is dropped.
    ///
    /// On GPUs with tensor copies (compute capability 9.0), the results of dots of kernels with `warp_specialize` are added by the tensor-copy engine.
    ///
    /// ```
    /// # use tegula_dsl::{Argument, prelude::*};
    /// # tegula_dsl::stage("k", Default::default(), || {
    /// # let x = View::<f32, 2>::declare("x");
    /// # let sums = ViewMut::<f32, 2>::declare("sums");
    /// sums.reduce_add([0, 0], x.load((program_id(0) * 32, 0), [32, 64]));
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn reduce_add(self, offsets: impl Offsets<R>, tile: Tile<f32>) {
        let shape = tile.shape();
        if shape.rank() != R {
            session::report(
                &[tile.value()],
                rank_mismatch("added", shape, R, tile.value(), Location::caller()),
            );
            return;
        }
        let mut operands = place("offsets of `reduce_add`", self.value, offsets);
        operands.push(tile.value());
        session::emit_op(Opcode::ViewReduceAdd, &operands, &[], &[]);
    }
}

#[track_caller]
fn rank_mismatch(done: &str, shape: Shape, rank: usize, tile: Value, caller: &Location<'_>) -> Diagnostic {
    let fault =
        Diagnostic::at(format!("a tile of shape {shape} is {done} to a view of {rank} dimensions"), caller)
            .label(format!("the tile has {} and the view {rank}", shape.rank()));
    let fault = with_origins(fault, &[tile]);
    if shape.rank() + 1 == rank {
        fault.help("insert `.expand(0)` if it is a row, or `.expand(1)` if it is a column, of the view")
    } else if shape.rank() < rank {
        fault.help("give it dimensions of extent 1 with `.expand` or `.reshape`")
    } else {
        fault.help("take away dimensions of extent 1 with `.reshape`")
    }
}

/// Views that can be stored to. `View` is not one; [`View::store`] exists so that rustc can say so.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is read-only: take a `ViewMut` to store",
    label = "this view cannot be stored to"
)]
pub trait Writable {}

impl<T: Element, const R: usize> Writable for ViewMut<T, R> {}

impl<T: Element, const R: usize> View<T, R> {
    /// Does not compile: views are read-only.
    #[doc(hidden)]
    pub fn store<O, V>(self, _offsets: O, _tile: V)
    where
        Self: Writable,
    {
    }
}
