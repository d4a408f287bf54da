//! Configs of the embedding: how much of a row a program copies.

use tegula::prelude::{Float, bf16, f16};

use super::kernel::{embedding, embedding_quantized};
use crate::quant_gemm::format::{Format, GROUP};
use crate::registry::{Entry, Variant, with_warps};
pub use crate::rowwise::Piece as Config;
use crate::rowwise::Pieces;

/// 8 elements for each thread, which is one 16-byte piece of 16-bit elements; longer rows than 4 warps copy are several programs. A quantised table is
/// read in whole groups.
pub const PIECES: Pieces = Pieces { least: GROUP, per_warp: 256, most_warps: 4, host_most: 16 << 10 };

/// What the registry lists of [`embedding`](fn@super::embedding).
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32, f32>("f32, f32", &mut variants);
    variants_of::<f32, f16>("f32, f16", &mut variants);
    variants_of::<f32, bf16>("f32, bf16", &mut variants);
    variants_of::<f16, f32>("f16, f32", &mut variants);
    variants_of::<f16, f16>("f16, f16", &mut variants);
    variants_of::<f16, bf16>("f16, bf16", &mut variants);
    variants_of::<bf16, f32>("bf16, f32", &mut variants);
    variants_of::<bf16, f16>("bf16, f16", &mut variants);
    variants_of::<bf16, bf16>("bf16, bf16", &mut variants);
    Entry { name: "embedding", variants }
}

fn variants_of<E: Float, T: Float>(types: &str, variants: &mut Vec<Variant>) {
    variants.extend(PIECES.whole_space().into_iter().map(|config| {
        let stage = move || with_warps(embedding::<E, T>::stage(config), config.num_warps);
        Variant::new(types, config, stage).host_only(PIECES.host_only(config))
    }));
}

/// What the registry lists of [`embedding_quantized`](fn@super::embedding_quantized).
pub fn entry_quantized() -> Entry {
    let mut variants = Vec::new();
    for format in Format::ALL {
        variants_of_quantized::<f32>("f32", format, &mut variants);
        variants_of_quantized::<f16>("f16", format, &mut variants);
        variants_of_quantized::<bf16>("bf16", format, &mut variants);
    }
    Entry { name: "embedding_quantized", variants }
}

fn variants_of_quantized<T: Float>(types: &str, format: Format, variants: &mut Vec<Variant>) {
    variants.extend(PIECES.whole_space().into_iter().map(|config| {
        let stage = move || with_warps(embedding_quantized::<T>::stage(format, config), config.num_warps);
        Variant::new(types, (config, format), stage).host_only(PIECES.host_only(config))
    }));
}
