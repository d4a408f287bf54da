//! The CUDA device: memory, streams and kernels through the driver API. The one place of this crate with `unsafe` code.
//!
//! The driver library is loaded when the first CUDA device is opened; a program without one runs on the other devices.
//! Every object holds its [`Context`], which outlives it, and sees that it is current on the calling thread before each call: a thread may
//! use several devices, and other libraries may have changed what is current.

mod driver;
mod graph;
mod interop;
mod kernel;
mod memory;
mod stream;
mod tensor_map;

use std::sync::Arc;

use crate::backend::{Backend, Code, Executable, RawMemory, RawStream};
use crate::device::Properties;
use crate::error::Error;
use driver::Context;
use kernel::CudaKernel;
use memory::{CudaMemory, Pool};
use stream::CudaStream;

/// Opens GPU `ordinal`.
pub(crate) fn open(ordinal: usize) -> Result<Box<dyn Backend>, Error> {
    let context = Arc::new(Context::open(ordinal)?);
    let properties = context.properties();
    let pool = Pool::new(context.clone())?;
    Ok(Box::new(Cuda { properties, pool, context }))
}

/// How many GPUs there are; 0 without a driver.
pub(crate) fn count() -> usize {
    driver::count().unwrap_or(0)
}

struct Cuda {
    properties: Properties,
    pool: Pool,
    context: Arc<Context>,
}

impl Backend for Cuda {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn new_stream(&self) -> Result<Box<dyn RawStream>, Error> {
        Ok(Box::new(CudaStream::new(self.context.clone())?))
    }

    fn stream_over_handle(&self, handle: u64) -> Result<Box<dyn RawStream>, Error> {
        Ok(Box::new(CudaStream::over(self.context.clone(), handle)?))
    }

    fn alloc(&self, bytes: usize, stream: &dyn RawStream) -> Result<Box<dyn RawMemory>, Error> {
        Ok(Box::new(self.pool.alloc(bytes, CudaStream::of(stream)?)?))
    }

    fn free(&self, memory: Box<dyn RawMemory>, stream: &dyn RawStream) {
        if let (Ok(memory), Ok(stream)) = (CudaMemory::of(&*memory), CudaStream::of(stream)) {
            self.pool.free(memory, stream);
        }
    }

    fn write(
        &self,
        to: &dyn RawMemory,
        offset: usize,
        from: &[u8],
        stream: &dyn RawStream,
    ) -> Result<(), Error> {
        CudaMemory::of(to)?.write(offset, from, CudaStream::of(stream)?)
    }

    fn read(
        &self,
        from: &dyn RawMemory,
        offset: usize,
        to: &mut [u8],
        stream: &dyn RawStream,
    ) -> Result<(), Error> {
        CudaMemory::of(from)?.read(offset, to, CudaStream::of(stream)?)
    }

    fn copy(
        &self,
        (from, from_offset): (&dyn RawMemory, usize),
        (to, to_offset): (&dyn RawMemory, usize),
        bytes: usize,
        stream: &dyn RawStream,
    ) -> Result<(), Error> {
        let (from, to) = (CudaMemory::of(from)?, CudaMemory::of(to)?);
        from.copy(from_offset, to, to_offset, bytes, CudaStream::of(stream)?)
    }

    fn fill(
        &self,
        to: &dyn RawMemory,
        offset: usize,
        bytes: usize,
        value: u8,
        stream: &dyn RawStream,
    ) -> Result<(), Error> {
        CudaMemory::of(to)?.fill(offset, bytes, value, CudaStream::of(stream)?)
    }

    fn target(&self) -> Option<&str> {
        self.properties.target.as_deref()
    }

    fn prepare(&self, code: Code) -> Result<Arc<dyn Executable>, String> {
        match code {
            Code::Compiled(kernel) => Ok(Arc::new(CudaKernel::load(self.context.clone(), kernel)?)),
            Code::Ir(_) => Err("a GPU needs compiled code".to_owned()),
        }
    }
}
