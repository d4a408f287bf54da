//! Configs of products with quantised weights.

use tegula::prelude::{DotInto, bf16, f16};

use super::format::{Format, GROUP};
use super::kernel::{quant_gemm, quant_swiglu};
use super::matrix::PANEL;
use crate::gemm::config::{served, shapes};
use crate::gemm::options::Numerics;
use crate::registry::{Entry, Variant};
use crate::{Activation, DeviceClass};

/// How products are computed: see [`super::kernel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A dot of codes for each group: few rows, on the host.
    Grouped,
    /// Products in the threads that load the codes: few rows, on GPUs.
    Elementwise,
    /// A dot with dequantised weights: many rows.
    Dequantized,
}

/// How the work is cut. All extents are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How products are computed.
    pub algorithm: Algorithm,
    /// Rows of y that a program computes.
    pub rows: usize,
    /// Groups of 32 weights in one step along K.
    pub groups: usize,
    /// Columns of y that a program computes: a panel of the weights, or a part of one.
    pub block_n: usize,
    /// Rows of tiles that are gone through together, column by column.
    pub swizzle: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
    /// Depth of the software pipeline.
    pub num_stages: u32,
}

/// The most rows for which weights are not dequantised.
pub const FEW_ROWS: usize = 8;

/// Codes that a thread reads at once: 16 bytes.
pub const CODES_PER_LOAD: usize = 16;

/// Bytes of codes in a tile on the host: as f32 they and the weights of the other half fill 64 KB, a part of the L2 cache.
const HOST_TILE: usize = 8 << 10;

impl Config {
    /// The config for y\[m, n\] = x\[m, k\] · wᵀ with activations of `bits` bits. `matrices` is 2 for gated units.
    pub fn choose(
        [m, n, k]: [usize; 3],
        format: Format,
        bits: u32,
        matrices: usize,
        device: DeviceClass,
    ) -> Config {
        match device {
            DeviceClass::Host { .. } if m <= FEW_ROWS => Config::grouped(m, k, format),
            DeviceClass::Host { .. } => Config {
                algorithm: Algorithm::Dequantized,
                rows: m.next_power_of_two().min(256),
                groups: 2,
                block_n: PANEL,
                swizzle: 1,
                num_warps: 1,
                num_stages: 1,
            },
            // Beyond a few rows the sums that a thread holds are the limit. f32 has no tensor cores to be compared with.
            DeviceClass::Gpu { multiprocessors, .. } => {
                let few = match (matrices, bits) {
                    (1, 32) => FEW_ROWS,
                    (1, _) => 4,
                    _ => 2,
                };
                match m <= few {
                    true => Config::elementwise([m, n, k], format, matrices, multiprocessors),
                    false => Config::dequantized(m, n, matrices, multiprocessors),
                }
            }
        }
    }

    /// A panel, and as many groups as fit the cache and divide K, or nearly.
    fn grouped(m: usize, k: usize, format: Format) -> Config {
        let block_n = PANEL;
        // What a step costs beside its weights, in bytes of codes: a dozen operations on small tiles.
        let overhead = 1024;
        let per_group = format.code_bytes() * block_n;
        let cost = |groups: &usize| (k / GROUP).div_ceil(*groups) * (overhead + groups * per_group);
        let most = (HOST_TILE / per_group).max(1);
        let groups = (0..=most.ilog2()).map(|log| 1 << log).min_by_key(cost).unwrap_or(1);
        let rows = m.next_power_of_two();
        let (swizzle, num_warps, num_stages) = (1, 1, 1);
        Config { algorithm: Algorithm::Grouped, rows, groups, block_n, swizzle, num_warps, num_stages }
    }

    /// Columns: a panel, where that gives programs for all multiprocessors; half of one (less is a part of a sector); or a quarter, where
    /// every program finds a multiprocessor even so: with the fewest columns, one step goes the furthest along K. Groups: so many that each
    /// thread has two loads of codes under way (one where its sums would not fit), and warps until that covers K, as all of it in one step
    /// hides the latency of memory best.
    fn elementwise([m, n, k]: [usize; 3], format: Format, matrices: usize, multiprocessors: u32) -> Config {
        let multiprocessors = multiprocessors as usize;
        let block_n = if n.div_ceil(PANEL) >= 2 * multiprocessors {
            PANEL
        } else if n.div_ceil(PANEL / 4) <= multiprocessors {
            PANEL / 4
        } else {
            PANEL / 2
        };
        let rows = m.next_power_of_two();
        let loads = if rows * matrices > 1 { 1 } else { 2 };
        // One program a multiprocessor may be large; of several, each is better small.
        let alone = n.div_ceil(block_n) <= multiprocessors;
        let most_warps = if alone && rows * matrices <= 2 { 16 } else { 4 };
        let in_a_warp = loads * 32 * CODES_PER_LOAD;
        let all = (k / GROUP).next_power_of_two() * format.code_bytes() * block_n;
        let num_warps = (all / in_a_warp).clamp(4, most_warps);
        let groups = (in_a_warp * num_warps / (format.code_bytes() * block_n)).max(1);
        let (swizzle, num_warps, num_stages) = (1, num_warps as u32, 1);
        Config { algorithm: Algorithm::Elementwise, rows, groups, block_n, swizzle, num_warps, num_stages }
    }

    /// The most rows that still give every multiprocessor a program: rows share the work of dequantising.
    fn dequantized(m: usize, n: usize, matrices: usize, multiprocessors: u32) -> Config {
        let block_n = PANEL;
        let most = if matrices == 1 { 128 } else { 64 };
        let mut rows = m.next_power_of_two().clamp(16, most);
        while rows > 16 && m.div_ceil(rows) * n.div_ceil(block_n) < multiprocessors as usize {
            rows /= 2;
        }
        let (swizzle, num_warps, num_stages) = (8, 4, 3);
        Config { algorithm: Algorithm::Dequantized, rows, groups: 2, block_n, swizzle, num_warps, num_stages }
    }

    /// Registers a thread: with one row 128 do, and let four small programs share a multiprocessor, so that their loads overlap.
    pub fn max_registers(&self) -> u32 {
        if self.algorithm == Algorithm::Elementwise && self.rows == 1 { 128 } else { 255 }
    }

    /// What the choice gives for the shapes that the matrix product lists, and on an H200 for the layers of models that are served.
    pub fn space(format: Format, bits: u32, matrices: usize) -> Vec<Config> {
        let mut space = Vec::new();
        Config::chosen(format, bits, matrices, DeviceClass::H200, shapes().chain(served()), &mut space);
        Config::chosen(format, bits, matrices, DeviceClass::Host { threads: 2 }, shapes(), &mut space);
        space
    }

    /// Adds what the choice gives for these shapes, each once.
    fn chosen(
        format: Format,
        bits: u32,
        matrices: usize,
        device: DeviceClass,
        shapes: impl Iterator<Item = [usize; 3]>,
        space: &mut Vec<Config>,
    ) {
        for [m, n, k] in shapes {
            let config = Config::choose([m, n, k.next_multiple_of(GROUP)], format, bits, matrices, device);
            if !space.contains(&config) {
                space.push(config);
            }
        }
    }
}

/// What the registry lists.
pub fn entries() -> [Entry; 2] {
    let (mut products, mut gated) = (Vec::new(), Vec::new());
    for format in Format::ALL {
        variants_of::<f32, f32>("f32, f32", format, &mut products, &mut gated);
        variants_of::<f16, f16>("f16, f16", format, &mut products, &mut gated);
        variants_of::<f16, f32>("f16, f32", format, &mut products, &mut gated);
        variants_of::<bf16, bf16>("bf16, bf16", format, &mut products, &mut gated);
        variants_of::<bf16, f32>("bf16, f32", format, &mut products, &mut gated);
    }
    [Entry { name: "quant_gemm", variants: products }, Entry { name: "quant_swiglu", variants: gated }]
}

fn variants_of<T: Activation + DotInto<f32>, O: Activation>(
    types: &'static str,
    format: Format,
    products: &mut Vec<Variant>,
    gated: &mut Vec<Variant>,
) {
    let types = format!("{types}, {format}");
    let bits = T::ELEM.bits();
    for numerics in Numerics::space(T::CLASS) {
        let said = |config: &Config| !numerics.tf32 || config.algorithm == Algorithm::Dequantized;
        products.extend(Config::space(format, bits, 1).into_iter().filter(said).map(|config| {
            let stage = move || quant_gemm::<T, O, O>::stage(format, config, numerics);
            Variant::new(types.as_str(), (config, numerics), stage)
        }));
        if numerics.bias || numerics.residual || numerics.accumulate {
            continue;
        }
        gated.extend(Config::space(format, bits, 2).into_iter().filter(said).map(|config| {
            let stage = move || quant_swiglu::<T, O>::stage(format, config, numerics);
            Variant::new(types.as_str(), (config, numerics), stage)
        }));
    }
}
