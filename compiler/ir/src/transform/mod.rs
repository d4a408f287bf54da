//! Passes over tile IR: one file each.

pub mod assign_layouts;
pub mod insert_barriers;
pub mod pipeline_loops;
pub mod plan_shared_memory;
