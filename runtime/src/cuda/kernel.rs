//! Loading and launching compiled kernels.

use std::ffi::{CString, c_uint, c_void};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    self, CUdevice_attribute_enum as Attribute, CUfunction_attribute_enum as FunctionAttribute,
    CUjit_option_enum as Jit, CUlaunchAttributeID_enum as LaunchAttribute, cudaError_enum as Code,
};
use tegula_ir::artifact::{CompiledKernel, ResourceReport};

use super::driver::{Context, explain, words};
use super::stream::CudaStream;
use super::tensor_map::Encoder;
use crate::backend::{Executable, LaunchConfig, RawStream};
use crate::launch::ArgValue;
use crate::pack::Packing;

/// Dynamic shared memory that a kernel can have without asking (CUDA C++ Programming Guide, "Compute Capabilities").
const SHARED_WITHOUT_ASKING: u32 = 48 * 1024;
/// The most arguments of a kernel that takes tensor maps.
const MAX_PARTS: usize = 128;
/// CTAs in a cluster that every device with clusters can run.
const PORTABLE_CLUSTER: u32 = 8;

/// A loaded module; unloaded when dropped.
struct Module {
    raw: sys::CUmodule,
    context: Arc<Context>,
}

// SAFETY: a module is a handle that the driver lets all threads use.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded once, unloaded once; nothing of it may run any more. Kernels are dropped with their device, so waiting is no loss.
            unsafe {
                let _ = sys::cuCtxSynchronize();
                let _ = sys::cuModuleUnload(self.raw);
            }
        }
    }
}

/// A kernel ready to be launched.
pub(super) struct CudaKernel {
    function: sys::CUfunction,
    module: Module,
    /// The number of its name.
    number: u32,
    packing: Packing,
    encoder: Encoder,
    threads: u32,
    shared_bytes: u32,
    /// Shared memory that launches were granted until now.
    granted: Mutex<u32>,
    room: SharedRoom,
    cluster: u32,
    dependent_launch: bool,
    report: Option<ResourceReport>,
}

/// Bytes of shared memory: of a multiprocessor, of a CTA at most, and what a CTA takes besides its own.
#[derive(Clone, Copy)]
struct SharedRoom {
    multiprocessor: u32,
    cta: u32,
    reserved: u32,
}

impl SharedRoom {
    fn of(context: &Context) -> SharedRoom {
        let bytes = |attribute| context.attribute(attribute) as u32;
        SharedRoom {
            multiprocessor: bytes(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
            cta: bytes(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            reserved: bytes(Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
        }
    }

    /// What a CTA that needs `needed` bytes asks for, so that no more than `most` of them fit on a multiprocessor; as near to it as there is memory for.
    fn asked(self, needed: u32, most: Option<NonZeroU32>) -> u32 {
        let Some(most) = most else { return needed };
        let too_many = self.multiprocessor / (most.get().saturating_add(1));
        needed.max((too_many + 1).saturating_sub(self.reserved)).min(self.cta.max(needed))
    }
}

// SAFETY: a function is a handle that the driver lets all threads use; it lives as long as its module.
unsafe impl Send for CudaKernel {}
// SAFETY: as above.
unsafe impl Sync for CudaKernel {}

impl CudaKernel {
    pub(super) fn load(context: Arc<Context>, kernel: CompiledKernel) -> Result<CudaKernel, String> {
        context.bind().map_err(|e| e.to_string())?;
        let packing = Packing::new(&kernel.abi)?;
        if packing.takes_tensor_maps() && kernel.abi.len() > MAX_PARTS {
            return Err(format!(
                "it has {} arguments; with tensor maps among them, {MAX_PARTS} are possible",
                kernel.abi.len()
            ));
        }
        let room = SharedRoom::of(&context);
        if kernel.shared_bytes > room.cta {
            return Err(format!(
                "it needs {} bytes of shared memory, but this GPU has {} for a CTA: use smaller tiles or fewer stages",
                kernel.shared_bytes, room.cta
            ));
        }
        let encoder = match packing.takes_tensor_maps() {
            true => Encoder::new(&context).map_err(|e| e.to_string())?,
            false => Encoder::without_scratch(),
        };
        let module = Module { raw: load_module(&kernel)?, context };
        let entry =
            CString::new(kernel.entry.as_str()).map_err(|_| "its name contains a zero byte".to_owned())?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in a zero byte.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut function, module.raw, entry.as_ptr()) };
        check(code, || format!("the compiled code has no entry `{}`", kernel.entry))?;
        let number = module.context.number_kernel(&kernel.entry);
        let loaded = CudaKernel {
            function,
            module,
            number,
            packing,
            encoder,
            threads: kernel.threads,
            shared_bytes: kernel.shared_bytes,
            granted: Mutex::new(SHARED_WITHOUT_ASKING),
            room,
            cluster: kernel.cluster.max(1),
            dependent_launch: kernel.dependent_launch,
            report: kernel.report,
        };
        loaded.set_attributes()?;
        Ok(loaded)
    }

    fn set_attributes(&self) -> Result<(), String> {
        self.grant(self.shared_bytes)?;
        if self.cluster > PORTABLE_CLUSTER {
            let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            self.set(attribute, 1, || format!("clusters of {} CTAs", self.cluster))?;
        }
        Ok(())
    }

    /// Asks for so much shared memory, unless so much or more was granted before.
    fn grant(&self, bytes: u32) -> Result<(), String> {
        // Held while the driver is asked: of two that ask for different amounts, the one for less would take back what the other got.
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes <= *granted {
            return Ok(());
        }
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        self.set(attribute, bytes, || format!("{bytes} bytes of shared memory"))?;
        *granted = bytes;
        Ok(())
    }

    fn set(
        &self,
        attribute: FunctionAttribute,
        value: u32,
        what: impl FnOnce() -> String,
    ) -> Result<(), String> {
        // SAFETY: the function is alive.
        let code = unsafe { sys::cuFuncSetAttribute(self.function, attribute, value as i32) };
        check(code, || format!("this GPU does not grant it {}", what()))
    }
}

impl Executable for CudaKernel {
    fn launch(
        &self,
        args: &[ArgValue<'_>],
        config: &LaunchConfig,
        stream: &dyn RawStream,
    ) -> Result<(), String> {
        let stream = CudaStream::of(stream).map_err(|e| e.to_string())?;
        let ctas = config.ctas(self.cluster)?;
        self.module.context.bind().map_err(|e| e.to_string())?;
        let shared_bytes = self.room.asked(self.shared_bytes, config.max_ctas);
        self.grant(shared_bytes)?;
        stream.launching(self.number);
        self.packing.with_packed(args, &self.encoder, |block| self.submit(block, ctas, shared_bytes, stream))
    }

    fn report(&self) -> Option<&ResourceReport> {
        self.report.as_ref()
    }
}

impl CudaKernel {
    /// Submits the kernel; the context is current.
    #[inline]
    fn submit(
        &self,
        block: &mut [u8],
        [x, y, z]: [u32; 3],
        shared_bytes: u32,
        stream: &CudaStream,
    ) -> Result<(), String> {
        let mut bytes = block.len();
        let mut extra: [*mut c_void; 5] = [
            sys::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as usize as *mut c_void,
            block.as_mut_ptr().cast(),
            sys::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as usize as *mut c_void,
            (&raw mut bytes).cast(),
            sys::CU_LAUNCH_PARAM_END_AS_INT as usize as *mut c_void,
        ];
        let attribute = |id| sys::CUlaunchAttribute {
            id,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        };
        let mut overlap = attribute(LaunchAttribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
        overlap.value.programmaticStreamSerializationAllowed = 1;
        let mut cluster = attribute(LaunchAttribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
        cluster.value.clusterDim.x = self.cluster;
        cluster.value.clusterDim.y = 1;
        cluster.value.clusterDim.z = 1;
        let (overlaps, clustered) = (self.dependent_launch, self.cluster > 1);
        let mut attributes = if overlaps { [overlap, cluster] } else { [cluster, overlap] };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared_bytes,
            hStream: stream.raw,
            attrs: attributes.as_mut_ptr(),
            numAttrs: overlaps as c_uint + clustered as c_uint,
        };
        // SAFETY: function and stream are alive and of one context, which is current; the driver copies configuration and parameters before it
        // returns. They are laid out as the code generator said, and the driver checks the size of a block. That the kernel touches only its
        // arguments' memory is the promise of generated code; that memory is freed behind this stream's work. (`cuLaunchKernel`, and
        // parameters one by one, take the driver the same time: measured on an H200.)
        let launch = |params: *mut *mut c_void, extra: *mut *mut c_void| unsafe {
            sys::cuLaunchKernelEx(&raw const config, self.function, params, extra)
        };
        let code = if self.packing.takes_tensor_maps() {
            // A tensor map is aligned where the GPU keeps parameters, which do not begin at a multiple of 64 there: so only the driver knows the places of
            // what is in a block with maps, and takes its parts one by one.
            let mut parts = [std::ptr::null_mut::<c_void>(); MAX_PARTS];
            for (part, offset) in parts.iter_mut().zip(self.packing.offsets()) {
                *part = block[offset..].as_mut_ptr().cast();
            }
            launch(parts.as_mut_ptr(), std::ptr::null_mut())
        } else if bytes == 0 {
            launch(std::ptr::null_mut(), std::ptr::null_mut())
        } else {
            launch(std::ptr::null_mut(), extra.as_mut_ptr())
        };
        if code == Code::CUDA_SUCCESS { Ok(()) } else { Err(self.launch_error(code, [x, y, z])) }
    }

    #[cold]
    fn launch_error(&self, code: sys::CUresult, [x, y, z]: [u32; 3]) -> String {
        match code {
            Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => format!(
                "the GPU cannot run it: {} threads{}, {} bytes of shared memory. Use fewer warps or smaller tiles, or bound the registers \
                 with `.max_registers(…)`",
                self.threads,
                self.report.as_ref().map_or(String::new(), |r| format!(" of {} registers", r.registers)),
                self.shared_bytes
            ),
            code => format!(
                "{}. Grid ({x}, {y}, {z}), {} threads, {} bytes of shared memory, cluster {}",
                explain(code, None),
                self.threads,
                self.shared_bytes,
                self.cluster
            ),
        }
    }
}

fn check(code: sys::CUresult, what: impl FnOnce() -> String) -> Result<(), String> {
    if code == Code::CUDA_SUCCESS { Ok(()) } else { Err(format!("{}: {}", what(), words(code))) }
}

/// Loads the cubin; the PTX, which the driver compiles, if there is none or it is for another GPU.
fn load_module(kernel: &CompiledKernel) -> Result<sys::CUmodule, String> {
    let mut module = std::ptr::null_mut();
    if let Some(cubin) = &kernel.cubin {
        // SAFETY: an ELF image carries its own length; where it came from has been checked against its checksum.
        let code = unsafe { sys::cuModuleLoadData(&raw mut module, cubin.as_ptr().cast()) };
        if code == Code::CUDA_SUCCESS {
            return Ok(module);
        }
        if kernel.ptx.is_empty() {
            return Err(format!(
                "the GPU does not take the code compiled for {}: {}",
                kernel.target,
                words(code)
            ));
        }
    }
    let ptx = CString::new(kernel.ptx.as_str()).map_err(|_| "its PTX contains a zero byte".to_owned())?;
    let mut log = vec![0u8; 16 * 1024];
    let mut options = [Jit::CU_JIT_ERROR_LOG_BUFFER, Jit::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
    // SAFETY: the text ends in a zero byte; the options' values are as the driver wants them, and the log has that many bytes.
    let code = unsafe {
        sys::cuModuleLoadDataEx(
            &raw mut module,
            ptx.as_ptr().cast(),
            options.len() as c_uint,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if code == Code::CUDA_SUCCESS {
        return Ok(module);
    }
    let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
    let log = String::from_utf8_lossy(&log[..end]);
    let hint = match code {
        Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            ". The driver is older than the PTX: update it, or install ptxas"
        }
        _ => "",
    };
    Err(format!(
        "the driver cannot compile its PTX for {}: {}{hint}\n{}",
        kernel.target,
        words(code),
        log.trim_end()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An H200's.
    const ROOM: SharedRoom = SharedRoom { multiprocessor: 228 << 10, cta: 227 << 10, reserved: 1 << 10 };

    #[test]
    fn as_many_ctas_as_asked_for_fit_and_no_more() {
        for most in 1..=16 {
            let asked = ROOM.asked(4 << 10, NonZeroU32::new(most));
            let fit = ROOM.multiprocessor / (asked + ROOM.reserved);
            assert_eq!(fit, most, "{asked} bytes");
        }
    }

    #[test]
    fn a_kernel_has_what_it_needs() {
        assert_eq!(ROOM.asked(100 << 10, None), 100 << 10);
        assert_eq!(ROOM.asked(100 << 10, NonZeroU32::new(2)), 100 << 10, "no third one fits");
        assert_eq!(ROOM.asked(0, NonZeroU32::new(u32::MAX)), 0);
        // A GPU that gives a CTA less than half of its multiprocessor's memory runs two.
        let small = SharedRoom { multiprocessor: 100 << 10, cta: 48 << 10, reserved: 1 << 10 };
        assert_eq!(small.asked(8 << 10, NonZeroU32::new(1)), 48 << 10);
    }
}
