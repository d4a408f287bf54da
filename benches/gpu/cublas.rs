//! cuBLAS as a peer, through `cudarc`. The library is loaded at run time: on a machine without it the bench says so.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublas::{CudaBlas, result, sys};
use cudarc::driver::{CudaContext, CudaEvent, CudaGraph, CudaStream};
use tegula::prelude::bf16;
use tegula::runtime::{Device, Tensor};
use tegula_kernels::gemm::Class;

use super::matmul::common::Failure;

/// A handle, its stream and its context (the device's primary one, which the run time uses too).
pub struct Blas {
    handle: CudaBlas,
    stream: Arc<CudaStream>,
}

fn failure(e: impl std::fmt::Debug) -> Failure {
    Failure(format!("cuBLAS: {e:?}"))
}

impl Blas {
    /// Opens cuBLAS on the first GPU.
    pub fn new(_device: &Device) -> Result<Blas, Failure> {
        let context = CudaContext::new(0).map_err(failure)?;
        let stream = context.new_stream().map_err(failure)?;
        let handle = CudaBlas::new(stream.clone()).map_err(failure)?;
        Ok(Blas { handle, stream })
    }

    /// c = a · b for row-major n × n matrices, f32 accumulation, cuBLAS's own choice of algorithm.
    pub fn gemm(
        &self,
        a: &Tensor<bf16>,
        b: &Tensor<bf16>,
        c: &mut Tensor<bf16>,
        n: usize,
    ) -> Result<(), Failure> {
        let (one, zero) = (1.0f32, 0.0f32);
        let n = n as i32;
        let pointer = |t: &Tensor<bf16>| t.device_address() as *const c_void;
        let none = sys::cublasOperation_t::CUBLAS_OP_N;
        let kind = sys::cudaDataType_t::CUDA_R_16BF;
        // cuBLAS is column-major: C^T = B^T · A^T.
        // SAFETY: the three are device memory of n × n bf16 elements each, alive during the call, and `Blas` synchronises before
        // they could be dropped (every use ends in `elapsed_ms` or `synchronize`); the scalars are read during the call.
        unsafe {
            result::gemm_ex(
                *self.handle.handle(),
                none,
                none,
                n,
                n,
                n,
                (&raw const one).cast(),
                pointer(b),
                kind,
                n,
                pointer(a),
                kind,
                n,
                (&raw const zero).cast(),
                c.device_address() as *mut c_void,
                kind,
                n,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(failure)
    }

    /// y\[m, n\] = x\[m, k\] · w\[n, k\]ᵀ for dense row-major matrices at these device addresses, cuBLAS's own choice of algorithm: of bf16; of f32 in TF32;
    /// or of i8 into i32. The caller keeps them alive until the stream has been waited for.
    pub fn gemm_nt(&self, class: Class, [x, w, y]: [u64; 3], [m, n, k]: [usize; 3]) -> Result<(), Failure> {
        use sys::cublasComputeType_t::{
            CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32I,
        };
        use sys::cudaDataType_t::{CUDA_R_8I, CUDA_R_16BF, CUDA_R_32F, CUDA_R_32I};
        let [m, n, k] = [m, n, k].map(|extent| extent as i32);
        let (kind, result_kind, compute) = match class {
            Class::Half => (CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F),
            Class::Tf32 => (CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32),
            Class::Int8 => (CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I),
            Class::F32 | Class::Float8 => return Err(Failure(format!("cublasGemmEx is not for {class:?}"))),
        };
        // 1 and 0 in the type of sums.
        let (one, zero) = (if class == Class::Int8 { 1u32 } else { 1f32.to_bits() }, 0u32);
        // Column-major, as cuBLAS has it: yᵀ = w · xᵀ, with w stored as its transpose.
        // SAFETY: the addresses are those of tensors of these shapes (the caller's promise); the scalars are read during the call.
        unsafe {
            result::gemm_ex(
                *self.handle.handle(),
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                n,
                m,
                k,
                (&raw const one).cast(),
                w as *const c_void,
                kind,
                k,
                x as *const c_void,
                kind,
                k,
                (&raw const zero).cast(),
                y as *mut c_void,
                result_kind,
                n,
                compute,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(failure)
    }

    /// The stream, for cuBLASLt.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// From now on, calls are recorded instead of run.
    pub fn begin_recording(&self) -> Result<(), Failure> {
        let mode = cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.stream.begin_capture(mode).map_err(failure)
    }

    /// What was recorded.
    pub fn end_recording(&self) -> Result<CudaGraph, Failure> {
        let flags =
            cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags).map_err(failure)?;
        graph.ok_or_else(|| Failure("cuBLAS: nothing was recorded".into()))
    }

    /// An event on cuBLAS's stream.
    pub fn record(&self) -> Result<CudaEvent, Failure> {
        let flags = Some(cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT);
        self.stream.record_event(flags).map_err(failure)
    }

    /// Milliseconds since an event, after all work has ended.
    pub fn elapsed_ms(&self, start: CudaEvent) -> Result<f64, Failure> {
        let end = self.record()?;
        self.synchronize()?;
        Ok(f64::from(start.elapsed_ms(&end).map_err(failure)?))
    }

    /// Waits for all work.
    pub fn synchronize(&self) -> Result<(), Failure> {
        self.stream.synchronize().map_err(failure)
    }
}
