//! Devices, memory, launches and the kernel cache.
//!
//! A [`Device`] is opened by name, owns memory ([`Tensor`]) and runs kernels on [`Stream`]s. What `#[kernel]` writes
//! ends in a [`Launch`], which checks the arguments, finds or compiles the code for them, and runs it. A kernel takes the same
//! arguments on every device.
//!
//! Compiled kernels are kept in memory, per device, and on disk: in the user's cache folder (`~/.cache/tegula` on Linux) unless
//! `TEGULA_CACHE_DIR` names another or `TEGULA_CACHE=off` says none.
//!
//! Programs without a compiler run kernels from bundles ([`Bundle`], [`register_bundle`], `TEGULA_BUNDLE_PATH`); `bundles.rs` has the order in which a kernel is looked for.
//!
//! The crate knows code generators only as [`tegula_ir::artifact::Compiler`]. `unsafe` code is confined to `cuda/`.

mod backend;
mod backends;
mod bundles;
mod cache;
mod compile;
mod compiling;
mod cuda;
mod device;
#[cfg(feature = "emulator")]
mod emulated;
mod error;
mod event;
mod graph;
mod host;
mod immediate;
pub mod launch;
mod layout;
mod memory;
mod pack;
mod stream;
mod tensor;
mod tensor_map;
#[doc(hidden)]
pub mod testing;

pub use bundles::register_bundle;
pub use device::{Device, Properties, register_compiler};
#[cfg(feature = "emulator")]
pub use emulated::{Counts, Emulation, Timing};
pub use error::{Error, LaunchError};
pub use event::Event;
pub use graph::Graph;
pub use launch::{ArgValue, BundledKernel, Grid, IntoArg, KernelInfo, KernelKey, Launch, Stage};
pub use stream::Stream;
pub use tegula_bundle as bundle;
pub use tegula_bundle::Bundle;
pub use tensor::{Tensor, TensorView, TensorViewMut};
