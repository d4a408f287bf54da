//! Every PTX instruction that the lowering writes by itself, one function each. What LLVM has an instruction or an intrinsic for
//! is not here.
//!
//! Section numbers are those of the PTX ISA 8.7 manual, chapter 9.7.

mod math;
mod matrix;
mod memory;
mod warp;

pub(super) use math::{
    cvt_pair, cvt_toward_zero, ex2, f32_to_fp8, fp8_to_f32, int_to_f32_toward_zero, rsqrt, shift64,
};
pub(super) use matrix::{MmaKind, ldmatrix, mma};
pub(super) use memory::{
    AtomicAccess, atomic_cas, atomic_load, atomic_rmw, cp_async, cp_async_commit, cp_async_wait,
    load_predicated, store_predicated,
};
pub(super) use warp::{shuffle_first, shuffle_index, shuffle_xor, trap, vprintf};
