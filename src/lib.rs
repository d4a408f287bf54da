//! A tile-level GPU kernel language embedded in Rust.
//!
//! `use tegula::prelude::*;` brings in the words of the language; a function with [`macro@kernel`] is a kernel.

pub use tegula_dsl as dsl;
pub use tegula_dsl::{Diagnostic, Diagnostics, KernelDef, MetaParam};
pub use tegula_ir as ir;
pub use tegula_macros::{Carry, kernel, tile_fn};
pub use tegula_runtime as runtime;

pub mod prelude;

#[doc(hidden)]
pub mod __private;
