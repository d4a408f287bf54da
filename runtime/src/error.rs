//! Errors. Each message says what is wrong and, where there is something to do about it, what.

use std::fmt;

use tegula_ir::artifact::CompileError;

/// An error of a device, its memory or its streams.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No device has this name.
    #[error("there is no device `{name}`; known: {known}")]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The CUDA driver could not be used.
    #[error("{0}")]
    NoDriver(String),
    /// No GPU has this ordinal.
    #[error("there is no GPU {ordinal}: the driver sees {count} (CUDA_VISIBLE_DEVICES may hide some)")]
    NoSuchGpu {
        /// The ordinal asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// Memory ran out.
    #[error("{device}: out of memory: {requested} bytes were asked for{}", match .free {
        Some(free) => format!(", {free} are free"),
        None => String::new(),
    })]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes asked for.
        requested: usize,
        /// Bytes free, where known.
        free: Option<usize>,
    },
    /// A shape, a range or a permutation does not fit.
    #[error("{0}")]
    Shape(String),
    /// Two things that must be of one device are not.
    #[error("{what} is on device `{found}`, but `{expected}` is needed here: copy it there first")]
    WrongDevice {
        /// What.
        what: String,
        /// Where it is.
        found: String,
        /// Where it should be.
        expected: String,
    },
    /// The driver refused.
    #[error("{device}: {call} failed: {message}")]
    Driver {
        /// The device.
        device: String,
        /// The driver's function.
        call: &'static str,
        /// The driver's words.
        message: String,
    },
    /// The device, or a stream in its present state, cannot do this.
    #[error("{0}")]
    Unsupported(String),
}

/// Why a kernel could not be launched, or what stopped it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// An argument does not fit.
    #[error("kernel `{kernel}`, argument `{param}`: {message}")]
    Argument {
        /// The kernel.
        kernel: String,
        /// The parameter.
        param: String,
        /// What is wrong.
        message: String,
    },
    /// The grid or an option is out of range.
    #[error("kernel `{kernel}`: {message}")]
    Configuration {
        /// The kernel.
        kernel: String,
        /// What is wrong.
        message: String,
    },
    /// The body could not be staged with these meta-parameters. The message is rendered with the source.
    #[error("kernel `{kernel}` cannot be built with these meta-parameters:\n{message}")]
    Stage {
        /// The kernel.
        kernel: String,
        /// The rendered errors.
        message: String,
    },
    /// The kernel is not compiled and there is no compiler.
    #[error(
        "kernel `{kernel}` is not compiled for {target}, and this program has no compiler: \
         enable the feature `jit` of the crate `tegula`, register one with `tegula_runtime::register_compiler`, \
         or load a bundle that contains the kernel"
    )]
    NoCompiler {
        /// The kernel.
        kernel: String,
        /// The target.
        target: String,
    },
    /// The kernel is in no bundle in a form that could run, and there is no compiler.
    #[error(
        "kernel `{kernel}` is not precompiled for this launch on {target}, and this program has no compiler:\n{message}"
    )]
    NotInBundles {
        /// The kernel.
        kernel: String,
        /// The target.
        target: String,
        /// A line for each bundle that was asked: what it has instead.
        message: String,
    },
    /// The bundle that has the kernel is damaged. Nothing else is run in its place.
    #[error("kernel `{kernel}`: {error}")]
    Bundle {
        /// The kernel.
        kernel: String,
        /// What is wrong.
        error: Box<tegula_bundle::Error>,
    },
    /// The compiler refused.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The kernel could not be loaded or run, or failed while it ran.
    #[error("kernel `{kernel}` on {device}: {message}")]
    Run {
        /// The kernel.
        kernel: String,
        /// The device.
        device: String,
        /// What happened and what to do next.
        message: String,
    },
    /// The device failed outside of a launch, as while a graph was recorded.
    #[error(transparent)]
    Other(#[from] Error),
    /// The device failed.
    #[error("kernel `{kernel}`: {error}")]
    Device {
        /// The kernel.
        kernel: String,
        /// The device's error.
        error: Error,
    },
}

/// As displayed: `main() -> Result<(), Box<dyn Error>>` and `unwrap` show an error so, and a staging error has lines to keep apart.
macro_rules! debug_as_display {
    ($($error:ty)*) => {$(
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}
debug_as_display!(Error LaunchError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_shows_the_words() {
        let message = "error: shapes differ\n  --> src/main.rs:3:1".to_owned();
        let error = LaunchError::Stage { kernel: "k".to_owned(), message };
        let shown = "kernel `k` cannot be built with these meta-parameters:\nerror: shapes differ\n  --> src/main.rs:3:1";
        let boxed: Box<dyn std::error::Error> = error.into();
        assert_eq!(format!("{boxed:?}"), shown);
        assert_eq!(format!("{:?}", Error::Unsupported("no such thing".to_owned())), "no such thing");
    }
}
