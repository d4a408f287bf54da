//! Small kernels, written by hand: memory, atomics, control flow, what lanes do together, and what is reported when they are wrong.

mod atomics;
mod control;
mod copies;
mod counters;
mod harness;
mod lanes;
mod memory;
mod properties;
mod reader;
mod reports;
