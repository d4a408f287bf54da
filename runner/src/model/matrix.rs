//! Weight matrices on a device: as stored where the kernels take that, else in the activations' type.

use tegula::prelude::{DotInto, Element};
use tegula::runtime::{Device, Stream, Tensor, TensorView, TensorViewMut};
use tegula_kernels::quant_gemm::{QuantizedMatrix, quant_gemm, quant_swiglu};
use tegula_kernels::{Activation, GemmOptions, TokenIds, embedding, embedding_quantized, gemm, swiglu_fused};

use crate::error::Error;
use crate::weights::Weight;

/// What activations are made of: what the kernels multiply, with sums in f32.
pub trait Dtype: Activation + DotInto<f32> {}
impl<T: Activation + DotInto<f32>> Dtype for T {}

/// The elements of weights, one after the other, each rounded once.
fn converted<T: Element>(parts: &[Weight<'_>]) -> Vec<T> {
    let mut values = Vec::with_capacity(parts.iter().map(|part| part.shape.iter().product::<usize>()).sum());
    for part in parts {
        part.format.decode(part.bytes, |value| values.push(T::from_f64(f64::from(value))));
    }
    values
}

/// Vectors (norms, biases), one after the other, as a tensor.
pub(super) fn vector<T: Element>(parts: &[Weight<'_>], device: &Device) -> Result<Tensor<T>, Error> {
    let values = converted::<T>(parts);
    Ok(device.from_slice(&values, &[values.len()])?)
}

/// A matrix `[N, K]`.
pub(super) enum Matrix<T: Element> {
    Float(Tensor<T>),
    Quantized(Box<QuantizedMatrix>),
}

impl<T: Dtype> Matrix<T> {
    /// Matrices of one K and one format, the rows of the first on top.
    fn stacked(parts: &[Weight<'_>], device: &Device) -> Result<Matrix<T>, Error> {
        let k = parts[0].shape[1];
        match parts[0].format.quantized() {
            Some(format) => {
                let parts: Vec<_> = parts.iter().map(|part| (part.shape[0], part.bytes)).collect();
                Ok(Matrix::Quantized(Box::new(QuantizedMatrix::stacked(format, k, &parts, device)?)))
            }
            None => {
                let rows: usize = parts.iter().map(|part| part.shape[0]).sum();
                Ok(Matrix::Float(device.from_vec(converted(parts), &[rows, k])?))
            }
        }
    }

    fn rows(&self) -> usize {
        match self {
            Matrix::Float(tensor) => tensor.dim(0),
            Matrix::Quantized(matrix) => matrix.n(),
        }
    }

    fn apply<'a, O: Activation>(
        &self,
        x: TensorView<'a, T>,
        y: TensorViewMut<'a, O>,
        options: GemmOptions<'a, O>,
        stream: &Stream,
    ) -> Result<(), Error>
    where
        Self: 'a,
    {
        match self {
            Matrix::Float(w) => gemm(x, w.view(), y, options, stream)?,
            Matrix::Quantized(w) => quant_gemm(x, w, y, options, stream)?,
        }
        Ok(())
    }
}

/// Matrices of one K whose products stand side by side: `[N₁ + N₂ + …, K]`. Neighbours of one format are one matrix, and one launch.
pub(super) struct Stack<T: Element>(Vec<Matrix<T>>);

impl<T: Dtype> Stack<T> {
    pub(super) fn upload(parts: &[Weight<'_>], device: &Device) -> Result<Stack<T>, Error> {
        let alike = |a: &Weight<'_>, b: &Weight<'_>| a.format.quantized() == b.format.quantized();
        let matrices = parts.chunk_by(alike).map(|parts| Matrix::stacked(parts, device));
        Ok(Stack(matrices.collect::<Result<_, _>>()?))
    }

    /// y = x · wᵀ (+ bias).  x: `[M, K]`; bias: `[N]`; y: `[M, N]`.
    pub(super) fn apply<O: Activation>(
        &self,
        x: TensorView<'_, T>,
        bias: Option<TensorView<'_, O>>,
        mut y: TensorViewMut<'_, O>,
        stream: &Stream,
    ) -> Result<(), Error> {
        let mut first = 0;
        for matrix in &self.0 {
            let columns = first..first + matrix.rows();
            let options = match bias {
                Some(bias) => GemmOptions::new().bias(bias.slice(0, columns.clone())?),
                None => GemmOptions::new(),
            };
            first = columns.end;
            matrix.apply(x, y.reborrow().slice(1, columns)?, options, stream)?;
        }
        Ok(())
    }
}

/// The first half of a gated unit: silu(x · gateᵀ) · (x · upᵀ).
pub(super) enum Gate<T: Element> {
    /// Gate and up, in one launch.
    Fused(Box<[QuantizedMatrix; 2]>),
    /// Both products side by side, and then the activation.
    Apart(Stack<T>),
}

impl<T: Dtype> Gate<T> {
    pub(super) fn upload(gate: Weight<'_>, up: Weight<'_>, device: &Device) -> Result<Gate<T>, Error> {
        match gate.format.quantized().filter(|_| gate.format == up.format) {
            Some(format) => {
                let upload = |w: Weight<'_>| {
                    QuantizedMatrix::from_gguf(format, [w.shape[0], w.shape[1]], w.bytes, device)
                };
                Ok(Gate::Fused(Box::new([upload(gate)?, upload(up)?])))
            }
            None => Ok(Gate::Apart(Stack::upload(&[gate, up], device)?)),
        }
    }

    /// Does [`Gate::apply`] need room for both products?
    pub(super) fn is_apart(&self) -> bool {
        matches!(self, Gate::Apart(_))
    }

    /// y = silu(x · gateᵀ) · (x · upᵀ).  x: `[M, K]`; y: `[M, N]`; both: `[M, 2N]`, if [`Gate::is_apart`].
    pub(super) fn apply(
        &self,
        x: TensorView<'_, T>,
        both: Option<TensorViewMut<'_, T>>,
        y: TensorViewMut<'_, T>,
        stream: &Stream,
    ) -> Result<(), Error> {
        match (self, both) {
            (Gate::Fused(both), _) => quant_swiglu(x, &both[0], &both[1], y, stream)?,
            (Gate::Apart(stack), Some(mut both)) => {
                stack.apply(x, None, both.reborrow(), stream)?;
                swiglu_fused(both.as_view(), y, stream)?;
            }
            (Gate::Apart(_), None) => unreachable!("the scratch space has room for both products"),
        }
        Ok(())
    }
}

/// The embedding table `[vocab, hidden]`, and the output projection `[vocab, hidden]`.
pub(super) struct Vocabulary<T: Element> {
    table: Matrix<T>,
    /// `None`: the table.
    head: Option<Stack<T>>,
}

impl<T: Dtype> Vocabulary<T> {
    /// `head` is absent if the table serves: there is then one copy of it, which rows are gathered from and products read.
    pub(super) fn upload(
        table: Weight<'_>,
        head: Option<Weight<'_>>,
        device: &Device,
    ) -> Result<Vocabulary<T>, Error> {
        Ok(Vocabulary {
            table: Matrix::stacked(&[table], device)?,
            head: head.map(|head| Stack::upload(&[head], device)).transpose()?,
        })
    }

    /// y\[i\] = table\[ids\[i\]\].
    pub(super) fn gather(
        &self,
        ids: TensorView<'_, i32>,
        y: TensorViewMut<'_, T>,
        stream: &Stream,
    ) -> Result<(), Error> {
        let ids = TokenIds::Device(ids);
        match &self.table {
            Matrix::Float(table) => embedding(table.view(), ids, y, stream)?,
            Matrix::Quantized(table) => embedding_quantized(table, ids, y, stream)?,
        }
        Ok(())
    }

    /// logits = x · headᵀ.  x: `[M, hidden]`; logits: `[M, vocab]`.
    pub(super) fn project(
        &self,
        x: TensorView<'_, T>,
        logits: TensorViewMut<'_, f32>,
        stream: &Stream,
    ) -> Result<(), Error> {
        match &self.head {
            Some(head) => head.apply(x, None, logits, stream),
            None => self.table.apply(x, logits, GemmOptions::new(), stream),
        }
    }
}
