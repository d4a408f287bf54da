//! Matrix products with weights in the blocks of GGUF files (Q4_0, Q4_1, Q8_0), used as they are stored: never dequantised in memory.
//!
//! [`QuantizedMatrix`] repacks blocks once, when a model is loaded. [`quant_gemm`] multiplies: y = x · wᵀ and what an epilogue adds;
//! [`quant_swiglu`] computes both projections of a gated unit and its activation in one launch; and for queries, keys and values
//! [`QuantizedMatrix::stacked`] makes one matrix of three.
//!
//! ```
//! use tegula::prelude::*;
//! use tegula_kernels::quant_gemm::{Format, QuantizedMatrix};
//! use tegula_kernels::{GemmOptions, quant_gemm};
//!
//! let device = tegula::device("host")?;
//! // One row of weights: a block with the scale 0.5 and the codes 0 to 31.
//! let mut block = f16::from_f32(0.5).to_le_bytes().to_vec();
//! block.extend(0..32);
//! let w = QuantizedMatrix::from_gguf(Format::Q8_0, [1, 32], &block, &device)?;
//! let x = device.from_slice(&[1.0f32; 32], &[1, 32])?;
//! let mut y = device.alloc::<f32>(&[1, 1])?;
//! quant_gemm(&x, &w, &mut y, GemmOptions::new(), &device.stream())?;
//! assert_eq!(y.to_vec()?, [248.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Numerics
//! For few rows ([`config::FEW_ROWS`] on the host; on GPUs as many of f32, 4 of f16 and bf16, 2 of a gated unit) sums are f32, of products
//! with activations that are not rounded, and a scale is applied to the sum of its group. For more rows weights are dequantised in f32
//! and rounded to the type of the activations, as tensor cores ask for: nothing is lost for f32; with bf16 a weight has 8 digits, with f16
//! it has 11, and is infinite beyond 65504. Dots of f32 are IEEE f32 unless [`GemmOptions::tf32`] is said. A scale that is infinite or
//! NaN gives results that are not finite.

pub mod config;
pub mod format;
pub mod kernel;
pub mod matrix;
pub mod reference;
#[cfg(test)]
mod tests;

use tegula::prelude::{DotInto, Element};
use tegula::runtime::{LaunchError, Stream, TensorView, TensorViewMut};

use crate::check::Check;
use crate::gemm::options::{Added, GemmOptions, Numerics};
use crate::{Activation, DeviceClass, Error};
use config::{Algorithm, Config};
pub use format::Format;
use matrix::PANEL;
pub use matrix::QuantizedMatrix;

/// y = x · wᵀ + what `options` add.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x` | `[M, K]` | `T` |
/// | `w` | `[N, K]` | its own |
/// | `y` | `[M, N]` | `O`: that of `x`, or f32 |
/// | `options` | bias `[N]`, residual `[M, N]` | `O` |
///
/// # Errors
/// Shapes that do not fit, and what a launch can fail with.
pub fn quant_gemm<'a, T, O>(
    x: impl Into<TensorView<'a, T>>,
    w: &QuantizedMatrix,
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O>,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Activation + DotInto<f32>,
    O: Activation,
{
    let x = x.into();
    let config = choose::<T>(&x, w, 1, stream);
    quant_gemm_with(x, w, y, options, config, stream)
}

/// [`quant_gemm`] with a config of the caller's: for tuning.
///
/// # Errors
/// As [`quant_gemm`]; fewer rows in the config than in `x`, unless weights are dequantised; columns that are not a panel (or a part of one,
/// elementwise); and a config that is not legal otherwise, by what staging says.
pub fn quant_gemm_with<'a, T, O>(
    x: impl Into<TensorView<'a, T>>,
    w: &QuantizedMatrix,
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O>,
    config: Config,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Activation + DotInto<f32>,
    O: Activation,
{
    let (x, y) = (x.into(), y.into());
    let check = Check::of("quant_gemm");
    let [m, n] = check_shapes(&check, &x, w, &y, config)?;
    options.check(&check, None, [m, n])?;
    options.check_unscaled(&check)?;
    if y.is_empty() {
        return Ok(());
    }
    let numerics = options.numerics();
    let added = check.done(options.added(stream.device(), 2))?;
    check.launched(launch(x, w, added, y, config, numerics, stream))
}

/// y = silu(x · gateᵀ) · (x · upᵀ), in f32 until it is stored: the first half of a gated unit (SwiGLU), in one launch.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x` | `[M, K]` | `T` |
/// | `gate`, `up` | `[N, K]` | their own, the same for both |
/// | `y` | `[M, N]` | `O`: that of `x`, or f32 |
///
/// # Errors
/// Shapes and formats that do not fit, and what a launch can fail with.
pub fn quant_swiglu<'a, T, O>(
    x: impl Into<TensorView<'a, T>>,
    gate: &QuantizedMatrix,
    up: &QuantizedMatrix,
    y: impl Into<TensorViewMut<'a, O>>,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Activation + DotInto<f32>,
    O: Activation,
{
    let x = x.into();
    let config = choose::<T>(&x, gate, 2, stream);
    quant_swiglu_with(x, gate, up, y, config, stream)
}

/// [`quant_swiglu`] with a config of the caller's: for tuning.
///
/// # Errors
/// As [`quant_swiglu`] and [`quant_gemm_with`].
pub fn quant_swiglu_with<'a, T, O>(
    x: impl Into<TensorView<'a, T>>,
    gate: &QuantizedMatrix,
    up: &QuantizedMatrix,
    y: impl Into<TensorViewMut<'a, O>>,
    config: Config,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Activation + DotInto<f32>,
    O: Activation,
{
    let (x, y) = (x.into(), y.into());
    let check = Check::of("quant_swiglu");
    let [m, n] = check_shapes(&check, &x, gate, &y, config)?;
    if (up.format(), up.n(), up.k()) != (gate.format(), gate.n(), gate.k()) {
        return Err(check.refuse("up", format!("{up:?}, but `gate` is {gate:?}: both must be alike"), ""));
    }
    if y.is_empty() {
        return Ok(());
    }
    let (format, numerics) = (gate.format(), Numerics::default());
    let (gate_mins, up_mins) = (gate.mins(), up.mins());
    let launch = kernel::quant_swiglu::<T, O>(
        x,
        &gate.codes,
        &gate.scales,
        gate_mins,
        &up.codes,
        &up.scales,
        up_mins,
        y,
        format,
        config,
        numerics,
    );
    check.launched(launch.grid(programs(m, n, config)).launch(stream))
}

fn choose<T: Element>(
    x: &TensorView<'_, T>,
    w: &QuantizedMatrix,
    matrices: usize,
    stream: &Stream,
) -> Config {
    let m = x.shape().first().copied().unwrap_or(0);
    let device = DeviceClass::of(stream.device());
    Config::choose([m, w.n(), w.k()], w.format(), T::ELEM.bits(), matrices, device)
}

/// M and N.
fn check_shapes<T: Element, O: Element>(
    check: &Check,
    x: &TensorView<'_, T>,
    w: &QuantizedMatrix,
    y: &TensorViewMut<'_, O>,
    config: Config,
) -> Result<[usize; 2], Error> {
    let [m, k] = check.rank("x", x.shape(), ["M", "K"])?;
    check.shape("x", x.shape(), &[m, w.k()], "K is that of the weights")?;
    debug_assert_eq!(k, w.k());
    check.shape("y", y.shape(), &[m, w.n()], "M rows of `x` by N rows of the weights")?;
    if config.algorithm != Algorithm::Dequantized && config.rows < m {
        let problem = format!("{} rows a program, but `x` has {m} rows", config.rows);
        return Err(check.refuse("config", problem, "use `Algorithm::Dequantized`"));
    }
    let (algorithm, block_n) = (config.algorithm, config.block_n);
    let within_a_panel = match algorithm {
        Algorithm::Elementwise => block_n > 0 && PANEL.is_multiple_of(block_n),
        Algorithm::Grouped | Algorithm::Dequantized => block_n == PANEL,
    };
    if !within_a_panel {
        let needed = if algorithm == Algorithm::Elementwise { "a divisor of " } else { "" };
        let problem = format!("{block_n} columns a program, but {needed}{PANEL} is needed for {algorithm:?}");
        return Err(check.refuse("config", problem, "weights are packed in panels of so many columns"));
    }
    Ok([m, w.n()])
}

fn programs(m: usize, n: usize, config: Config) -> usize {
    let columns = n.div_ceil(config.block_n);
    if config.algorithm == Algorithm::Dequantized { m.div_ceil(config.rows) * columns } else { columns }
}

fn launch<T: Activation + DotInto<f32>, O: Activation>(
    x: TensorView<'_, T>,
    w: &QuantizedMatrix,
    added: Added<'_, O>,
    y: TensorViewMut<'_, O>,
    config: Config,
    numerics: Numerics,
    stream: &Stream,
) -> Result<(), LaunchError> {
    let grid = programs(y.dim(0), w.n(), config);
    let Added { bias, residual, .. } = added;
    let (format, mins) = (w.format(), w.mins());
    kernel::quant_gemm::<T, O, O>(x, &w.codes, &w.scales, mins, bias, residual, y, format, config, numerics)
        .grid(grid)
        .launch(stream)
}
