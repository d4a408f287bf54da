//! Runs PTX on the CPU, warp by warp, and reports what a GPU would not.
//!
//! ```text
//! text ──ptx──> syntax tree ──decode──> operations ──machine──> memory, reports, counters
//! ```
//!
//! [`ptx`] knows the grammar, [`decode`] the instructions, [`machine`] what they do, [`memory`] where. [`Module`] loads a text and launches its kernels;
//! [`Options`] says how: the seed of the schedule, when asynchronous work completes, who watches. The same seed gives the same run.
//!
//! ```
//! use tegula_emulator::{GlobalMemory, Launch, Module, Options};
//!
//! let ptx = r"
//! .version 8.0
//! .target sm_80
//! .address_size 64
//! .visible .entry twice(.param .u64 p) {
//!     .reg .b64 %rd<4>;
//!     .reg .b32 %r<3>;
//!     ld.param.u64 %rd1, [p];
//!     mov.u32 %r1, %tid.x;
//!     mul.wide.u32 %rd2, %r1, 4;
//!     add.s64 %rd3, %rd1, %rd2;
//!     ld.global.u32 %r2, [%rd3];
//!     shl.b32 %r2, %r2, 1;
//!     st.global.u32 [%rd3], %r2;
//!     ret;
//! }";
//! let mut memory = GlobalMemory::new();
//! let data = memory.allocate_from(&[1, 0, 0, 0, 2, 0, 0, 0], "data");
//! let module = Module::load(ptx, &mut memory).unwrap();
//! let params = data.to_le_bytes();
//! let launch = Launch::new("twice", [1, 1, 1], [2, 1, 1], &params);
//! let outcome = module.launch(&memory, &launch, &Options::default()).unwrap();
//! assert!(outcome.reports.is_empty());
//! let mut out = [0; 8];
//! memory.read(data, &mut out).unwrap();
//! assert_eq!(out, [2, 0, 0, 0, 4, 0, 0, 0]);
//! ```

pub mod asynchronous;
mod counters;
pub mod decode;
mod error;
mod launch;
pub mod machine;
pub mod matrix;
pub mod memory;
pub mod mutate;
pub mod numerics;
pub mod observe;
pub mod ptx;
mod report;
mod rng;
pub mod sanitize;

pub use counters::{Counters, InstructionCount, Traffic};
pub use decode::{Class, Program};
pub use error::{PtxError, Span};
pub use launch::{Launch, LaunchError, Module, Options, Outcome};
pub use machine::engine::Timing;
pub use memory::{GlobalMemory, MemoryError};
pub use report::{Location, Party, Report, ReportKind};
pub use rng::Rng;
