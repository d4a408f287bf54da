//! Number formats of PTX, exactly: what a bit pattern means, and which pattern a value rounds to.
//!
//! Every format narrower than `f64` is decoded *to* `f64`, and rounded *from* `f64`; both are exact or rounded once. So there is one rounding
//! routine ([`round`]) for `cvt`, for the accumulators of the matrix units and for f16 arithmetic, instead of one a pair of formats.
//! [`double`] is f64 itself. Nothing here knows instructions; `cvt`'s canonical NaNs and `.satfinite` are parameters.

pub mod double;
mod format;

pub use format::{Format, Overflow, Rounding, decode, round, round_to_odd};
