//! Matrix product with K-major weights, as models store them: y = x · wᵀ, and what an epilogue makes of it.
//!
//! | factors | sums | results |
//! |---|---|---|
//! | f32, f16, bf16 | f32 | f32, f16, bf16 |
//! | f8e4m3, f8e5m2, with scales | f32 | f32, f16, bf16, f8e4m3, f8e5m2, i8 |
//! | i8, with scales | i32 | the same, and i32 |
//!
//! Products are exact, of f32 those of IEEE f32 unless [`GemmOptions::tf32`] is said; the order of a sum is not specified. (Tensor cores of Hopper keep 14 bits of sums of
//! 8-bit floats, relative to the largest addend; others all 24.) Sums of i8 are exact below 2³¹, and converted to f32 for scales and whatever else is asked for: without
//! it, i32 results are exact. The result is rounded once, when it is stored.
//!
//! What becomes of a product is said by [`GemmOptions`]: scales of tensors or rows, bias, an [`Epilogue`] (activations, or any closure), residual,
//! accumulation, and the scale of a quantised result.
//!
//! Few rows are limited by reading the weights: there a kernel without dots reads each once and splits K over the threads of a program
//! (`kernel::gemv`). [`gemm`] does not split K over programs; [`gemm_in`], which is given memory for partial sums, does where there are fewer
//! tiles than multiprocessors. Both give the same result every time.

pub mod config;
pub mod element;
pub mod epilogue;
pub mod hopper;
pub mod kernel;
pub mod legal;
pub mod options;
pub mod reference;
#[cfg(test)]
mod tests;
pub mod workspace;

use tegula::runtime::{LaunchError, Stream, TensorView, TensorViewMut};

use crate::check::Check;
use crate::{DeviceClass, Error};
use config::{Algorithm, Config, Problem};
pub use element::{Class, Factor, Rounded};
pub use epilogue::{Activate, At, Epilogue, Keep, closure};
pub use options::GemmOptions;
use options::{Added, Numerics};
pub use workspace::Workspace;

/// y = x · wᵀ, and what `options` make of it.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x` | `[M, K]` | `T` |
/// | `w` | `[N, K]` | `T` |
/// | `y` | `[M, N]` | `O` |
/// | `options` | bias `[N]`, residual `[M, N]` | `O`, or f32 beside 8-bit floats and integers |
///
/// M, N and K may be anything, also 0: without K the product is 0.
///
/// # Errors
/// Shapes that do not fit, and what a launch can fail with.
pub fn gemm<'a, T, O, F>(
    x: impl Into<TensorView<'a, T>>,
    w: impl Into<TensorView<'a, T>>,
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O::Added, F>,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Factor,
    O: Rounded,
    F: Epilogue,
{
    let (x, w) = (x.into(), w.into());
    let config = choose::<T, O>(x, w, options.numerics(), false, stream);
    gemm_with(x, w, y, options, config, &mut Workspace::new(), stream)
}

/// [`gemm`] with memory for partial sums: faster where y has few tiles.
///
/// # Errors
/// As [`gemm`]; and if there is no memory for the workspace to grow.
pub fn gemm_in<'a, T, O, F>(
    x: impl Into<TensorView<'a, T>>,
    w: impl Into<TensorView<'a, T>>,
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O::Added, F>,
    workspace: &mut Workspace,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Factor,
    O: Rounded,
    F: Epilogue,
{
    let (x, w) = (x.into(), w.into());
    let config = choose::<T, O>(x, w, options.numerics(), true, stream);
    gemm_with(x, w, y, options, config, workspace, stream)
}

/// [`gemm_in`] with a config of the caller's: for tuning.
///
/// # Errors
/// As [`gemm`]; and a config that is not legal ([`Config::check`]).
pub fn gemm_with<'a, T, O, F>(
    x: impl Into<TensorView<'a, T>>,
    w: impl Into<TensorView<'a, T>>,
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O::Added, F>,
    config: Config,
    workspace: &mut Workspace,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Factor,
    O: Rounded,
    F: Epilogue,
{
    let (x, w, y) = (x.into(), w.into(), y.into());
    let check = Check::of("gemm");
    let [m, k] = check.rank("x", x.shape(), ["M", "K"])?;
    let [n, _] = check.rank("w", w.shape(), ["N", "K"])?;
    check.shape("w", w.shape(), &[n, k], "K is that of `x`")?;
    check.shape("y", y.shape(), &[m, n], "M rows of `x` by N rows of `w`")?;
    options.check(&check, None, [m, n])?;
    let numerics = options.numerics();
    if let Err(illegal) = config.check(&problem(x, w, numerics), DeviceClass::of(stream.device())) {
        return Err(check.refuse("config", illegal.problem, illegal.help));
    }
    if y.is_empty() {
        return Ok(());
    }
    let multiprocessors = stream.device().properties().multiprocessors.max(1) as usize;
    let programs = config.programs(1, [m, n, k], multiprocessors);
    let split = match config.algorithm {
        Algorithm::StreamK => {
            let slots = [2 * programs, config.rows, config.block_n];
            Some(check.done(workspace.views(stream.device(), slots, config.tiles(m, n)))?)
        }
        _ => None,
    };
    let added = check.done(options.added(stream.device(), 2))?;
    let staged = Staged { config, numerics, epilogue: options.epilogue() };
    check.launched(launch(x, w, added, y, split, programs, staged, stream))
}

/// What a kernel is staged with.
#[derive(Clone)]
struct Staged<F> {
    config: Config,
    numerics: Numerics,
    epilogue: F,
}

/// Partial sums and counters, for [`Algorithm::StreamK`].
type Split<'a> = (TensorViewMut<'a, f32>, TensorViewMut<'a, i32>);

#[allow(clippy::too_many_arguments, reason = "a kernel's arguments, which have nothing else in common")]
fn launch<T: Factor, O: Rounded, F: Epilogue>(
    x: TensorView<'_, T>,
    w: TensorView<'_, T>,
    added: Added<'_, O::Added>,
    y: TensorViewMut<'_, O>,
    split: Option<Split<'_>>,
    programs: usize,
    Staged { config, numerics, epilogue }: Staged<F>,
    stream: &Stream,
) -> Result<(), LaunchError> {
    let Added { bias, residual, scales: [xs, ws, ys] } = added;
    if let Some((partials, arrivals)) = split {
        return kernel::stream_k::<T, O, O::Added, F>(
            x, w, bias, residual, xs, ws, ys, y, partials, arrivals, config, numerics, epilogue,
        )
        .grid(programs)
        .launch(stream);
    }
    macro_rules! launched {
        ($kernel:ident) => {
            kernel::$kernel::<T, O, O::Added, F, 2>(
                x, w, bias, residual, xs, ws, ys, y, config, numerics, epilogue,
            )
            .grid(programs)
            .launch(stream)
        };
    }
    match config.algorithm {
        Algorithm::Tiled => launched!(tiled),
        Algorithm::Gemv => launched!(gemv),
        Algorithm::Persistent | Algorithm::StreamK => launched!(persistent),
    }
}

fn choose<T: Factor, O: Rounded>(
    x: TensorView<'_, T>,
    w: TensorView<'_, T>,
    numerics: Numerics,
    split: bool,
    stream: &Stream,
) -> Config {
    let (problem, class) = (problem(x, w, numerics), DeviceClass::of(stream.device()));
    let tuned = || {
        let tuned = crate::tuned::installed(stream.device())?;
        let extents = [problem.m, problem.n, problem.k, problem.class.bits() as usize].map(|e| e as u64);
        tuned.legal("gemm", &tuned.gemm, &extents, |config| match config.algorithm {
            Algorithm::StreamK if !split => {
                Err("it shares tiles, for which the call has no workspace".to_owned())
            }
            _ => config.check(&problem, class).map_err(|illegal| illegal.problem),
        })
    };
    // What is tuned are products of 16-bit elements.
    let tuned = if problem.class == Class::Half { tuned() } else { None };
    let config = tuned.unwrap_or_else(|| Config::choose(&problem, split, class));
    config.with_epilogue(O::ELEM.bits(), numerics)
}

/// What a config is chosen for, also of shapes that do not fit, which is refused later.
fn problem<T: Factor>(x: TensorView<'_, T>, w: TensorView<'_, T>, numerics: Numerics) -> Problem {
    let ([m, k], [n, _]) = (two(x.shape()), two(w.shape()));
    let tensor_copies = takes_tensor_copies(&x) && takes_tensor_copies(&w);
    Problem { batch: 1, m, n, k, class: numerics.class::<T>(), tensor_copies }
}

/// Does the tensor-copy engine take this matrix, and do tensor cores take what it brings: with a 16-byte aligned start, and rows that are, too, or of 16-bit elements
/// columns?
fn takes_tensor_copies<T: Factor>(matrix: &TensorView<'_, T>) -> bool {
    let aligned = |stride: usize| (stride * T::ELEM.bits() as usize).is_multiple_of(128);
    let by_strides = match *matrix.strides() {
        [rows, 1] => aligned(rows),
        [1, cols] => T::CLASS.bits() == 16 && aligned(cols),
        _ => false,
    };
    by_strides && matrix.device_address().is_multiple_of(16)
}

/// The extents of a matrix; zeros for what is none, which is refused later.
fn two(shape: &[usize]) -> [usize; 2] {
    shape.try_into().unwrap_or_default()
}
