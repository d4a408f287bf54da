#![doc = include_str!("from_triton.md")]

// Everything is in scope so that rustdoc checks that what the page names exists.
#[allow(unused_imports)]
use crate::*;
