//! The words that Tegula kernels are written in.
//!
//! A kernel is an ordinary Rust function over *handles*: [`Tile<T>`], [`Scalar<T>`]. Calling it inside
//! [`stage`] runs it once, and every operator and function it calls appends an operation to the kernel under
//! construction; so the host's `for`, `if`, generics and helper functions are the meta-language, for free. rustc checks element types and
//! ranks of views; tile shapes, which come from run-time configurations, are checked here, and what is wrong is reported
//! as [`Diagnostics`] that point into the user's source.
//!
//! The crate knows tile IR only: neither LLVM nor CUDA.

mod broadcast;
mod cast;
mod compare;
pub mod diagnostic;
mod element;
mod ops;
pub mod prelude;
pub mod session;
mod tile;

pub use compare::{Comparand, select, where_};
pub use diagnostic::{Diagnostic, Diagnostics};
pub use element::{Element, Float, Int, Numeric};
pub use session::stage;
pub use tile::{Operand, Scalar, Tile};
