//! Configs of sampling.

use tegula::prelude::{Float, bf16, f16};

use super::kernel::sample;
use crate::registry::{Entry, Variant, with_warps};
pub use crate::rowwise::Piece as Config;
use crate::rowwise::Pieces;

/// Which of the thresholds are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Filters {
    /// Top-k.
    pub top_k: bool,
    /// Top-p.
    pub top_p: bool,
}

/// 16 elements for each thread, as argmax; but weights and their running sums are 64 bits each, so that 32 warps would leave 64 registers a thread, and
/// tiles of the host are half as wide.
pub const PIECES: Pieces = Pieces { least: 1, per_warp: 512, most_warps: 16, host_most: 8 << 10 };

/// What the registry lists.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32>("f32", &mut variants);
    variants_of::<f16>("f16", &mut variants);
    variants_of::<bf16>("bf16", &mut variants);
    Entry { name: "sample", variants }
}

fn variants_of<T: Float>(types: &str, variants: &mut Vec<Variant>) {
    // Vocabularies of some size, and one tiny: the whole space is four times as many kernels.
    for config in PIECES.space([1, 256, 1024, 4096, 8192]) {
        for (top_k, top_p) in [(false, false), (true, false), (false, true), (true, true)] {
            let filters = Filters { top_k, top_p };
            let stage = move || with_warps(sample::<T>::stage(filters, config), config.num_warps);
            variants.push(Variant::new(types, (config, filters), stage).host_only(PIECES.host_only(config)));
        }
    }
}
