//! Checks of arguments, with the words that all functions share.
//!
//! ```
//! use tegula_kernels::check::Check;
//!
//! let check = Check::of("rms_norm");
//! let [rows, cols] = check.rank("x", &[4, 576], ["rows", "cols"])?;
//! check.shape("y", &[4, 576], &[rows, cols], "the shape of `x`")?;
//! let error = check.shape("weight", &[512], &[cols], "one element for each column of `x`").unwrap_err();
//! assert_eq!(error.to_string(), "`rms_norm`, argument `weight`: shape [512], but [576] is needed: one element for each column of `x`");
//! # Ok::<(), tegula_kernels::Error>(())
//! ```

use tegula::runtime::LaunchError;

use crate::error::Error;

/// The checks of one function.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    function: &'static str,
}

impl Check {
    /// For the function of this name.
    pub const fn of(function: &'static str) -> Check {
        Check { function }
    }

    /// An error of an argument, in words of the caller's. `help` says what to do, or is empty.
    pub fn refuse(
        &self,
        argument: &'static str,
        problem: impl Into<String>,
        help: impl Into<String>,
    ) -> Error {
        Error::Argument { function: self.function, argument, problem: problem.into(), help: help.into() }
    }

    /// The extents of a view of `R` dimensions, which are called `names`. Each fits in an `i32`, as indices in kernels do.
    pub fn rank<const R: usize>(
        &self,
        argument: &'static str,
        shape: &[usize],
        names: [&str; R],
    ) -> Result<[usize; R], Error> {
        let Ok(extents) = <[usize; R]>::try_from(shape) else {
            let dimensions = if R == 1 { "dimension" } else { "dimensions" };
            let problem = format!("shape {shape:?}, but {R} {dimensions} are needed: [{}]", names.join(", "));
            return Err(self.refuse(argument, problem, "`view().reshape(…)` gives a tensor another shape"));
        };
        match extents.iter().position(|&extent| extent > MAX_EXTENT) {
            Some(axis) => {
                let problem =
                    format!("{} is {}, but at most {MAX_EXTENT} is possible", names[axis], extents[axis]);
                Err(self.refuse(argument, problem, "pass it in parts: `view().slice(axis, range)`"))
            }
            None => Ok(extents),
        }
    }

    /// The shape must be `expected`; `why` ends the sentence "shape …, but … is needed: …".
    pub fn shape(
        &self,
        argument: &'static str,
        found: &[usize],
        expected: &[usize],
        why: &str,
    ) -> Result<(), Error> {
        if found == expected {
            return Ok(());
        }
        Err(self.refuse(argument, format!("shape {found:?}, but {expected:?} is needed: {why}"), ""))
    }

    /// An extent or a number must be a positive multiple of `of`.
    pub fn multiple(&self, argument: &'static str, what: &str, found: usize, of: usize) -> Result<(), Error> {
        if found != 0 && found.is_multiple_of(of) {
            return Ok(());
        }
        Err(self.refuse(
            argument,
            format!("{what} is {found}, but a positive multiple of {of} is needed"),
            "",
        ))
    }

    /// The last dimension must have stride 1: for kernels that read several elements as one word.
    pub fn unit_stride(
        &self,
        argument: &'static str,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<(), Error> {
        let consecutive = strides.last() == Some(&1) || shape.last().is_none_or(|&extent| extent <= 1);
        if consecutive {
            return Ok(());
        }
        let problem = format!("strides {strides:?}, but the elements of a row must be consecutive");
        Err(self.refuse(argument, problem, "copy it into a tensor of its own"))
    }

    /// A number must be finite and, where `positive`, above 0.
    pub fn finite(&self, argument: &'static str, x: f32, positive: bool) -> Result<(), Error> {
        if x.is_finite() && (x > 0.0 || !positive) {
            return Ok(());
        }
        let what = if positive { "a finite number above 0" } else { "a finite number" };
        Err(self.refuse(argument, format!("{x}, but {what} is needed"), ""))
    }

    /// Wraps the error of a launch.
    pub fn launched(&self, result: Result<(), LaunchError>) -> Result<(), Error> {
        result.map_err(|source| Error::Launch { function: self.function, source })
    }

    /// Wraps an error of the device.
    pub fn done<T>(&self, result: Result<T, tegula::runtime::Error>) -> Result<T, Error> {
        result.map_err(|source| Error::Device { function: self.function, source })
    }
}

/// The largest extent that kernels index: with what a tile reaches beyond the end, it must fit in an `i32`.
pub const MAX_EXTENT: usize = i32::MAX as usize - (1 << 20);
