//! What the expansions of the macros refer to. Not for use by hand: it changes without notice.
//!
//! A crate that cannot depend on this facade (because the facade depends on it) gives its macros the same module of its own, with
//! `#[kernel(crate = …)]`, or has `extern crate self as tegula;` and a `__private` in its root.

pub use tegula_dsl::staging;
pub use tegula_dsl::{Argument, Diagnostics, KernelDef, stage};
pub use tegula_ir::kernel::{Kernel, KernelHints, Value};
pub use tegula_runtime::{IntoArg, KernelInfo, KernelKey, Launch, Stage};
