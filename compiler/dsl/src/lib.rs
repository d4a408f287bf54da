//! The words that Tegula kernels are written in.
//!
//! A kernel is an ordinary Rust function over *handles*: [`Tile<T>`], [`Scalar<T>`]. Calling it inside
//! [`stage`] runs it once, and every operator and function it calls appends an operation to the kernel under
//! construction; so the host's `for`, `if`, generics and helper functions are the meta-language, for free. rustc checks element types and
//! ranks of views; tile shapes, which come from run-time configurations, are checked here, and what is wrong is reported
//! as [`Diagnostics`] that point into the user's source.
//!
//! ```
//! use tegula_dsl::{Argument, prelude::*};
//!
//! /// y = x / rms(x), one row a program.
//! fn rms_norm<T: Float>(x: View<T, 2>, y: ViewMut<T, 2>, eps: Scalar<f32>, block: usize) {
//!     let row = program_id(0);
//!     let xs = x.load((row, 0), [1, block]).cast::<f32>();
//!     let mean = (xs * xs).sum(1) / x.dim(1).cast::<f32>();
//!     y.store((row, 0), (xs * rsqrt(mean + eps).expand(1)).cast::<T>());
//! }
//!
//! let kernel = tegula_dsl::stage("rms_norm", Default::default(), || {
//!     let (x, y) = (View::<bf16, 2>::declare("x"), ViewMut::declare("y"));
//!     rms_norm(x, y, Scalar::declare("eps"), 1024);
//! })?;
//! println!("{kernel}");
//! # Ok::<(), tegula_dsl::Diagnostics>(())
//! ```
//!
//! (The macro `#[kernel]` writes the lower half, and lets `if`, `for`, `while` and comparisons work on tiles.)
//!
//! The crate knows tile IR only: neither LLVM nor CUDA.

mod argument;
mod atomic;
mod broadcast;
mod cast;
mod channel;
mod compare;
mod create;
mod debug;
pub mod diagnostic;
mod dot;
pub mod from_triton;
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
pub use channel::{Channel, FillTile, Filling, Full, FullTile, SlotShapes, SlotTiles, channel};
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
pub use range::{DeviceRange, IndexElement, RangeEnd, persistent, range};
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
