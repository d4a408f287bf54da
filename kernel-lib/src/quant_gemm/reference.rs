//! What the formats mean, in f64. The product is that of [`crate::gemm::reference`] on these weights.

use super::format::{Format, GROUP};

/// The weights of whole blocks, in the order of the blocks: [`Format::decode`].
///
/// # Panics
/// If the bytes are no whole number of blocks.
pub fn dequantize(format: Format, blocks: &[u8]) -> Vec<f64> {
    let mut weights = Vec::with_capacity(blocks.len() / format.block_bytes() * GROUP);
    format.decode(blocks, |weight| weights.push(weight));
    weights
}
