//! Configs of argmax.

use tegula::prelude::{Float, bf16, f16};

use super::kernel::argmax;
use crate::registry::{Entry, Variant, with_warps};
pub use crate::rowwise::Piece as Config;
use crate::rowwise::Pieces;

/// 16 elements for each thread, two 16-byte pieces of 16-bit elements in flight, and up to 32 warps; on the host, f32 tiles of 64 KB.
pub const PIECES: Pieces = Pieces { least: 1, per_warp: 512, most_warps: 32, host_most: 16 << 10 };

/// What the registry lists.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32>("f32", &mut variants);
    variants_of::<f16>("f16", &mut variants);
    variants_of::<bf16>("bf16", &mut variants);
    Entry { name: "argmax", variants }
}

fn variants_of<T: Float>(types: &str, variants: &mut Vec<Variant>) {
    variants.extend(PIECES.whole_space().into_iter().map(|config| {
        let stage = move || with_warps(argmax::<T>::stage(config), config.num_warps);
        Variant::new(types, config, stage).host_only(PIECES.host_only(config))
    }));
}
