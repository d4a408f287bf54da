//! An argument as C says it, and as launches take it.

use std::ffi::c_char;

use tegula_ir::element::{Element, bf16, f8e4m3, f8e5m2, f8e8m0, f16};
use tegula_ir::types::Elem;
use tegula_runtime::{ArgValue, Device, TensorView, TensorViewMut};

/// `TEGULA_VIEW` and so on, of the header.
pub const VIEW: u32 = 0;
pub const VIEW_MUT: u32 = 1;
pub const POINTER: u32 = 2;
pub const POINTER_MUT: u32 = 3;
pub const SCALAR: u32 = 4;

/// `tegula_argument` of the header.
#[repr(C)]
pub struct Argument {
    kind: u32,
    rank: u32,
    ty: *const c_char,
    value: u64,
    shape: *const usize,
    strides: *const usize,
}

/// More dimensions than any view has.
const MOST_DIMENSIONS: u32 = 64;

impl Argument {
    /// The argument of a launch.
    ///
    /// # Safety
    /// The type is a string, shape and strides have `rank` elements, and the address is as `TensorViewMut::from_raw_parts` wants it.
    pub unsafe fn value<'a>(&self, device: &'a Device) -> Result<ArgValue<'a>, String> {
        // SAFETY: passed on.
        let elem = unsafe { crate::text(self.ty, "its type") }?;
        let elem: Elem = elem.parse().map_err(|_| format!("there is no element type `{elem}`"))?;
        macro_rules! of_type {
            ($($elem:ident $ty:ty),*) => {
                match elem {
                    // SAFETY: passed on.
                    $(Elem::$elem => unsafe { self.typed::<$ty>(device) },)*
                    packed => Err(format!("{packed} exists only packed: pass its bytes as `u8`")),
                }
            };
        }
        of_type!(
            I1 bool, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64,
            F8E4M3 f8e4m3, F8E5M2 f8e5m2, F8E8M0 f8e8m0, F16 f16, BF16 bf16, F32 f32, F64 f64
        )
    }

    /// # Safety
    /// As for [`Argument::value`].
    unsafe fn typed<'a, T: Element>(&self, device: &'a Device) -> Result<ArgValue<'a>, String> {
        if self.kind == SCALAR {
            return Ok(ArgValue::scalar(T::from_bits64(self.value)));
        }
        let (one, unit) = ([1], [1]);
        let (shape, strides): (&[usize], &[usize]) = match self.kind {
            POINTER | POINTER_MUT => (&one, &unit),
            _ if self.rank == 0 => (&[], &[]),
            _ if self.rank > MOST_DIMENSIONS || self.shape.is_null() || self.strides.is_null() => {
                return Err(format!("a view of rank {} without so many extents and strides", self.rank));
            }
            // SAFETY: passed on.
            _ => unsafe {
                let rank = self.rank as usize;
                (std::slice::from_raw_parts(self.shape, rank), std::slice::from_raw_parts(self.strides, rank))
            },
        };
        self.check_memory(size_of::<T::Storage>() as u64, shape, strides)?;
        let rank = shape.len();
        let read = || {
            // SAFETY: passed on.
            unsafe { TensorView::<T>::from_raw_parts(self.value, shape, strides, device) }
                .map_err(|e| e.to_string())
        };
        let write = || {
            // SAFETY: passed on.
            unsafe { TensorViewMut::<T>::from_raw_parts(self.value, shape, strides, device) }
                .map_err(|e| e.to_string())
        };
        match self.kind {
            VIEW => Ok(ArgValue::view(read()?, rank)),
            VIEW_MUT => Ok(ArgValue::view_mut(write()?, rank)),
            POINTER => Ok(ArgValue::ptr(read()?)),
            POINTER_MUT => Ok(ArgValue::ptr_mut(write()?)),
            kind => Err(format!("there is no kind {kind} of arguments")),
        }
    }

    /// What a kernel would fault on, or go wrong by: a GPU says of an address only that it was illegal, after which the context is lost.
    fn check_memory(&self, elem_bytes: u64, shape: &[usize], strides: &[usize]) -> Result<(), String> {
        let empty = shape.contains(&0);
        if self.value == 0 && !empty {
            return Err(match self.kind {
                POINTER | POINTER_MUT => "its address is null".to_owned(),
                _ => format!("its address is null, but it has elements (extents {shape:?})"),
            });
        }
        if !self.value.is_multiple_of(elem_bytes) {
            return Err(format!(
                "its address, {:#x}, is not a multiple of its elements' {elem_bytes} bytes",
                self.value
            ));
        }
        if self.kind == VIEW_MUT && !empty && overlaps_itself(shape, strides) {
            return Err(format!(
                "it is written, but some of its elements lie at one place (extents {shape:?}, strides {strides:?})"
            ));
        }
        Ok(())
    }
}

/// Are there elements at one place that differ in one index, or in two? (With more it is a search, which a launch has no time for.)
fn overlaps_itself(shape: &[usize], strides: &[usize]) -> bool {
    let axes = || shape.iter().zip(strides).filter(|&(&extent, _)| extent > 1);
    // Steps of two axes cancel each other out first after as many as the least common multiple of the strides has.
    let cancel = |(&m, &a): (&usize, &usize), (&n, &b): (&usize, &usize)| {
        let divisor = gcd(a, b);
        b / divisor < m && a / divisor < n
    };
    axes().any(|(_, &stride)| stride == 0)
        || axes().enumerate().any(|(index, axis)| axes().skip(index + 1).any(|other| cancel(axis, other)))
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By looking at every element.
    fn overlaps(shape: &[usize], strides: &[usize]) -> bool {
        let mut places = vec![0];
        for (&extent, &stride) in shape.iter().zip(strides) {
            places = places.iter().flat_map(|&at| (0..extent).map(move |i| at + i * stride)).collect();
        }
        let all = places.len();
        places.sort();
        places.dedup();
        places.len() < all
    }

    #[test]
    fn elements_at_one_place_are_found() {
        // Every view of up to two dimensions.
        for (m, a) in (1..6).flat_map(|m| (0..8).map(move |a| (m, a))) {
            assert_eq!(overlaps_itself(&[m], &[a]), overlaps(&[m], &[a]), "{m} by {a}");
            for (n, b) in (1..6).flat_map(|n| (0..8).map(move |b| (n, b))) {
                let (shape, strides) = ([m, n], [a, b]);
                assert_eq!(
                    overlaps_itself(&shape, &strides),
                    overlaps(&shape, &strides),
                    "{shape:?} {strides:?}"
                );
            }
        }
        // With more dimensions nothing is refused that is right.
        for strides in (0..1000).map(|n| [n / 100, n / 10 % 10, n % 10]) {
            for shape in [[2, 3, 4], [3, 2, 2], [1, 5, 2], [2, 2, 2]] {
                assert!(
                    !overlaps_itself(&shape, &strides) || overlaps(&shape, &strides),
                    "{shape:?} {strides:?}"
                );
            }
        }
        assert!(!overlaps_itself(&[], &[]) && !overlaps_itself(&[usize::MAX, 2], &[2, 1]));
        assert!(overlaps_itself(&[4, 64, 8], &[512, 0, 1]) && !overlaps_itself(&[4, 1, 8], &[8, 0, 1]));
    }
}
