//! Packs a launch's arguments as a compiled kernel takes them.
//!
//! The parameters of a PTX entry lie one behind the other, each aligned to its own size (PTX ISA, "Kernel Function Parameters"; the driver takes
//! such a block as `CU_LAUNCH_PARAM_BUFFER_POINTER`). Where each lies is worked out once, when the kernel is loaded.

use tegula_ir::artifact::AbiSlot;

use crate::launch::{Arg, ArgValue};

/// The most bytes of parameters that a kernel can have (sm_70 and up, CUDA 12.1 and up).
const MAX_BYTES: usize = 32_764;

/// A kernel's parameter block.
#[derive(Debug)]
pub(crate) struct Packing {
    slots: Vec<(AbiSlot, u32)>,
    bytes: usize,
}

/// Blocks up to this size are packed on the stack; that is all but those of kernels with dozens of views.
const ON_STACK: usize = 512;

/// Bytes that a slot takes; its alignment too. `None` for widths that do not exist.
fn slot_bytes(slot: &AbiSlot) -> Option<usize> {
    match *slot {
        AbiSlot::Address { .. } => Some(8),
        AbiSlot::Dim { bits, .. } | AbiSlot::Stride { bits, .. } => match bits {
            32 => Some(4),
            64 => Some(8),
            _ => None,
        },
        AbiSlot::Scalar { elem, .. } => elem.size_of(),
    }
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
            let bytes = slot_bytes(slot).ok_or_else(|| format!("its argument {slot:?} has no size"))?;
            offset = offset.next_multiple_of(bytes);
            slots.push((*slot, offset as u32));
            offset += bytes;
            if offset > MAX_BYTES {
                return Err(format!("its arguments take more than {MAX_BYTES} bytes"));
            }
        }
        Ok(Packing { slots, bytes: offset })
    }

    /// Packs, and gives the block to `submit`. An error, beside those of `submit`, means code that was compiled for other arguments (a damaged
    /// bundle): nothing may run then.
    #[inline]
    pub(crate) fn with_packed(
        &self,
        args: &[ArgValue<'_>],
        submit: impl FnOnce(&mut [u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut on_stack = [0; ON_STACK];
        let mut on_heap = Vec::new();
        let block = match on_stack.get_mut(..self.bytes) {
            Some(block) => block,
            None => {
                on_heap.resize(self.bytes, 0);
                &mut on_heap[..]
            }
        };
        self.pack(args, block)?;
        submit(block)
    }

    fn pack(&self, args: &[ArgValue<'_>], block: &mut [u8]) -> Result<(), String> {
        for &(slot, offset) in &self.slots {
            let offset = offset as usize;
            let ok = match slot {
                AbiSlot::Address { param } => {
                    let memory = args.get(param as usize).and_then(|a| a.memory());
                    memory.is_some_and(|m| put(block, offset, &m.address.to_le_bytes()))
                }
                AbiSlot::Dim { param, axis, bits } => match args.get(param as usize).map(|a| &a.0) {
                    Some(Arg::View(v)) => {
                        v.dims().get(axis as usize).is_some_and(|&d| put_int(block, offset, d as i64, bits))
                    }
                    _ => false,
                },
                AbiSlot::Stride { param, axis, bits } => match args.get(param as usize).map(|a| &a.0) {
                    Some(Arg::View(v)) => v
                        .strides()
                        .get(axis as usize)
                        .is_some_and(|&s| put_int(block, offset, s as i64, bits)),
                    _ => false,
                },
                AbiSlot::Scalar { param, elem } => match args.get(param as usize).map(|a| &a.0) {
                    Some(Arg::Scalar(s)) if s.elem == elem => {
                        let bytes = elem.size_of().unwrap_or(0).min(8);
                        put(block, offset, &s.bits.to_le_bytes()[..bytes])
                    }
                    _ => false,
                },
            };
            if !ok {
                return Err(format!("the compiled code wants {slot:?}, which the arguments do not have"));
            }
        }
        Ok(())
    }
}

#[inline]
fn put(block: &mut [u8], offset: usize, bytes: &[u8]) -> bool {
    match block.get_mut(offset..offset + bytes.len()) {
        Some(to) => {
            to.copy_from_slice(bytes);
            true
        }
        None => false,
    }
}

#[inline]
fn put_int(block: &mut [u8], offset: usize, value: i64, bits: u8) -> bool {
    match bits {
        // Only code for `small` views takes 32 bits, and the facts are part of the key; yet never truncate.
        32 => i32::try_from(value).is_ok_and(|v| put(block, offset, &v.to_le_bytes())),
        _ => put(block, offset, &value.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, TensorView};
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
            .with_packed(&args, |packed| {
                block = packed.to_vec();
                Ok(())
            })
            .unwrap();
        let mut expected = vec![1, 0, 0xfe, 0xff, 5, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        expected.extend(0x1122_3344_5566_7788u64.to_le_bytes());
        assert_eq!(&block[..], &expected[..]);
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
        ] {
            let packed = Packing::new(&[slot]).unwrap().with_packed(&args, |_| Ok(()));
            assert!(packed.is_err(), "{slot:?}");
        }
        assert!(Packing::new(&[AbiSlot::Dim { param: 0, axis: 0, bits: 16 }]).is_err());
        assert!(Packing::new(&[AbiSlot::Scalar { param: 0, elem: Elem::I4 }]).is_err());
        assert!(Packing::new(&vec![AbiSlot::Address { param: 0 }; 5000]).is_err());
    }
}
