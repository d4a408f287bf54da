//! What the registry lists. The configs are those of RMSNorm: the same rows go through the same registers.

use tegula::prelude::{Float, bf16, f16};

use super::kernel::add_rms_norm;
use crate::registry::{Entry, Variant, with_warps};
pub use crate::rms_norm::config::Config;

/// Every config × element types.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32, f32, f32>("f32, f32, f32", &mut variants);
    variants_of::<f16, f16, f16>("f16, f16, f16", &mut variants);
    variants_of::<f16, f16, f32>("f16, f16, f32", &mut variants);
    variants_of::<f16, f32, f32>("f16, f32, f32", &mut variants);
    variants_of::<bf16, bf16, bf16>("bf16, bf16, bf16", &mut variants);
    variants_of::<bf16, bf16, f32>("bf16, bf16, f32", &mut variants);
    variants_of::<bf16, f32, f32>("bf16, f32, f32", &mut variants);
    Entry { name: "add_rms_norm", variants }
}

fn variants_of<T: Float, R: Float, W: Float>(types: &str, variants: &mut Vec<Variant>) {
    variants.extend(Config::space().into_iter().map(|config| {
        let stage = move || with_warps(add_rms_norm::<T, R, W>::stage(config), config.num_warps);
        Variant::new(types, config, stage).host_only(config.host_only())
    }));
}
