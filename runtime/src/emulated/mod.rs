//! GPUs emulated on the CPU: the PTX that a GPU would run, warp by warp, with sanitizers (see `tegula-emulator`).
//!
//! Work is done when it is submitted: see [`crate::immediate`]. What a sanitizer finds is the error of the launch; for a launch of a graph, of the graph.
//! Memory is what the emulator's allocations are, so accesses outside of them and reads of what nobody wrote are found; a launch sees the allocations that there were when
//! it began, and holds no lock while it runs.

mod counted;
mod kernel;
mod settings;
mod tensor_map;

use std::any::Any;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use tegula_emulator::{GlobalMemory, MemoryError};

pub use counted::Counts;
pub use settings::{Emulation, Timing};

use crate::backend::{Backend, Code, Executable, RawMemory, RawStream};
use crate::device::Properties;
use crate::error::Error;
use crate::immediate::ImmediateStream;
use crate::tensor_map::Scratch;
use kernel::EmulatedKernel;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const GIB: usize = 1024 * MIB;

/// A GPU that can be emulated.
struct Model {
    target: &'static str,
    name: &'static str,
    multiprocessors: u32,
    /// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
    shared_memory: usize,
    l2_cache: usize,
    memory: usize,
}

/// One of each architecture, so that programs that ask for properties choose as they would there.
const MODELS: [Model; 3] = [
    Model {
        target: "sm_80",
        name: "emulated A100",
        multiprocessors: 108,
        shared_memory: 163 * KIB,
        l2_cache: 40 * MIB,
        memory: 80 * GIB,
    },
    Model {
        target: "sm_89",
        name: "emulated L40S",
        multiprocessors: 142,
        shared_memory: 99 * KIB,
        l2_cache: 96 * MIB,
        memory: 48 * GIB,
    },
    Model {
        target: "sm_90a",
        name: "emulated H200",
        multiprocessors: 132,
        shared_memory: 227 * KIB,
        l2_cache: 50 * MIB,
        memory: 141 * GIB,
    },
];

/// Opens the device `name` that runs code for `target`.
pub(crate) fn open(name: &str, target: &str) -> Result<Box<dyn Backend>, Error> {
    let Some(model) = MODELS.iter().find(|model| model.target == target) else {
        let known: Vec<String> = MODELS.iter().map(|model| format!("`emulated:{}`", model.target)).collect();
        return Err(Error::UnknownDevice { name: name.to_owned(), known: known.join(", ") });
    };
    let properties = Properties {
        name: name.to_owned(),
        model: model.name.to_owned(),
        target: Some(model.target.to_owned()),
        multiprocessors: model.multiprocessors,
        shared_memory: model.shared_memory,
        l2_cache: model.l2_cache,
        memory: model.memory,
    };
    let settings = Mutex::new(Emulation::from_environment()?);
    Ok(Box::new(Emulated {
        properties,
        shared: Arc::new(Shared {
            memory: RwLock::default(),
            settings,
            scratch: OnceLock::new(),
            counts: Mutex::default(),
        }),
    }))
}

struct Emulated {
    properties: Properties,
    shared: Arc<Shared>,
}

/// What a device and its kernels share.
struct Shared {
    memory: RwLock<GlobalMemory>,
    settings: Mutex<Emulation>,
    scratch: OnceLock<Scratch>,
    /// What launches add their counts to, while somebody counts.
    counts: Mutex<Option<Counts>>,
}

impl Shared {
    /// Memory for tensor maps of empty views.
    fn scratch(&self) -> Scratch {
        let new = || {
            let zeros = [0; Scratch::BYTES];
            Scratch::at(
                self.change(|memory| memory.allocate_from(&zeros, "what stands for views without elements")),
            )
        };
        *self.scratch.get_or_init(new)
    }

    /// The memory as it is now, for work that may take long.
    fn memory(&self) -> GlobalMemory {
        self.memory.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change<R>(&self, change: impl FnOnce(&mut GlobalMemory) -> R) -> R {
        change(&mut self.memory.write().unwrap_or_else(PoisonError::into_inner))
    }
}

struct EmulatedMemory {
    address: u64,
    bytes: usize,
}

impl RawMemory for EmulatedMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The address of the byte at `offset`. That all that is accessed is inside of the allocation, the emulator checks.
fn address(memory: &dyn RawMemory, offset: usize, bytes: usize) -> Result<u64, Error> {
    let Some(memory) = memory.as_any().downcast_ref::<EmulatedMemory>() else {
        return Err(Error::Unsupported("memory of another device".to_owned()));
    };
    match offset.checked_add(bytes) {
        Some(end) if end <= memory.bytes => Ok(memory.address + offset as u64),
        _ => Err(Error::Shape(format!(
            "{bytes} bytes at {offset} are not inside an allocation of {} bytes",
            memory.bytes
        ))),
    }
}

fn outside(error: MemoryError) -> Error {
    Error::Shape(error.to_string())
}

impl Backend for Emulated {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn new_stream(&self) -> Result<Box<dyn RawStream>, Error> {
        Ok(Box::new(ImmediateStream::default()))
    }

    fn alloc(&self, bytes: usize, _stream: &dyn RawStream) -> Result<Box<dyn RawMemory>, Error> {
        // The emulator's memory is this machine's, and asking it for too much would end the process.
        if bytes > self.properties.memory {
            return Err(Error::OutOfMemory {
                device: self.properties.name.clone(),
                requested: bytes,
                free: None,
            });
        }
        let address = self.shared.change(|memory| memory.allocate(bytes as u64, "an allocation"));
        Ok(Box::new(EmulatedMemory { address, bytes }))
    }

    fn free(&self, memory: Box<dyn RawMemory>, _stream: &dyn RawStream) {
        // Memory of another device is nobody's here, which `free` says by an error; there is nothing to do about it.
        let _ = self.shared.change(|all| all.free(memory.address()));
    }

    fn write(
        &self,
        to: &dyn RawMemory,
        offset: usize,
        from: &[u8],
        _stream: &dyn RawStream,
    ) -> Result<(), Error> {
        self.shared.memory().write(address(to, offset, from.len())?, from).map_err(outside)
    }

    fn read(
        &self,
        from: &dyn RawMemory,
        offset: usize,
        to: &mut [u8],
        _stream: &dyn RawStream,
    ) -> Result<(), Error> {
        self.shared.memory().read(address(from, offset, to.len())?, to).map_err(outside)
    }

    fn copy(
        &self,
        (from, from_offset): (&dyn RawMemory, usize),
        (to, to_offset): (&dyn RawMemory, usize),
        bytes: usize,
        stream: &dyn RawStream,
    ) -> Result<(), Error> {
        let (from, to) = (address(from, from_offset, bytes)?, address(to, to_offset, bytes)?);
        let shared = self.shared.clone();
        ImmediateStream::of(stream)?
            .submit(move || shared.memory().copy(from, to, bytes as u64).map_err(outside))
    }

    fn fill(
        &self,
        to: &dyn RawMemory,
        offset: usize,
        bytes: usize,
        value: u8,
        stream: &dyn RawStream,
    ) -> Result<(), Error> {
        let to = address(to, offset, bytes)?;
        let shared = self.shared.clone();
        ImmediateStream::of(stream)?
            .submit(move || shared.memory().write(to, &vec![value; bytes]).map_err(outside))
    }

    fn target(&self) -> Option<&str> {
        self.properties.target.as_deref()
    }

    fn takes_ptx(&self) -> bool {
        true
    }

    fn emulation(&self) -> Option<&Mutex<Emulation>> {
        Some(&self.shared.settings)
    }

    fn counts(&self) -> Option<&Mutex<Option<Counts>>> {
        Some(&self.shared.counts)
    }

    fn prepare(&self, code: Code) -> Result<Arc<dyn Executable>, String> {
        match code {
            Code::Compiled(kernel) => {
                let limit = self.properties.shared_memory;
                Ok(Arc::new(EmulatedKernel::load(self.shared.clone(), kernel, &self.properties.name, limit)?))
            }
            Code::Ir(_) => Err("an emulated GPU runs compiled code, not tile IR".to_owned()),
        }
    }
}
