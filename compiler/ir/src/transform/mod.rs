//! Passes over tile IR: one file each.

pub mod assign_layouts;
