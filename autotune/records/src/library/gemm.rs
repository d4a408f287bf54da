//! Records of the matrix product, of 16-bit elements.

use tegula::prelude::WarpSpecialize;
use tegula_kernels::DeviceClass;
use tegula_kernels::gemm::Class;
use tegula_kernels::gemm::config::{Algorithm, Config as Typed, Problem};

use super::Library;
use crate::bucket::Dim;
use crate::fields::{Config, Shape, word_of};

/// [`tegula_kernels::gemm`](mod@tegula_kernels::gemm).
pub struct Gemm;

const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("tiled", Algorithm::Tiled),
    ("persistent", Algorithm::Persistent),
    ("stream_k", Algorithm::StreamK),
    ("gemv", Algorithm::Gemv),
];

const SPECIALIZED: [(&str, WarpSpecialize); 3] = [
    ("off", WarpSpecialize::Off),
    ("cooperative", WarpSpecialize::Cooperative),
    ("ping_pong", WarpSpecialize::PingPong),
];

/// The product of a shape: dense matrices.
pub fn problem(shape: &Shape) -> Problem {
    Problem::dense(["m", "n", "k"].map(|name| shape.extent(name)), Class::Half)
}

impl Library for Gemm {
    type Typed = Typed;
    const NAME: &'static str = "gemm";
    const SPACE: u32 = 2;
    const DIMS: &'static [Dim] = &[Dim::bucketed("m"), Dim::exact("n"), Dim::exact("k"), Dim::exact("bits")];

    fn to_config(typed: &Typed, _: &Shape) -> Config {
        Config::new()
            .with("algorithm", word_of(&ALGORITHMS, &typed.algorithm))
            .with("rows", typed.rows)
            .with("block_n", typed.block_n)
            .with("beside", typed.beside)
            .with("block_k", typed.block_k)
            .with("swizzle", typed.swizzle)
            .with("num_warps", typed.num_warps)
            .with("num_stages", typed.num_stages)
            .with("warp_specialize", word_of(&SPECIALIZED, &typed.warp_specialize))
            .with("swap", typed.swap)
            .with("cluster", typed.cluster)
    }

    fn from_config(config: &Config, _: &Shape) -> Result<Typed, String> {
        Ok(Typed {
            algorithm: config.word("algorithm", &ALGORITHMS)?,
            rows: config.number("rows")?,
            block_n: config.number("block_n")?,
            beside: config.number("beside")?,
            block_k: config.number("block_k")?,
            swizzle: config.number("swizzle")?,
            num_warps: config.number("num_warps")?,
            num_stages: config.number("num_stages")?,
            warp_specialize: config.word("warp_specialize", &SPECIALIZED)?,
            swap: config.flag("swap")?,
            cluster: config.number("cluster")?,
        })
    }

    fn check(typed: &Typed, shape: &Shape, device: DeviceClass) -> Result<(), String> {
        if shape.extent("bits") != 16 {
            return Err(format!(
                "elements of {} bits, but products of 16-bit elements are tuned",
                shape.extent("bits")
            ));
        }
        if !matches!(typed.num_warps, 1 | 2 | 4 | 8 | 16 | 32)
            || typed.num_stages == 0
            || typed.cluster == 0
            || typed.swizzle == 0
        {
            let &Typed { num_warps, num_stages, cluster, swizzle, .. } = typed;
            return Err(format!(
                "{num_warps} warps, {num_stages} stages, clusters of {cluster}, {swizzle} rows of tiles together"
            ));
        }
        typed.check(&problem(shape), device).map_err(|illegal| illegal.problem)
    }
}
