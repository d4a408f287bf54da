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
//! Matrices may have any strides: transposed, with rows apart from each other, starting anywhere. On Hopper the fast way is for those that tensor copies take: 16-byte aligned starts and rows
//! (of 16-bit types also columns); [`Problem::tensor_copies`](config::Problem::tensor_copies) says which. A result that lies column by column is computed transposed.
//!
//! [`gemm_batched`] multiplies many pairs of matrices, [`gemm_gated`] computes both projections of a gated unit and what becomes of them, and [`gemm_split`] stores
//! the columns of a product in several tensors, each in one launch.
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
pub mod fused;
pub mod hopper;
pub mod kernel;
mod launch;
pub mod legal;
pub mod options;
mod product;
pub mod reference;
#[cfg(test)]
mod tests;
pub mod workspace;

use tegula::runtime::{Stream, TensorView, TensorViewMut};

use crate::Error;
use config::Config;
pub use element::{Class, Factor, Rounded};
pub use epilogue::{Activate, At, Epilogue, Keep, closure};
use launch::Pick;
pub use options::GemmOptions;
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
    launch::product::<T, O, F, 2>("gemm", x.into(), w.into(), y.into(), options, Pick::Chosen, stream)
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
    let pick = Pick::Shared(workspace);
    launch::product::<T, O, F, 2>("gemm", x.into(), w.into(), y.into(), options, pick, stream)
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
    let pick = Pick::Given(config, Some(workspace));
    launch::product::<T, O, F, 2>("gemm", x.into(), w.into(), y.into(), options, pick, stream)
}

/// [`gemm`] for a batch of matrices, each at its own place: y\[b\] = x\[b\] · w\[b\]ᵀ, in one launch.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x` | `[B, M, K]` | `T` |
/// | `w` | `[B, N, K]` | `T` |
/// | `y` | `[B, M, N]` | `O` |
/// | `options` | bias `[N]` and scales of rows, the same for all; residual `[B, M, N]` | as those of [`gemm`] |
///
/// Views of any strides: one matrix for all is a view with [`broadcast`](TensorView::broadcast). (Where only x is different, a product of `[B · M, K]` is faster.) Matrices that
/// were allocated one by one take a launch each.
///
/// # Errors
/// As [`gemm`].
pub fn gemm_batched<'a, T, O, F>(
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
    let pick = Pick::Chosen;
    launch::product::<T, O, F, 3>("gemm_batched", x.into(), w.into(), y.into(), options, pick, stream)
}

/// [`gemm_batched`] with a config of the caller's: for tuning.
///
/// # Errors
/// As [`gemm_batched`]; and a config that is not legal ([`Config::check`]).
pub fn gemm_batched_with<'a, T, O, F>(
    x: impl Into<TensorView<'a, T>>,
    w: impl Into<TensorView<'a, T>>,
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O::Added, F>,
    config: Config,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Factor,
    O: Rounded,
    F: Epilogue,
{
    let pick = Pick::Given(config, None);
    launch::product::<T, O, F, 3>("gemm_batched", x.into(), w.into(), y.into(), options, pick, stream)
}

/// y = f(x · gateᵀ) · (x · upᵀ) element by element, in f32 until it is stored: the first half of a gated unit, in one launch. f is what `options` say with
/// [`then`](GemmOptions::then): [`Activate::Silu`] for SwiGLU.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x` | `[M, K]` | `T` |
/// | `gate`, `up` | `[N, K]` | `T` |
/// | `y` | `[M, N]` | `O` |
/// | `options` | scales: `w_scale` of gate, [`up_scale`](GemmOptions::up_scale) of up | f32 |
///
/// # Errors
/// Shapes that do not fit; bias, residual and accumulation, which have no place here; and what a launch can fail with.
pub fn gemm_gated<'a, T, O, F>(
    x: impl Into<TensorView<'a, T>>,
    [gate, up]: [TensorView<'a, T>; 2],
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O::Added, F>,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Factor,
    O: Rounded,
    F: Epilogue,
{
    launch::gated(x.into(), gate, up, y.into(), options, Pick::Chosen, stream)
}

/// [`gemm_gated`] with a config of the caller's: for tuning.
///
/// # Errors
/// As [`gemm_gated`]; and a config that is not legal ([`Config::check`]).
pub fn gemm_gated_with<'a, T, O, F>(
    x: impl Into<TensorView<'a, T>>,
    [gate, up]: [TensorView<'a, T>; 2],
    y: impl Into<TensorViewMut<'a, O>>,
    options: GemmOptions<'a, O::Added, F>,
    config: Config,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Factor,
    O: Rounded,
    F: Epilogue,
{
    launch::gated(x.into(), gate, up, y.into(), options, Pick::Given(config, None), stream)
}

/// [`gemm`] whose columns go to three tensors, the first ones to the first: queries, keys and values of one projection.
///
/// | argument | shape | type |
/// |---|---|---|
/// | `x` | `[M, K]` | `T` |
/// | `w` | `[N, K]` | `T` |
/// | `parts` | `[M, N₀]`, `[M, N₁]`, `[M, N₂]`: N in all; N₂ may be 0 | `O` |
/// | `options` | bias `[N]` | as that of [`gemm`] |
///
/// # Errors
/// Shapes that do not fit; residual and accumulation, which are for one output; and what a launch can fail with.
pub fn gemm_split<'a, T, O, F>(
    x: impl Into<TensorView<'a, T>>,
    w: impl Into<TensorView<'a, T>>,
    parts: [TensorViewMut<'a, O>; 3],
    options: GemmOptions<'a, O::Added, F>,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Factor,
    O: Rounded,
    F: Epilogue,
{
    launch::split(x.into(), w.into(), parts, options, Pick::Chosen, stream)
}

/// [`gemm_split`] with a config of the caller's: for tuning.
///
/// # Errors
/// As [`gemm_split`]; and a config that is not legal ([`Config::check`]).
pub fn gemm_split_with<'a, T, O, F>(
    x: impl Into<TensorView<'a, T>>,
    w: impl Into<TensorView<'a, T>>,
    parts: [TensorViewMut<'a, O>; 3],
    options: GemmOptions<'a, O::Added, F>,
    config: Config,
    stream: &Stream,
) -> Result<(), Error>
where
    T: Factor,
    O: Rounded,
    F: Epilogue,
{
    launch::split(x.into(), w.into(), parts, options, Pick::Given(config, None), stream)
}
