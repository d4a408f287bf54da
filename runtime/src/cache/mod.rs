//! Where compiled kernels are found again: in memory, per device, and on disk.

mod disk;
mod memory;

pub(crate) use disk::{DiskCache, address};
pub(crate) use memory::KernelCache;
