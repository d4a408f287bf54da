//! Every kernel of this crate with all that it can be staged as: each legal config × element types.
//!
//! One test stages and verifies each variant (below); ratchets compile them; precompilation puts those into bundles that are asked for by name. A kernel registers with an
//! [`Entry`] from its `config.rs`, added to [`all_kernels`].

use tegula::Diagnostics;
use tegula::ir::artifact::TENSOR_MAP_RANK;
use tegula::ir::kernel::{Kernel, ParamFacts};
use tegula::ir::types::Type;

/// A kernel and its variants.
pub struct Entry {
    /// Its name, that of its folder.
    pub name: &'static str,
    /// All variants: the whole config space for every combination of element types.
    pub variants: Vec<Variant>,
}

/// One way to stage a kernel.
pub struct Variant {
    /// The element types, as in `bf16, f32`.
    pub types: String,
    /// The config, as `Debug` prints it.
    pub config: String,
    /// Is the config for the host device only? Its tiles are larger than what the threads of a CTA hold in registers, so there is no point in compiling it.
    pub host_only: bool,
    stage: Box<dyn Fn() -> Result<Kernel, Diagnostics> + Send + Sync>,
}

impl Variant {
    /// A variant. `stage` gives the kernel with the config's hints (`num_warps`, …) set: see [`with_warps`].
    pub fn new(
        types: impl Into<String>,
        config: impl std::fmt::Debug,
        stage: impl Fn() -> Result<Kernel, Diagnostics> + Send + Sync + 'static,
    ) -> Variant {
        Variant::of(types, format!("{config:?}"), stage)
    }

    /// The same with the config's text.
    pub fn of(
        types: impl Into<String>,
        config: String,
        stage: impl Fn() -> Result<Kernel, Diagnostics> + Send + Sync + 'static,
    ) -> Variant {
        Variant { types: types.into(), config, host_only: false, stage: Box::new(stage) }
    }

    /// Says whether the config is for the host device only.
    pub fn host_only(self, host_only: bool) -> Variant {
        Variant { host_only, ..self }
    }

    /// Builds the kernel, without facts of arguments.
    ///
    /// # Errors
    /// A config that cannot be built: a fault of this crate, which its test would have found.
    pub fn stage(&self) -> Result<Kernel, Diagnostics> {
        (self.stage)()
    }
}

/// Sets what launches set with `.num_warps(n)`.
pub fn with_warps(staged: Result<Kernel, Diagnostics>, num_warps: u32) -> Result<Kernel, Diagnostics> {
    staged.map(|mut kernel| {
        kernel.hints.num_warps = num_warps;
        kernel
    })
}

/// The same with a pipeline's depth.
pub fn with_hints(
    staged: Result<Kernel, Diagnostics>,
    num_warps: u32,
    num_stages: u32,
) -> Result<Kernel, Diagnostics> {
    with_warps(staged, num_warps).map(|mut kernel| {
        kernel.hints.num_stages = num_stages;
        kernel
    })
}

/// The facts of tensors as programs usually have them: aligned, rows of consecutive elements, extents and strides multiples of 16, smaller than 2 GB.
/// For looking at code without arguments; a launch finds its arguments' own.
pub fn with_usual_facts(mut kernel: Kernel) -> Kernel {
    for i in 0..kernel.params.len() {
        kernel.params[i].facts = match kernel.ty(kernel.params[i].value) {
            Type::View(view) => {
                let rank = view.rank as usize;
                ParamFacts {
                    align: 16,
                    unit_stride: Some(view.rank - 1),
                    stride_divisible: (0..rank).map(|d| if d + 1 == rank { 1 } else { 16 }).collect(),
                    dim_divisible: (0..rank).map(|_| 16).collect(),
                    small: true,
                    tensor_map: rank <= TENSOR_MAP_RANK,
                    ..ParamFacts::default()
                }
            }
            Type::Tile(t) if t.elem.pointee().is_some() => ParamFacts { align: 16, ..ParamFacts::default() },
            _ => ParamFacts::default(),
        };
    }
    kernel
}

/// Every kernel of this crate.
pub fn all_kernels() -> Vec<Entry> {
    let mut all = vec![
        crate::add_rms_norm::config::entry(),
        crate::argmax::config::entry(),
        crate::attention::append::config::entry(),
        crate::attention::append::config::rotary_entry(),
        crate::attention::cascade::config::entry(),
        crate::attention::decode::config::cache_entry(),
        crate::attention::decode::config::entry(),
        crate::attention::forward::config::entry(),
        crate::attention::forward::config::hopper_entry(),
        crate::attention::forward::config::scored_entry(),
        crate::attention::forward::config::fp8_entry(),
        crate::attention::forward::config::hopper_fp8_entry(),
        crate::attention::merge::config::entry(),
        crate::attention::mla::config::entry(),
        crate::embedding::config::entry(),
        crate::embedding::config::entry_quantized(),
        crate::residual_add::config::entry(),
        crate::rms_norm::config::entry(),
        crate::sampling::config::entry(),
        crate::swiglu::config::entry(),
    ];
    all.extend(crate::attention::backward::config::entries());
    all.extend(crate::gemm::config::entries());
    all.extend(crate::quant_gemm::config::entries());
    all.extend(crate::rotary::config::entries());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_stages_and_verifies() {
        for entry in all_kernels() {
            assert!(!entry.variants.is_empty(), "{} has no variants", entry.name);
            for variant in &entry.variants {
                // Staging ends with the verifier.
                if let Err(faults) = variant.stage() {
                    panic!("{} of {} with {}:\n{faults}", entry.name, variant.types, variant.config);
                }
            }
        }
    }

    #[test]
    fn names_and_variants_are_told_apart() {
        let mut seen = std::collections::HashSet::new();
        for entry in all_kernels() {
            for Variant { types, config, .. } in entry.variants {
                assert!(
                    seen.insert((entry.name, types.clone(), config.clone())),
                    "{} {types} {config} twice",
                    entry.name
                );
            }
        }
    }
}
