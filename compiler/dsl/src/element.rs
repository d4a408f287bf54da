//! The Rust types that stand for element types.

use half::{bf16, f16};
use tegula_ir::Elem;

/// A Rust type that stands for an element type of tiles and views.
pub trait Element: Copy + 'static {
    /// The element type in tile IR.
    const ELEM: Elem;
}

/// An element type that arithmetic is defined on.
pub trait Numeric: Element {}

/// A float that arithmetic is defined on: f16, bf16, f32, f64.
pub trait Float: Numeric {}

/// An integer of 8 bits and more.
pub trait Int: Numeric {}

macro_rules! elements {
    ($($marker:ident: $($ty:ty = $elem:ident),+;)+) => {$($(
        impl Element for $ty {
            const ELEM: Elem = Elem::$elem;
        }
        impl Numeric for $ty {}
        impl $marker for $ty {}
    )+)+};
}

elements! {
    Float: f16 = F16, bf16 = BF16, f32 = F32, f64 = F64;
    Int: i8 = I8, u8 = U8, i16 = I16, u16 = U16, i32 = I32, u32 = U32, i64 = I64, u64 = U64;
}

impl Element for bool {
    const ELEM: Elem = Elem::I1;
}
