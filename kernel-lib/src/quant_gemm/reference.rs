//! What the formats mean, in f64. The product is that of [`crate::gemm::reference`] on these weights.

use tegula::prelude::f16;

use super::format::{Format, GROUP};

/// The weights of whole blocks, in the order of the blocks. Scales that are infinite or NaN give what arithmetic gives.
///
/// # Panics
/// If the bytes are no whole number of blocks.
pub fn dequantize(format: Format, blocks: &[u8]) -> Vec<f64> {
    assert!(blocks.len().is_multiple_of(format.block_bytes()), "whole blocks");
    let half = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f64();
    let mut weights = Vec::with_capacity(blocks.len() / format.block_bytes() * GROUP);
    for block in blocks.chunks_exact(format.block_bytes()) {
        let d = half(block);
        match format {
            Format::Q4_0 | Format::Q4_1 => {
                let (m, codes) = if format == Format::Q4_1 {
                    (half(&block[2..]), &block[4..])
                } else {
                    (0.0, &block[2..])
                };
                let nibbles = codes.iter().map(|b| b & 15).chain(codes.iter().map(|b| b >> 4));
                weights.extend(nibbles.map(|q| match format {
                    Format::Q4_0 => d * (f64::from(q) - 8.0),
                    _ => d * f64::from(q) + m,
                }));
            }
            Format::Q8_0 => weights.extend(block[2..].iter().map(|&q| d * f64::from(q as i8))),
        }
    }
    weights
}
