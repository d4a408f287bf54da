//! Bulk copies of boxes of tensors (9.7.9.27), and the fence between what threads write and what these copies read.

use tegula_ir::op::CacheHint;

use super::memory::MEMORY;
use crate::lower::emitter::{Emitter, V};

/// The second-level cache's policies, as `createpolicy` makes them for all accesses.
fn policy(cache: CacheHint) -> Option<i64> {
    match cache {
        CacheHint::Normal => None,
        CacheHint::EvictFirst => Some(0x12f0_0000_0000_0000),
        CacheHint::EvictLast => Some(0x14f0_0000_0000_0000),
    }
}

fn coordinates(first: usize, n: usize) -> String {
    (first..first + n).map(|i| format!("${i}")).collect::<Vec<_>>().join(", ")
}

/// Starts a copy of the box at `at` (fastest axis first) into shared memory; `barrier` counts its bytes. With `ctas`, a mask, it goes to the same place, and counts
/// at the same barrier, in each of these CTAs of the cluster.
pub fn tensor_load<'c>(
    e: &Emitter<'c>,
    dst: V<'c>,
    map: V<'c>,
    at: &[V<'c>],
    barrier: V<'c>,
    ctas: Option<u16>,
    cache: CacheHint,
) {
    let n = at.len();
    let mut operands = vec![dst, map, barrier];
    operands.extend(at);
    let mut constraints = format!("r,l,r{}", ",r".repeat(n));
    let (mut modifiers, mut last) = (String::new(), String::new());
    if let Some(mask) = ctas {
        modifiers.push_str(".multicast::cluster");
        last.push_str(&format!(", ${}", operands.len()));
        operands.push(e.int(e.t.i16, mask.into()));
        constraints.push_str(",h");
    }
    if let Some(policy) = policy(cache) {
        modifiers.push_str(".L2::cache_hint");
        last.push_str(&format!(", ${}", operands.len()));
        operands.push(e.i64(policy));
        constraints.push_str(",l");
    }
    let text = format!(
        "cp.async.bulk.tensor.{n}d.shared::cluster.global.mbarrier::complete_tx::bytes{modifiers} [$0], [$1, {{{}}}], [$2]{last};",
        coordinates(3, n)
    );
    e.asm(&text, &format!("{constraints},~{{memory}}"), &operands, &[], true);
}

/// Starts a copy of a box from shared memory to `at`, in this thread's current group; with `add`, its elements are added to what is there.
pub fn tensor_store<'c>(e: &Emitter<'c>, src: V<'c>, map: V<'c>, at: &[V<'c>], add: bool) {
    let n = at.len();
    let mut operands = vec![src, map];
    operands.extend(at);
    let (verb, op) = if add { ("cp.reduce", ".add") } else { ("cp", "") };
    let text = format!(
        "{verb}.async.bulk.tensor.{n}d.global.shared::cta{op}.bulk_group [$1, {{{}}}], [$0];",
        coordinates(2, n)
    );
    e.asm(&text, &format!("r,l{},~{{memory}}", ",r".repeat(n)), &operands, &[], true);
}

/// Ends a group of this thread's stores.
pub fn bulk_commit(e: &Emitter<'_>) {
    e.asm("cp.async.bulk.commit_group;", MEMORY, &[], &[], true);
}

/// Waits until at most `n` groups have not yet read their shared memory.
pub fn bulk_wait_read(e: &Emitter<'_>, n: u32) {
    e.asm(&format!("cp.async.bulk.wait_group.read {n};"), MEMORY, &[], &[], true);
}

/// Fetches a tensor map ahead of its first use.
pub fn prefetch_map<'c>(e: &Emitter<'c>, map: V<'c>) {
    e.asm("prefetch.tensormap [$0];", "l,~{memory}", &[map], &[], true);
}

/// What this thread has written to shared memory comes before what asynchronous copies started later read of it.
pub fn proxy_fence(e: &Emitter<'_>) {
    e.asm("fence.proxy.async.shared::cta;", MEMORY, &[], &[], true);
}
