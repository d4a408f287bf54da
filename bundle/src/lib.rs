//! Compiled kernels as bytes: one by one ([`codec`]), and as libraries that programs without a compiler run from ([`Bundle`]).
//!
//! A bundle holds kernels, each compiled under some sets of facts of its arguments (variants) and for some targets (images). A launch finds its kernel by
//! the hash of its tile IR ([`SourceHash`]); of the variants whose facts hold for the arguments, the most specialised one runs ([`facts`]); of that one's
//! images, the one that fits the GPU best ([`target`]). [`format`](mod@format) has the bytes.
//!
//! ```
//! use tegula_bundle::{Bundle, Builder};
//!
//! let empty = Builder::new().finish();
//! let bundle = Bundle::from_bytes("empty", empty)?;
//! assert_eq!(bundle.len(), 0);
//! # Ok::<(), tegula_bundle::Error>(())
//! ```
//!
//! The crate knows neither compilers nor devices. `unsafe` stands in `source.rs` only, for the map of a file.

pub mod codec;
mod error;
pub mod facts;
pub mod format;
mod identity;
mod labels;
mod read;
mod source;
pub mod target;
mod write;

pub use error::{Error, Fault};
pub use format::{Image, Label, ParamKind, ParamRecord, Part, Record, Variant};
pub use identity::{SourceHash, without_locations};
pub use read::{Bundle, Found, Wanted};
pub use write::{Builder, replaceable, write_file};
