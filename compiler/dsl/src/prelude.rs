//! What `use tegula_dsl::prelude::*` brings in.

pub use crate::compare::{select, where_};
pub use crate::element::{Element, Float, Int, Numeric};
pub use crate::tile::{Scalar, Tile};
pub use half::{bf16, f16};
