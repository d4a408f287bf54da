//! Tensor maps as the emulator reads them.

use tegula_emulator::asynchronous::{TensorDataType, TensorMapBuilder};
use tegula_emulator::matrix::Swizzle;
use tegula_ir::artifact::TensorSwizzle;
use tegula_ir::types::Elem;

use crate::tensor_map::{EncodeTensorMap, Scratch, TensorMap, TiledTensor};

/// Encodes tensor maps.
pub(super) struct Encoder(Scratch);

impl Encoder {
    pub(super) fn new(scratch: Scratch) -> Encoder {
        Encoder(scratch)
    }

    /// For kernels without tensor maps.
    pub(super) fn without_scratch() -> Encoder {
        Encoder(Scratch::at(0))
    }
}

impl EncodeTensorMap for Encoder {
    fn encode(&self, tensor: &TiledTensor) -> Result<TensorMap, String> {
        let (dims, place) = (tensor.dims(), &tensor.place);
        let box_dims = &tensor.box_dims()[..dims.len()];
        TensorMapBuilder::new(data_type(tensor.elem), place.address, dims, tensor.strides(), box_dims)
            .swizzle(match tensor.map.swizzle {
                TensorSwizzle::None => Swizzle::None,
                TensorSwizzle::B32 => Swizzle::B32,
                TensorSwizzle::B64 => Swizzle::B64,
                TensorSwizzle::B128 => Swizzle::B128,
            })
            .build()
            .map(|map| TensorMap(map.encode()))
            .map_err(|e| format!("the emulator makes no tensor map of {tensor:?}: {e}"))
    }

    fn scratch(&self) -> Scratch {
        self.0
    }
}

/// As a driver is told.
fn data_type(elem: Elem) -> TensorDataType {
    match elem {
        Elem::I16 | Elem::U16 => TensorDataType::U16,
        Elem::U32 => TensorDataType::U32,
        Elem::I32 => TensorDataType::S32,
        Elem::U64 => TensorDataType::U64,
        Elem::I64 => TensorDataType::S64,
        Elem::F16 => TensorDataType::F16,
        Elem::BF16 => TensorDataType::Bf16,
        Elem::F32 => TensorDataType::F32,
        Elem::F64 => TensorDataType::F64,
        _ => TensorDataType::U8,
    }
}
