//! The conformance suite on GPUs, in two steps that need no GPU and one that needs nothing else.
//!
//! 1. [`compile()`] compiles the suite's kernels for a target, and [`assemble`] runs ptxas over them: the tests of this crate do so for
//!    every architecture that matters, and [`EmulatedEngine`] runs them.
//! 2. [`bundle`] writes kernels, inputs and expectations into a folder.
//! 3. `gpu_run.py`, copied beside them, runs that folder wherever there are a GPU and Python with numpy.
//!
//! [`Comparison`] holds what a GPU and the emulator made of the same PTX against each other, for these cases and for the single instructions of
//! [`probes()`]; the test `gpu` does so where there is a GPU.
//!
//! A crate of its own because it links LLVM, which the suite does not.

pub mod arguments;
pub mod bundle;
mod comparison;
mod compile;
#[cfg(test)]
mod device_tests;
mod emulated;
mod module;
mod probes;
#[cfg(test)]
mod tests;

pub use comparison::{Comparison, open_instructions};
pub use compile::{Compiled, assemble, compile, distinct_kernels, in_parallel};
pub use emulated::EmulatedEngine;
pub use module::Module;
pub use probes::{Probe, probes};
