//! Memory that steps work in: allocated once.

use tegula::prelude::Element;
use tegula::runtime::{Device, Tensor};
use tegula_kernels::attention::{DecodeWorkspace, MAX_QUERIES};

use super::matrix::Dtype;
use crate::config::Config;
use crate::error::Error;

/// Tokens of a prompt that are computed together: enough to use the weights well, few enough to be small beside them.
const MOST_ROWS: usize = 512;
/// Rows of logits that are computed together when a text is scored; a row is as long as the vocabulary.
const LOGIT_ROWS: usize = 16;

/// Activations of a step, the KV cache, and the positions.
pub(super) struct Scratch<T: Element> {
    /// Positions of the cache.
    pub(super) capacity: usize,
    /// Tokens that can be computed together: R.
    pub(super) rows: usize,
    /// `[R]`
    pub(super) ids: Tensor<i32>,
    /// The residual stream, `[R, hidden]`.
    pub(super) hidden: Tensor<f32>,
    /// The residual stream, normed: `[R, hidden]`.
    pub(super) normed: Tensor<T>,
    /// What a part of a layer adds to the residual stream: `[R, hidden]`.
    pub(super) branch: Tensor<T>,
    /// Queries, keys and values: `[1, R, heads + 2 · kv_heads, head_dim]`.
    pub(super) qkv: Tensor<T>,
    /// `[1, R, heads, head_dim]`
    pub(super) attended: Tensor<T>,
    /// `[R, intermediate]`
    pub(super) gated: Tensor<T>,
    /// Gate and up: `[R, 2 · intermediate]`; without rows if no layer needs it.
    pub(super) gate_up: Tensor<T>,
    /// `[some rows, vocab]`
    pub(super) logits: Tensor<f32>,
    /// The token that was picked: `[1]`.
    pub(super) picked: Tensor<i32>,
    /// Partial results of attention over parts of the cache.
    pub(super) decode: DecodeWorkspace,
    /// Keys and values of each layer: `[1, capacity, kv_heads, head_dim]`.
    pub(super) cache: Vec<(Tensor<T>, Tensor<T>)>,
    /// 0, 1, 2, …: `[capacity]`.
    pub(super) positions: Tensor<i32>,
    /// Row p is p, four times: `[capacity + 1, 4]`. A single position is taken from here, where each is aligned alike, so that it does not depend on
    /// the position which variant of a kernel runs.
    pub(super) aligned_positions: Tensor<i32>,
}

impl<T: Dtype> Scratch<T> {
    pub(super) fn new(
        config: &Config,
        capacity: usize,
        gate_up: bool,
        device: &Device,
    ) -> Result<Self, Error> {
        let rows = capacity.min(MOST_ROWS);
        let Config { hidden, intermediate, heads, kv_heads, head_dim, vocab, .. } = *config;
        let layer = |_| -> Result<_, Error> {
            let shape = [1, capacity, kv_heads, head_dim];
            Ok((device.alloc(&shape)?, device.alloc(&shape)?))
        };
        // Prompts of few tokens, and their last chunks, are decoded, too.
        let mut decode = DecodeWorkspace::new();
        decode.reserve_for(device, 1, MAX_QUERIES.min(rows), capacity, heads, head_dim)?;
        // Positions are below 2³⁰, as the config's check says.
        let numbers = 0..capacity as i32;
        let positions: Vec<i32> = numbers.clone().collect();
        let aligned: Vec<i32> = (0..=capacity as i32).flat_map(|p| [p; 4]).collect();
        Ok(Scratch {
            capacity,
            rows,
            ids: device.zeros(&[rows])?,
            hidden: device.alloc(&[rows, hidden])?,
            normed: device.alloc(&[rows, hidden])?,
            branch: device.alloc(&[rows, hidden])?,
            qkv: device.alloc(&[1, rows, heads + 2 * kv_heads, head_dim])?,
            attended: device.alloc(&[1, rows, heads, head_dim])?,
            gated: device.alloc(&[rows, intermediate])?,
            gate_up: device.alloc(&[if gate_up { rows } else { 0 }, 2 * intermediate])?,
            logits: device.alloc(&[rows.min(LOGIT_ROWS), vocab])?,
            picked: device.zeros(&[1])?,
            decode,
            cache: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            positions: device.from_slice(&positions, &[capacity])?,
            aligned_positions: device.from_slice(&aligned, &[capacity + 1, 4])?,
        })
    }
}
