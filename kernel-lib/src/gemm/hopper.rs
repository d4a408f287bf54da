//! The space of `kernel::persistent` on Hopper, and the choice in it.
//!
//! A config is a tile, and how its warps share it. What a tile is worth was measured on an H200 (`cargo bench --bench gpu -- --gemm-space`); what a shape
//! makes of it is arithmetic: programs go through the tiles in waves, and a wave lasts as long as one tile, however few there are.

use tegula::prelude::WarpSpecialize;

use super::config::{Algorithm, Config, Problem};

/// A config, and how fast the GPU goes through tiles of it when there are enough, as a part of the fastest.
struct Candidate {
    rows: usize,
    block_n: usize,
    num_warps: u32,
    num_stages: u32,
    warp_specialize: WarpSpecialize,
    speed: f64,
}

const fn cooperative(rows: usize, block_n: usize, num_warps: u32, num_stages: u32, speed: f64) -> Candidate {
    Candidate { rows, block_n, num_warps, num_stages, warp_specialize: WarpSpecialize::Cooperative, speed }
}

/// Bytes of a row of a tile: the width of the widest swizzle, and so of the widest box.
const STEP_BYTES: usize = 128;

/// From the largest to the smallest. Stages are as many as fit beside the buffers that stores go through.
const SPACE: &[Candidate] = &[
    cooperative(128, 256, 8, 4, 1.0),
    Candidate {
        rows: 128,
        block_n: 128,
        num_warps: 4,
        num_stages: 6,
        warp_specialize: WarpSpecialize::PingPong,
        speed: 1.0,
    },
    cooperative(128, 128, 8, 6, 0.95),
    cooperative(64, 256, 4, 5, 0.8),
    cooperative(128, 64, 8, 8, 0.7),
    cooperative(64, 128, 4, 8, 0.65),
    cooperative(64, 64, 4, 12, 0.45),
];

/// Rows of tiles that are gone through together: with 132 programs, about as many columns of tiles as rows are at work at a time.
const SWIZZLE: usize = 8;

/// The least steps along K: a ring of fewer slots than two would not overlap anything.
const LEAST_STEPS: usize = 2;

/// All configs for operands of `bits` bits, with rings as deep as K allows.
pub fn space(bits: u32, k: usize) -> impl Iterator<Item = Config> {
    candidates(bits, k).map(|(config, _)| config)
}

fn candidates(bits: u32, k: usize) -> impl Iterator<Item = (Config, f64)> {
    let block_k = STEP_BYTES * 8 / bits as usize;
    let steps = (k / block_k) as u32;
    SPACE.iter().map(move |c| {
        let config = Config {
            algorithm: Algorithm::Persistent,
            rows: c.rows,
            block_n: c.block_n,
            block_k,
            swizzle: SWIZZLE,
            num_warps: c.num_warps,
            num_stages: c.num_stages.min(steps),
            warp_specialize: c.warp_specialize,
        };
        (config, c.speed)
    })
}

/// The config with the least time for whole waves; `None` if the tensor-copy engine does not take the operands, or K is too short for a pipeline.
pub fn choose(problem: &Problem, multiprocessors: u32) -> Option<Config> {
    let block_k = STEP_BYTES * 8 / problem.bits as usize;
    if !problem.tensor_copies || problem.k < LEAST_STEPS * block_k {
        return None;
    }
    let time = |config: &Config, speed: f64| {
        let tiles = problem.m.div_ceil(config.rows) * problem.n.div_ceil(config.block_n);
        // Two groups take tiles in turns, so a tile takes the multiprocessor as long as if there were one.
        let waves = tiles.div_ceil(multiprocessors as usize);
        (waves * config.rows * config.block_n) as f64 / speed
    };
    candidates(problem.bits, problem.k)
        .min_by(|(a, s), (b, t)| time(a, *s).total_cmp(&time(b, *t)))
        .map(|(config, _)| config)
}
