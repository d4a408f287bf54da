//! What a product may be combined with before it is stored, and how exact its dots are: shared by [`gemm`](super::gemm) and
//! [`quant_gemm`](crate::quant_gemm::quant_gemm).
//!
//! A kernel takes bias, residual and scales always, as views that may be empty, and flags that say which of them count: so there is one kernel
//! instead of one for each combination, and the flags are part of its key, so that what is absent costs no instruction.

use tegula::prelude::*;
use tegula::runtime::{Device, TensorView};

use super::element::{Class, Factor, Rounded, Sum};
use super::epilogue::{At, Epilogue, Keep};
use crate::Error;
use crate::check::Check;

/// What becomes of a product, in f32, before it is rounded to the output's type; and the precision of dots.
///
/// y = (`then`(x · wᵀ · `x_scale` · `w_scale` + `bias`) + `residual` + `y` if accumulated) / `y_scale`
///
/// `O` is the type of bias and residual: that of the output, or f32 beside outputs of 8-bit floats and integers.
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
pub struct GemmOptions<'a, O: Float, F: Epilogue = Keep> {
    bias: Option<TensorView<'a, O>>,
    residual: Option<TensorView<'a, O>>,
    /// Of x, w, y and up.
    scales: [Option<TensorView<'a, f32>>; 4],
    accumulate: bool,
    tf32: bool,
    epilogue: F,
}

/// The names of the scales.
const SCALES: [&str; 4] = ["x_scale", "w_scale", "y_scale", "up_scale"];

impl<O: Float> Default for GemmOptions<'_, O> {
    fn default() -> Self {
        GemmOptions {
            bias: None,
            residual: None,
            scales: [None; 4],
            accumulate: false,
            tf32: false,
            epilogue: Keep,
        }
    }
}

impl<O: Float> GemmOptions<'_, O> {
    /// The product as it is; f32 means IEEE f32.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<'a, O: Float, F: Epilogue> GemmOptions<'a, O, F> {
    /// Adds `bias[n]` to column n. `[N]`.
    pub fn bias(mut self, bias: impl Into<TensorView<'a, O>>) -> Self {
        self.bias = Some(bias.into());
        self
    }

    /// Adds `residual[m, n]`. The shape of y; it does not overlap y: for that there is [`accumulate`](Self::accumulate).
    pub fn residual(mut self, residual: impl Into<TensorView<'a, O>>) -> Self {
        self.residual = Some(residual.into());
        self
    }

    /// Adds what the output holds: y += x · wᵀ. (An output with a scale is multiplied by it first.)
    pub fn accumulate(mut self) -> Self {
        self.accumulate = true;
        self
    }

    /// Lets dots of f32 round their operands to TF32 (10 mantissa bits), for the tensor cores. No effect on other types.
    pub fn tf32(mut self) -> Self {
        self.tf32 = true;
        self
    }

    /// What x stands for is x times this: `[1]`, or `[M]` with a scale for each row.
    pub fn x_scale(mut self, scale: impl Into<TensorView<'a, f32>>) -> Self {
        self.scales[0] = Some(scale.into());
        self
    }

    /// What w stands for is w times this: `[1]`, or `[N]` with a scale for each row (a column of y).
    pub fn w_scale(mut self, scale: impl Into<TensorView<'a, f32>>) -> Self {
        self.scales[1] = Some(scale.into());
        self
    }

    /// Quantises: the result is multiplied by 1 / scale before it is rounded, so that y times this is what y stands for. `[1]`, or `[M]`
    /// with a scale for each row.
    pub fn y_scale(mut self, scale: impl Into<TensorView<'a, f32>>) -> Self {
        self.scales[2] = Some(scale.into());
        self
    }

    /// The scales of the second matrix of [`gemm_gated`](super::gemm_gated): as those of w.
    pub fn up_scale(mut self, scale: impl Into<TensorView<'a, f32>>) -> Self {
        self.scales[3] = Some(scale.into());
        self
    }

    /// Applies a function after what is applied so far; before residual and accumulation.
    pub fn then<G: Epilogue>(self, next: G) -> GemmOptions<'a, O, (F, G)> {
        let GemmOptions { bias, residual, scales, accumulate, tf32, epilogue } = self;
        GemmOptions { bias, residual, scales, accumulate, tf32, epilogue: (epilogue, next) }
    }

    /// What becomes of the product.
    pub(crate) fn epilogue(&self) -> F {
        self.epilogue.clone()
    }

    /// Checks the shapes against an output of `m` × `n`, many times where `batch` says so.
    pub(crate) fn check(&self, check: &Check, batch: Option<usize>, [m, n]: [usize; 2]) -> Result<(), Error> {
        if let Some(bias) = &self.bias {
            check.shape("bias", bias.shape(), &[n], "one element for each column of `y`")?;
        }
        for ((scale, name), (rows, what)) in
            self.scales.iter().zip(SCALES).zip([(m, "x"), (n, "w"), (m, "y")])
        {
            if let Some(scale) = scale
                && *scale.shape() != [1]
            {
                let why = format!("one for each row of `{what}`, or `[1]`, one for all");
                check.shape(name, scale.shape(), &[rows], &why)?;
            }
        }
        match &self.residual {
            Some(residual) => {
                let shape: Vec<usize> = batch.into_iter().chain([m, n]).collect();
                check.shape("residual", residual.shape(), &shape, "the shape of `y`")
            }
            None => Ok(()),
        }
    }

    /// Refuses scales, for functions whose weights have their own.
    pub(crate) fn check_unscaled(&self, check: &Check) -> Result<(), Error> {
        match self.scales.iter().zip(SCALES).find(|(scale, _)| scale.is_some()) {
            Some((_, name)) => Err(check.refuse(name, "the weights have scales of their own", "use `gemm`")),
            None => Ok(()),
        }
    }

    /// Refuses the scales of a second matrix, for functions of one.
    pub(crate) fn check_ungated(&self, check: &Check) -> Result<(), Error> {
        match self.scales[3] {
            Some(_) => Err(check.refuse("up_scale", "there is no second matrix", "use `gemm_gated`")),
            None => Ok(()),
        }
    }

    /// Refuses residual and accumulation, and a bias, too, where `bias` says so.
    pub(crate) fn check_unadded(&self, check: &Check, bias: bool) -> Result<(), Error> {
        let given = [
            (bias && self.bias.is_some(), "bias"),
            (self.residual.is_some(), "residual"),
            (self.accumulate, "accumulate"),
        ];
        match given.into_iter().find(|(given, _)| *given) {
            Some((_, name)) => Err(check.refuse(name, "nothing is added here", "use `gemm`")),
            None => Ok(()),
        }
    }

    pub(crate) fn numerics(&self) -> Numerics {
        let [x_scale, w_scale, y_scale, up_scale] = self.scales.map(|scale| match scale {
            None => Scaling::None,
            Some(scale) if *scale.shape() == [1] => Scaling::Whole,
            Some(_) => Scaling::Rows,
        });
        Numerics {
            bias: self.bias.is_some(),
            residual: self.residual.is_some(),
            accumulate: self.accumulate,
            tf32: self.tf32,
            x_scale,
            w_scale,
            y_scale,
            up_scale,
        }
    }

    /// The same for so many rows. One row's scale is that of all of x, too: beside a scale for each column it is taken as one for each row, of which there is code in any case.
    pub(crate) fn numerics_of(&self, rows: usize) -> Numerics {
        let numerics = self.numerics();
        match (rows, numerics.x_scale, numerics.w_scale) {
            (1, Scaling::Whole, Scaling::Rows) => Numerics { x_scale: Scaling::Rows, ..numerics },
            _ => numerics,
        }
    }

    /// What is added, as kernels take it: an empty view for what is absent. `rank`: that of y.
    pub(crate) fn added<'v>(
        &self,
        device: &'v Device,
        rank: usize,
    ) -> Result<Added<'v, O>, tegula::runtime::Error>
    where
        'a: 'v,
    {
        let mut scales = [TensorView::empty(device, 1)?; 4];
        for (to, from) in scales.iter_mut().zip(self.scales) {
            *to = from.unwrap_or(*to);
        }
        Ok(Added {
            bias: self.bias.map_or_else(|| TensorView::empty(device, 1), Ok)?,
            residual: self.residual.map_or_else(|| TensorView::empty(device, rank), Ok)?,
            scales,
        })
    }
}

/// What is added in a launch, and the scales of x, w, y and up.
#[derive(Clone, Copy)]
pub(crate) struct Added<'a, E: Element> {
    pub(crate) bias: TensorView<'a, E>,
    pub(crate) residual: TensorView<'a, E>,
    pub(crate) scales: [TensorView<'a, f32>; 4],
}

/// How a matrix is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Scaling {
    /// Not at all.
    #[default]
    None,
    /// By one number (tensor-wise).
    Whole,
    /// By a number for each row (row-wise).
    Rows,
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
    /// The scales of x.
    pub x_scale: Scaling,
    /// The scales of w.
    pub w_scale: Scaling,
    /// The scales that y is divided by.
    pub y_scale: Scaling,
    /// The scales of a second matrix of weights.
    pub up_scale: Scaling,
}

impl Numerics {
    /// Nothing but the product.
    pub const PLAIN: Numerics = Numerics {
        bias: false,
        residual: false,
        accumulate: false,
        tf32: false,
        x_scale: Scaling::None,
        w_scale: Scaling::None,
        y_scale: Scaling::None,
        up_scale: Scaling::None,
    };

    /// Nothing added, and each addend by itself; for 8-bit types with scales; and TF32 where it changes something: for the registry.
    pub(crate) fn space(class: Class) -> Vec<Numerics> {
        let plain = Numerics::PLAIN;
        let scaled = |scaling| Numerics { x_scale: scaling, w_scale: scaling, ..plain };
        let bias = |numerics| Numerics { bias: true, ..numerics };
        match class {
            Class::Float8 | Class::Int8 => {
                vec![plain, scaled(Scaling::Whole), scaled(Scaling::Rows), bias(scaled(Scaling::Rows))]
            }
            Class::F32 | Class::Tf32 | Class::Half => {
                let residual = Numerics { residual: true, ..plain };
                let accumulate = Numerics { accumulate: true, ..plain };
                let tf32 = (class.bits() == 32).then_some(Numerics { tf32: true, ..plain });
                [plain, bias(plain), residual, accumulate].into_iter().chain(tf32).collect()
            }
        }
    }

    /// Is it what products of this class are usually given: the scales of rows, for 8-bit types; TF32; or nothing?
    pub(crate) fn usual(&self, class: Class) -> bool {
        let plain = Numerics { tf32: false, ..*self } == Numerics::PLAIN;
        let scaled = Numerics { x_scale: Scaling::Rows, w_scale: Scaling::Rows, ..Numerics::PLAIN };
        match class {
            Class::Float8 | Class::Int8 => *self == scaled,
            Class::F32 => false,
            Class::Tf32 | Class::Half => plain,
        }
    }

    /// What dots of such operands are.
    pub(crate) fn class<T: Factor>(&self) -> Class {
        if self.tf32 && T::CLASS == Class::F32 { Class::Tf32 } else { T::CLASS }
    }
}

/// The scales of a product.
#[derive(Clone)]
pub(crate) struct Scales {
    pub(crate) x: View<f32, 1>,
    /// Of each matrix of weights.
    pub(crate) weights: Vec<View<f32, 1>>,
    pub(crate) y: View<f32, 1>,
}

/// The views that an epilogue reads and writes, and what it does.
#[derive(Clone)]
pub(crate) struct Output<O: Rounded, E: Float, F: Epilogue, const R: usize> {
    pub(crate) bias: Option<View<E, 1>>,
    pub(crate) residual: Option<View<E, R>>,
    pub(crate) scales: Option<Scales>,
    /// One output, or several that divide the columns.
    pub(crate) parts: Vec<ViewMut<O, R>>,
    pub(crate) numerics: Numerics,
    pub(crate) epilogue: F,
}

impl<O: Rounded, E: Float, F: Epilogue, const R: usize> Output<O, E, F, R> {
    /// One matrix (or one of each of a batch), with all that can be added to it; scales of x, w and y.
    pub(crate) fn whole(
        y: ViewMut<O, R>,
        (bias, residual): (View<E, 1>, View<E, R>),
        [x, w, to]: [View<f32, 1>; 3],
        numerics: Numerics,
        epilogue: F,
    ) -> Self {
        let scales = Scales { x, weights: vec![w], y: to };
        let (bias, residual) = (Some(bias), Some(residual));
        Output { bias, residual, scales: Some(scales), parts: vec![y], numerics, epilogue }
    }

    /// Stores what becomes of a tile of the product, or of two products. What lies outside of the output is dropped.
    pub(crate) fn store<S: Sum>(&self, at: At, products: &[Tile<S>]) {
        // Integers that nothing happens to stay exact.
        let kept = self.numerics == Numerics::PLAIN
            && S::ELEM == O::ELEM
            && std::any::TypeId::of::<F>() == std::any::TypeId::of::<Keep>();
        let rounded = match *products {
            [product] if kept => product.cast(),
            [product] => O::rounded(self.value(at, product.cast())),
            [gate, up] => O::rounded(self.gated(at, gate.cast(), up.cast())),
            _ => unreachable!("one product, or two"),
        };
        match self.parts[..] {
            [y] => store_part(y, at, rounded),
            _ => store_parts(&self.parts, at, rounded),
        }
    }

    /// The values that are rounded.
    fn value(&self, at: At, product: Tile<f32>) -> Tile<f32> {
        let shape = extents(product);
        let mut sum = self.scaled(at, product, 0);
        if let Some(bias) = self.bias.filter(|_| self.numerics.bias) {
            sum += bias.load([at.col], [shape[1]]).cast::<f32>().expand(0);
        }
        sum = self.epilogue.apply(sum, &at);
        if let Some(residual) = self.residual.filter(|_| self.numerics.residual) {
            sum += load_part(residual, at, shape).cast::<f32>();
        }
        let y_scale = self.y_scale(at, shape[0]);
        if self.numerics.accumulate {
            let before = load_part(self.parts[0].as_view(), at, shape).cast::<f32>();
            sum += y_scale.map_or(before, |scale| before * scale);
        }
        quantised(sum, y_scale)
    }

    /// The same of two products.
    fn gated(&self, at: At, gate: Tile<f32>, up: Tile<f32>) -> Tile<f32> {
        let gate = self.epilogue.apply(self.scaled(at, gate, 0), &at);
        let value = gate * self.scaled(at, up, 1);
        quantised(value, self.y_scale(at, extents(value)[0]))
    }

    /// The product with this one of the weights, times their scales and those of x.
    fn scaled(&self, at: At, product: Tile<f32>, which: usize) -> Tile<f32> {
        let Numerics { x_scale, w_scale, up_scale, .. } = self.numerics;
        let [rows, cols] = extents(product);
        let Some(scales) = &self.scales else { return product };
        let x = scale(scales.x, x_scale, at.row, rows, 1);
        let w = scale(scales.weights[which], [w_scale, up_scale][which], at.col, cols, 0);
        [x, w].into_iter().flatten().fold(product, |product, scale| product * scale)
    }

    fn y_scale(&self, at: At, rows: usize) -> Option<Tile<f32>> {
        scale(self.scales.as_ref()?.y, self.numerics.y_scale, at.row, rows, 1)
    }
}

/// Scales of a tile: one, or `len` from `start` on, as a tile that has `axis` as its dimension of extent 1.
fn scale(
    scales: View<f32, 1>,
    scaling: Scaling,
    start: Scalar<i32>,
    len: usize,
    axis: usize,
) -> Option<Tile<f32>> {
    match scaling {
        Scaling::None => None,
        Scaling::Whole => Some(scales.load([0], [1]).expand(0)),
        Scaling::Rows => Some(scales.load([start], [len]).expand(axis)),
    }
}

/// Values divided by their scale.
fn quantised(value: Tile<f32>, scale: Option<Tile<f32>>) -> Tile<f32> {
    scale.map_or(value, |scale| value * (full_like(scale, 1.0) / scale))
}

/// Rows and columns of a tile.
pub(crate) fn extents<T: Element>(tile: Tile<T>) -> [usize; 2] {
    [0, 1].map(|axis| tile.shape().dims()[axis] as usize)
}

/// Offsets and extents of a tile in a matrix, or in one of a batch.
fn place<const R: usize>(at: At, [rows, cols]: [usize; 2]) -> ([Offset; R], [usize; R]) {
    let offsets = std::array::from_fn(|axis| match R - axis {
        1 => offset(at.col),
        2 => offset(at.row),
        _ => at.batch.map_or(offset(0), offset),
    });
    (
        offsets,
        std::array::from_fn(|axis| match R - axis {
            1 => cols,
            2 => rows,
            _ => 1,
        }),
    )
}

/// A tile of a matrix, or of one of a batch.
pub(crate) fn load_part<T: Element, const R: usize>(view: View<T, R>, at: At, shape: [usize; 2]) -> Tile<T> {
    let (offsets, extents) = place(at, shape);
    let tile = view.load(offsets, extents);
    if R == 2 { tile } else { tile.reshape(shape) }
}

/// The same of what no other program reads, so that it may leave the L2 cache first.
pub(crate) fn load_once<T: Element, const R: usize>(view: View<T, R>, at: At, shape: [usize; 2]) -> Tile<T> {
    let (offsets, extents) = place(at, shape);
    let tile = view.load(offsets, extents).evict_first();
    if R == 2 { tile } else { tile.reshape(shape) }
}

/// Says that such a tile will be loaded.
pub(crate) fn prefetch_part<T: Element, const R: usize>(view: View<T, R>, at: At, shape: [usize; 2]) {
    let (offsets, extents) = place(at, shape);
    view.prefetch(offsets, extents);
}

fn store_part<T: Element, const R: usize>(view: ViewMut<T, R>, at: At, tile: Tile<T>) {
    let (offsets, shape) = place(at, extents(tile));
    view.store(offsets, if R == 2 { tile } else { tile.reshape(shape) });
}

/// Stores a tile in those of the outputs that it has columns of.
#[tile_fn]
fn store_parts<T: Element, const R: usize>(parts: &[ViewMut<T, R>], at: At, tile: Tile<T>) {
    let columns = extents(tile)[1] as i32;
    let widths: Vec<Scalar<i32>> = parts.iter().map(|part| part.dim(R - 1).cast::<i32>()).collect();
    for (i, part) in parts.iter().enumerate() {
        let before = widths[..i].iter().fold(constant(0), |before, &width| before + width);
        let col = at.col - before;
        if col < widths[i] && col > -columns {
            store_part(*part, At { col, ..at }, tile);
        }
    }
}

/// a · b + acc; of f32 operands IEEE f32, or TF32 where that was asked for.
pub(crate) fn multiply<T: DotInto<S>, S: Element>(
    a: Tile<T>,
    b: Tile<T>,
    acc: Tile<S>,
    numerics: Numerics,
) -> Tile<S> {
    let product = dot_acc(a, b, acc);
    if numerics.tf32 && T::ELEM == f32::ELEM {
        // The modifier is for tiles of f32, which this is: a cast to the type that a tile has is none.
        product.cast::<f32>().tf32().cast()
    } else {
        product
    }
}
