//! The matrix units: `mma.sync`, `wgmma`, `ldmatrix`, `stmatrix`, `movmatrix`, as pure functions of registers and shared bytes.
//!
//! Three things are kept apart, because each is one table in the PTX ISA: which element a lane's register holds (`fragment`), which byte of
//! shared memory an operand's element is (`descriptor`), and what the sum is (`product`). Instructions put them together (`mma`, `wgmma`,
//! `exchange`). Nothing here knows warps, schedulers or sanitizers: registers come and go through closures, shared memory is a byte slice.

mod descriptor;
mod element;
mod exchange;
mod fragment;
mod mma;
mod product;
mod wgmma;

pub use descriptor::{Descriptor, Major, Operand, SharedBytes, Swizzle};
pub use element::Element;
pub use exchange::{LANES, MatrixCount, Rows, gather_rows, movmatrix, scatter_rows};
pub use fragment::Fragment;
pub use mma::Mma;
pub use product::{Accumulator, BitOperation, Scratch, hardware_deviation};
pub use wgmma::{Accumulators, Wgmma, WgmmaA};

/// Why there is no such matrix instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported(pub String);

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsupported {}
