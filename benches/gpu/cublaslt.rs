//! cuBLASLt as a peer: plans of y = x · wᵀ, each with the algorithm that the library's heuristics put first.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::{result, sys};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use tegula_kernels::gemm::Class;

use super::matmul::common::Failure;

/// What cuBLAS gives itself on Hopper.
const WORKSPACE: usize = 32 << 20;

/// A handle and its workspace.
pub struct BlasLt {
    handle: sys::cublasLtHandle_t,
    workspace: CudaSlice<u8>,
    stream: Arc<CudaStream>,
}

/// A product of one shape.
pub struct Plan {
    desc: sys::cublasLtMatmulDesc_t,
    /// Of w, x and y.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algo: sys::cublasLtMatmulAlgo_t,
    /// 1 in the type of sums.
    one: u32,
}

fn failure(e: impl std::fmt::Debug) -> Failure {
    Failure(format!("cuBLASLt: {e:?}"))
}

impl BlasLt {
    /// Opens the library; `None` where there is none.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Option<BlasLt>, Failure> {
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        let handle = result::create_handle().map_err(failure)?;
        // SAFETY: a workspace is written before it is read, by cuBLASLt.
        let workspace = unsafe { stream.alloc::<u8>(WORKSPACE) }.map_err(failure)?;
        Ok(Some(BlasLt { handle, workspace, stream: stream.clone() }))
    }

    /// Plans y\[m, n\] = x\[m, k\] · w\[n, k\]ᵀ, dense and row-major: of bf16; of f32 in TF32; of e4m3 into bf16; of i8 into i32.
    pub fn plan(&self, class: Class, [m, n, k]: [usize; 3]) -> Result<Plan, Failure> {
        use sys::cublasComputeType_t::{
            CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32I,
        };
        use sys::cudaDataType::{CUDA_R_8F_E4M3, CUDA_R_8I, CUDA_R_16BF, CUDA_R_32F, CUDA_R_32I};
        let (kind, result_kind, compute, scalars, one) = match class {
            Class::Half => (CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F, 1f32.to_bits()),
            Class::Float8 => (CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F, 1f32.to_bits()),
            Class::Tf32 => (CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, 1f32.to_bits()),
            Class::Int8 => (CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I, CUDA_R_32I, 1),
            Class::F32 => return Err(Failure("IEEE f32 is not compared".into())),
        };
        let layout = |kind, rows: usize, cols: usize| {
            result::create_matrix_layout(kind, rows as u64, cols as u64, rows as i64).map_err(failure)
        };
        // Column-major, as cuBLAS has it: yᵀ = w · xᵀ, with w stored as its transpose.
        let layouts = [layout(kind, k, n)?, layout(kind, k, m)?, layout(result_kind, n, m)?];
        let desc = result::create_matmul_desc(compute, scalars).map_err(failure)?;
        let transpose = cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_T;
        let workspace = WORKSPACE;
        let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        let preference = result::create_matmul_pref().map_err(failure)?;
        // As ours: sums of FP8 stay in the tensor cores' registers, as they do for `use_fast_accum` of PyTorch's `_scaled_mm`.
        let fast = i8::from(class == Class::Float8);
        // SAFETY: the descriptors were just made; each attribute is read during the call, with its own size.
        let found = unsafe {
            let accumulate = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_FAST_ACCUM;
            result::set_matmul_desc_attribute(desc, accumulate, (&raw const fast).cast(), size_of_val(&fast))
                .map_err(failure)?;
            result::set_matmul_desc_attribute(
                desc,
                attribute,
                (&raw const transpose).cast(),
                size_of_val(&transpose),
            )
            .map_err(failure)?;
            let attribute =
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            result::set_matmul_pref_attribute(
                preference,
                attribute,
                (&raw const workspace).cast(),
                size_of_val(&workspace),
            )
            .map_err(failure)?;
            let [w, x, y] = layouts;
            let found = result::get_matmul_algo_heuristic(self.handle, desc, w, x, y, y, preference);
            result::destroy_matmul_pref(preference).map_err(failure)?;
            found.map_err(failure)?
        };
        Ok(Plan { desc, layouts, algo: found.algo, one })
    }

    /// Runs a plan on device addresses.
    pub fn run(&self, plan: &Plan, [x, w, y]: [u64; 3]) -> Result<(), Failure> {
        let (one, zero) = (plan.one, 0u32);
        let [w_layout, x_layout, y_layout] = plan.layouts;
        let (workspace, _guard) = self.workspace.device_ptr(&self.stream);
        // SAFETY: the addresses are those of tensors of the planned shapes, which live until the stream has been waited for; the scalars are read
        // during the call.
        unsafe {
            result::matmul(
                self.handle,
                plan.desc,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                w as *const c_void,
                w_layout,
                x as *const c_void,
                x_layout,
                y as *const c_void,
                y_layout,
                y as *mut c_void,
                y_layout,
                &raw const plan.algo,
                workspace as *mut c_void,
                WORKSPACE,
                self.stream.cu_stream().cast(),
            )
        }
        .map_err(failure)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made by `plan`, dropped once; work in flight does not refer to them.
        unsafe {
            let _ = result::destroy_matmul_desc(self.desc);
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}
