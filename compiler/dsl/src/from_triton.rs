//! Where the words of `triton.language` are (the text is a page of its own, `from_triton.md`).

#![doc = include_str!("from_triton.md")]

// Everything is in scope so that rustdoc checks that what the page names exists.
#[allow(unused_imports)]
use crate::*;
