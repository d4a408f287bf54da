//! Runs Llama-family models on Tegula's kernels: weights from GGUF or safetensors, tokenizer, KV cache, decoding.
//!
//! The way of a prompt: [`Checkpoint`] opens and checks the files, [`Tokenizer`] makes token ids of text,
//! [`Model`](model::Model) holds the weights on a device and computes logits, [`generate()`] picks tokens one by one and streams the text.
//! Every operator on the device is a kernel of `tegula-kernels`; nothing here knows how kernels are compiled.
//!
//! Files come from strangers. Whatever they contain, the result is an [`Error`] of one line that names the file and the field: no panic,
//! and no allocation whose size a file chose without having the bytes to back it.

pub mod bytes;
pub mod checkpoint;
pub mod config;
pub mod error;
pub mod format;
pub mod generate;
pub mod gguf;
mod isolate;
pub mod model;
pub mod parts;
pub mod random;
pub mod sampling;
pub mod smollm2;
pub mod tokenizer;
pub mod weights;

pub use checkpoint::Checkpoint;
pub use config::Config;
pub use error::{Error, Fault};
pub use generate::generate;
pub use model::Engine;
pub use parts::{ModelWeights, Part};
pub use sampling::Sampling;
pub use tokenizer::Tokenizer;

/// What the book shows is compiled with the documentation tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../docs/book/src/run_a_model.md")]
    pub struct RunAModel;
}
