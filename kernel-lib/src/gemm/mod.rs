//! Matrix product with K-major weights, as models store them: y = x · wᵀ, and what an epilogue adds.
//!
//! Sums are f32, of exact products for f16 and bf16, of IEEE f32 products for f32 unless [`GemmOptions::tf32`] is said; the order of a
//! sum is not specified. The result is rounded once, when it is stored.
//!
//! Few rows are limited by reading the weights: there a kernel without dots reads each once and splits K over the threads of a program
//! (`kernel::gemv`). [`gemm`] does not split K over programs; [`gemm_in`], which is given memory for partial sums, does where there are fewer
//! tiles than multiprocessors. Both give the same result every time.

pub mod config;
pub mod hopper;
pub mod kernel;
pub mod legal;
pub mod options;
pub mod reference;
#[cfg(test)]
mod tests;
pub mod workspace;

use tegula::prelude::{DotInto, Float};
use tegula::runtime::{LaunchError, Stream, TensorView, TensorViewMut};

use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::{Algorithm, Config, Problem};
pub use options::GemmOptions;
use options::{Added, Numerics, absent};
pub use workspace::Workspace;

/// y = x · wᵀ + what `options` add.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x` | `[M, K]` | `T` |
/// | `w` | `[N, K]` | `T` |
/// | `y` | `[M, N]` | `O`: that of `x`, or f32 |
/// | `options` | bias `[N]`, residual `[M, N]` | `O` |
///
/// M, N and K may be anything, also 0: without K the product is 0.
///
/// # Errors
/// Shapes that do not fit, and what a launch can fail with.
pub fn gemm<'a, T, O>(
    x: impl Into<TensorView<'a, T>>,
    w: impl Into<TensorView<'a, T>>,
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O>,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Activation + DotInto<f32>,
    O: Activation,
{
    let (x, w) = (x.into(), w.into());
    let config = Config::choose(&problem(x, w), false, DeviceClass::of(stream.device()));
    let config = config.with_epilogue(O::ELEM.bits(), options.numerics());
    gemm_with(x, w, y, options, config, &mut Workspace::new(), stream)
}

/// [`gemm`] with memory for partial sums: faster where y has few tiles.
///
/// # Errors
/// As [`gemm`]; and if there is no memory for the workspace to grow.
pub fn gemm_in<'a, T, O>(
    x: impl Into<TensorView<'a, T>>,
    w: impl Into<TensorView<'a, T>>,
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O>,
    workspace: &mut Workspace,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Activation + DotInto<f32>,
    O: Activation,
{
    let (x, w) = (x.into(), w.into());
    let config = Config::choose(&problem(x, w), true, DeviceClass::of(stream.device()));
    let config = config.with_epilogue(O::ELEM.bits(), options.numerics());
    gemm_with(x, w, y, options, config, workspace, stream)
}

/// [`gemm_in`] with a config of the caller's: for tuning.
///
/// # Errors
/// As [`gemm`]; and a config that is not legal ([`Config::check`]).
pub fn gemm_with<'a, T, O>(
    x: impl Into<TensorView<'a, T>>,
    w: impl Into<TensorView<'a, T>>,
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O>,
    config: Config,
    workspace: &mut Workspace,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Activation + DotInto<f32>,
    O: Activation,
{
    let (x, w, y) = (x.into(), w.into(), y.into());
    let check = Check::of("gemm");
    let [m, k] = check.rank("x", x.shape(), ["M", "K"])?;
    let [n, _] = check.rank("w", w.shape(), ["N", "K"])?;
    check.shape("w", w.shape(), &[n, k], "K is that of `x`")?;
    check.shape("y", y.shape(), &[m, n], "M rows of `x` by N rows of `w`")?;
    options.check(&check, m, n)?;
    if let Err(illegal) = config.check(&problem(x, w), DeviceClass::of(stream.device())) {
        return Err(check.refuse("config", illegal.problem, illegal.help));
    }
    if y.is_empty() {
        return Ok(());
    }
    let numerics = options.numerics();
    let programs = stream.device().properties().multiprocessors.max(1) as usize;
    let programs = config.programs([m, n, k], programs);
    let split = match config.algorithm {
        Algorithm::StreamK => {
            let slots = [2 * programs, config.rows, config.block_n];
            Some(check.done(workspace.views(stream.device(), slots, config.tiles(m, n)))?)
        }
        _ => None,
    };
    check.launched(match check.done(options.present())? {
        Some(added) => launch(x, w, added, y, split, programs, config, numerics, stream),
        None => launch(x, w, check.done(absent(x))?, y, split, programs, config, numerics, stream),
    })
}

/// Partial sums and counters, for [`Algorithm::StreamK`].
type Split<'a> = (TensorViewMut<'a, f32>, TensorViewMut<'a, i32>);

#[allow(clippy::too_many_arguments, reason = "a kernel's arguments, which have nothing else in common")]
fn launch<T: Activation + DotInto<f32>, O: Activation, E: Float>(
    x: TensorView<'_, T>,
    w: TensorView<'_, T>,
    Added { bias, residual }: Added<'_, E>,
    y: TensorViewMut<'_, O>,
    split: Option<Split<'_>>,
    programs: usize,
    config: Config,
    numerics: Numerics,
    stream: &Stream,
) -> Result<(), LaunchError> {
    if let Some((partials, arrivals)) = split {
        return kernel::stream_k::<T, O, E>(x, w, bias, residual, y, partials, arrivals, config, numerics)
            .grid(programs)
            .launch(stream);
    }
    match config.algorithm {
        Algorithm::Tiled => {
            kernel::tiled::<T, O, E>(x, w, bias, residual, y, config, numerics).grid(programs).launch(stream)
        }
        Algorithm::Gemv => {
            kernel::gemv::<T, O, E>(x, w, bias, residual, y, config, numerics).grid(programs).launch(stream)
        }
        Algorithm::Persistent | Algorithm::StreamK => {
            kernel::persistent::<T, O, E>(x, w, bias, residual, y, config, numerics)
                .grid(programs)
                .launch(stream)
        }
    }
}

/// What a config is chosen for, also of shapes that do not fit, which is refused later.
fn problem<T: Activation>(x: TensorView<'_, T>, w: TensorView<'_, T>) -> Problem {
    let ([m, k], [n, _]) = (two(x.shape()), two(w.shape()));
    let tensor_copies = takes_tensor_copies(&x) && takes_tensor_copies(&w);
    Problem { m, n, k, bits: T::ELEM.bits(), tensor_copies }
}

/// Does the tensor-copy engine take this matrix: with a 16-byte aligned start, and rows or columns that are, too?
fn takes_tensor_copies<T: Activation>(matrix: &TensorView<'_, T>) -> bool {
    let aligned = |stride: usize| (stride * T::ELEM.bits() as usize).is_multiple_of(128);
    let by_strides = match *matrix.strides() {
        [rows, 1] => aligned(rows),
        [1, cols] => aligned(cols),
        _ => false,
    };
    by_strides && matrix.device_address().is_multiple_of(16)
}

/// The extents of a matrix; zeros for what is none, which is refused later.
fn two(shape: &[usize]) -> [usize; 2] {
    shape.try_into().unwrap_or_default()
}
