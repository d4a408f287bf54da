//! Tensor maps by the driver.

use std::ffi::c_void;

use cudarc::driver::sys::{
    self, CUtensorMapDataType_enum as DataType, CUtensorMapFloatOOBfill_enum as Fill,
    CUtensorMapInterleave_enum as Interleave, CUtensorMapL2promotion_enum as L2Promotion,
    CUtensorMapSwizzle_enum as Swizzle, cudaError_enum as Code,
};
use tegula_ir::artifact::{TENSOR_MAP_RANK, TensorSwizzle};
use tegula_ir::types::Elem;

use super::driver::{Context, words};
use crate::error::Error;
use crate::tensor_map::{EncodeTensorMap, Scratch, TensorMap, TiledTensor};

/// Encodes tensor maps; the context must be current when it does.
pub(super) struct Encoder(Scratch);

impl Encoder {
    pub(super) fn new(context: &Context) -> Result<Encoder, Error> {
        Ok(Encoder(context.scratch()?))
    }

    /// For kernels without tensor maps.
    pub(super) fn without_scratch() -> Encoder {
        Encoder(Scratch::at(0))
    }
}

impl EncodeTensorMap for Encoder {
    fn encode(&self, tensor: &TiledTensor) -> Result<TensorMap, String> {
        let mut encoded = TensorMap::EMPTY;
        let (dims, box_dims) = (tensor.place.dims, tensor.box_dims());
        // The fastest axis has no stride of its own. Elements are taken one by one.
        let (strides, element_strides) = (&tensor.place.strides[1..], [1; TENSOR_MAP_RANK]);
        let swizzle = match tensor.map.swizzle {
            TensorSwizzle::None => Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            TensorSwizzle::B32 => Swizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            TensorSwizzle::B64 => Swizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            TensorSwizzle::B128 => Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        let promotion = match tensor.map.store {
            false => L2Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            true => L2Promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
        };
        // SAFETY: the arrays have as many entries as the rank asks for, and more; what is written to has the size and the alignment of a map.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                (&raw mut encoded).cast(),
                data_type(tensor.elem),
                tensor.map.rank.into(),
                tensor.place.address as *mut c_void,
                dims.as_ptr(),
                strides.as_ptr(),
                box_dims.as_ptr(),
                element_strides.as_ptr(),
                Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                promotion,
                Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        if code == Code::CUDA_SUCCESS {
            Ok(encoded)
        } else {
            Err(format!("the driver makes no tensor map of {tensor:?}: {}", words(code)))
        }
    }

    fn scratch(&self) -> Scratch {
        self.0
    }
}

/// The type matters where maps add to memory; elsewhere it says how wide elements are.
fn data_type(elem: Elem) -> DataType {
    match elem {
        Elem::I16 | Elem::U16 => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
        Elem::U32 => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        Elem::I32 => DataType::CU_TENSOR_MAP_DATA_TYPE_INT32,
        Elem::U64 => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT64,
        Elem::I64 => DataType::CU_TENSOR_MAP_DATA_TYPE_INT64,
        Elem::F16 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        Elem::BF16 => DataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Elem::F32 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        Elem::F64 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
        // Bytes. What is packed closer never gets here: it has no size.
        _ => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
    }
}
