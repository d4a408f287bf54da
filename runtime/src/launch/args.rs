//! Arguments: how host-side values become those of a kernel.
//!
//! `IntoArg<'a, P>` says which Rust values the DSL parameter type `P` takes. It never fails; what does not fit is reported by the
//! launch, with the names of kernel and parameter.

use std::fmt;
use std::sync::Arc;

use tegula_dsl::{Ptr, PtrMut, Scalar, View, ViewMut};
use tegula_ir::element::Element;
use tegula_ir::types::{Elem, MAX_RANK, Type};

use crate::device::Device;
use crate::layout::Layout;

use crate::memory::{Access, Buffer};
use crate::tensor::{Source, Tensor, TensorView, TensorViewMut};

/// A value that kernels take for a parameter of type `P` (one of the DSL's `View`, `ViewMut`, `Ptr`, `PtrMut`, `Scalar`). It borrows
/// what it refers to for `'a`.
pub trait IntoArg<'a, P> {
    /// The argument.
    fn into_arg(self) -> ArgValue<'a>;
}

/// One argument of a launch, ready to be checked and packed.
#[derive(Clone, Copy)]
pub struct ArgValue<'a>(pub(crate) Arg<'a>);

#[derive(Clone, Copy)]
pub(crate) enum Arg<'a> {
    View(ViewArg<'a>),
    Pointer(PointerArg<'a>),
    Scalar(ScalarArg),
}

/// Device memory, as an argument refers to it.
#[derive(Clone, Copy)]
pub(crate) struct MemoryArg<'a> {
    /// The address of element 0.
    pub(crate) address: u64,
    pub(crate) elem: Elem,
    pub(crate) access: Access,
    /// Whose it is: ordered and kept alive by this crate if a buffer's.
    pub(crate) source: Source<'a>,
}

#[derive(Clone, Copy)]
pub(crate) struct ViewArg<'a> {
    pub(crate) memory: MemoryArg<'a>,
    pub(crate) rank: u8,
    /// The rank that the parameter's type asks for.
    pub(crate) expected_rank: u8,
    pub(crate) dims: [i64; MAX_RANK],
    pub(crate) strides: [i64; MAX_RANK],
}

#[derive(Clone, Copy)]
pub(crate) struct PointerArg<'a> {
    pub(crate) memory: MemoryArg<'a>,
}

#[derive(Clone, Copy)]
pub(crate) struct ScalarArg {
    pub(crate) elem: Elem,
    /// The value's bits, zero-extended.
    pub(crate) bits: u64,
    /// The value, of integers.
    pub(crate) int: Option<i64>,
}

impl<'a> MemoryArg<'a> {
    pub(crate) fn device(&self) -> &'a Device {
        self.source.device()
    }

    pub(crate) fn buffer(&self) -> Option<&'a Arc<Buffer>> {
        match self.source {
            Source::Buffer(b) => Some(b),
            Source::Raw(..) => None,
        }
    }
}

impl ViewArg<'_> {
    pub(crate) fn dims(&self) -> &[i64] {
        &self.dims[..self.rank as usize]
    }

    pub(crate) fn strides(&self) -> &[i64] {
        &self.strides[..self.rank as usize]
    }
}

impl<'a> ArgValue<'a> {
    /// The memory that the argument refers to.
    pub(crate) fn memory(&self) -> Option<&MemoryArg<'a>> {
        match &self.0 {
            Arg::View(v) => Some(&v.memory),
            Arg::Pointer(p) => Some(&p.memory),
            Arg::Scalar(_) => None,
        }
    }

    /// A read-only view.
    pub fn view<T: Element>(view: TensorView<'a, T>, expected_rank: usize) -> ArgValue<'a> {
        let memory = memory::<T>(view.source, &view.layout, Access::Read);
        ArgValue(Arg::View(view_arg(memory, &view.layout, expected_rank)))
    }

    /// A view that may be stored to.
    pub fn view_mut<T: Element>(view: TensorViewMut<'a, T>, expected_rank: usize) -> ArgValue<'a> {
        let memory = memory::<T>(view.source, &view.layout, Access::Write);
        ArgValue(Arg::View(view_arg(memory, &view.layout, expected_rank)))
    }

    /// A pointer to element 0 of a view.
    pub fn ptr<T: Element>(view: TensorView<'a, T>) -> ArgValue<'a> {
        ArgValue(Arg::Pointer(PointerArg { memory: memory::<T>(view.source, &view.layout, Access::Read) }))
    }

    /// A pointer to element 0 of a view that may be stored to.
    pub fn ptr_mut<T: Element>(view: TensorViewMut<'a, T>) -> ArgValue<'a> {
        ArgValue(Arg::Pointer(PointerArg { memory: memory::<T>(view.source, &view.layout, Access::Write) }))
    }

    /// A scalar.
    pub fn scalar<T: Element>(value: T) -> ArgValue<'a> {
        let bits = value.to_bits64();
        let elem = T::ELEM;
        // Sign-extended; a u64 beyond i64 keeps its bits, which have the divisibility of the value.
        let int = elem.is_int().then(|| {
            let unused = 64 - elem.bits();
            if elem.is_signed() { (bits << unused) as i64 >> unused } else { bits as i64 }
        });
        ArgValue(Arg::Scalar(ScalarArg { elem, bits, int }))
    }
}

fn memory<'a, T: Element>(source: Source<'a>, layout: &Layout, access: Access) -> MemoryArg<'a> {
    MemoryArg { address: source.address(layout, size_of::<T::Storage>()), elem: T::ELEM, access, source }
}

fn view_arg<'a>(memory: MemoryArg<'a>, layout: &Layout, expected_rank: usize) -> ViewArg<'a> {
    let mut arg = ViewArg {
        memory,
        rank: layout.rank() as u8,
        expected_rank: expected_rank.min(u8::MAX as usize) as u8,
        dims: [0; MAX_RANK],
        strides: [0; MAX_RANK],
    };
    // Layouts are checked to be addressable, so extents and strides fit an i64.
    for (to, &from) in arg.dims.iter_mut().zip(layout.dims()) {
        *to = from as i64;
    }
    for (to, &from) in arg.strides.iter_mut().zip(layout.strides()) {
        *to = from as i64;
    }
    arg
}

/// What kernels take for each parameter type of the DSL.
macro_rules! impls {
    ($($param:ty, [$($const:tt)*], $kind:ident: $from:ty => |$x:ident| $arg:expr;)*) => {$(
        impl<'a, T: Element, $($const)*> IntoArg<'a, $param> for $from {
            fn into_arg(self) -> ArgValue<'a> {
                let $x = self;
                $arg
            }
        }
    )*};
}

impls! {
    View<T, R>, [const R: usize], reads: &'a Tensor<T> => |t| ArgValue::view(t.view(), R);
    View<T, R>, [const R: usize], reads: TensorView<'a, T> => |v| ArgValue::view(v, R);
    View<T, R>, [const R: usize], reads: &TensorView<'a, T> => |v| ArgValue::view(*v, R);
    View<T, R>, [const R: usize], reads: &'a TensorViewMut<'_, T> => |v| ArgValue::view(v.as_view(), R);
    ViewMut<T, R>, [const R: usize], writes: &'a mut Tensor<T> => |t| ArgValue::view_mut(t.view_mut(), R);
    ViewMut<T, R>, [const R: usize], writes: TensorViewMut<'a, T> => |v| ArgValue::view_mut(v, R);
    ViewMut<T, R>, [const R: usize], writes: &'a mut TensorViewMut<'_, T> => |v| ArgValue::view_mut(v.reborrow(), R);
    Ptr<T>, [], reads: &'a Tensor<T> => |t| ArgValue::ptr(t.view());
    Ptr<T>, [], reads: TensorView<'a, T> => |v| ArgValue::ptr(v);
    Ptr<T>, [], reads: &TensorView<'a, T> => |v| ArgValue::ptr(*v);
    PtrMut<T>, [], writes: &'a mut Tensor<T> => |t| ArgValue::ptr_mut(t.view_mut());
    PtrMut<T>, [], writes: TensorViewMut<'a, T> => |v| ArgValue::ptr_mut(v);
    PtrMut<T>, [], writes: &'a mut TensorViewMut<'_, T> => |v| ArgValue::ptr_mut(v.reborrow());
}

impl<'a, T: Element> IntoArg<'a, Scalar<T>> for T {
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
                && t.rank == view.rank
                && (!t.mutable || view.memory.access == Access::Write)
        }),
        Arg::Pointer(p) => {
            ty.as_tile().is_some_and(|t| t.shape.rank() == 0 && t.elem.pointee() == Some(p.memory.elem))
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
            Arg::Pointer(p) => write!(f, "a pointer to {}", p.memory.elem),
            Arg::Scalar(s) => write!(f, "a scalar {}", s.elem),
        }
    }
}
