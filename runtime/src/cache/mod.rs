//! Where compiled kernels are found again: in memory, per device, and on disk.

mod memory;

pub(crate) use memory::KernelCache;
