//! A device that compiles what is launched on it, as another device would, and runs nothing.
//!
//! It needs neither that device nor its memory: tensors on it are addresses that nobody looks behind. What it compiles is in the cache on disk afterwards, where the
//! device that it stands for finds it. For programs that compile on all cores while a GPU is busy with something else.
//!
//! Rejected: as many processes with a context on the GPU itself. Each takes half a gigabyte there and loads modules, which disturbs what is being measured.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::{Backend, Code, Executable, LaunchConfig, RawMemory, RawStream};
use crate::device::{Device, Properties};
use crate::error::Error;
use crate::immediate::ImmediateStream;
use crate::launch::ArgValue;

/// Addresses are multiples of this, as a driver's are: what kernels may assume of them must be the same.
const ALIGNMENT: u64 = 256;

impl Device {
    /// A device that compiles as the one with these properties would, into the same cache on disk, and runs nothing: launches succeed once their kernel is there.
    /// Memory has no contents, and reading it is an error.
    ///
    /// # Errors
    /// If that device runs tile IR, which needs no compilation.
    pub fn compiling_for(properties: &Properties) -> Result<Device, Error> {
        if properties.target.is_none() {
            return Err(Error::Unsupported(format!("device `{}` compiles nothing", properties.name)));
        }
        let backend = Compiling { properties: properties.clone(), next_address: AtomicU64::new(ALIGNMENT) };
        Device::with_default_cache(Box::new(backend))
    }
}

struct Compiling {
    properties: Properties,
    next_address: AtomicU64,
}

struct Addresses(u64);

impl RawMemory for Addresses {
    fn address(&self) -> u64 {
        self.0
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Compiled;

impl Executable for Compiled {
    fn launch(&self, _: &[ArgValue<'_>], _: &LaunchConfig, _: &dyn RawStream) -> Result<(), String> {
        Ok(())
    }
}

impl Backend for Compiling {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn new_stream(&self) -> Result<Box<dyn RawStream>, Error> {
        Ok(Box::new(ImmediateStream::default()))
    }

    fn alloc(&self, bytes: usize, _: &dyn RawStream) -> Result<Box<dyn RawMemory>, Error> {
        let size = (bytes as u64).next_multiple_of(ALIGNMENT);
        Ok(Box::new(Addresses(self.next_address.fetch_add(size, Ordering::Relaxed))))
    }

    fn free(&self, _: Box<dyn RawMemory>, _: &dyn RawStream) {}

    fn write(&self, _: &dyn RawMemory, _: usize, _: &[u8], _: &dyn RawStream) -> Result<(), Error> {
        Ok(())
    }

    fn read(&self, _: &dyn RawMemory, _: usize, _: &mut [u8], _: &dyn RawStream) -> Result<(), Error> {
        let name = &self.properties.name;
        Err(Error::Unsupported(format!(
            "nothing runs on what compiles for `{name}`, so there is nothing to read"
        )))
    }

    fn copy(
        &self,
        _: (&dyn RawMemory, usize),
        _: (&dyn RawMemory, usize),
        _: usize,
        _: &dyn RawStream,
    ) -> Result<(), Error> {
        Ok(())
    }

    fn fill(&self, _: &dyn RawMemory, _: usize, _: usize, _: u8, _: &dyn RawStream) -> Result<(), Error> {
        Ok(())
    }

    fn target(&self) -> Option<&str> {
        self.properties.target.as_deref()
    }

    fn takes_ptx(&self) -> bool {
        self.properties.name.starts_with("emulated:")
    }

    fn prepare(&self, code: Code) -> Result<Arc<dyn Executable>, String> {
        let limit = self.properties.shared_memory;
        match code {
            Code::Compiled(kernel) if kernel.shared_bytes as usize > limit => Err(format!(
                "it needs {} bytes of shared memory, but {} has {limit} for a CTA: use smaller tiles or fewer stages",
                kernel.shared_bytes, self.properties.model
            )),
            Code::Compiled(_) => Ok(Arc::new(Compiled)),
            Code::Ir(_) => Err("it compiles for a device that runs machine code".to_owned()),
        }
    }
}
