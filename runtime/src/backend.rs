//! What a device must be able to do: the one interface behind which the host, CUDA and test devices stand.
//!
//! Everything common to them (argument checks, facts, keys, caches, the order of work on several streams) is done once, above this
//! interface; a backend only moves bytes and runs kernels.

use std::any::Any;
use std::num::NonZeroU32;
use std::sync::Arc;

use tegula_ir::artifact::CompiledKernel;
use tegula_ir::kernel::Kernel;

use crate::device::Properties;
use crate::error::Error;
use crate::launch::ArgValue;

/// A stream of a backend. Backends tell theirs by `as_any`.
pub(crate) trait RawStream: Any + Send + Sync {
    /// Waits until all work submitted so far is done.
    fn synchronize(&self) -> Result<(), Error>;
    /// Lets later work on this stream wait for what `other` (a stream of the same device) has been given so far.
    fn wait_for(&self, other: &dyn RawStream) -> Result<(), Error>;
    /// A marker of what has been submitted so far.
    fn record(&self) -> Result<Box<dyn RawEvent>, Error>;
    /// Starts to record work instead of doing it.
    fn begin_capture(&self) -> Result<(), Error>;
    /// Ends the recording. Called exactly once after each successful `begin_capture`, also on errors in between.
    fn end_capture(&self) -> Result<Box<dyn RawGraph>, Error>;
    /// For backends to find their own type.
    fn as_any(&self) -> &dyn Any;
}

/// A marker in a stream.
pub(crate) trait RawEvent: Any + Send + Sync {
    /// Waits until the marker is reached.
    fn synchronize(&self) -> Result<(), Error>;
    /// Has it been reached?
    fn is_done(&self) -> Result<bool, Error>;
    /// Milliseconds from `earlier` to this marker; both must have been reached.
    fn elapsed_ms(&self, earlier: &dyn RawEvent) -> Result<f32, Error>;
    /// Lets later work on the stream wait for this marker.
    fn make_wait(&self, stream: &dyn RawStream) -> Result<(), Error>;
    /// For backends to find their own type.
    fn as_any(&self) -> &dyn Any;
}

/// Recorded work that can be replayed.
pub(crate) trait RawGraph: Send + Sync {
    /// Runs it.
    fn launch(&self, stream: &dyn RawStream) -> Result<(), Error>;
}

/// Memory of a device. Freed by [`Backend::free`], not on drop: freeing is ordered on a stream.
pub(crate) trait RawMemory: Any + Send + Sync {
    /// The device address of the first byte.
    fn address(&self) -> u64;
    /// For backends to find their own type.
    fn as_any(&self) -> &dyn Any;
}

/// What is prepared for running: tile IR for devices that interpret, machine code for the others.
pub(crate) enum Code {
    /// A staged kernel with facts and hints.
    Ir(Box<Kernel>),
    /// A compiled kernel.
    Compiled(CompiledKernel),
}

/// How to run a kernel, beside its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchConfig {
    /// Programs along x, y and z; none is 0.
    pub(crate) grid: [u32; 3],
    /// How many CTAs may share a multiprocessor.
    pub(crate) max_ctas: Option<NonZeroU32>,
}

impl LaunchConfig {
    /// The CTAs, of which each program has `cluster` along x.
    #[inline]
    pub(crate) fn ctas(&self, cluster: u32) -> Result<[u32; 3], String> {
        let [x, y, z] = self.grid;
        match x.checked_mul(cluster).filter(|&ctas| ctas <= i32::MAX as u32) {
            Some(ctas) => Ok([ctas, y, z]),
            None => {
                Err(format!("{x} programs along x, of {cluster} CTAs each, are more than a grid can have"))
            }
        }
    }
}

/// A kernel that is ready to run on one device.
pub(crate) trait Executable: Send + Sync {
    /// Runs or submits it. The arguments have been checked against the kernel's parameters and the device. An error is a message that
    /// says what happened and what to do next; the caller adds the names of kernel and device.
    fn launch(
        &self,
        args: &[ArgValue<'_>],
        config: &LaunchConfig,
        stream: &dyn RawStream,
    ) -> Result<(), String>;
    /// Registers, spills and the like, where known.
    fn report(&self) -> Option<&tegula_ir::artifact::ResourceReport> {
        None
    }
}

/// A device.
pub(crate) trait Backend: Send + Sync {
    /// What it is.
    fn properties(&self) -> &Properties;
    /// A new stream.
    fn new_stream(&self) -> Result<Box<dyn RawStream>, Error>;
    /// A stream over somebody else's, by the value of its handle. The handle is valid: see `Device::stream_from_raw`.
    fn stream_over_handle(&self, _handle: u64) -> Result<Box<dyn RawStream>, Error> {
        Err(Error::Unsupported(format!(
            "device `{}` has no streams that other libraries could own",
            self.properties().name
        )))
    }
    /// `bytes` (not 0) of memory with unspecified content (the host backend knows which bytes were never written and reports reads of them),
    /// usable by work submitted to `stream` from now on.
    fn alloc(&self, bytes: usize, stream: &dyn RawStream) -> Result<Box<dyn RawMemory>, Error>;
    /// Frees memory once the work submitted to `stream` so far is done.
    fn free(&self, memory: Box<dyn RawMemory>, stream: &dyn RawStream);
    /// Copies to the device; returns when `from` may be changed.
    fn write(
        &self,
        to: &dyn RawMemory,
        offset: usize,
        from: &[u8],
        stream: &dyn RawStream,
    ) -> Result<(), Error>;
    /// Copies from the device; returns when `to` is filled.
    fn read(
        &self,
        from: &dyn RawMemory,
        offset: usize,
        to: &mut [u8],
        stream: &dyn RawStream,
    ) -> Result<(), Error>;
    /// Copies inside the device.
    fn copy(
        &self,
        from: (&dyn RawMemory, usize),
        to: (&dyn RawMemory, usize),
        bytes: usize,
        stream: &dyn RawStream,
    ) -> Result<(), Error>;
    /// Sets bytes.
    fn fill(
        &self,
        to: &dyn RawMemory,
        offset: usize,
        bytes: usize,
        value: u8,
        stream: &dyn RawStream,
    ) -> Result<(), Error>;
    /// What kernels are compiled for, such as `sm_90a`; `None`: the device runs tile IR.
    fn target(&self) -> Option<&str>;
    /// Is PTX all that it takes of a compiled kernel?
    fn takes_ptx(&self) -> bool {
        false
    }
    /// How it emulates, if it does.
    #[cfg(feature = "emulator")]
    fn emulation(&self) -> Option<&std::sync::Mutex<crate::emulated::Emulation>> {
        None
    }
    /// Where it counts what kernels do, if it can; counting is on while there is something.
    #[cfg(feature = "emulator")]
    fn counts(&self) -> Option<&std::sync::Mutex<Option<crate::emulated::Counts>>> {
        None
    }
    /// Gets a kernel ready to run. The error is a message as for [`Executable::launch`].
    fn prepare(&self, code: Code) -> Result<Arc<dyn Executable>, String>;
}
