//! The autotuner: finds the fastest config of each kernel for the shapes that are served, and keeps it as a record that a team can review and deploy.
//!
//! A kernel that implements [`Tunable`] has the whole command line with a `main` of one line; the kernel library's are in [`library`]. What uses records at launch is
//! `tegula-records`, which has none of this in it.
//!
//! ```text
//! tegula-autotune tune gemm,attention,rms_norm --shapes llama3-8b --budget 10m
//! ```

mod cli;
pub mod cost;
pub mod device;
pub mod kernel;
pub mod library;
pub mod report;
pub mod search;
pub mod shapes;
pub mod trial;
pub mod worker;

pub use cli::main;
pub use kernel::{Config, Fault, Instance, Purpose, Shape, Tunable};
pub use tegula_records::{Dim, Problem, source_hash};
