//! Tile IR to MLIR to LLVM to PTX to cubin.
//!
//! This is the only crate that links MLIR and LLVM (statically). It knows nothing of devices: what it makes is text
//! and bytes, and none of it needs a GPU.
//!
//! - [`compile_mlir`] and [`compile_module`]: an MLIR module to [`Artifacts`] (see [`pipeline`] for the stages).
//! - [`Target`]: what each architecture has.
//! - [`context`]: the MLIR context and locations for those who build modules.
//! - [`ptxas`]: assembling, the report, SASS.
//!
//! Wrong input gives a [`CodegenError`], never a panic. All `unsafe` is in `ffi.rs`.

pub mod compile;
pub mod context;
pub mod emit;
pub mod error;
mod ffi;
pub mod lower;
pub mod pipeline;
pub mod ptxas;
pub mod target;

pub use emit::{Artifacts, Assemble, Emit, OptLevel, Options, StageTimes};
pub use error::{CodegenError, SourceLocation};
pub use pipeline::{compile_mlir, compile_module};
pub use target::Target;

#[cfg(test)]
mod tests;
