//! Run-time arguments of kernels.

use tegula_ir::element::Element;

use crate::session;
use crate::tile::Tile;

/// A type that a kernel takes at run time: `Scalar<T>`, `View<T, R>`, `ViewMut<T, R>`, `Ptr<T>`, `PtrMut<T>`. All other types are
/// meta-parameters, known when the kernel is staged.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a run-time argument of a kernel",
    note = "run-time arguments are `Scalar<T>`, `View<T, R>`, `ViewMut<T, R>`, `Ptr<T>` and `PtrMut<T>`"
)]
pub trait Argument: Copy {
    /// Declares the next argument of the kernel being staged.
    #[track_caller]
    fn declare(name: &str) -> Self;
}

impl<T: Element> Argument for Tile<T> {
    #[track_caller]
    fn declare(name: &str) -> Tile<T> {
        Tile::from_value(session::param(name, tegula_ir::Type::scalar(T::ELEM)))
    }
}
