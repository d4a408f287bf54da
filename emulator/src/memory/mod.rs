//! Memory: device allocations, a CTA's shared memory, a warp's local memory, and the address windows of generic addresses.
//!
//! Every byte of global, shared and local memory has a shadow: has it been written? Reading one that has not is reported. Allocations are far
//! apart in the address space, so an address says which one it is meant for, and what lies between them belongs to nobody.

mod access;
mod global;
mod shared;
pub mod window;

pub use access::{Access, AccessKind, Proxy};
pub use global::{Allocation, GlobalMemory, MemoryError};
pub use shared::{ByteMemory, SharedMemory};
