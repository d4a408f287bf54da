//! Tile IR: the structured SSA form between the language and the code generator.
//!
//! * [`types`], [`op`], [`kernel`]: what the IR is made of; [`builder`] appends to it.
//! * [`text`]: prints and parses it.
//! * [`verify`]: checks it.
//! * [`layout`]: where the elements of a tile live, as linear maps over F2.
//!
//! The crate knows neither LLVM nor CUDA: everything here runs and is tested on any machine.

pub mod analysis;
pub mod artifact;
pub mod builder;
pub mod element;
#[cfg(test)]
mod fuzz;
pub mod interp;
pub mod kernel;
pub mod layout;
pub mod numerics;
pub mod op;
pub mod rewrite;
pub mod target;
pub mod text;
pub mod transform;
pub mod types;
pub mod verify;

pub use builder::Builder;
pub use element::Element;
pub use kernel::{Block, Kernel, Loc, Op, SourceLoc, Value};
pub use op::Opcode;
pub use types::{Elem, ElemType, Shape, Type};

/// Changes with every change of this crate's sources: part of what compiled kernels are cached under.
pub const SOURCE_HASH: &str = env!("TEGULA_SOURCE_HASH");
