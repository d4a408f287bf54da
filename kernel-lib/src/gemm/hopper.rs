//! The space of `kernel::persistent` and `kernel::stream_k` on Hopper, and the choice in it.
//!
//! A config is a tile, and how its warps share it. What a tile is worth is a figure, to be fitted to `cargo bench --bench gpu -- --gemm-space`; what a shape
//! makes of it is arithmetic: whole tiles are gone through in waves, and a wave lasts as long as one tile, however few there are; shared tiles
//! take their part of everything, and the time to put them together.

use tegula::ir::target::GpuFeatures;
use tegula::prelude::WarpSpecialize;

use super::config::{Algorithm, Config, Form, Problem};
use super::element::Class;

/// A tile, and how fast tensor cores go through it when there are enough, as a part of the fastest.
struct Tile {
    rows: usize,
    block_n: usize,
    /// Bytes of a row of a step: the width of the widest swizzle, and so of a box, or several.
    step_bytes: usize,
    num_warps: u32,
    speed: f64,
    warp_specialize: WarpSpecialize,
    swap: bool,
    cluster: u32,
}

const fn cooperative(rows: usize, block_n: usize, num_warps: u32, speed: f64) -> Tile {
    let warp_specialize = WarpSpecialize::Cooperative;
    Tile { rows, block_n, step_bytes: 128, num_warps, speed, warp_specialize, swap: false, cluster: 1 }
}

const fn ping_pong(rows: usize, block_n: usize, speed: f64) -> Tile {
    Tile { warp_specialize: WarpSpecialize::PingPong, ..cooperative(rows, block_n, 4, speed) }
}

/// Rows of w beside few rows of x, which wait for memory more than for tensor cores.
const fn swapped(rows: usize, block_n: usize, step_bytes: usize, speed: f64) -> Tile {
    Tile { swap: true, step_bytes, ..cooperative(rows, block_n, rows as u32 / 16, speed) }
}

/// A tile for two CTAs, each of which has half of its rows, and gets half of the weights from the other.
const fn by_two(tile: Tile) -> Tile {
    Tile { rows: 2 * tile.rows, cluster: 2, ..tile }
}

/// From the largest to the smallest; clusters last.
const TILES: &[Tile] = &[
    ping_pong(128, 128, 1.0),
    // For results that lie column by column.
    Tile { swap: true, ..ping_pong(128, 128, 1.0) },
    cooperative(128, 256, 8, 0.97),
    cooperative(128, 128, 8, 0.95),
    cooperative(64, 256, 4, 0.93),
    cooperative(128, 64, 8, 0.75),
    cooperative(64, 128, 4, 0.92),
    ping_pong(64, 128, 0.92),
    cooperative(64, 64, 4, 0.6),
    swapped(128, 128, 128, 0.9),
    swapped(128, 64, 128, 0.7),
    swapped(64, 64, 256, 0.7),
    swapped(128, 32, 256, 0.5),
    swapped(64, 32, 256, 0.5),
    swapped(128, 16, 256, 0.35),
    // Of what takes the same time by the arithmetic below, the first is chosen: long rows of a step are read fastest.
    swapped(64, 16, 512, 0.35),
    swapped(64, 16, 256, 0.35),
    swapped(128, 8, 256, 0.25),
    swapped(64, 8, 512, 0.25),
    swapped(64, 8, 256, 0.25),
    by_two(ping_pong(128, 128, 1.0)),
    by_two(cooperative(128, 256, 8, 0.97)),
    by_two(cooperative(128, 128, 8, 0.95)),
];

/// Rows of tiles that are gone through together: with 132 programs, about as many columns of tiles as rows are at work at a time.
const SWIZZLE: usize = 8;
/// The most slots of a ring: what is in flight covers the latency long before.
const MOST_STAGES: usize = 12;
/// The most sums of a thread: beside more there are no registers for what becomes of them.
const MOST_SUMS: usize = 128;
/// The least steps along K: a ring of fewer slots than two would not overlap anything.
const LEAST_STEPS: usize = 2;

impl Tile {
    /// May programs share it? Two groups in turns need as many steps for each tile; and beside more sums a thread has no registers for
    /// those of others.
    fn is_shared(&self) -> bool {
        let sums = self.rows * self.block_n / (32 * self.num_warps as usize);
        self.warp_specialize != WarpSpecialize::PingPong && self.cluster == 1 && sums <= 64
    }

    /// As a config, with as many stages as fit beside the buffers that stores go through, and as K has; `None` if K has too few, or a thread too few registers.
    fn config(&self, algorithm: Algorithm, problem: &Problem) -> Option<Config> {
        let &Problem { form, k, class, .. } = problem;
        let block_k = self.step_bytes * 8 / class.bits() as usize;
        let config = Config {
            algorithm,
            rows: self.rows,
            block_n: self.block_n,
            block_k,
            swizzle: SWIZZLE,
            num_warps: self.num_warps,
            num_stages: 0,
            warp_specialize: self.warp_specialize,
            swap: self.swap,
            cluster: self.cluster,
        };
        if config.sums(form) > MOST_SUMS {
            return None;
        }
        let room = GpuFeatures::SM_90.max_shared_bytes as usize - config.shared_bytes(form, class);
        let fit = room / config.stage_bytes(form, class);
        let num_stages = fit.min(MOST_STAGES).min(k / block_k);
        (num_stages >= LEAST_STEPS).then_some(Config { num_stages: num_stages as u32, ..config })
    }
}

/// All configs of single products of such operands, with rings as deep as K allows; none for IEEE f32.
pub fn space(class: Class, k: usize) -> impl Iterator<Item = Config> {
    space_of(Form::Single, class, k)
}

/// The same for another form.
pub fn space_of(form: Form, class: Class, k: usize) -> impl Iterator<Item = Config> {
    let problem = Problem { form, k, ..Problem::dense([0; 3], class) };
    candidates(&problem).collect::<Vec<_>>().into_iter().map(|(config, _)| config)
}

/// The configs for a problem, with the speed of their tiles.
pub(super) fn candidates(problem: &Problem) -> impl Iterator<Item = (Config, f64)> {
    let tiles = if problem.class == Class::F32 { &[] } else { TILES };
    let shared = problem.form == Form::Single;
    let clusters = matches!(problem.form, Form::Single | Form::Batched(_));
    tiles.iter().filter(move |tile| tile.cluster == 1 || clusters).flat_map(move |tile| {
        [Algorithm::Persistent, Algorithm::StreamK]
            .into_iter()
            .filter(move |&a| a == Algorithm::Persistent || shared && tile.is_shared())
            .filter_map(move |a| Some((tile.config(a, problem)?, tile.speed)))
    })
}

/// Products and additions of 16-bit operands in a microsecond on one multiprocessor.
const RATE: f64 = 3.3e6;
/// Bytes that a multiprocessor gets in a microsecond, from wherever.
const LOAD_RATE: f64 = 150e3;
/// Bytes in a microsecond from memory, for all together and for one.
const MEMORY_RATE: f64 = 4.3e6;
const OWN_MEMORY_RATE: f64 = 60e3;
/// What a byte counts that comes from the L2 cache once more: little, so that it decides between what is equal otherwise.
const REUSE_RATE: f64 = 1e9;
/// Microseconds until the first operands are there, and the last sums stored.
const LATENCY: f64 = 2.5;
/// Microseconds of an exchange of partial sums, and its bytes in a microsecond.
const EXCHANGE: f64 = 1.5;
const EXCHANGE_RATE: f64 = 80e3;
/// What a step of stream-K takes beside one of whole tiles, as measured on an H200. It is not the steps, whose code is the same, nor the order of tiles (dealing all but the last
/// round out whole changed nothing): with 96 tiles of 128 × 128 for 132 programs, the exchange of partial sums takes 20 µs, while the tensor cores wait. So it is hardly ever chosen.
const STREAM_K_STEP: f64 = 2.2;

/// Rows of x for which reading the weights takes the time: one tile has them all.
const FEW_ROWS: usize = 64;

/// Is this a config for few rows? Tiles of 64 rows of w, of which there are the most, as wide as x has rows, so that weights come once; none of them shared.
fn suits(config: &Config, problem: &Problem) -> bool {
    let width = problem.m.next_power_of_two().max(8);
    let narrow = if config.swap {
        [config.rows, config.block_n] == [64, width]
    } else {
        [config.block_n, width] == [64; 2]
    };
    problem.m > FEW_ROWS || narrow && config.algorithm == Algorithm::Persistent
}

/// What a config takes for a product, in microseconds.
fn time(config: &Config, speed: f64, problem: &Problem, multiprocessors: usize) -> f64 {
    let &Problem { form, m, n, k, class, .. } = problem;
    let (batch, matrices, bytes) = (form.batch(), form.matrices(), class.bits() as f64 / 8.0);
    let (steps, tiles) = (k.div_ceil(config.block_k), batch * config.tiles(m, n));
    let operands = config.stage_bytes(form, class) as f64;
    let products = (matrices * config.rows * config.block_n * config.block_k) as f64;
    let step = f64::max(products * bytes / 2.0 / (RATE * speed), operands / LOAD_RATE);
    let partials = 2.0 * (config.rows * config.block_n * 4) as f64;
    let (mine, exchange) = match config.algorithm {
        Algorithm::StreamK => {
            let mine = (tiles * steps).div_ceil(multiprocessors) as f64;
            (mine * STREAM_K_STEP, EXCHANGE + partials / EXCHANGE_RATE)
        }
        _ => ((tiles.div_ceil(multiprocessors) * steps) as f64, 0.0),
    };
    let programs = config.programs(batch, [m, n, k], multiprocessors) as f64;
    let rate = f64::min(MEMORY_RATE, programs * OWN_MEMORY_RATE);
    let memory = (batch * (m * k + matrices * n * k + m * n)) as f64 * bytes / rate;
    // Columns that are stored row by row take a sector of 32 bytes for 16, where eight lanes have neighbours.
    let against = problem.by_columns && !config.swap;
    let scattered = if against { (batch * m * n) as f64 * bytes / rate } else { 0.0 };
    let reuse = (tiles * steps) as f64 * operands / REUSE_RATE;
    f64::max(mine * step, memory) + reuse + scattered + exchange + LATENCY
}

/// The config with the least time; `None` if the tensor-copy engine does not take the operands, or K is too short for a pipeline. `split`: may
/// programs share tiles?
pub fn choose(problem: &Problem, split: bool, multiprocessors: u32) -> Option<Config> {
    if !problem.tensor_copies {
        return None;
    }
    let device = crate::DeviceClass::Gpu { multiprocessors, compute: 90 };
    let few = candidates(problem).any(|(config, _)| suits(&config, problem));
    candidates(problem)
        // Clusters were never the fastest where they were measured: with 256 rows.
        .filter(|(config, _)| config.cluster == 1)
        .filter(|(config, _)| !few || suits(config, problem))
        .filter(|(config, _)| split || config.algorithm != Algorithm::StreamK)
        .filter(|(config, _)| config.check(problem, device).is_ok())
        .map(|(config, speed)| (time(&config, speed, problem, multiprocessors as usize), config))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, config)| config)
}
