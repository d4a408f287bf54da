//! Arguments: how host-side values become those of a kernel.
//!
//! `IntoArg<'a, P>` says which Rust values the DSL parameter type `P` takes. It never fails; what does not fit is reported by the
//! launch, with the names of kernel and parameter.

use std::fmt;
use std::sync::Arc;

use tegula_dsl::{Ptr, PtrMut, Scalar, View, ViewMut};
use tegula_ir::element::Element;
use tegula_ir::types::{Elem, Type};

use super::facts::Facts;
use crate::device::Device;
use crate::layout::Layout;
use crate::memory::{Access, Buffer, Use};
use crate::tensor::{Source, Tensor, TensorView, TensorViewMut};

/// A value that kernels take for a parameter of type `P` (one of the DSL's `View`, `ViewMut`, `Ptr`, `PtrMut`, `Scalar`). It borrows
/// what it refers to for `'a`.
#[diagnostic::on_unimplemented(
    message = "a kernel's parameter of type `{P}` does not take `{Self}`",
    label = "not an argument for `{P}`",
    note = "`View<T, R>` and `Ptr<T>` take `&Tensor<T>` or a `TensorView<T>`, of the same `T`",
    note = "`ViewMut<T, R>` and `PtrMut<T>` take `&mut Tensor<T>` or a `TensorViewMut<T>`, of the same `T`",
    note = "`Scalar<T>`, a `Tile<T>`, takes a `T`: convert a number with `as` or `try_into()`, to `bf16` and such with `from_f32`"
)]
pub trait IntoArg<'a, P> {
    /// The argument.
    fn into_arg(self) -> ArgValue<'a>;
}

/// One argument of a launch, ready to be checked and packed. Kept small, since it is moved a few times on the way to the driver: a tensor's
/// shape is borrowed from it.
///
/// Not `Clone`: one of mutable memory is the only reference to it, on which the order of launches relies (see `memory.rs`).
///
/// ```compile_fail,E0277
/// fn cloned<T: Clone>() {}
/// cloned::<tegula_runtime::ArgValue<'static>>();
/// ```
pub struct ArgValue<'a>(pub(crate) Arg<'a>);

pub(crate) enum Arg<'a> {
    View(ViewArg<'a>),
    Pointer(MemoryArg<'a>),
    Scalar(ScalarArg),
}

/// Device memory, as an argument refers to it.
#[derive(Clone, Copy)]
pub(crate) struct MemoryArg<'a> {
    /// The address of element 0.
    pub(crate) address: u64,
    pub(crate) elem: Elem,
    pub(crate) access: Access,
    owner: Owner<'a>,
}

/// Whose the memory is.
#[derive(Clone, Copy)]
enum Owner<'a> {
    /// Ours: ordered and kept alive.
    Buffer(&'a Arc<Buffer>),
    /// A part of ours: see [`Use::part`].
    Part(&'a Arc<Buffer>),
    /// Somebody else's, on this device.
    Other(&'a Device),
}

pub(crate) struct ViewArg<'a> {
    pub(crate) memory: MemoryArg<'a>,
    /// Of its shape and strides.
    pub(crate) facts: Facts,
    /// The rank that the parameter's type asks for.
    pub(crate) expected_rank: u8,
    layout: LayoutArg<'a>,
}

/// A view's shape and strides.
enum LayoutArg<'a> {
    /// A tensor's own.
    Borrowed(&'a Layout),
    /// Of a view passed by value; up to three dimensions, which is nearly all of them, fit.
    Small { rank: u8, dims: [usize; 3], strides: [usize; 3] },
    /// Of others.
    Boxed(Box<Layout>),
}

impl LayoutArg<'_> {
    #[inline]
    fn copied(layout: &Layout) -> LayoutArg<'static> {
        match layout.first_three() {
            Some((dims, strides)) => LayoutArg::Small { rank: layout.rank() as u8, dims, strides },
            None => LayoutArg::Boxed(Box::new(*layout)),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct ScalarArg {
    pub(crate) elem: Elem,
    /// The value's bits, zero-extended.
    pub(crate) bits: u64,
    pub(crate) facts: Facts,
}

impl<'a> MemoryArg<'a> {
    #[inline]
    fn new<T: Element>(source: Source<'a>, layout: &Layout, access: Access) -> MemoryArg<'a> {
        let owner = match source {
            Source::Buffer(b) => Owner::Buffer(b),
            Source::Part(b) => Owner::Part(b),
            Source::Raw(d, _) => Owner::Other(d),
        };
        MemoryArg { address: source.address(layout, size_of::<T::Storage>()), elem: T::ELEM, access, owner }
    }

    #[inline]
    pub(crate) fn device(&self) -> &'a Device {
        match self.owner {
            Owner::Buffer(b) | Owner::Part(b) => b.device(),
            Owner::Other(d) => d,
        }
    }

    /// The use of our memory that the launch makes of it.
    #[inline]
    pub(crate) fn used(&self) -> Option<Use<'a>> {
        match self.owner {
            Owner::Buffer(buffer) => Some(Use { buffer, access: self.access, part: false }),
            Owner::Part(buffer) => Some(Use { buffer, access: self.access, part: true }),
            Owner::Other(_) => None,
        }
    }
}

impl ViewArg<'_> {
    /// The extents. Layouts are checked to be addressable, so they fit an i64, as strides do.
    #[inline]
    pub(crate) fn dims(&self) -> &[usize] {
        match &self.layout {
            LayoutArg::Borrowed(l) => l.dims(),
            LayoutArg::Small { rank, dims, .. } => &dims[..*rank as usize],
            LayoutArg::Boxed(l) => l.dims(),
        }
    }

    /// Bytes from element 0 to the end of the last element.
    pub(crate) fn span_bytes(&self) -> u64 {
        let last: usize =
            self.dims().iter().zip(self.strides()).map(|(&d, &s)| d.saturating_sub(1) * s).sum();
        let elements = if self.dims().contains(&0) { 0 } else { last + 1 };
        (elements * self.memory.elem.size_of().unwrap_or(1)) as u64
    }

    /// The strides, in elements.
    #[inline]
    pub(crate) fn strides(&self) -> &[usize] {
        match &self.layout {
            LayoutArg::Borrowed(l) => l.strides(),
            LayoutArg::Small { rank, strides, .. } => &strides[..*rank as usize],
            LayoutArg::Boxed(l) => l.strides(),
        }
    }
}

impl<'a> ArgValue<'a> {
    /// The memory that the argument refers to.
    #[inline]
    pub(crate) fn memory(&self) -> Option<&MemoryArg<'a>> {
        match &self.0 {
            Arg::View(v) => Some(&v.memory),
            Arg::Pointer(p) => Some(p),
            Arg::Scalar(_) => None,
        }
    }

    #[inline]
    fn of_view(
        memory: MemoryArg<'a>,
        facts: Facts,
        layout: LayoutArg<'a>,
        expected_rank: usize,
    ) -> ArgValue<'a> {
        // No view has 255 dimensions, so what is cut off here is refused all the same.
        let expected_rank = expected_rank.min(u8::MAX as usize) as u8;
        ArgValue(Arg::View(ViewArg { memory, facts, expected_rank, layout }))
    }

    /// A tensor as a read-only view.
    #[inline]
    pub fn tensor<T: Element>(tensor: &'a Tensor<T>, expected_rank: usize) -> ArgValue<'a> {
        let memory = MemoryArg::new::<T>(tensor.source(), &tensor.layout, Access::Read);
        ArgValue::of_view(memory, tensor.facts, LayoutArg::Borrowed(&tensor.layout), expected_rank)
    }

    /// A tensor as a view that may be stored to.
    #[inline]
    pub fn tensor_mut<T: Element>(tensor: &'a mut Tensor<T>, expected_rank: usize) -> ArgValue<'a> {
        let memory = MemoryArg::new::<T>(tensor.source(), &tensor.layout, Access::Write);
        ArgValue::of_view(memory, tensor.facts, LayoutArg::Borrowed(&tensor.layout), expected_rank)
    }

    /// A read-only view.
    #[inline]
    pub fn view<T: Element>(view: TensorView<'a, T>, expected_rank: usize) -> ArgValue<'a> {
        let memory = MemoryArg::new::<T>(view.source, &view.layout, Access::Read);
        ArgValue::of_view(memory, view.facts, LayoutArg::copied(&view.layout), expected_rank)
    }

    /// A view that may be stored to.
    #[inline]
    pub fn view_mut<T: Element>(view: TensorViewMut<'a, T>, expected_rank: usize) -> ArgValue<'a> {
        let memory = MemoryArg::new::<T>(view.source, &view.layout, Access::Write);
        ArgValue::of_view(memory, view.facts, LayoutArg::copied(&view.layout), expected_rank)
    }

    /// A pointer to element 0 of a view.
    #[inline]
    pub fn ptr<T: Element>(view: TensorView<'a, T>) -> ArgValue<'a> {
        ArgValue(Arg::Pointer(MemoryArg::new::<T>(view.source, &view.layout, Access::Read)))
    }

    /// A pointer to element 0 of a view that may be stored to.
    #[inline]
    pub fn ptr_mut<T: Element>(view: TensorViewMut<'a, T>) -> ArgValue<'a> {
        ArgValue(Arg::Pointer(MemoryArg::new::<T>(view.source, &view.layout, Access::Write)))
    }

    /// A scalar.
    #[inline]
    pub fn scalar<T: Element>(value: T) -> ArgValue<'a> {
        let bits = value.to_bits64();
        ArgValue(Arg::Scalar(ScalarArg { elem: T::ELEM, bits, facts: Facts::of_scalar(T::ELEM, bits) }))
    }
}

/// What kernels take for each parameter type of the DSL.
macro_rules! impls {
    ($($param:ty, [$($const:tt)*], $kind:ident: $from:ty => |$x:ident| $arg:expr;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<'a, T: Element, $($const)*> IntoArg<'a, $param> for $from {
            #[inline]
            fn into_arg(self) -> ArgValue<'a> {
                let $x = self;
                $arg
            }
        }
    )*};
}

impls! {
    View<T, R>, [const R: usize], reads: &'a Tensor<T> => |t| ArgValue::tensor(t, R);
    View<T, R>, [const R: usize], reads: TensorView<'a, T> => |v| ArgValue::view(v, R);
    View<T, R>, [const R: usize], reads: &TensorView<'a, T> => |v| ArgValue::view(*v, R);
    View<T, R>, [const R: usize], reads: &'a TensorViewMut<'_, T> => |v| ArgValue::view(v.as_view(), R);
    ViewMut<T, R>, [const R: usize], writes: &'a mut Tensor<T> => |t| ArgValue::tensor_mut(t, R);
    ViewMut<T, R>, [const R: usize], writes: TensorViewMut<'a, T> => |v| ArgValue::view_mut(v, R);
    ViewMut<T, R>, [const R: usize], writes: &'a mut TensorViewMut<'_, T> => |v| ArgValue::view_mut(v.reborrow(), R);
    Ptr<T>, [], reads: &'a Tensor<T> => |t| ArgValue::ptr(t.view());
    Ptr<T>, [], reads: TensorView<'a, T> => |v| ArgValue::ptr(v);
    Ptr<T>, [], reads: &TensorView<'a, T> => |v| ArgValue::ptr(*v);
    PtrMut<T>, [], writes: &'a mut Tensor<T> => |t| ArgValue::ptr_mut(t.view_mut());
    PtrMut<T>, [], writes: TensorViewMut<'a, T> => |v| ArgValue::ptr_mut(v);
    PtrMut<T>, [], writes: &'a mut TensorViewMut<'_, T> => |v| ArgValue::ptr_mut(v.reborrow());
}

// Only of the same type: a second one (an `i32` for an `i64`) would leave the type of a literal open, and rustc would take it for an `i32`.
#[diagnostic::do_not_recommend]
impl<'a, T: Element> IntoArg<'a, Scalar<T>> for T {
    #[inline]
    fn into_arg(self) -> ArgValue<'a> {
        ArgValue::scalar(self)
    }
}

/// Does the argument have the type of the staged parameter? It always does for what `#[kernel]` writes; a kernel built by hand may differ, and
/// code must never run on arguments of other types than it was compiled for.
pub(crate) fn check_type(arg: &ArgValue<'_>, ty: Type) -> Result<(), String> {
    let fits = match &arg.0 {
        Arg::View(view) => ty.as_view().is_some_and(|t| {
            t.elem == view.memory.elem
                && t.rank as usize == view.dims().len()
                && (!t.mutable || view.memory.access == Access::Write)
        }),
        Arg::Pointer(p) => {
            ty.as_tile().is_some_and(|t| t.shape.rank() == 0 && t.elem.pointee() == Some(p.elem))
        }
        Arg::Scalar(s) => ty.is_scalar_of(s.elem),
    };
    if fits { Ok(()) } else { Err(format!("{arg:?} was passed, but the kernel takes {ty}")) }
}

impl fmt::Debug for ArgValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Arg::View(v) => {
                let mutable = if v.memory.access == Access::Write { "mutable " } else { "" };
                write!(f, "a {mutable}view of {} with shape {:?}", v.memory.elem, v.dims())
            }
            Arg::Pointer(p) => write!(f, "a pointer to {}", p.elem),
            Arg::Scalar(s) => write!(f, "a scalar {}", s.elem),
        }
    }
}
