//! Exact number conversions and the elementary functions of tile IR, for one value at a time.
//!
//! Everything that must know what a bit pattern means goes through here: the interpreter, constant folding, the language's
//! literals, the host side of tests. All conversions round *once*, straight from the source (an `f64` or an integer of any
//! width) to the target; going through `f32` would round twice and be wrong at midpoints.
//!
//! * [`mod@format`]: the small float formats as data, with one encoder and one decoder for all;
//! * [`tables`]: decode tables of the 4- and 8-bit formats;
//! * [`convert`]: conversions between the values of any two element types, by bit pattern;
//! * [`half_float`], [`math`]: branch-free 16-bit conversions and the elementary functions of f32, for loops that vectorise.

pub mod convert;
pub mod format;
pub mod half_float;
pub mod math;
pub mod tables;

pub use convert::{
    bits_to_f64, convert_bits, f64_to_bits, is_representable, literal_bits, literal_from_bits, round_to,
};
pub use format::FloatFormat;
