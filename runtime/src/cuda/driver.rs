//! Finding and starting the driver, contexts, and what its error codes mean to the user.

use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::result::{self, DriverError, device, primary_ctx};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute, CUresult, cudaError_enum as Code};

use crate::device::{Properties, lock};
use crate::error::Error;
use crate::tensor_map::Scratch;

/// Loads and initialises the driver, once.
fn start() -> Result<(), Error> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        // SAFETY: loading libcuda runs its initialisers only.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcuda.so.1 was not found: install the NVIDIA driver or use the device `host`".to_owned());
        }
        result::init().map_err(|e| {
            format!(
                "the NVIDIA driver does not start: {}. Does `nvidia-smi` list a GPU? Without one, use the device `host`",
                words(e.0)
            )
        })
    });
    started.clone().map_err(Error::NoDriver)
}

/// How many GPUs the driver sees.
pub(super) fn count() -> Result<usize, Error> {
    start()?;
    device::get_count().map(|n| n.max(0) as usize).map_err(|e| Error::NoDriver(words(e.0)))
}

/// The driver's name and words for a code.
pub(super) fn words(code: CUresult) -> String {
    let error = DriverError(code);
    match (error.error_name(), error.error_string()) {
        (Ok(name), Ok(text)) => format!("{} ({})", text.to_string_lossy(), name.to_string_lossy()),
        _ => format!("{code:?}"),
    }
}

/// Codes that mean that a kernel, not the call that reports them, went wrong; the context is lost then.
fn is_kernel_fault(code: CUresult) -> bool {
    matches!(
        code,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
    )
}

/// What to say of a code; `last` is the kernel launched last where the error showed.
pub(super) fn explain(code: CUresult, last: Option<&str>) -> String {
    if !is_kernel_fault(code) {
        return words(code);
    }
    let suspect = match last {
        Some(kernel) => format!("`{kernel}` was the last one launched on this stream"),
        None => "launched earlier".to_owned(),
    };
    format!(
        "a kernel failed while it ran ({suspect}): {}. Run it on the device `host` with the same arguments: that names the \
         source line. (CUDA_LAUNCH_BLOCKING=1 tells which kernel it is.) The GPU context is lost, restart the program to use it again",
        words(code)
    )
}

/// A GPU's primary context.
pub(super) struct Context {
    raw: sys::CUcontext,
    pub(super) device: sys::CUdevice,
    /// `cuda:0`
    pub(super) name: String,
    ordinal: usize,
    /// The names of the kernels loaded so far, by number.
    kernels: Mutex<Vec<Arc<str>>>,
    /// Memory for tensor maps of empty views: [`Context::scratch`].
    scratch: Mutex<Option<sys::CUdeviceptr>>,
}

// SAFETY: a context is a handle that the driver lets all threads use.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn open(ordinal: usize) -> Result<Context, Error> {
        let count = count()?;
        let name = format!("cuda:{ordinal}");
        let failed = |call| {
            let device = name.clone();
            move |e: DriverError| Error::Driver { device, call, message: words(e.0) }
        };
        if ordinal >= count {
            return Err(Error::NoSuchGpu { ordinal, count });
        }
        let device = device::get(ordinal as i32).map_err(failed("cuDeviceGet"))?;
        // SAFETY: the device is from `device::get`.
        let raw = unsafe { primary_ctx::retain(device) }.map_err(failed("cuDevicePrimaryCtxRetain"))?;
        let context = Context {
            raw,
            device,
            name: name.clone(),
            ordinal,
            kernels: Mutex::default(),
            scratch: Mutex::default(),
        };
        context.bind()?;
        Ok(context)
    }

    /// Makes the context current on this thread. It asks the driver what is rather than to remember it, since another library may change
    /// it: that takes half the time of making it current again (11 of 24 ns on the host of an H200).
    #[inline]
    pub(super) fn bind(&self) -> Result<(), Error> {
        let mut current = std::ptr::null_mut();
        // SAFETY: the driver is initialised; it writes one pointer.
        let code = unsafe { sys::cuCtxGetCurrent(&raw mut current) };
        if code == Code::CUDA_SUCCESS && current == self.raw {
            return Ok(());
        }
        self.make_current()
    }

    #[cold]
    fn make_current(&self) -> Result<(), Error> {
        // SAFETY: the context is retained until `self` is dropped.
        let code = unsafe { sys::cuCtxSetCurrent(self.raw) };
        self.check("cuCtxSetCurrent", code)
    }

    /// A number for a kernel's name, by which [`Context::kernel_name`] finds it again: a stream notes the kernel launched last as one word.
    pub(super) fn number_kernel(&self, name: &str) -> u32 {
        let mut names = lock(&self.kernels);
        match names.iter().position(|n| &**n == name) {
            Some(known) => known as u32,
            None => {
                names.push(Arc::from(name));
                names.len() as u32 - 1
            }
        }
    }

    pub(super) fn kernel_name(&self, number: u32) -> Option<Arc<str>> {
        lock(&self.kernels).get(number as usize).cloned()
    }

    /// The memory of [`Scratch`], allocated when the first kernel asks for it; that may be while a stream records, which must not record it.
    pub(super) fn scratch(&self) -> Result<Scratch, Error> {
        let mut scratch = lock(&self.scratch);
        let address = match *scratch {
            Some(address) => address,
            None => {
                self.bind()?;
                *scratch.insert(self.new_scratch()?)
            }
        };
        Ok(Scratch::at(address))
    }

    /// Zeros, on a stream of their own: work on the default stream would disturb recordings of other libraries. The context must be current.
    fn new_scratch(&self) -> Result<sys::CUdeviceptr, Error> {
        use result::{free_sync, malloc_sync, memset_d8_async, stream};
        let failed = |call| move |e: DriverError| self.error(call, e.0, None);
        // SAFETY: the context is current; nobody uses the memory yet.
        let address = unsafe { malloc_sync(Scratch::BYTES) }.map_err(failed("cuMemAlloc"))?;
        let zero = || {
            let stream = stream::create(stream::StreamKind::NonBlocking)?;
            // SAFETY: the memory has as many bytes; the stream is alive until it has been waited for.
            unsafe {
                let set = memset_d8_async(address, 0, Scratch::BYTES, stream);
                let waited = stream::synchronize(stream);
                let _ = stream::destroy(stream);
                set.and(waited)
            }
        };
        zero().map(|()| address).map_err(|e| {
            // SAFETY: allocated above, given to nobody.
            let _ = unsafe { free_sync(address) };
            self.error("cuMemsetD8Async", e.0, None)
        })
    }

    /// Turns a code into an error of this device.
    #[inline]
    pub(super) fn check(&self, call: &'static str, code: CUresult) -> Result<(), Error> {
        if code == Code::CUDA_SUCCESS { Ok(()) } else { Err(self.error(call, code, None)) }
    }

    #[cold]
    pub(super) fn error(&self, call: &'static str, code: CUresult, last: Option<&str>) -> Error {
        Error::Driver { device: self.name.clone(), call, message: explain(code, last) }
    }

    /// An attribute; 0 where the driver does not know it.
    pub(super) fn attribute(&self, attribute: Attribute) -> usize {
        // SAFETY: the device is from `device::get`.
        unsafe { device::get_attribute(self.device, attribute) }.map_or(0, |x| x.max(0) as usize)
    }

    pub(super) fn properties(&self) -> Properties {
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        Properties {
            name: format!("cuda:{}", self.ordinal),
            model: device::get_name(self.device).unwrap_or_else(|_| "unknown".to_owned()),
            target: Some(target(major, minor)),
            multiprocessors: self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) as u32,
            shared_memory: self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            l2_cache: self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
            // SAFETY: the device is from `device::get`.
            memory: unsafe { device::total_mem(self.device) }.unwrap_or(0),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let (Some(scratch), Ok(())) = (*lock(&self.scratch), self.bind()) {
            // SAFETY: allocated in `scratch`; kernels, which may use it, hold the context, so they are gone.
            let _ = unsafe { result::free_sync(scratch) };
        }
        // SAFETY: retained in `open`; whatever was made in the context holds it, so it is gone.
        let _ = unsafe { primary_ctx::release(self.device) };
    }
}

/// What to compile for: from compute capability 9.0 on the architecture's own instructions (`a`) are used, which bind the code to it.
fn target(major: usize, minor: usize) -> String {
    let suffix = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        assert_eq!(
            [target(8, 0), target(8, 9), target(9, 0), target(10, 0)],
            ["sm_80", "sm_89", "sm_90a", "sm_100a"]
        );
    }
}
