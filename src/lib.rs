//! A tile-level GPU kernel language embedded in Rust.
