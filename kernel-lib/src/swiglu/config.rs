//! Configs of SwiGLU: a rectangle a program.

use tegula::prelude::{Float, bf16, f16};

use super::kernel::swiglu;
use crate::registry::{Entry, Variant, with_warps};
pub use crate::rowwise::Rectangle as Config;

/// What the registry lists.
pub fn entry() -> Entry {
    let mut variants = Vec::new();
    variants_of::<f32>("f32", &mut variants);
    variants_of::<f16>("f16", &mut variants);
    variants_of::<bf16>("bf16", &mut variants);
    Entry { name: "swiglu", variants }
}

fn variants_of<T: Float>(types: &str, variants: &mut Vec<Variant>) {
    variants.extend(Config::space().into_iter().map(|config| {
        let stage = move || with_warps(swiglu::<T>::stage(config), config.num_warps);
        Variant::new(types, config, stage).host_only(config.host_only())
    }));
}
