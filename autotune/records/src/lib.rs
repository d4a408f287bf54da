//! Tuning records: which config of a kernel is the fastest, by device and shape. Read, validated, merged, and used at launch.
//!
//! This is what a program that *uses* records depends on; what finds them is `tegula-autotune`, which brings a search, a database and a command line.
//!
//! ```no_run
//! let device = tegula::device("cuda")?;
//! let loaded = tegula_records::install("records", &device)?;
//! for problem in &loaded.refused {
//!     eprintln!("{problem}"); // file, line and reason; what was refused runs with its default
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bucket;
mod fields;
mod file;
mod folder;
pub mod library;
mod lookup;
mod problem;
mod source;
#[cfg(test)]
mod tests;
mod trace;

pub use bucket::{Dim, Valid, bucket, in_order, range};
pub use fields::{Config, Fields, Shape, Value, word_of};
pub use file::{FORMAT, Parsed, Record, RecordFile, rounded};
pub use folder::{Contents, Folder, read_file};
pub use library::{Loaded, install, load};
pub use lookup::Lookup;
pub use problem::{Problem, line_at};
pub use source::source_hash;
pub use trace::{AlreadyTraced, Trace};
