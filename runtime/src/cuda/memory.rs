//! Device memory: stream-ordered allocation from a pool of our own, and copies.
//!
//! The pool keeps what is freed, so that after a warm-up an allocation costs a microsecond and no synchronisation. It is not the device's default
//! pool: other libraries in the process keep their settings.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::result::mem_pool;
use cudarc::driver::sys::{self, cudaError_enum as Code};

use super::driver::Context;
use super::stream::CudaStream;
use crate::backend::RawMemory;
use crate::error::Error;

pub(super) struct Pool {
    raw: sys::CUmemoryPool,
    context: Arc<Context>,
}

// SAFETY: a pool is a handle that the driver lets all threads use.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    pub(super) fn new(context: Arc<Context>) -> Result<Pool, Error> {
        context.bind()?;
        let mut properties = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_NONE,
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE,
                id: context.device,
            },
            // SAFETY: the remaining fields are integers, a null pointer and reserved bytes that must be 0.
            ..unsafe { std::mem::zeroed() }
        };
        // SAFETY: the properties are valid, the context is current.
        let raw = unsafe { mem_pool::create(&raw mut properties) }
            .map_err(|e| context.error("cuMemPoolCreate", e.0, None))?;
        let pool = Pool { raw, context };
        let mut keep = u64::MAX;
        // SAFETY: this attribute is a u64.
        unsafe {
            mem_pool::set_attribute(
                pool.raw,
                sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut keep).cast::<c_void>(),
            )
        }
        .map_err(|e| pool.context.error("cuMemPoolSetAttribute", e.0, None))?;
        Ok(pool)
    }

    pub(super) fn alloc(&self, bytes: usize, stream: &CudaStream) -> Result<CudaMemory, Error> {
        self.context.bind()?;
        // SAFETY: pool and stream are alive and of one context.
        let alloc = || unsafe { mem_pool::alloc_async(self.raw, bytes, stream.raw) };
        let result = match alloc() {
            Err(e) if e.0 == Code::CUDA_ERROR_OUT_OF_MEMORY => {
                // Memory freed behind work that still runs cannot be given out yet, and the pool's free pieces may be too small: wait, give them back, try again.
                // SAFETY: the context is current; the pool is alive.
                unsafe {
                    let _ = sys::cuCtxSynchronize();
                    let _ = mem_pool::trim_to(self.raw, 0);
                }
                alloc()
            }
            other => other,
        };
        match result {
            Ok(address) => Ok(CudaMemory { address, bytes, context: self.context.clone() }),
            Err(e) if e.0 == Code::CUDA_ERROR_OUT_OF_MEMORY => {
                let free = cudarc::driver::result::mem_get_info().ok().map(|(free, _)| free);
                Err(Error::OutOfMemory { device: self.context.name.clone(), requested: bytes, free })
            }
            Err(e) => Err(stream.error("cuMemAllocFromPoolAsync", e.0)),
        }
    }

    pub(super) fn free(&self, memory: &CudaMemory, stream: &CudaStream) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated from the pool, freed once (the caller consumed its handle), behind all uses (the caller ordered the stream).
            // An error means a lost context, which has taken the memory with it.
            let _ = unsafe { cudarc::driver::result::free_async(memory.address, stream.raw) };
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created by `new`; the driver frees it once its last allocation is.
            let _ = unsafe { mem_pool::destroy(self.raw) };
        }
    }
}

pub(super) struct CudaMemory {
    address: sys::CUdeviceptr,
    bytes: usize,
    context: Arc<Context>,
}

impl RawMemory for CudaMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl CudaMemory {
    pub(super) fn of(memory: &dyn RawMemory) -> Result<&CudaMemory, Error> {
        memory
            .as_any()
            .downcast_ref()
            .ok_or_else(|| Error::Unsupported("memory of another device".to_owned()))
    }

    /// The address of `bytes` bytes at `offset`, after making sure that they are inside.
    fn at(&self, offset: usize, bytes: usize) -> Result<sys::CUdeviceptr, Error> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.address + offset as u64),
            _ => Err(Error::Shape(format!(
                "{bytes} bytes at {offset} are not inside an allocation of {} bytes",
                self.bytes
            ))),
        }
    }

    pub(super) fn write(&self, offset: usize, from: &[u8], stream: &CudaStream) -> Result<(), Error> {
        let to = self.at(offset, from.len())?;
        self.context.bind()?;
        // SAFETY: `to` has room; `from` lives until the stream has been waited for below.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), stream.raw) };
        stream.finish("cuMemcpyHtoDAsync", code)
    }

    pub(super) fn read(&self, offset: usize, to: &mut [u8], stream: &CudaStream) -> Result<(), Error> {
        let from = self.at(offset, to.len())?;
        self.context.bind()?;
        // SAFETY: `from` has as many bytes; `to` lives until the stream has been waited for below.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), stream.raw) };
        stream.finish("cuMemcpyDtoHAsync", code)
    }

    pub(super) fn copy(
        &self,
        offset: usize,
        to: &CudaMemory,
        to_offset: usize,
        bytes: usize,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        let (from, to) = (self.at(offset, bytes)?, to.at(to_offset, bytes)?);
        self.context.bind()?;
        // SAFETY: both ranges are inside their allocations, which are freed behind this stream's work.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw) };
        stream.check("cuMemcpyDtoDAsync", code)
    }

    pub(super) fn fill(
        &self,
        offset: usize,
        bytes: usize,
        value: u8,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        let to = self.at(offset, bytes)?;
        self.context.bind()?;
        // SAFETY: the range is inside the allocation, which is freed behind this stream's work.
        let code = unsafe { sys::cuMemsetD8Async(to, value, bytes, stream.raw) };
        stream.check("cuMemsetD8Async", code)
    }
}
