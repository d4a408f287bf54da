//! Exchanges within a warp (9.7.9.6), traps and output.

use melior::ir::ValueLike;

use super::memory::MEMORY;
use crate::lower::emitter::{Emitter, V};

fn shuffle<'c>(e: &Emitter<'c>, mode: &str, v: V<'c>, operand: V<'c>, clamp: i64) -> V<'c> {
    debug_assert!(v.r#type() == e.t.i32, "shuffles move 32-bit words");
    let text = format!("shfl.sync.{mode}.b32 $0, $1, $2, {clamp}, -1;");
    e.asm(&text, "=r,r,r", &[v, operand], &[e.t.i32], true)[0]
}

/// The word of the lane whose number differs in the bits of `mask`.
pub fn shuffle_xor<'c>(e: &Emitter<'c>, v: V<'c>, mask: u32) -> V<'c> {
    shuffle(e, "bfly", v, e.i32(mask.into()), 31)
}

/// The word of lane `lane`.
pub fn shuffle_index<'c>(e: &Emitter<'c>, v: V<'c>, lane: V<'c>) -> V<'c> {
    shuffle(e, "idx", v, lane, 31)
}

/// The word of lane 0. No side effects: it is a way to tell ptxas that the value is uniform.
pub fn shuffle_first<'c>(e: &Emitter<'c>, v: V<'c>) -> V<'c> {
    e.asm("shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "=r,r", &[v], &[e.t.i32], true)[0]
}

/// The thread's index in the CTA, read anew: an effect as far as LLVM knows, which so keeps it where it stands.
pub fn thread_index_again<'c>(e: &Emitter<'c>) -> V<'c> {
    e.asm("mov.u32 $0, %tid.x;", "=r", &[], &[e.t.i32], true)[0]
}

/// The threads of a warp meet, and see what each of them wrote.
pub fn warp_barrier(e: &Emitter<'_>) {
    e.asm("bar.warp.sync -1;", MEMORY, &[], &[], true);
}

/// Four of the eight bytes of two words, by a selector of four bits each (`prmt`).
pub fn permute_bytes<'c>(e: &Emitter<'c>, low: V<'c>, high: V<'c>, selector: u32) -> V<'c> {
    let text = format!("prmt.b32 $0, $1, $2, {selector:#x};");
    e.asm(&text, "=r,r,r", &[low, high], &[e.t.i32], false)[0]
}

/// Stops the kernel with an error.
pub fn trap<'c>(e: &Emitter<'c>) {
    e.asm("trap;", "", &[], &[], true);
}

/// Calls the driver's `vprintf` with a format string and a block of arguments in local memory (CUDA ABI: 8 bytes each).
pub fn vprintf<'c>(e: &Emitter<'c>, format: V<'c>, arguments: V<'c>) {
    let callee = e.attr("@vprintf");
    let segments = e.attr("array<i32: 2, 0>");
    let none = e.attr("array<i32>");
    e.op(
        "llvm.call",
        &[format, arguments],
        &[e.t.i32],
        &[("callee", callee), ("operandSegmentSizes", segments), ("op_bundle_sizes", none)],
    );
}
