//! What a product may be combined with before it is stored, and how exact its dots are: shared by [`gemm`](super::gemm) and
//! [`quant_gemm`](crate::quant_gemm::quant_gemm).
//!
//! A kernel takes bias and residual always, as views that may be empty, and flags that say which of them count: so there is one kernel
//! instead of one for each combination, and the flags are part of its key, so that what is absent costs no instruction.

use tegula::prelude::*;
use tegula::runtime::TensorView;

use crate::check::Check;
use crate::{Activation, Error};

/// What is added to a product, in f32, before the sum is rounded to the output's type; and the precision of dots.
///
/// ```
/// # use tegula_kernels::GemmOptions;
/// # let device = tegula::device("host")?;
/// # let stream = device.stream();
/// let x = device.from_slice(&[1.0f32, 2.0], &[1, 2])?;
/// let w = device.from_slice(&[3.0f32, 4.0], &[1, 2])?;
/// let mut hidden = device.from_slice(&[100.0f32], &[1, 1])?;
/// tegula_kernels::gemm(&x, &w, &mut hidden, GemmOptions::new().accumulate(), &stream)?;
/// assert_eq!(hidden.to_vec()?, [111.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GemmOptions<'a, O: Activation> {
    bias: Option<TensorView<'a, O>>,
    residual: Option<TensorView<'a, O>>,
    accumulate: bool,
    tf32: bool,
}

impl<O: Activation> Default for GemmOptions<'_, O> {
    fn default() -> Self {
        GemmOptions { bias: None, residual: None, accumulate: false, tf32: false }
    }
}

impl<'a, O: Activation> GemmOptions<'a, O> {
    /// Nothing added; f32 means IEEE f32.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `bias[n]` to column n. `[N]`.
    pub fn bias(mut self, bias: impl Into<TensorView<'a, O>>) -> Self {
        self.bias = Some(bias.into());
        self
    }

    /// Adds `residual[m, n]`. `[M, N]`; it does not overlap the output: for that there is [`accumulate`](Self::accumulate).
    pub fn residual(mut self, residual: impl Into<TensorView<'a, O>>) -> Self {
        self.residual = Some(residual.into());
        self
    }

    /// Adds what the output holds: y += x · wᵀ.
    pub fn accumulate(mut self) -> Self {
        self.accumulate = true;
        self
    }

    /// Lets dots of f32 round their operands to TF32 (10 mantissa bits), for the tensor cores. No effect on other types.
    pub fn tf32(mut self) -> Self {
        self.tf32 = true;
        self
    }

    /// Checks the shapes against an output of `m` × `n`.
    pub(crate) fn check(&self, check: &Check, m: usize, n: usize) -> Result<(), Error> {
        if let Some(bias) = &self.bias {
            check.shape("bias", bias.shape(), &[n], "one element for each column of `y`")?;
        }
        match &self.residual {
            Some(residual) => check.shape("residual", residual.shape(), &[m, n], "the shape of `y`"),
            None => Ok(()),
        }
    }

    pub(crate) fn numerics(&self) -> Numerics {
        Numerics {
            bias: self.bias.is_some(),
            residual: self.residual.is_some(),
            accumulate: self.accumulate,
            tf32: self.tf32,
        }
    }

    /// Bias and residual as kernels take them: an empty view for what is absent. `None` without both, where the type does not matter:
    /// then [`absent`] makes empty views of what is at hand.
    pub(crate) fn present(&self) -> Result<Option<Added<'a, O>>, tegula::runtime::Error> {
        Ok(match (self.bias, self.residual) {
            (Some(bias), Some(residual)) => Some(Added { bias, residual }),
            (Some(bias), None) => Some(Added { residual: absent(bias)?.residual, bias }),
            (None, Some(residual)) => Some(Added { bias: absent(residual)?.bias, residual }),
            (None, None) => None,
        })
    }
}

/// Bias and residual of a launch.
pub(crate) struct Added<'a, E: Element> {
    pub(crate) bias: TensorView<'a, E>,
    pub(crate) residual: TensorView<'a, E>,
}

/// Empty views, of a tensor that is there anyway.
pub(crate) fn absent<E: Element>(any: TensorView<'_, E>) -> Result<Added<'_, E>, tegula::runtime::Error> {
    let nothing = any.slice(any.shape().len() - 1, ..0)?;
    Ok(Added { bias: nothing.reshape(&[0])?, residual: nothing.reshape(&[0, 0])? })
}

/// What a kernel has to know of the options when it is staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Numerics {
    /// Is there a bias?
    pub bias: bool,
    /// Is there a residual?
    pub residual: bool,
    /// Is what the output holds added?
    pub accumulate: bool,
    /// Are dots of f32 in TF32?
    pub tf32: bool,
}

impl Numerics {
    /// Nothing added, and each addend by itself; and TF32 where it changes something: for the registry.
    pub(crate) fn space(f32_operands: bool) -> Vec<Numerics> {
        let plain = Numerics::default();
        let tf32 = f32_operands.then_some(Numerics { tf32: true, ..plain });
        let bias = Numerics { bias: true, ..plain };
        let residual = Numerics { residual: true, ..plain };
        let accumulate = Numerics { accumulate: true, ..plain };
        [plain, bias, residual, accumulate].into_iter().chain(tf32).collect()
    }
}

/// The views that an epilogue reads and writes.
pub(crate) struct Output<O: Float, E: Float> {
    pub(crate) bias: View<E, 1>,
    pub(crate) residual: View<E, 2>,
    pub(crate) y: ViewMut<O, 2>,
    pub(crate) numerics: Numerics,
}

impl<O: Float, E: Float> Output<O, E> {
    /// Stores a tile of the product at (`row`, `col`), with what is added to it. What lies outside of `y` is dropped.
    pub(crate) fn store(&self, row: Scalar<i32>, col: Scalar<i32>, product: Tile<f32>) {
        let [rows, cols] = [0, 1].map(|axis| product.shape().dims()[axis] as usize);
        let mut sum = product;
        if self.numerics.bias {
            sum += self.bias.load([col], [cols]).cast::<f32>().expand(0);
        }
        if self.numerics.residual {
            sum += self.residual.load([row, col], [rows, cols]).cast::<f32>();
        }
        if self.numerics.accumulate {
            sum += self.y.as_view().load([row, col], [rows, cols]).cast::<f32>();
        }
        self.y.store([row, col], sum.cast::<O>());
    }
}

/// a · b + acc in f32; of f32 operands IEEE f32, or TF32 where that was asked for.
pub(crate) fn multiply<T: DotInto<f32>>(
    a: Tile<T>,
    b: Tile<T>,
    acc: Tile<f32>,
    numerics: Numerics,
) -> Tile<f32> {
    let product = dot_acc(a, b, acc);
    if numerics.tf32 && T::ELEM == f32::ELEM { product.tf32() } else { product }
}
