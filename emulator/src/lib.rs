//! Tegula's PTX emulator.

pub mod numerics;
