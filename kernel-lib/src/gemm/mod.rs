//! Matrix product with K-major weights, as models store them: y = x · wᵀ, and what an epilogue adds.
//!
//! Sums are f32, of exact products for f16 and bf16, of IEEE f32 products for f32 unless [`GemmOptions::tf32`] is said; the order of a
//! sum is not specified. The result is rounded once, when it is stored.
//!
//! Few rows are limited by reading the weights: there a kernel without dots reads each once and splits K over the threads of a program
//! (`kernel::gemv`). K is never split over programs, which would take a second launch, or atomics and with them the same result every
//! time: with one column a program there are N programs, which suffices from N in the hundreds on.

pub mod config;
pub mod kernel;
pub mod options;
pub mod reference;
#[cfg(test)]
mod tests;

use tegula::prelude::{DotInto, Float};
use tegula::runtime::{LaunchError, Stream, TensorView, TensorViewMut};

use crate::check::Check;
use crate::{Activation, DeviceClass, Error};
use config::{Algorithm, Config};
pub use options::GemmOptions;
use options::{Added, Numerics, absent};

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
    let ([m, k], n) = (two(x.shape()), w.shape().first().copied().unwrap_or(0));
    let config = Config::choose(m, n, k, T::ELEM.bits(), DeviceClass::of(stream.device()));
    gemm_with(x, w, y, options, config.with_epilogue(O::ELEM.bits(), options.numerics()), stream)
}

/// [`gemm`] with a config of the caller's: for tuning. A [`Algorithm::Gemv`] config whose `rows` are fewer than those of `x` is refused.
///
/// # Errors
/// As [`gemm`]; and a config that is not legal, by what staging says.
pub fn gemm_with<'a, T, O>(
    x: impl Into<TensorView<'a, T>>,
    w: impl Into<TensorView<'a, T>>,
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O>,
    config: Config,
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
    if config.algorithm == Algorithm::Gemv && config.rows < m {
        let problem = format!("{} rows a program, but `x` has {m} rows", config.rows);
        return Err(check.refuse("config", problem, "use `Algorithm::Tiled`"));
    }
    if y.is_empty() {
        return Ok(());
    }
    let numerics = options.numerics();
    check.launched(match check.done(options.present())? {
        Some(added) => launch(x, w, added, y, config, numerics, stream),
        None => launch(x, w, check.done(absent(x))?, y, config, numerics, stream),
    })
}

fn launch<T: Activation + DotInto<f32>, O: Activation, E: Float>(
    x: TensorView<'_, T>,
    w: TensorView<'_, T>,
    added: Added<'_, E>,
    y: TensorViewMut<'_, O>,
    config: Config,
    numerics: Numerics,
    stream: &Stream,
) -> Result<(), LaunchError> {
    let [m, n] = two(y.shape());
    let Added { bias, residual } = added;
    let columns = n.div_ceil(config.block_n);
    match config.algorithm {
        Algorithm::Tiled => kernel::tiled::<T, O, E>(x, w, bias, residual, y, config, numerics)
            .grid(m.div_ceil(config.rows) * columns)
            .launch(stream),
        Algorithm::Gemv => {
            kernel::gemv::<T, O, E>(x, w, bias, residual, y, config, numerics).grid(columns).launch(stream)
        }
    }
}

/// The extents of a matrix; zeros for what is none, which is refused later.
fn two(shape: &[usize]) -> [usize; 2] {
    shape.try_into().unwrap_or_default()
}
