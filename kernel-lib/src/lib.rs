//! The kernels of Tegula: what transformers are made of, as safe functions over views.
//!
//! Each kernel is a module with the same parts: a function over [`TensorView`](tegula::runtime::TensorView)s that checks
//! its arguments, picks a config and launches on a stream; `config`, the legal configs and the choice among them; `kernel`, the `#[kernel]`
//! itself, for those who fuse or tune; and `reference`, the definition in f64, which tests (also other crates') compare with.
//!
//! ```
//! use tegula::prelude::*;
//!
//! let device = tegula::device("host")?;
//! let x = device.from_slice(&[3.0f32, 4.0, 0.0, 0.0], &[2, 2])?;
//! let weight = device.from_slice(&[1.0f32, 2.0], &[2])?;
//! let mut y = device.alloc::<f32>(&[2, 2])?;
//! tegula_kernels::rms_norm(&x, &weight, &mut y, 1e-6, &device.stream())?;
//! assert!((y.to_vec()?[1] - 8.0 / 12.5f32.sqrt()).abs() < 1e-6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds for all of them
//! * Activations are f32, f16 or bf16 ([`Activation`]); arithmetic is f32, and a result is rounded once, when it is stored.
//! * Views may have any strides, also rows longer than what is used. Rows of consecutive elements whose start and length are multiples of 16
//!   bytes are read in 16-byte pieces; others work, slower.
//! * A tensor without elements is fine: nothing is launched.
//! * What does not fit is an [`Error`] that names function and argument, before anything has been launched.
//! * A launch does not wait: an error of the device may come from earlier work, as everywhere in the run time.

pub mod add_rms_norm;
pub mod argmax;
pub mod attention;
pub mod check;
pub mod device;
pub mod element;
pub mod embedding;
pub mod error;
pub mod gemm;
pub mod quant_gemm;
pub mod registry;
pub mod residual_add;
pub mod rms_norm;
pub mod rotary;
pub mod rowwise;
pub mod sampling;
pub mod served;
pub mod swiglu;
#[cfg(test)]
mod testing;
pub mod tuned;

pub use add_rms_norm::add_rms_norm;
pub use argmax::argmax;
pub use device::DeviceClass;
pub use element::Activation;
pub use embedding::{TokenIds, embedding, embedding_quantized};
pub use error::Error;
pub use gemm::{GemmOptions, gemm};
pub use quant_gemm::{QuantizedMatrix, quant_gemm, quant_swiglu};
pub use registry::all_kernels;
pub use residual_add::residual_add;
pub use rms_norm::rms_norm;
pub use rotary::{Pairing, rotary, rotary_in_place};
pub use sampling::{Sampling, sample};
pub use swiglu::{swiglu, swiglu_fused};
