//! What the driver itself takes to launch a kernel, with nothing of ours around it: the floor under a launch's time on the host.

use std::ffi::{CString, c_void};
use std::time::Instant;

use cudarc::driver::{CudaContext, sys};

use super::matmul::common::Failure;

/// A kernel that does nothing, with the arguments of a vector addition: three addresses and three lengths.
const PTX: &str = ".version 8.0
.target sm_80
.address_size 64
.visible .entry nothing(.param .u64 a, .param .u32 b, .param .u64 c, .param .u32 d, .param .u64 e, .param .u32 f)
{
    ret;
}
";

/// Microseconds of one `cuLaunchKernel` and of one `cuLaunchKernelEx`, medians of 50 rounds of 100.
pub fn launch_floor() -> Result<(f64, f64), Failure> {
    let failed = |what: &str| Failure(format!("{what} failed"));
    let context = CudaContext::new(0).map_err(|e| Failure(format!("{e:?}")))?;
    let stream = context.new_stream().map_err(|e| Failure(format!("{e:?}")))?;
    let text = CString::new(PTX).map_err(|_| failed("the PTX text"))?;
    let mut module = std::ptr::null_mut();
    let mut function = std::ptr::null_mut();
    // SAFETY: the text ends in a zero byte and outlives the call; the module stays loaded for the process's life.
    let code = unsafe { sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()) };
    if code != sys::CUresult::CUDA_SUCCESS {
        return Err(failed("cuModuleLoadData"));
    }
    // SAFETY: the module is loaded, the name ends in a zero byte.
    let code = unsafe { sys::cuModuleGetFunction(&raw mut function, module, c"nothing".as_ptr()) };
    if code != sys::CUresult::CUDA_SUCCESS {
        return Err(failed("cuModuleGetFunction"));
    }
    let (mut address, mut length) = (0u64, 1024u32);
    let mut params: [*mut c_void; 6] = [
        (&raw mut address).cast(),
        (&raw mut length).cast(),
        (&raw mut address).cast(),
        (&raw mut length).cast(),
        (&raw mut address).cast(),
        (&raw mut length).cast(),
    ];
    let raw = stream.cu_stream();
    let plain = median(
        || {
            // SAFETY: the function is alive, the parameters match its declaration, and it touches no memory.
            unsafe {
                sys::cuLaunchKernel(
                    function,
                    1,
                    1,
                    1,
                    128,
                    1,
                    1,
                    0,
                    raw,
                    params.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
        },
        || stream.synchronize().is_ok(),
    )?;
    let config = sys::CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 128,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: raw,
        attrs: std::ptr::null_mut(),
        numAttrs: 0,
    };
    let extended = median(
        || {
            // SAFETY: as above.
            unsafe {
                sys::cuLaunchKernelEx(&raw const config, function, params.as_mut_ptr(), std::ptr::null_mut())
            }
        },
        || stream.synchronize().is_ok(),
    )?;
    Ok((plain, extended))
}

fn median(mut launch: impl FnMut() -> sys::CUresult, mut wait: impl FnMut() -> bool) -> Result<f64, Failure> {
    let mut times = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        for _ in 0..100 {
            if launch() != sys::CUresult::CUDA_SUCCESS {
                return Err(Failure("a bare launch failed".into()));
            }
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / 100.0);
        if !wait() {
            return Err(Failure("waiting for bare launches failed".into()));
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
