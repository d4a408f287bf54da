//! Devices, memory, launches and the kernel cache.
