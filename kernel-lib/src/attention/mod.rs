//! Attention: out = softmax(q · kᵀ · scale) · v, by heads, with grouped KV heads (GQA, MQA) of any group size.
//!
//! * [`forward`](fn@forward): many queries, as in prefill;
//! * [`forward_fp8`]: the same of queries, keys and values in FP8, with scales;
//! * [`backward`](fn@backward): the gradients of queries, keys and values;
//! * [`decode`](fn@decode): the last few tokens of each sequence, over a KV cache; [`decode_cache`]: over one on pages, or of FP8;
//! * [`decode_cascade`]: the same of sequences that begin with the same keys; [`decode_mla`]: multi-head latent attention;
//! * [`kv_append`], [`kv_append_rotary`]: write new tokens into the cache; [`merge_states`]: one attention from several over parts of the keys;
//! * [`scaled_dot_product_attention`]: by PyTorch's conventions, for those who port from it.
//!
//! Tensors are `[batch, sequence, heads, head_dim]`, as models' projections leave them, with any strides: a `[batch, heads, sequence,
//! head_dim]` one is passed as `view().transpose(1, 2)?`. LSEs are natural logarithms, `[batch, heads, queries]`, in f32. Head dimensions are up to 256; those that are no
//! power of two are computed in tiles of the next one.
//!
//! What lies behind a sequence's end in a cache takes no part in anything, be it NaN.

pub mod append;
pub mod backward;
pub mod cascade;
pub mod decode;
pub mod dropout;
pub mod forward;
mod matrix;
pub mod merge;
pub mod mla;
pub mod reference;
pub mod rotary;
pub mod score;
pub mod sdpa;
mod shape;
mod softmax;
#[cfg(test)]
mod testing;

pub use append::{Positions, kv_append, kv_append_rotary};
pub use backward::{Attended, BackwardOptions, BackwardWorkspace, Gradients, backward};
pub use cascade::{CascadeWorkspace, Prefix, decode_cascade};
pub use decode::{Cache, Cached, DecodeOptions, DecodeWorkspace, MAX_QUERIES, decode, decode_cache};
pub use dropout::Dropout;
pub use forward::{ForwardOptions, OfFp8, Packed, Scales, Window, forward, forward_fp8};
pub use merge::merge_states;
pub use mla::{MlaCache, MlaOptions, MlaWorkspace, decode_mla};
pub use rotary::Rotary;
pub use score::{Place, ScoreMod, mask, score};
pub use sdpa::{AttnMask, SdpaOptions, scaled_dot_product_attention};
pub use shape::{Inputs, MAX_HEAD_DIM, Outputs};
