//! What `use tegula::prelude::*` brings in: all that a kernel is written with.

pub use crate::{Carry, kernel, tile_fn};
pub use tegula_dsl::prelude::*;
