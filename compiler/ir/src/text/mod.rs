//! The text form of kernels: what every stage prints, every test reads, and people write by hand.
//!
//! ```text
//! kernel @row_sum(%x: view<?x?xf32> {align = 16, unit_stride = 1}, %y: view_mut<?xf32>) hints {num_warps = 4, num_stages = 3} {
//!   %0 = program_id 0 : i32
//!   %1 = const 0 : i32
//!   %2 = view_load {padding = neg_inf} %x[%0, %1] : tile<1x1024xf32>
//!   %3 = reduce {axis = 1} %2 : tile<1xf32> {
//!   ^(%4: f32, %5: f32):
//!     %6 = add %4, %5 : f32
//!     yield %6
//!   }
//!   view_store %y[%0], %3
//! }
//! ```
//!
//! # Grammar
//! ```text
//! file     = { layout } kernel { { layout } kernel }
//! layout   = "#N" "=" …        as [`crate::layout`] prints; the table of the kernel that follows, numbered from 0
//! kernel   = "kernel" "@name" "(" [ param { "," param } ] ")" [ "hints" attrs ] "{" { op } "}"
//! param    = "%name" ":" type [ attrs ]
//! op       = [ results "=" ] mnemonic [ fixed ] [ attrs ] [ operands ] [ ":" type { "," type } ] [ loc ] [ region ]
//! fixed    = a literal, a number, a comparison or a message, where the mnemonic wants one
//! attrs    = "{" key [ "=" value ] { "," key [ "=" value ] } "}"
//! operands = item { "," item }     item = "%v" [ "[" %v, … "]" ] | "[" %v, … "]"
//! region   = "{" [ "^" "(" %v ":" type, … ")" ":" ] { op } "}"
//! loc      = "loc" "(" "\"file\"" ":" line ":" column ")"
//!
//! for      = "for" [ attrs ] "%i" "=" "%lo" "to" "%hi" "step" "%step" [ "carry" "(" "%a" "=" "%init", … ")" ] [ ":" types ] region
//! while    = "while" [ "carry" "(" "%a" "=" "%init", … ")" ] [ ":" types ] region "do" [ "(" %b, … ")" ] region
//! if       = "if" "%cond" [ ":" types ] region [ "else" region ]
//! ```
//! Only result types are written, since the operands have theirs. Brackets among operands are for the reader: they set
//! offsets, slots, extents and strides apart. `//` starts a comment. Attributes at their default are left out, and so is an
//! `else` that holds nothing but `yield`.
//!
//! # Contract
//! * For every kernel that the verifier accepts, `parse(print(k))` is `k` up to numbering, and `print(parse(print(k)))` is
//!   `print(k)` to the letter. Literals are exact, NaN payloads included. Names of parameters stay; other values have no
//!   name in the arena and are numbered in the order of the text.
//! * The printer shows *any* kernel without panicking; what the verifier would reject may print in a form that
//!   does not parse.
//! * The parser never panics; it stops at the first error, which carries its span apart from its words. It checks what it must to build a
//!   kernel (syntax, names, ranks); whether types fit is for [`crate::verify`].

mod error;
mod lex;
mod names;
mod opcode;
mod parse;
mod print;
#[cfg(test)]
mod tests;
mod ty;

pub use error::{ParseError, ParseErrorKind};
pub use parse::{parse, parse_kernel, parse_with_file};
pub use print::{PrintOptions, print, print_annotated, print_with};
