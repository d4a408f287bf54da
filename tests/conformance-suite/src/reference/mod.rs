//! Scalar references: what operations give, one element at a time, in f64 and i128.

pub mod elementwise;
pub mod tile;
