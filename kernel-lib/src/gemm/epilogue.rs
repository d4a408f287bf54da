//! What becomes of a product before it is stored: functions of tiles, composed of parts, one of which may be a closure of the caller's.
//!
//! ```
//! use tegula::prelude::*;
//! use tegula_kernels::gemm::{Activate, GemmOptions, closure};
//!
//! # let device = tegula::device("host")?;
//! # let x = device.from_slice(&[1.0f32, -2.0], &[1, 2])?;
//! # let w = device.from_slice(&[3.0f32, 4.0], &[1, 2])?;
//! # let mut y = device.from_slice(&[100.0f32], &[1, 1])?;
//! let options = GemmOptions::new().then(Activate::Relu).then(closure(|x: Tile<f32>, _| x + 1.0));
//! tegula_kernels::gemm(&x, &w, &mut y, options, &device.stream())?; // relu(3 − 8) + 1
//! assert_eq!(y.to_vec()?, [1.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An epilogue is a part of the kernel: its type is in the kernel's key, and its operations are in the kernel's code, applied to sums while they are in registers.

use std::fmt;
use std::hash::{Hash, Hasher};

use tegula::prelude::*;

/// Where in y a tile lies.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Which matrix of a batch; `None` if there is one only.
    pub batch: Option<Scalar<i32>>,
    /// The first row.
    pub row: Scalar<i32>,
    /// The first column.
    pub col: Scalar<i32>,
}

impl At {
    /// The numbers of the tile's columns, `[1, columns]`.
    pub fn columns(&self, tile: Tile<f32>) -> Tile<i32> {
        (arange(0, tile.shape().dims()[1] as usize) + self.col).expand(0)
    }

    /// The numbers of the tile's rows, `[rows, 1]`.
    pub fn rows(&self, tile: Tile<f32>) -> Tile<i32> {
        (arange(0, tile.shape().dims()[0] as usize) + self.row).expand(1)
    }
}

/// A function of a tile of a product, `[rows, columns]`, with scales and bias applied: it gives a tile of the same shape.
pub trait Epilogue: Clone + Hash + fmt::Debug + 'static {
    /// Applies it.
    fn apply(&self, x: Tile<f32>, at: &At) -> Tile<f32>;
}

/// Nothing: the product as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keep;

impl Epilogue for Keep {
    fn apply(&self, x: Tile<f32>, _: &At) -> Tile<f32> {
        x
    }
}

/// The usual activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activate {
    /// max(x, 0); NaN stays.
    Relu,
    /// x / (1 + e⁻ˣ)
    Silu,
    /// x · Φ(x), with the error function.
    Gelu,
    /// x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
    GeluTanh,
}

impl Epilogue for Activate {
    fn apply(&self, x: Tile<f32>, _: &At) -> Tile<f32> {
        match self {
            Activate::Relu => select(x.lt(0.0), zeros_like(x), x),
            Activate::Silu => x * x.sigmoid(),
            Activate::Gelu => x * 0.5 * (erf(x * std::f64::consts::FRAC_1_SQRT_2) + 1.0),
            Activate::GeluTanh => {
                let inner = (x + x * x * x * 0.044715) * (2.0 * std::f64::consts::FRAC_1_PI).sqrt();
                x * 0.5 * (inner.tanh() + 1.0)
            }
        }
    }
}

/// One after the other.
impl<A: Epilogue, B: Epilogue> Epilogue for (A, B) {
    fn apply(&self, x: Tile<f32>, at: &At) -> Tile<f32> {
        self.1.apply(self.0.apply(x, at), at)
    }
}

/// A closure as an epilogue: see [`closure`].
#[derive(Clone, Copy)]
pub struct Closure<F>(F);

/// A closure as an epilogue. It captures nothing, so that its type says all about it: the kernel's key has the type, and not the value.
pub fn closure<F: Fn(Tile<f32>, &At) -> Tile<f32> + Clone + 'static>(f: F) -> Closure<F> {
    const { assert!(size_of::<F>() == 0, "the closure of an epilogue captures nothing") };
    Closure(f)
}

impl<F> Hash for Closure<F> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<F> fmt::Debug for Closure<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<F>())
    }
}

impl<F: Fn(Tile<f32>, &At) -> Tile<f32> + Clone + 'static> Epilogue for Closure<F> {
    fn apply(&self, x: Tile<f32>, at: &At) -> Tile<f32> {
        (self.0)(x, at)
    }
}
