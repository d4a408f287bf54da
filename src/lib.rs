//! A tile-level GPU kernel language embedded in Rust.
//!
//! `use tegula::prelude::*;` brings in the words of the language; a function with [`macro@kernel`] is a kernel.
//!
//! ```
//! use tegula::prelude::*;
//!
//! /// y = x / rms(x) · w, one row a program.  x, y: [rows, cols]; w: [cols].
//! #[kernel]
//! pub fn rms_norm<T: Float>(x: View<T, 2>, w: View<T, 1>, y: ViewMut<T, 2>, eps: Scalar<f32>, block: usize) {
//!     let row = program_id(0);
//!     let xs = x.load([row, 0], [1, block]).cast::<f32>(); // out of bounds reads as 0
//!     let var = (xs * xs).sum(1) / x.dim(1).cast::<f32>();
//!     let inv = rsqrt(var + eps);
//!     y.store([row, 0], (xs * inv.expand(1) * w.load([0], [block]).cast::<f32>()).cast::<T>());
//! }
//!
//! let kernel = rms_norm::<bf16>::stage(4096).unwrap(); // or the call `rms_norm::<bf16>(&x, &w, &mut y, 1e-6, 4096)`, to launch it
//! assert_eq!(kernel.name, "rms_norm_bf16");
//! ```

pub use tegula_dsl as dsl;
pub use tegula_dsl::{Diagnostic, Diagnostics, KernelDef, MetaParam};
pub use tegula_ir as ir;
pub use tegula_macros::{Carry, kernel, tile_fn};
pub use tegula_runtime as runtime;

pub mod prelude;

#[doc(hidden)]
pub mod __private;

/// Opens a device by name (`host`, `emulated`, `cuda`, `cuda:1`, …; see [`runtime::Device::open`]) and gives it a compiler, if this crate was built with one (feature `jit`).
///
/// # Errors
/// For an unknown name, without a driver, or without such a GPU; the message says what to do.
pub fn device(name: &str) -> Result<runtime::Device, runtime::Error> {
    register_compiler();
    runtime::Device::open(name)
}

/// A device that compiles as the one with these properties would and runs nothing (see [`runtime::Device::compiling_for`]), with this crate's compiler.
///
/// # Errors
/// If that device needs no compilation.
pub fn compiling_for(device: &runtime::Properties) -> Result<runtime::Device, runtime::Error> {
    register_compiler();
    runtime::Device::compiling_for(device)
}

/// The compiler that this crate was built with, once.
fn register_compiler() {
    #[cfg(feature = "jit")]
    {
        static REGISTERED: std::sync::Once = std::sync::Once::new();
        REGISTERED.call_once(|| {
            runtime::register_compiler(std::sync::Arc::new(tegula_codegen::compile::PtxCompiler::default()));
        });
    }
}

/// A bundle as part of the program: `include_bundle!("kernels.tegula")`, the path as for [`include_bytes!`].
///
/// Gives a `Result<Bundle, bundle::Error>`; launches look in it once it is registered:
///
/// ```ignore
/// tegula::runtime::register_bundle(tegula::include_bundle!("kernels.tegula")?);
/// ```
#[macro_export]
macro_rules! include_bundle {
    ($path:expr) => {
        $crate::runtime::Bundle::embedded($path, ::core::include_bytes!($path))
    };
}

/// What the README and the book show is compiled and run with the documentation tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    pub struct Readme;
    #[doc = include_str!("../docs/book/src/first_kernel.md")]
    pub struct FirstKernel;
    #[doc = include_str!("../docs/book/src/control_flow.md")]
    pub struct ControlFlow;
    #[doc = include_str!("../docs/book/src/from_triton.md")]
    pub struct FromTriton;
    #[doc = include_str!("../docs/book/src/debugging.md")]
    pub struct Debugging;
    #[doc = include_str!("../docs/book/src/emulated.md")]
    pub struct Emulated;
    #[doc = include_str!("../docs/book/src/explicit.md")]
    pub struct Explicit;
}
