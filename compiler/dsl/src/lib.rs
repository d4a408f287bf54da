//! The words that Tegula kernels are written in.
//!
//! A kernel is an ordinary Rust function over *handles*: [`Tile<T>`], [`Scalar<T>`]. Calling it inside
//! [`stage`] runs it once, and every operator and function it calls appends an operation to the kernel under
//! construction; so the host's `for`, `if`, generics and helper functions are the meta-language, for free. rustc checks element types and
//! ranks of views; tile shapes, which come from run-time configurations, are checked here, and what is wrong is reported
//! as [`Diagnostics`] that point into the user's source.
//!
//! The crate knows tile IR only: neither LLVM nor CUDA.

mod argument;
mod atomic;
mod broadcast;
mod cast;
mod compare;
mod create;
mod debug;
pub mod diagnostic;
mod dot;
mod math;
mod modifier;
mod offset;
mod ops;
mod pointer;
pub mod prelude;
mod random;
mod range;
mod rearrange;
mod reduce;
pub mod session;
mod shape;
pub mod staging;
mod tile;
mod view;

pub use argument::Argument;
pub use atomic::*;
pub use compare::{Comparand, select, where_};
pub use create::{
    CeilDiv, arange, cdiv, constant, full, full_like, num_programs, program_id, zeros, zeros_like,
};
pub use debug::{Assumable, Printable, device_assert, max_contiguous, multiple_of, print};
pub use diagnostic::{Diagnostic, Diagnostics};
pub use dot::{DotElem, DotInto, dot, dot_acc};
pub use math::*;
pub use modifier::Stored;
pub use offset::{IntoOffset, Offset, Offsets, offset};
pub use pointer::{Ptr, PtrMut, PtrOffset};
pub use random::{philox, rand, rand4x, randint, randint4x, randn, randn4x};
pub use range::{DeviceRange, IndexElement, RangeEnd, range};
pub use rearrange::{interleave, swizzle2d};
pub use reduce::{Tiles, reduce, scan, scan_reverse};
pub use session::stage;
pub use shape::{IntoAxis, IntoShape, cat, join};
pub use staging::{Carry, KernelDef, MetaParam};
pub use tegula_ir::element::{self, Bits, Comparable, Element, Float, Int, Num, SignedInt};
pub use tile::{Operand, Scalar, Tile};
pub use view::{View, ViewMut};

#[cfg(test)]
mod tests;
