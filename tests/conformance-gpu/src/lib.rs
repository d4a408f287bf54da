//! The conformance suite on GPUs, in two steps that need no GPU and one that needs nothing else.
//!
//! 1. [`compile()`] compiles the suite's kernels for a target, and [`assemble`] runs ptxas over them: the tests of this crate do so for
//!    every architecture that matters.
//! 2. [`bundle`] writes kernels, inputs and expectations into a folder.
//! 3. `gpu_run.py`, copied beside them, runs that folder wherever there are a GPU and Python with numpy.
//!
//! A crate of its own because it links LLVM, which the suite does not.

pub mod bundle;
mod compile;
mod module;
#[cfg(test)]
mod tests;

pub use compile::{Compiled, assemble, compile, distinct_kernels};
pub use module::Module;
