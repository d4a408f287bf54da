//! What `use tegula_dsl::prelude::*` brings in.

pub use crate::atomic::*;
pub use crate::channel::{Channel, channel};
pub use crate::compare::{select, where_};
pub use crate::create::{
    arange, cdiv, constant, full, full_like, num_programs, program_id, zeros, zeros_like,
};
pub use crate::debug::{device_assert, max_contiguous, multiple_of, print};
pub use crate::device_print;
pub use crate::dot::{DotElem, DotInto, dot, dot_acc};
pub use crate::math::*;
pub use crate::offset::{Offset, offset};
pub use crate::pointer::{Ptr, PtrMut};
pub use crate::random::{philox, rand, rand4x, randint, randint4x, randn, randn4x};
pub use crate::range::{DeviceRange, persistent, range};
pub use crate::rearrange::{interleave, swizzle2d};
pub use crate::reduce::{reduce, scan, scan_reverse};
pub use crate::shape::{cat, join};
pub use crate::tile::{Scalar, Tile};
pub use crate::view::{View, ViewMut};
pub use crate::warp_groups;
pub use tegula_ir::element::{
    Bits, Comparable, Element, Float, Int, Num, SignedInt, bf16, f8e4m3, f8e5m2, f8e8m0, f16,
};
pub use tegula_ir::kernel::WarpSpecialize;
pub use tegula_ir::op::{MemOrder, MemScope, Padding};
