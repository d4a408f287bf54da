//! Packs a launch's arguments as a compiled kernel takes them.
//!
//! The parameters of a PTX entry lie one behind the other, each aligned to its own size, tensor maps to 64 bytes (PTX ISA, "Kernel Function Parameters"; the driver takes
//! such a block as `CU_LAUNCH_PARAM_BUFFER_POINTER`). Where each lies is worked out once, when the kernel is loaded.

use tegula_ir::artifact::{AbiSlot, TENSOR_MAP_ALIGN, TENSOR_MAP_BYTES};

use crate::launch::{Arg, ArgValue};
use crate::tensor_map::{EncodeTensorMap, Maps};

/// The most bytes of parameters that a kernel can have (sm_70 and up, CUDA 12.1 and up).
const MAX_BYTES: usize = 32_764;

/// A kernel's parameter block.
#[derive(Debug)]
pub(crate) struct Packing {
    slots: Vec<Slot>,
    bytes: usize,
    /// Of a kernel that takes tensor maps.
    maps: Option<Maps>,
}

/// A parameter and its place in the block.
#[derive(Debug)]
struct Slot {
    what: AbiSlot,
    offset: u32,
    bytes: u32,
}

/// Blocks up to this size are packed on the stack; that is all but those of kernels with dozens of views.
const ON_STACK: usize = 2048;
/// The size of blocks with four tensor maps. The stack is cleared at each launch, so sizes are worth knowing.
const WITH_MAPS: usize = 640;
/// The size of most blocks.
const USUAL: usize = 128;

/// Bytes that a slot takes, and its alignment. `None` for what does not exist.
fn slot_bytes(slot: &AbiSlot) -> Option<(usize, usize)> {
    let bytes = match *slot {
        AbiSlot::TensorMap { map, .. } => {
            return map.is_well_formed().then_some((TENSOR_MAP_BYTES, TENSOR_MAP_ALIGN));
        }
        AbiSlot::Address { .. } => Some(8),
        AbiSlot::Dim { bits, .. } | AbiSlot::Stride { bits, .. } => match bits {
            32 => Some(4),
            64 => Some(8),
            _ => None,
        },
        AbiSlot::Scalar { elem, .. } => elem.size_of(),
    }?;
    Some((bytes, bytes))
}

impl Packing {
    /// Lays the parameters out.
    ///
    /// # Errors
    /// If the slots make no block that a kernel can have.
    pub(crate) fn new(abi: &[AbiSlot]) -> Result<Packing, String> {
        let mut slots = Vec::with_capacity(abi.len());
        let mut offset = 0usize;
        for slot in abi {
            let (bytes, align) =
                slot_bytes(slot).ok_or_else(|| format!("its argument {slot:?} has no size"))?;
            offset = offset.next_multiple_of(align);
            slots.push(Slot { what: *slot, offset: offset as u32, bytes: bytes as u32 });
            offset += bytes;
            if offset > MAX_BYTES {
                return Err(format!("its arguments take more than {MAX_BYTES} bytes"));
            }
        }
        let takes_maps = abi.iter().any(|slot| matches!(slot, AbiSlot::TensorMap { .. }));
        Ok(Packing { slots, bytes: offset, maps: takes_maps.then(Maps::new) })
    }

    /// Where each parameter begins in the block, in order.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = usize> + '_ {
        self.slots.iter().map(|slot| slot.offset as usize)
    }

    /// Does the kernel take tensor maps?
    pub(crate) fn takes_tensor_maps(&self) -> bool {
        self.maps.is_some()
    }

    /// Packs, and gives the block to `submit`. An error, beside those of `submit`, means code that was compiled for other arguments (a damaged
    /// bundle): nothing may run then.
    #[inline]
    pub(crate) fn with_packed(
        &self,
        args: &[ArgValue<'_>],
        encoder: &impl EncodeTensorMap,
        submit: impl FnOnce(&mut [u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        if self.bytes <= USUAL {
            self.pack_into(&mut [0; USUAL], args, encoder, submit)
        } else if self.bytes <= WITH_MAPS {
            self.pack_into(&mut [0; WITH_MAPS], args, encoder, submit)
        } else if self.bytes <= ON_STACK {
            self.pack_into(&mut [0; ON_STACK], args, encoder, submit)
        } else {
            self.pack_into(&mut vec![0; self.bytes], args, encoder, submit)
        }
    }

    #[inline]
    fn pack_into(
        &self,
        room: &mut [u8],
        args: &[ArgValue<'_>],
        encoder: &impl EncodeTensorMap,
        submit: impl FnOnce(&mut [u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let block = &mut room[..self.bytes];
        self.pack(args, encoder, block)?;
        submit(block)
    }

    fn pack(
        &self,
        args: &[ArgValue<'_>],
        encoder: &impl EncodeTensorMap,
        block: &mut [u8],
    ) -> Result<(), String> {
        for (index, slot) in self.slots.iter().enumerate() {
            let packed = match (&slot.what, &self.maps) {
                (AbiSlot::TensorMap { param, map }, Some(maps)) => {
                    let to = block.get_mut(slot.offset as usize..).and_then(|rest| rest.first_chunk_mut());
                    let encoded = match (args.get(*param as usize).map(|arg| &arg.0), to) {
                        (Some(Arg::View(view)), Some(to)) => maps.get(index, view, map, encoder, to),
                        _ => None,
                    };
                    encoded.transpose().map_err(|message| undescribed(*param, message))?.is_some()
                }
                (what, _) => {
                    value(what, args).is_some_and(|v| put_value(block, slot.offset as usize, v, slot.bytes))
                }
            };
            if !packed {
                return Err(not_there(&slot.what));
            }
        }
        Ok(())
    }
}

/// What goes into a slot, zero-extended.
#[inline]
fn value(slot: &AbiSlot, args: &[ArgValue<'_>]) -> Option<u64> {
    // Only code for `small` views takes 32 bits, and the facts are part of the key; yet never truncate.
    let int = |value: usize, bits: u8| (bits == 64 || value <= i32::MAX as usize).then_some(value as u64);
    let arg = |param: u16| args.get(param as usize).map(|a| &a.0);
    match *slot {
        AbiSlot::Address { param } => args.get(param as usize)?.memory().map(|m| m.address),
        AbiSlot::Dim { param, axis, bits } => match arg(param)? {
            Arg::View(v) => int(*v.dims().get(axis as usize)?, bits),
            _ => None,
        },
        AbiSlot::Stride { param, axis, bits } => match arg(param)? {
            Arg::View(v) => int(*v.strides().get(axis as usize)?, bits),
            _ => None,
        },
        AbiSlot::Scalar { param, elem } => match arg(param)? {
            Arg::Scalar(s) if s.elem == elem => Some(s.bits),
            _ => None,
        },
        AbiSlot::TensorMap { .. } => None, // is no value
    }
}

#[cold]
fn not_there(slot: &AbiSlot) -> String {
    format!("the compiled code wants {slot:?}, which the arguments do not have")
}

#[cold]
fn undescribed(param: u16, message: String) -> String {
    format!("argument {param}: {message}, which the compiled code wants")
}

#[inline]
fn put<const N: usize>(block: &mut [u8], offset: usize, bytes: [u8; N]) -> bool {
    match block.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
        Some(to) => {
            *to = bytes;
            true
        }
        None => false,
    }
}

/// Puts the low bytes of a value: 1, 2, 4 or 8.
#[inline]
fn put_value(block: &mut [u8], offset: usize, value: u64, bytes: u32) -> bool {
    match bytes {
        8 => put(block, offset, value.to_le_bytes()),
        4 => put(block, offset, (value as u32).to_le_bytes()),
        2 => put(block, offset, (value as u16).to_le_bytes()),
        1 => put(block, offset, [value as u8]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_map::Scratch;
    use crate::testing::Plain;
    use crate::{Device, TensorView};
    use tegula_ir::artifact::TensorMapSpec;
    use tegula_ir::element::bf16;
    use tegula_ir::types::Elem;

    #[test]
    fn each_parameter_at_its_own_alignment() {
        let device = Device::testing();
        let view = TensorView::<bf16>::raw(&device, 0x1122_3344_5566_7788, &[3, 5], &[7, 1]).unwrap();
        let args = [ArgValue::view(view, 2), ArgValue::scalar(true), ArgValue::scalar(-2i16)];
        let packing = Packing::new(&[
            AbiSlot::Scalar { param: 1, elem: Elem::I1 },
            AbiSlot::Scalar { param: 2, elem: Elem::I16 },
            AbiSlot::Dim { param: 0, axis: 1, bits: 32 },
            AbiSlot::Stride { param: 0, axis: 0, bits: 32 },
            AbiSlot::Address { param: 0 },
        ])
        .unwrap();
        let mut block = Vec::new();
        packing
            .with_packed(&args, &Plain, |packed| {
                block = packed.to_vec();
                Ok(())
            })
            .unwrap();
        let mut expected = vec![1, 0, 0xfe, 0xff, 5, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        expected.extend(0x1122_3344_5566_7788u64.to_le_bytes());
        assert_eq!(&block[..], &expected[..]);
    }

    #[test]
    fn tensor_maps_stand_at_multiples_of_64() {
        let device = Device::testing();
        let matrix = TensorView::<bf16>::raw(&device, 0x4000, &[3, 5], &[1, 16]).unwrap();
        let batch = TensorView::<f32>::raw(&device, 0x8000, &[7, 0, 64], &[640, 64, 1]).unwrap();
        let args = [ArgValue::view(matrix, 2), ArgValue::view(batch, 3), ArgValue::scalar(9u8)];
        let store = TensorMapSpec { store: true, ..TensorMapSpec::new(&[2, 0, 1], &[64, 2, 1]) };
        let packing = Packing::new(&[
            AbiSlot::Address { param: 0 },
            AbiSlot::TensorMap { param: 0, map: TensorMapSpec::new(&[0, 1], &[8, 4]) },
            AbiSlot::Scalar { param: 2, elem: Elem::U8 },
            AbiSlot::TensorMap { param: 1, map: store },
            AbiSlot::TensorMap { param: 1, map: TensorMapSpec::new(&[2, 1, 0], &[64, 2, 1]) },
            AbiSlot::Dim { param: 0, axis: 1, bits: 32 },
        ])
        .unwrap();
        let mut block = Vec::new();
        packing
            .with_packed(&args, &Plain, |packed| {
                block = packed.to_vec();
                Ok(())
            })
            .unwrap();
        let words = |at: usize| -> Vec<u64> {
            block[at..at + 88].as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).collect()
        };
        assert_eq!(words(0)[..8], [0x4000, 0, 0, 0, 0, 0, 0, 0]);
        // The fastest axis first; strides in bytes. What no axis uses is a legal extent and a legal stride.
        assert_eq!(words(64), [0x4000, 3, 5, 1, 1, 1, 2, 32, 16, 16, 16]);
        assert_eq!(block[192], 9);
        // Without elements: one that is not the view's, others for loads and for stores.
        let Scratch { zeros, sink } = Plain.scratch();
        assert_eq!(words(256), [sink, 1, 1, 1, 1, 1, 16, 16, 16, 16, 16]);
        assert_eq!(words(384), [zeros, 1, 1, 1, 1, 1, 16, 16, 16, 16, 16]);
        assert_eq!((&block[512..], zeros.abs_diff(sink) >= 16), (&[5, 0, 0, 0][..], true));
    }

    #[test]
    fn code_for_other_arguments_is_refused() {
        let device = Device::testing();
        let view = TensorView::<u8>::raw(&device, 0, &[1 << 40], &[1]).unwrap();
        let args = [ArgValue::view(view, 1), ArgValue::scalar(1i32)];
        for slot in [
            AbiSlot::Address { param: 1 },
            AbiSlot::Address { param: 2 },
            AbiSlot::Dim { param: 0, axis: 1, bits: 64 },
            AbiSlot::Dim { param: 0, axis: 0, bits: 32 },
            AbiSlot::Scalar { param: 1, elem: Elem::F32 },
            AbiSlot::Scalar { param: 0, elem: Elem::I32 },
            AbiSlot::TensorMap { param: 0, map: TensorMapSpec::new(&[0, 1], &[16, 1]) },
            AbiSlot::TensorMap { param: 1, map: TensorMapSpec::new(&[0], &[16]) },
            AbiSlot::TensorMap { param: 2, map: TensorMapSpec::new(&[0], &[16]) },
        ] {
            let packed = Packing::new(&[slot]).unwrap().with_packed(&args, &Plain, |_| Ok(()));
            assert!(packed.is_err(), "{slot:?}");
        }
        assert!(Packing::new(&[AbiSlot::Dim { param: 0, axis: 0, bits: 16 }]).is_err());
        assert!(Packing::new(&[AbiSlot::Scalar { param: 0, elem: Elem::I4 }]).is_err());
        assert!(Packing::new(&[AbiSlot::TensorMap { param: 0, map: TensorMapSpec::new(&[], &[]) }]).is_err());
        assert!(Packing::new(&vec![AbiSlot::Address { param: 0 }; 5000]).is_err());
    }
}
