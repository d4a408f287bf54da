//! Every PTX instruction that the lowering writes by itself, one function each. What LLVM has an instruction or an intrinsic for
//! is not here.
//!
//! Section numbers are those of the PTX ISA 8.7 manual, chapter 9.7.

mod barrier;
mod math;
mod matrix;
mod memory;
mod tensor;
mod warp;
mod wgmma;

pub(super) use barrier::{
    cluster_barrier, cluster_barrier_diverged, elect, give_registers, launch_dependents, mbarrier_arrive,
    mbarrier_arrive_expect, mbarrier_arrive_remote, mbarrier_init, mbarrier_init_fence, mbarrier_wait,
    named_barrier, named_barrier_arrive, take_registers, wait_for_launches_before,
};
pub(super) use math::{
    cvt_pair, cvt_toward_zero, ex2, ex2_ftz, f32_to_fp8, f32_to_fp8_word, fp8_pair_to_f16, fp8_to_f32,
    int_to_f32_toward_zero, rsqrt, shift64,
};
pub(super) use matrix::{MmaKind, ldmatrix, mma, xor_here};
pub(super) use memory::{
    AtomicAccess, atomic_cas, atomic_load, atomic_rmw, cp_async, cp_async_commit, cp_async_wait,
    load_predicated, prefetch, reduce_add, store_predicated,
};
pub(super) use tensor::{bulk_commit, bulk_wait_read, prefetch_map, proxy_fence, tensor_load, tensor_store};
pub(super) use warp::{
    permute_bytes, shuffle_first, shuffle_index, shuffle_xor, thread_index_again, trap, vprintf, warp_barrier,
};
pub(super) use wgmma::{
    WgmmaA, WgmmaKind, computed_by_now, made_here, stmatrix, wgmma, wgmma_commit, wgmma_fence, wgmma_wait,
    zero_here,
};
