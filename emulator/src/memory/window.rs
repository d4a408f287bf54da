//! Where the state spaces lie among generic addresses.
//!
//! Real windows are set by the driver; kernels may not know them. These are chosen so that a space is seen in a hexadecimal dump, and that an
//! address cut to 32 bits never is a global one.

use crate::decode::types::Space;

/// Shared memory: `SHARED + (CTA rank << 24 | offset)`.
pub const SHARED: u64 = 0x0051_0000_0000;
/// Local memory.
pub const LOCAL: u64 = 0x0052_0000_0000;
/// The constant bank.
pub const CONST: u64 = 0x0053_0000_0000;
/// A kernel's parameters.
pub const PARAM: u64 = 0x0054_0000_0000;
/// The first allocation in global memory.
pub const GLOBAL: u64 = 0x0100_0000_0000;
/// Bytes of each of the small windows.
pub const BYTES: u64 = 1 << 32;

/// A `.shared` address has the rank of its CTA in the cluster above this many bits, so that an address of the CTA's own is one of the cluster's, too.
pub const RANK_SHIFT: u32 = 24;
/// The first variable's offset in shared memory. CUDA reserves the first KiB of sm_90; and no variable has address 0.
pub const SHARED_START: u32 = 1024;

/// The window that a space has among generic addresses; global addresses are generic addresses.
pub fn base(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED,
        Space::Local => LOCAL,
        Space::Const => CONST,
        Space::Param => PARAM,
        Space::Global | Space::Generic => 0,
    }
}

/// The space of a generic address, and the address in it.
#[inline]
pub fn resolve(address: u64) -> (Space, u64) {
    if !(SHARED..GLOBAL).contains(&address) {
        return (Space::Global, address);
    }
    let offset = address & (BYTES - 1);
    match address >> 32 {
        0x51 => (Space::Shared, offset),
        0x52 => (Space::Local, offset),
        0x53 => (Space::Const, offset),
        0x54 => (Space::Param, offset),
        _ => (Space::Global, address),
    }
}
