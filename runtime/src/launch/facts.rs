//! What a launch knows of its arguments and lets the compiler use.
//!
//! Facts are computed as a few bits an argument, since they are part of the key of every launch, and spelled out as [`ParamFacts`] only for a kernel that has to be compiled; so
//! the key and the facts cannot disagree. With them goes the argument's type, so that code never runs on arguments of other types than it was compiled for, whatever
//! else the key says. Those of a view's shape and strides are found when the view is made, not when it is launched with.

use smallvec::SmallVec;
use tegula_ir::artifact::{MAX_TENSOR_MAP_STRIDE, TENSOR_MAP_RANK};
use tegula_ir::kernel::{ParamFacts, SMALL_EXTENT};
use tegula_ir::types::Elem;

use super::args::{Arg, ArgValue, MemoryArg};
use crate::layout::Layout;
use crate::memory::Access;

/// The divisor that facts are about, of addresses in bytes, of integers, extents and strides as they are: what 16-byte vector
/// accesses and TMA ask for.
const DIVISOR: u64 = 16;

// An argument's facts, as bits.
/// The address is a multiple of 16.
const ALIGNED: u64 = 1 << 0;
/// An integer is a multiple of 16.
const DIVISIBLE: u64 = 1 << 1;
/// An integer is 1.
const ONE: u64 = 1 << 2;
/// All offsets and extents fit in 31 bits.
const SMALL: u64 = 1 << 3;
/// The axis with stride 1, plus 1 (4 bits); 0: none.
const UNIT_AXIS: u32 = 4;
/// A bit an axis: the stride is a multiple of 16.
const STRIDES: u32 = 8;
/// A bit an axis: the stride is a multiple of 16 bytes.
const BYTE_STRIDES: u32 = 16;
/// A bit an axis: the extent is a multiple of 16.
const DIMS: u32 = 24;
/// A bit an axis, of small views: the stride times the extent of a tile may not fit in 31 bits.
const LONG: u32 = 32;
/// The element type (8 bits).
const ELEM: u32 = 40;
/// The rank of a view (8 bits).
const RANK: u32 = 48;
/// A view, a pointer or a scalar (2 bits).
const KIND: u32 = 56;
/// The memory may be written.
const MUTABLE: u32 = 58;
/// A tensor map can describe the view, if its address is aligned.
const TENSOR_MAP: u64 = 1 << 59;

/// The facts of an argument and its type. Of a view, the rank is what its parameter asks for, which a launch checks first.
#[inline]
pub(crate) fn bits(arg: &ArgValue<'_>) -> u64 {
    match &arg.0 {
        Arg::View(view) => {
            let rank = (view.expected_rank as u64) << RANK;
            1 << KIND | rank | of_memory(&view.memory) | view.facts.0
        }
        Arg::Pointer(p) => 2 << KIND | of_memory(p),
        Arg::Scalar(s) => 3 << KIND | (s.elem as u64) << ELEM | s.facts.0,
    }
}

#[inline]
fn of_memory(memory: &MemoryArg<'_>) -> u64 {
    let mutable = (memory.access == Access::Write) as u64;
    mutable << MUTABLE | (memory.elem as u64) << ELEM | aligned(memory.address)
}

/// The facts of an argument that do not depend on its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Facts(u64);

impl Facts {
    /// Of a view with elements of so many bytes.
    pub(crate) fn of_layout(layout: &Layout, bytes: usize) -> Facts {
        Facts(layout_bits(layout, bytes))
    }

    /// Of a scalar; `bits` are the value's, zero-extended. (Sign extension would change neither fact.)
    #[inline]
    pub(crate) fn of_scalar(elem: Elem, bits: u64) -> Facts {
        Facts(match bits {
            _ if !elem.is_int() => 0,
            1 => ONE,
            x if x.is_multiple_of(DIVISOR) => DIVISIBLE,
            _ => 0,
        })
    }
}

#[inline]
fn aligned(address: u64) -> u64 {
    if address.is_multiple_of(DIVISOR) { ALIGNED } else { 0 }
}

fn layout_bits(layout: &Layout, bytes: usize) -> u64 {
    let (mut bits, mut long) = (0, 0);
    let mut last = 0usize;
    let mut fits = true;
    for (axis, (&dim, &stride)) in layout.dims().iter().zip(layout.strides()).enumerate() {
        let flag = |shift: u32, on: bool| if on { 1 << (shift as usize + axis) } else { 0 };
        bits |= flag(STRIDES, stride.is_multiple_of(DIVISOR as usize))
            | flag(BYTE_STRIDES, (stride * bytes).is_multiple_of(DIVISOR as usize))
            | flag(DIMS, dim.is_multiple_of(DIVISOR as usize));
        long |= flag(LONG, stride * bytes > i32::MAX as usize / SMALL_EXTENT as usize);
        if stride == 1 {
            bits = bits & !(0xf << UNIT_AXIS) | ((axis as u64 + 1) << UNIT_AXIS);
        }
        fits &= dim <= i32::MAX as usize && stride <= i32::MAX as usize;
        last = last.saturating_add(dim.saturating_sub(1).saturating_mul(stride));
    }
    if fits && last.saturating_add(1).saturating_mul(bytes) <= i32::MAX as usize {
        bits |= SMALL | long;
    }
    if tensor_map(layout, bytes, bits) {
        bits |= TENSOR_MAP;
    }
    bits
}

/// Can a tensor map describe the layout? Follows from the other facts, but for huge extents and strides: no kernel is compiled twice for it.
fn tensor_map(layout: &Layout, bytes: usize, bits: u64) -> bool {
    let unit = (bits >> UNIT_AXIS & 0xf) as usize;
    let others = (0..layout.rank()).filter(|axis| axis + 1 != unit);
    (1..=TENSOR_MAP_RANK).contains(&layout.rank())
        && unit != 0
        && layout.dims().iter().all(|&dim| dim <= i32::MAX as usize)
        && others.clone().all(|axis| bits & 1 << (BYTE_STRIDES as usize + axis) != 0)
        && others.clone().all(|axis| layout.strides()[axis] * bytes < MAX_TENSOR_MAP_STRIDE)
}

/// The facts that the bits of an argument stand for.
pub(crate) fn expand(bits: u64, arg: &ArgValue<'_>) -> ParamFacts {
    let has = |flag: u64| bits & flag != 0;
    let known = |on: bool| if on { DIVISOR as u32 } else { 1 };
    let mut facts = ParamFacts {
        align: if has(ALIGNED) { DIVISOR as u32 } else { 0 },
        divisible: if has(DIVISIBLE) { DIVISOR as u32 } else { 0 },
        small: has(SMALL),
        tensor_map: has(TENSOR_MAP),
        value: has(ONE).then_some(1),
        unit_stride: match bits >> UNIT_AXIS & 0xf {
            0 => None,
            axis => Some(axis as u8 - 1),
        },
        ..ParamFacts::default()
    };
    if let Arg::View(view) = &arg.0 {
        let bytes = view.memory.elem.size_of().unwrap_or(1) as u32;
        let axes = 0..view.dims().len() as u32;
        let stride = |axis: u32| match (has(1 << (STRIDES + axis)), has(1 << (BYTE_STRIDES + axis))) {
            (true, _) => DIVISOR as u32,
            (_, true) => DIVISOR as u32 / bytes,
            _ => 1,
        };
        facts.stride_divisible = axes.clone().map(stride).collect::<SmallVec<_>>();
        facts.long_strides = axes.clone().filter(|axis| has(1 << (LONG + axis))).collect();
        facts.dim_divisible = axes.map(|axis| known(has(1 << (DIMS + axis)))).collect::<SmallVec<_>>();
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::tensor::TensorView;
    use tegula_ir::element::{Element, bf16};

    fn view_facts<T: Element>(address: u64, shape: &[usize], strides: &[usize]) -> ParamFacts {
        let device = Device::testing();
        let view = TensorView::<T>::raw(&device, address, shape, strides).unwrap();
        let arg = ArgValue::view(view, shape.len());
        expand(bits(&arg), &arg)
    }

    #[test]
    fn views() {
        let f = view_facts::<bf16>(4096, &[32, 40], &[40, 1]);
        assert_eq!((f.align, f.small, f.unit_stride), (16, true, Some(1)));
        assert_eq!((&f.stride_divisible[..], &f.dim_divisible[..]), (&[8, 1][..], &[16, 1][..]));
        let f = view_facts::<f32>(4100, &[3, 64], &[1, 48]);
        assert_eq!((f.align, f.unit_stride), (0, Some(0)));
        assert_eq!(&f.stride_divisible[..], [1, 16]);
        assert_eq!(view_facts::<f32>(16, &[4], &[2]).unit_stride, None);
    }

    #[test]
    fn small_means_31_bits_of_bytes() {
        assert!(view_facts::<u8>(0, &[(1 << 31) - 1], &[1]).small);
        assert!(!view_facts::<u8>(0, &[1 << 31], &[1]).small);
        assert!(!view_facts::<bf16>(0, &[1 << 30], &[1]).small);
        // The issue that 32-bit offsets are known for: 1,048,641 × 4096.
        assert!(!view_facts::<bf16>(0, &[1_048_641, 4096], &[4096, 1]).small);
        // A stride that no element needs must still fit where it is passed.
        assert!(!view_facts::<u8>(0, &[1, 8], &[1 << 40, 1]).small);
        assert!(view_facts::<u8>(0, &[0, 8], &[8, 1]).small);
    }

    #[test]
    fn long_strides_of_small_views() {
        // A batch of 64 with 4 MiB each: offsets are small, but a tile of 4096 of them would reach further.
        let f = view_facts::<bf16>(0, &[64, 1024, 2048], &[1 << 21, 2048, 1]);
        assert_eq!((f.small, &f.long_strides[..]), (true, &[0][..]));
        let edge = i32::MAX as usize / SMALL_EXTENT as usize;
        assert!(view_facts::<u8>(0, &[8, 8], &[edge, 1]).long_strides.is_empty());
        assert_eq!(view_facts::<u8>(0, &[8, 8], &[edge + 1, 1]).long_strides[..], [0]);
        assert!(view_facts::<u8>(0, &[1 << 20, 1 << 20], &[1 << 20, 1]).long_strides.is_empty(), "not small");
    }

    #[test]
    fn what_a_tensor_map_can_describe() {
        let is = |shape: &[usize], strides: &[usize]| view_facts::<bf16>(0, shape, strides).tensor_map;
        assert!(is(&[100, 37], &[40, 1]) && is(&[37, 100], &[1, 40]) && is(&[5], &[1]));
        assert!(is(&[0, 64], &[64, 1]), "without elements");
        assert!(is(&[3, 8, 4, 5, 64], &[0, 8, 64, 16, 1]), "strides of 0, and rows that overlap");
        assert!(!is(&[100, 37], &[36, 1]), "72 bytes");
        assert!(!is(&[100, 37], &[80, 2]) && !is(&[], &[]), "no unit stride");
        assert!(!is(&[2, 2, 2, 2, 2, 64], &[64, 64, 64, 64, 64, 1]), "six dimensions");
        assert!(is(&[2, 64], &[(1 << 39) - 8, 1]) && !is(&[2, 64], &[1 << 39, 1]), "a stride of 2^40 bytes");
        assert!(is(&[(1 << 31) - 1], &[1]) && !is(&[1 << 31], &[1]), "coordinates have 31 bits");
    }

    #[test]
    fn arguments_of_different_types_differ() {
        let device = Device::testing();
        let mut t = device.zeros::<f32>(&[64]).unwrap();
        let matrix = device.zeros::<f32>(&[8, 8]).unwrap();
        let (ints, signed) = (device.zeros::<u32>(&[64]).unwrap(), device.zeros::<i32>(&[64]).unwrap());
        let all = [
            bits(&ArgValue::tensor(&t, 1)),
            bits(&ArgValue::tensor_mut(&mut t, 1)),
            bits(&ArgValue::ptr(t.view())),
            bits(&ArgValue::ptr_mut(t.view_mut())),
            bits(&ArgValue::tensor(&matrix, 2)),
            bits(&ArgValue::tensor(&ints, 1)),
            bits(&ArgValue::tensor(&signed, 1)),
            bits(&ArgValue::ptr(ints.view())),
            bits(&ArgValue::scalar(7u32)),
            bits(&ArgValue::scalar(7i32)),
            bits(&ArgValue::scalar(7.0f32)),
        ];
        // As a key sees them: the types alone.
        let types = all.map(|bits| bits >> ELEM);
        let distinct: std::collections::HashSet<u64> = types.iter().copied().collect();
        assert_eq!(distinct.len(), types.len(), "{types:x?}");
    }

    #[test]
    fn scalars() {
        let f = |arg: ArgValue<'_>| expand(bits(&arg), &arg);
        assert_eq!(f(ArgValue::scalar(1i32)).value, Some(1));
        assert_eq!(f(ArgValue::scalar(48i64)).divisible, 16);
        assert_eq!(f(ArgValue::scalar(-16i8)).divisible, 16);
        assert_eq!(f(ArgValue::scalar(u64::MAX - 15)).divisible, 16);
        assert_eq!(f(ArgValue::scalar(7u8)), ParamFacts::default());
        assert_eq!(f(ArgValue::scalar(16.0f32)), ParamFacts::default());
        assert_eq!(f(ArgValue::scalar(true)), ParamFacts::default());
    }
}
