//! A case's buffers and arguments as bytes and machine words, for whoever launches compiled kernels.

use tegula_conformance::{Case, HostArg, HostBuffer};
use tegula_ir::artifact::{AbiSlot, TENSOR_MAP_BYTES};

/// What a buffer holds before the launch.
pub fn initial_bytes(buffer: &HostBuffer) -> Vec<u8> {
    let size = buffer.element_size();
    buffer.initial.iter().flat_map(|bits| bits.to_le_bytes().into_iter().take(size)).collect()
}

/// A buffer's content as patterns, one an element.
pub fn patterns(buffer: &HostBuffer, bytes: &[u8]) -> Vec<u64> {
    let pattern = |chunk: &[u8]| chunk.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
    bytes.chunks(buffer.element_size()).map(pattern).collect()
}

/// The bits of a machine-level parameter, zero-extended; `addresses`: where the buffers are.
///
/// # Errors
/// If the case's argument is of another kind: the code was compiled for another kernel. If the parameter is a tensor map.
pub fn parameter(slot: &AbiSlot, case: &Case, addresses: &[u64]) -> Result<u64, String> {
    let address = |buffer: usize, offset: usize| {
        addresses[buffer] + (offset * case.buffers[buffer].element_size()) as u64
    };
    let arg = |param: u16| &case.args[usize::from(param)];
    let bits = match *slot {
        AbiSlot::Address { param } => match arg(param) {
            HostArg::Ptr { buffer, offset } | HostArg::View { buffer, offset, .. } => {
                Some(address(*buffer, *offset))
            }
            HostArg::Scalar { .. } => None,
        },
        AbiSlot::Dim { param, axis, .. } => match arg(param) {
            HostArg::View { dims, .. } => Some(dims[usize::from(axis)] as u64),
            _ => None,
        },
        AbiSlot::Stride { param, axis, .. } => match arg(param) {
            HostArg::View { strides, .. } => Some(strides[usize::from(axis)] as u64),
            _ => None,
        },
        AbiSlot::Scalar { param, .. } => match arg(param) {
            HostArg::Scalar { bits, .. } => Some(*bits),
            _ => None,
        },
        AbiSlot::TensorMap { .. } => return Err("engines of the suite encode no tensor maps".to_owned()),
    };
    bits.ok_or_else(|| format!("{slot:?} is of an argument of another kind"))
}

/// Bytes of a machine-level parameter; for those that [`parameter()`] knows, also its alignment.
pub fn parameter_bytes(slot: &AbiSlot) -> usize {
    match *slot {
        AbiSlot::Address { .. } => 8,
        AbiSlot::Dim { bits, .. } | AbiSlot::Stride { bits, .. } => usize::from(bits / 8),
        AbiSlot::TensorMap { .. } => TENSOR_MAP_BYTES,
        AbiSlot::Scalar { elem, .. } => elem.size_of().expect("a scalar argument is whole bytes"),
    }
}
