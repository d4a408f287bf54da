//! The kernels of a step, in order.
//!
//! A layer is nine launches if its weights allow fusing (queries, keys and values in one product; the gated unit in one): norm, product,
//! rotary, append to the cache, attention, product, norm, gated unit, product.

use tegula_kernels::attention::{
    self, DecodeOptions, ForwardOptions, Inputs, MAX_QUERIES, Outputs, kv_append,
};
use tegula_kernels::{Pairing, add_rms_norm, rotary_in_place, sample};

use super::matrix::Dtype;
use super::{Engine, Model};
use crate::config::{Config, Pairs};
use crate::error::{Error, Fault};
use crate::sampling::Sampling;

/// Rows `..n` of a matrix.
macro_rules! rows {
    ($tensor:expr, $n:expr) => {
        $tensor.view().slice(0, ..$n)?
    };
    (mut $tensor:expr, $n:expr) => {
        $tensor.view_mut().slice(0, ..$n)?
    };
}

impl<T: Dtype> Model<T> {
    /// Takes tokens, no more than the scratch space has rows, from ids to the normed output of the last layer; fills the cache.
    pub(super) fn forward(&mut self, tokens: &[u32]) -> Result<(), Error> {
        let n = tokens.len();
        let (start, end) = (self.position, self.position + n);
        let Model { config, stream, weights, scratch, .. } = self;
        let Config { heads, kv_heads, norm_eps: eps, .. } = *config;
        let turned = heads + kv_heads;
        let pairing = match config.rope.pairs {
            Pairs::Half => Pairing::Half,
            Pairs::Interleaved => Pairing::Interleaved,
        };

        // A token that was picked is on the device already.
        let ids = if self.picked.take().is_some_and(|picked| tokens == [picked]) {
            scratch.picked.view()
        } else {
            let ids: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
            scratch.ids.view_mut().slice(0, ..n)?.copy_from_slice(&ids)?;
            rows!(scratch.ids, n)
        };
        rows!(mut scratch.hidden, n).fill_zero(stream)?;
        weights.vocabulary.gather(ids, rows!(mut scratch.branch, n), stream)?;

        let one = |p: usize| scratch.aligned_positions.view().select(0, p)?.slice(0, ..1);
        let (first, length) = (one(start)?, one(end)?);
        let positions = if n == 1 { first } else { scratch.positions.view().slice(0, start..end)? };
        for (layer, (keys, values)) in weights.layers.iter().zip(&mut scratch.cache) {
            let norm = layer.attention_norm.view();
            let (branch, hidden) = (rows!(scratch.branch, n), rows!(mut scratch.hidden, n));
            add_rms_norm(branch, hidden, norm, rows!(mut scratch.normed, n), eps, stream)?;

            let mut qkv = scratch.qkv.view_mut().slice(1, ..n)?;
            let (slots, width) = (qkv.dim(2), qkv.dim(3));
            let bias = layer.qkv_bias.as_ref().map(|bias| bias.view());
            layer.qkv.apply(
                rows!(scratch.normed, n),
                bias,
                qkv.reborrow().reshape(&[n, slots * width])?,
                stream,
            )?;
            let turn = qkv.reborrow().reshape(&[n, slots, width])?.slice(1, ..turned)?;
            rotary_in_place(turn, positions, weights.frequencies.view(), pairing, stream)?;

            let qkv = qkv.as_view();
            let (k, v) = (qkv.slice(2, heads..turned)?, qkv.slice(2, turned..)?);
            kv_append(k, v, first, &mut *keys, &mut *values, stream)?;
            let q = qkv.slice(2, ..heads)?;
            let mut attended = scratch.attended.view_mut().slice(1, ..n)?;
            let outputs = Outputs { out: attended.reborrow(), lse: None };
            if n <= MAX_QUERIES {
                let options = DecodeOptions { max_len: Some(end), ..DecodeOptions::default() };
                let inputs = Inputs { q, k: keys.view(), v: values.view() };
                attention::decode(inputs, length, outputs, &options, &mut scratch.decode, stream)?;
            } else {
                let options = ForwardOptions { causal: true, ..ForwardOptions::default() };
                let inputs = Inputs { q, k: keys.view().slice(1, ..end)?, v: values.view().slice(1, ..end)? };
                attention::forward(inputs, outputs, &options, stream)?;
            }
            let attended = attended.as_view().reshape(&[n, heads * config.head_dim])?;
            layer.output.apply(attended, None, rows!(mut scratch.branch, n), stream)?;

            let norm = layer.feed_forward_norm.view();
            let (branch, hidden) = (rows!(scratch.branch, n), rows!(mut scratch.hidden, n));
            add_rms_norm(branch, hidden, norm, rows!(mut scratch.normed, n), eps, stream)?;
            let both = layer.gate.is_apart().then(|| scratch.gate_up.view_mut().slice(0, ..n)).transpose()?;
            layer.gate.apply(rows!(scratch.normed, n), both, rows!(mut scratch.gated, n), stream)?;
            layer.down.apply(rows!(scratch.gated, n), None, rows!(mut scratch.branch, n), stream)?;
        }
        let norm = weights.output_norm.view();
        let (branch, hidden) = (rows!(scratch.branch, n), rows!(mut scratch.hidden, n));
        add_rms_norm(branch, hidden, norm, rows!(mut scratch.normed, n), eps, stream)?;
        self.position = end;
        Ok(())
    }

    /// The logits of these rows of the last step, into the first rows of the logits.
    pub(super) fn project(&mut self, rows: std::ops::Range<usize>) -> Result<(), Error> {
        let Model { weights, scratch, stream, .. } = self;
        let n = rows.len();
        let normed = scratch.normed.view().slice(0, rows)?;
        weights.vocabulary.project(normed, rows!(mut scratch.logits, n), stream)
    }

    /// A token by the first row of the logits; waits for it.
    pub(super) fn sample(&mut self, sampling: &Sampling) -> Result<u32, Error> {
        let sampling = tegula_kernels::Sampling {
            temperature: sampling.temperature,
            top_k: (sampling.top_k > 0).then_some(sampling.top_k),
            top_p: (sampling.top_p < 1.0).then_some(sampling.top_p),
            seed: sampling.seed,
            step: self.position() as u64,
        };
        let scratch = &mut self.scratch;
        sample(rows!(scratch.logits, 1), &mut scratch.picked, &sampling, &self.stream)?;
        u32::try_from(scratch.picked.to_vec()?[0]).map_err(|_| {
            let problem = "none of them is a number that can be chosen: the weights are damaged, or too large for the type of the activations";
            Fault::new("the logits", problem).into()
        })
    }
}
