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
    /// Columns beside them.
    beside: usize,
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
    Tile {
        rows,
        block_n,
        beside: 0,
        step_bytes: 128,
        num_warps,
        speed,
        warp_specialize,
        swap: false,
        cluster: 1,
    }
}

const fn ping_pong(rows: usize, block_n: usize, speed: f64) -> Tile {
    Tile { warp_specialize: WarpSpecialize::PingPong, ..cooperative(rows, block_n, 4, speed) }
}

/// Rows of w beside few rows of x, which wait for memory more than for tensor cores.
const fn swapped(rows: usize, block_n: usize, step_bytes: usize, speed: f64) -> Tile {
    Tile { swap: true, step_bytes, ..cooperative(rows, block_n, rows as u32 / 16, speed) }
}

/// A tile with so many columns more.
const fn wider(beside: usize, tile: Tile) -> Tile {
    Tile { beside, ..tile }
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
    cooperative(128, 256, 8, 1.007),
    cooperative(128, 128, 8, 0.98),
    // For what a whole number of tiles of powers of two leaves idle.
    wider(64, cooperative(128, 128, 8, 0.98)),
    wider(32, cooperative(128, 128, 8, 0.928)),
    wider(96, cooperative(128, 128, 8, 0.98)),
    wider(32, cooperative(128, 64, 8, 0.969)),
    wider(64, cooperative(64, 128, 4, 0.928)),
    cooperative(64, 256, 4, 0.949),
    cooperative(128, 64, 8, 0.773),
    cooperative(64, 128, 4, 0.846),
    ping_pong(64, 128, 0.82),
    cooperative(64, 64, 4, 0.619),
    // For few rows of x: one round of tiles for all multiprocessors, of whichever width that takes.
    wider(32, cooperative(64, 64, 4, 0.516)),
    wider(16, cooperative(64, 64, 4, 0.464)),
    Tile { step_bytes: 256, ..wider(16, cooperative(64, 32, 4, 0.413)) },
    Tile { step_bytes: 256, ..cooperative(64, 32, 4, 0.309) },
    swapped(128, 128, 128, 0.928),
    swapped(128, 64, 128, 0.722),
    swapped(64, 64, 256, 0.722),
    swapped(128, 32, 256, 0.516),
    swapped(64, 32, 256, 0.516),
    swapped(128, 16, 256, 0.361),
    // Of what takes the same time by the arithmetic below, the first is chosen: long rows of a step are read fastest.
    swapped(64, 16, 512, 0.361),
    swapped(64, 16, 256, 0.361),
    swapped(128, 8, 256, 0.258),
    swapped(64, 8, 512, 0.258),
    swapped(64, 8, 256, 0.258),
    by_two(ping_pong(128, 128, 1.0)),
    by_two(cooperative(128, 256, 8, 1.007)),
    by_two(cooperative(128, 128, 8, 0.98)),
    by_two(wider(64, cooperative(64, 128, 4, 0.959))),
    by_two(cooperative(64, 128, 4, 0.877)),
    by_two(wider(32, cooperative(128, 64, 8, 0.98))),
    by_two(wider(96, cooperative(128, 128, 8, 0.98))),
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
        let alone = self.cluster > 1 || self.beside > 0 || !self.swap && self.block_n < 64;
        self.warp_specialize != WarpSpecialize::PingPong && !alone && sums <= 64
    }

    /// As a config, with as many stages as fit beside the buffers that stores go through, and as K has; `None` if K has too few, or a thread too few registers.
    fn config(&self, algorithm: Algorithm, problem: &Problem) -> Option<Config> {
        let &Problem { form, k, class, .. } = problem;
        let block_k = self.step_bytes * 8 / class.bits() as usize;
        let config = Config {
            algorithm,
            rows: self.rows,
            block_n: self.block_n,
            beside: self.beside,
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
    let fits = move |tile: &&Tile| clusters || tile.cluster == 1 && tile.beside == 0;
    tiles.iter().filter(fits).flat_map(move |tile| {
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
/// Steps that a tile's stores take where no other group has the tensor cores meanwhile: of 64 (K = 4096), where speeds were fitted, as of others.
const STORED_STEPS: f64 = 2.0;
/// What a byte counts that comes from the L2 cache once more: little, so that it decides between what is equal otherwise.
const REUSE_RATE: f64 = 1e9;
/// Microseconds until the first operands are there, and the last sums stored.
const LATENCY: f64 = 2.5;
/// Microseconds of an exchange of partial sums, and its bytes in a microsecond, as measured on an H200 with 64 tiles of 128 × 128 for 128 programs.
const EXCHANGE: f64 = 5.0;
const EXCHANGE_RATE: f64 = 80e3;
/// What a step of stream-K takes beside one of whole tiles: its stores do not go through tensor copies.
const STREAM_K_STEP: f64 = 1.05;
/// And where each program is at a place of its own along K, so that weights come from memory more than once.
const LONE_STREAM_K_STEP: f64 = 2.2;

/// Rows of x for which reading the weights takes the time: one tile has them all.
const FEW_ROWS: usize = 64;

/// Is this a config for few rows? Tiles of 64 rows of w, of which there are the most, as wide as x has rows, so that weights come once; none of them shared.
fn suits(config: &Config, problem: &Problem) -> bool {
    let width = problem.m.next_power_of_two().max(8);
    let narrow = if config.swap {
        [config.rows, config.block_n] == [64, width]
    } else {
        // The tensor-copy engine takes its time for rows that are not there.
        config.is_narrow() && width == config.rows
    };
    problem.m > FEW_ROWS || narrow && config.algorithm == Algorithm::Persistent
}

/// Bytes of weights in a microsecond for a pair of multiprocessors, which have a way to the L2 cache in common, and for one that is alone; and of weights and rows of x together.
const PAIR_RATE: f64 = 66e3;
const LONE_RATE: f64 = 60e3;
const PAIR_CACHE_RATE: f64 = 155e3;
/// What two products a step took beside one when this was fitted; they are one instruction since, and this was not fitted again.
const TWO_PARTS: f64 = 1.06;

/// What a config takes for few rows of x, in microseconds: as long as the pair of multiprocessors that has the most weights to read. Fitted to all widths of tiles at 64 rows on an H200.
fn time_of_few(config: &Config, problem: &Problem, multiprocessors: usize) -> f64 {
    let &Problem { form, m, n, k, class, .. } = problem;
    let (batch, matrices) = (form.batch(), form.matrices());
    let tiles = batch * config.tiles(m, n);
    let row = k as f64 * class.bits() as f64 / 8.0;
    let (w_rows, x_rows) =
        if config.swap { (config.rows, config.block_n) } else { (config.width(), config.rows) };
    let weights = (matrices * w_rows) as f64 * row;
    let both = weights + m.min(x_rows) as f64 * row;
    let pairs = (multiprocessors / 2).max(1);
    let rounds = tiles / (2 * pairs);
    let most = 2 * rounds + (tiles % (2 * pairs)).div_ceil(pairs);
    let rate = if most == 1 { LONE_RATE } else { PAIR_RATE };
    let parts = if config.beside > 0 { TWO_PARTS } else { 1.0 };
    let pair = most as f64 * f64::max(weights * parts / rate, both / PAIR_CACHE_RATE);
    let memory = (batch * (m + matrices * n)) as f64 * row / MEMORY_RATE;
    f64::max(pair, memory) + LATENCY
}

/// What a config takes for a product, in microseconds.
fn time(config: &Config, speed: f64, problem: &Problem, multiprocessors: usize) -> f64 {
    let &Problem { form, m, n, k, class, .. } = problem;
    let (batch, matrices, bytes) = (form.batch(), form.matrices(), class.bits() as f64 / 8.0);
    let (steps, tiles) = (k.div_ceil(config.block_k), batch * config.tiles(m, n));
    let operands = config.stage_bytes(form, class) as f64;
    let cluster = config.cluster as usize;
    let products = (matrices * config.rows / cluster * config.width() * config.block_k) as f64;
    let step = f64::max(products * bytes / 2.0 / (RATE * speed), operands / LOAD_RATE);
    let partials = 2.0 * (config.rows * config.block_n * 4) as f64;
    let (mine, exchange) = match config.algorithm {
        Algorithm::StreamK => {
            let mine = (tiles * steps).div_ceil(config.programs(batch, [m, n, k], multiprocessors)) as f64;
            let down = if config.swap { n } else { m }.div_ceil(config.rows);
            let alone = config.abreast(m, n) == 1 && down > 1;
            let step = if alone { LONE_STREAM_K_STEP } else { STREAM_K_STEP };
            (mine * step, EXCHANGE + partials / EXCHANGE_RATE)
        }
        _ => {
            let rounds = tiles.div_ceil((multiprocessors / cluster).max(1)) as f64;
            let stored = if config.warp_specialize == WarpSpecialize::PingPong { 0.0 } else { STORED_STEPS };
            (rounds * (steps as f64 + stored), 0.0)
        }
    };
    let ctas = cluster * config.programs(batch, [m, n, k], multiprocessors);
    let rate = f64::min(MEMORY_RATE, ctas as f64 * OWN_MEMORY_RATE);
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
    let few = problem.m <= FEW_ROWS && candidates(problem).any(|(config, _)| suits(&config, problem));
    candidates(problem)
        // Other clusters were never the fastest where they were measured, with 256 to 4096 rows: who has enough to do for what it reads is held up by a partner.
        .filter(|(config, _)| {
            config.cluster == 1 || config.beside > 0 || config.rows == 64 * config.cluster as usize
        })
        // Tiles of several parts have no counterpart that computes yᵀ.
        .filter(|(config, _)| config.beside == 0 || !problem.by_columns)
        .filter(|(config, _)| !few || suits(config, problem))
        .filter(|(config, _)| split || config.algorithm != Algorithm::StreamK)
        .filter(|(config, _)| config.check(problem, device).is_ok())
        .map(|(config, speed)| match few {
            true => (time_of_few(&config, problem, multiprocessors as usize), config),
            false => (time(&config, speed, problem, multiprocessors as usize), config),
        })
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, config)| config)
}
