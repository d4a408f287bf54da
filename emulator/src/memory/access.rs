//! One memory instruction of one warp, as sanitizers and counters see it.

use crate::decode::types::{Order, Space};

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It reads and writes, as one.
    Atomic,
}

/// By which way memory is reached (PTX ISA, "Proxies").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proxy {
    /// Ordinary loads, stores and atomics; `cp.async`, too.
    Generic,
    /// Bulk copies, tensor copies, wgmma's reads of shared memory.
    Async,
    /// `ld.global.nc`, `ldu`.
    NonCoherent,
    /// The constant bank and kernel parameters.
    Constant,
}

/// A memory access of up to 32 lanes.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    /// What it does.
    pub kind: AccessKind,
    /// Where: never [`Space::Generic`].
    pub space: Space,
    /// Bytes each lane accesses, in one piece.
    pub bytes: u32,
    /// How far apart addresses must be multiples of; equals `bytes` but for vectors of elements that need less.
    pub align: u32,
    /// Which lanes take part.
    pub lanes: u32,
    /// Their addresses in `space`; those of other lanes mean nothing.
    pub addresses: &'a [u64; 32],
    /// Memory order.
    pub order: Order,
    /// The way it goes.
    pub proxy: Proxy,
}
