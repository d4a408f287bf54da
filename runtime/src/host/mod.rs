//! The host device: the tile interpreter on this machine's processor. Always there, and the oracle for the others.
//!
//! Work is done when it is submitted, on the caller's thread and rayon's: see [`crate::immediate`].

mod kernel;

use std::any::Any;
use std::sync::Arc;

use tegula_ir::interp::{Allocation, Memory, Prepared};

use crate::backend::{Backend, Code, Executable, RawMemory, RawStream};
use crate::device::Properties;
use crate::error::Error;
use crate::immediate::ImmediateStream;
use kernel::HostKernel;

/// What fresh memory holds: NaN in every float type, so that reading before writing shows.
const POISON: u8 = 0xff;

/// Opens the device; `check_races` makes it report two programs that store to one element.
pub(crate) fn open(name: &str, check_races: bool) -> Box<dyn Backend> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let properties = Properties {
        name: name.to_owned(),
        model: model(),
        multiprocessors: threads as u32,
        ..Properties::default()
    };
    Box::new(Host { properties, memory: Arc::new(Memory::new()), check_races })
}

/// The processor's name, where the system tells.
fn model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    name.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}

struct Host {
    properties: Properties,
    memory: Arc<Memory>,
    check_races: bool,
}

struct HostMemory(Arc<Allocation>);

impl RawMemory for HostMemory {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The allocation behind a backend's memory, after making sure that `bytes` bytes at `offset` are inside.
fn allocation(memory: &dyn RawMemory, offset: usize, bytes: usize) -> Result<&Arc<Allocation>, Error> {
    let Some(HostMemory(a)) = memory.as_any().downcast_ref::<HostMemory>() else {
        return Err(Error::Unsupported("memory of another device".to_owned()));
    };
    match offset.checked_add(bytes) {
        Some(end) if end <= a.len() => Ok(a),
        _ => {
            let message =
                format!("{bytes} bytes at {offset} are not inside an allocation of {} bytes", a.len());
            Err(Error::Shape(message))
        }
    }
}

impl Backend for Host {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn new_stream(&self) -> Result<Box<dyn RawStream>, Error> {
        Ok(Box::new(ImmediateStream::default()))
    }

    fn alloc(&self, bytes: usize, _stream: &dyn RawStream) -> Result<Box<dyn RawMemory>, Error> {
        let allocation = self.memory.allocate(bytes).map_err(|_| Error::OutOfMemory {
            device: self.properties.name.clone(),
            requested: bytes,
            free: None,
        })?;
        allocation.fill(0, bytes, POISON);
        Ok(Box::new(HostMemory(allocation)))
    }

    fn free(&self, memory: Box<dyn RawMemory>, _stream: &dyn RawStream) {
        self.memory.free(memory.address());
    }

    fn write(
        &self,
        to: &dyn RawMemory,
        offset: usize,
        from: &[u8],
        _stream: &dyn RawStream,
    ) -> Result<(), Error> {
        allocation(to, offset, from.len())?.write(offset, from);
        Ok(())
    }

    fn read(
        &self,
        from: &dyn RawMemory,
        offset: usize,
        to: &mut [u8],
        _stream: &dyn RawStream,
    ) -> Result<(), Error> {
        allocation(from, offset, to.len())?.read(offset, to);
        Ok(())
    }

    fn copy(
        &self,
        (from, from_offset): (&dyn RawMemory, usize),
        (to, to_offset): (&dyn RawMemory, usize),
        bytes: usize,
        stream: &dyn RawStream,
    ) -> Result<(), Error> {
        let from = allocation(from, from_offset, bytes)?.clone();
        let to = allocation(to, to_offset, bytes)?.clone();
        ImmediateStream::of(stream)?.submit(move || {
            let mut copied = vec![0; bytes];
            from.read(from_offset, &mut copied);
            to.write(to_offset, &copied);
            Ok(())
        })
    }

    fn fill(
        &self,
        to: &dyn RawMemory,
        offset: usize,
        bytes: usize,
        value: u8,
        stream: &dyn RawStream,
    ) -> Result<(), Error> {
        let to = allocation(to, offset, bytes)?.clone();
        ImmediateStream::of(stream)?.submit(move || {
            to.fill(offset, bytes, value);
            Ok(())
        })
    }

    fn target(&self) -> Option<&str> {
        None
    }

    fn prepare(&self, code: Code) -> Result<Arc<dyn Executable>, String> {
        match code {
            Code::Ir(kernel) => {
                let prepared = Prepared::new(&kernel).map_err(|e| format!("{}\n  at {}", e.message, e.at))?;
                Ok(Arc::new(HostKernel::new(prepared, self.memory.clone(), self.check_races)))
            }
            Code::Compiled(_) => Err("the host runs tile IR, not compiled code".to_owned()),
        }
    }
}
