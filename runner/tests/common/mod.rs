//! What the runner's tests share. Each test program uses a part of it.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod gguf;
pub mod open;
pub mod smollm2;
