//! An argument as C says it, and as launches take it.

use std::ffi::c_char;

use tegula_ir::element::{Element, bf16, f8e4m3, f8e5m2, f8e8m0, f16};
use tegula_ir::types::Elem;
use tegula_runtime::{ArgValue, Device, TensorView, TensorViewMut};

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
        if self.kind == 4 {
            return Ok(ArgValue::scalar(T::from_bits64(self.value)));
        }
        let (one, unit) = ([1], [1]);
        let (shape, strides): (&[usize], &[usize]) = match self.kind {
            2 | 3 => (&one, &unit),
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
            0 => Ok(ArgValue::view(read()?, rank)),
            1 => Ok(ArgValue::view_mut(write()?, rank)),
            2 => Ok(ArgValue::ptr(read()?)),
            3 => Ok(ArgValue::ptr_mut(write()?)),
            kind => Err(format!("there is no kind {kind} of arguments")),
        }
    }
}
