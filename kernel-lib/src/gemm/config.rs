//! Configs of the matrix product.

use std::cell::RefCell;
use std::collections::HashMap;

use tegula::Diagnostics;
use tegula::ir::kernel::Kernel;
use tegula::prelude::{Element, WarpSpecialize, bf16, f8e4m3, f8e5m2, f16};

use super::element::{Class, Factor, Rounded};
use super::epilogue::{Activate, Keep};
use super::options::Numerics;
use super::{fused, hopper, kernel};
use crate::DeviceClass;
use crate::registry::{Entry, Variant};

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// `kernel::tiled`: dots of tiles.
    Tiled,
    /// `kernel::persistent`: the same by programs that take tile after tile; on Hopper, with warps of their own for loads.
    Persistent,
    /// `kernel::stream_k`: the same, with tiles that several programs share the steps of.
    StreamK,
    /// `kernel::gemv`: elementwise products, for a few rows.
    Gemv,
}

/// How the work is cut. All extents are powers of two, but for that of `block_n` and `beside` together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Which kernel.
    pub algorithm: Algorithm,
    /// Rows of y that a program computes.
    pub rows: usize,
    /// Columns of y that a program computes: rows of the weights.
    pub block_n: usize,
    /// So many more beside them, for tiles between two powers of two: a multiple of 8 that is less than `block_n`; 0 but for `kernel::persistent`, not swapped.
    pub beside: usize,
    /// Depth of one step along K.
    pub block_k: usize,
    /// Rows of tiles that are gone through together, column by column.
    pub swizzle: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
    /// Depth of the software pipeline.
    pub num_stages: u32,
    /// How warps share the work of `kernel::persistent` and `kernel::stream_k`; `Off` for others.
    pub warp_specialize: WarpSpecialize,
    /// Do these two compute yᵀ = w · xᵀ? `rows` then counts rows of w, and `block_n` rows of x, of which there may be few.
    pub swap: bool,
    /// CTAs that share a tile of `kernel::persistent`: each has a part of the rows, and what all need is read once for all.
    pub cluster: u32,
}

impl Config {
    /// Tiles of a product.
    pub fn tiles(&self, m: usize, n: usize) -> usize {
        let (a, b) = if self.swap { (n, m) } else { (m, n) };
        a.div_ceil(self.rows) * b.div_ceil(self.width())
    }

    /// Does it go through few weights at a time, so that there are programs for all multiprocessors, beside all of few rows of x?
    pub(super) fn is_narrow(&self) -> bool {
        !self.swap && self.cluster == 1 && self.rows == 64 && self.width() <= 96
    }

    /// Columns of a tile.
    pub fn width(&self) -> usize {
        self.block_n + self.beside
    }

    /// Programs for a product, or for `batch` of them, on so many multiprocessors: as many as there are steps, at most.
    pub fn programs(&self, batch: usize, [m, n, k]: [usize; 3], multiprocessors: usize) -> usize {
        let tiles = self.tiles(m, n).saturating_mul(batch);
        match self.algorithm {
            Algorithm::Tiled => tiles,
            Algorithm::Gemv => n.div_ceil(self.block_n).saturating_mul(batch),
            // Of tiles that are large enough for it, one fits on a multiprocessor, or on those of a cluster.
            Algorithm::Persistent => tiles.min((multiprocessors / self.cluster as usize).max(1)),
            Algorithm::StreamK => {
                if tiles == 0 {
                    return 0;
                }
                let (most, abreast) = (multiprocessors.max(1), self.abreast(m, n));
                let columns = tiles / abreast;
                let teams = match most / abreast {
                    // Too few for teams: each takes tiles of its own.
                    0 => return most.min(tiles * k.div_ceil(self.block_k)),
                    // As many for each column of tiles, so that none has a little of another one.
                    teams if columns < teams => teams - teams % columns,
                    teams => teams,
                };
                abreast * teams.min(columns * k.div_ceil(self.block_k))
            }
        }
    }

    /// As many programs of stream-K take the same pieces of tiles that lie below each other: see `Product::abreast`, which computes the same.
    pub(super) fn abreast(&self, m: usize, n: usize) -> usize {
        let down = if self.swap { n } else { m }.div_ceil(self.rows).max(1);
        match down {
            _ if down <= self.swizzle => down,
            _ if down.is_multiple_of(self.swizzle) => self.swizzle,
            _ => 1,
        }
    }
}

/// Which function a config is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// One product.
    Single,
    /// So many of one shape.
    Batched(usize),
    /// Two with the same x, a tile of each at a time.
    Gated,
    /// One whose columns are divided among outputs.
    Split,
}

impl Form {
    /// How many products there are, each with tiles of its own.
    pub fn batch(self) -> usize {
        if let Form::Batched(batch) = self { batch } else { 1 }
    }

    /// Matrices of weights that a tile is computed with.
    pub fn matrices(self) -> usize {
        if self == Form::Gated { 2 } else { 1 }
    }
}

/// What a config is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Which function.
    pub form: Form,
    /// Rows of x and y.
    pub m: usize,
    /// Columns of y: rows of the weights.
    pub n: usize,
    /// The depth of the sums.
    pub k: usize,
    /// What x and the weights are.
    pub class: Class,
    /// Do tensor copies bring x and the weights to where the tensor cores read them? They want 16-byte aligned starts and rows, and elements along K next to
    /// each other unless they have 16 bits.
    pub tensor_copies: bool,
    /// Do the elements of a column of y lie next to each other, instead of those of a row? It is stored best by those who compute yᵀ.
    pub by_columns: bool,
    /// Do those of x?
    pub x_by_columns: bool,
}

impl Problem {
    /// Of dense matrices.
    pub fn dense([m, n, k]: [usize; 3], class: Class) -> Problem {
        let tensor_copies = (k * class.bits() as usize).is_multiple_of(128);
        Problem { form: Form::Single, m, n, k, class, tensor_copies, by_columns: false, x_by_columns: false }
    }
}

/// The most rows that `kernel::gemv` takes: each has a tile of sums in registers.
pub const MAX_GEMV_ROWS: usize = 8;

/// Elements of a tile of sums that a thread of `kernel::gemv` holds for all rows together: half of the registers that there are.
const GEMV_SUMS_PER_THREAD: usize = 128;

/// Up to as many rows, tiles of 64 rows are mostly padding, and the tensor cores that take 16 rows suffice.
const MMA_ROWS: usize = 32;

/// Choices that a thread remembers.
const MOST_CHOICES: usize = 4096;

impl Config {
    /// One warp that goes through one tile; what the choices below start from.
    const PLAIN: Config = Config {
        algorithm: Algorithm::Tiled,
        rows: 1,
        block_n: 1,
        beside: 0,
        block_k: 1,
        swizzle: 1,
        num_warps: 1,
        num_stages: 1,
        warp_specialize: WarpSpecialize::Off,
        swap: false,
        cluster: 1,
    };

    /// The config for y\[m, n\] = x\[m, k\] · wᵀ; `split`: may several programs share a tile, for which they need memory?
    pub fn choose(problem: &Problem, split: bool, device: DeviceClass) -> Config {
        let &Problem { form, m, k, class, .. } = problem;
        let config = match device {
            DeviceClass::Host { .. } => Config::for_host(m, k),
            // Tensor cores take 8 or 16 rows at a time, most of them padding here, but beyond one row (on Hopper) or 4 the elementwise products are the limit.
            // f32 has no tensor cores to be compared with.
            DeviceClass::Gpu { multiprocessors, .. } => {
                let fused = matches!(form, Form::Gated | Form::Split);
                let elementwise = |most| m <= most && !fused;
                let hopper = || hopper::choose(problem, split, multiprocessors);
                let [first, then] = if class.bits() == 32 { [MAX_GEMV_ROWS; 2] } else { [1, 4] };
                if elementwise(first) {
                    Config::gemv(problem, multiprocessors)
                } else if let Some(config) = device.is_hopper().then(hopper).flatten() {
                    config
                } else if elementwise(then) {
                    Config::gemv(problem, multiprocessors)
                } else {
                    Config::tiled(problem, device)
                }
            }
        };
        match form {
            // These are the persistent kernel, with other views.
            Form::Gated | Form::Split => Config { algorithm: Algorithm::Persistent, beside: 0, ..config },
            Form::Single | Form::Batched(_) => config,
        }
    }

    /// [`Config::choose`] that remembers: to go through a space takes longer than to launch a kernel.
    pub(super) fn chosen_before(problem: &Problem, split: bool, device: DeviceClass) -> Config {
        type Choices = HashMap<(Problem, bool, DeviceClass), Config>;
        thread_local! {
            static CHOICES: RefCell<Choices> = RefCell::default();
        }
        CHOICES.with_borrow_mut(|choices| {
            // Prompts have any length: what is rarely asked for again must not pile up.
            if choices.len() >= MOST_CHOICES {
                choices.clear();
            }
            *choices
                .entry((*problem, split, device))
                .or_insert_with(|| Config::choose(problem, split, device))
        })
    }

    /// On the host a dot of few rows reads the weights as they lie, so there is one kernel. Its weight tile of 64 KB stays in the L2 cache.
    fn for_host(m: usize, k: usize) -> Config {
        let rows = m.next_power_of_two().min(256);
        // A depth that divides K: what a tile reads beyond the edge costs as much as what is inside.
        let divides = if k == 0 { 1 } else { 1 << k.trailing_zeros().min(8) };
        let (block_n, block_k) = (64, usize::max(divides, 64));
        Config { rows, block_n, block_k, ..Config::PLAIN }
    }

    /// Few rows: as much of K as fits in one step, so that all loads of a program are under way together; and few columns, so that
    /// there are programs for all multiprocessors. Where N is small, the lanes and warps of a program split K.
    fn gemv(problem: &Problem, multiprocessors: u32) -> Config {
        let &Problem { form, m, n, k, class, .. } = problem;
        let bits = class.bits();
        let rows = m.next_power_of_two();
        // A warp reads 32 pieces of 16 bytes of a row.
        let warp_k = 32 * 128 / bits as usize;
        let block_k = k.next_power_of_two().clamp(64, 8 * warp_k);
        let num_warps: u32 = 4;
        let threads = 32 * num_warps as usize;
        // Every thread has 2 pieces of weights under way, or fewer where its sums would not fit; many short programs even out what few long ones leave.
        let per_thread = usize::min(2 * 128 / bits as usize, GEMV_SUMS_PER_THREAD / rows);
        let most = (per_thread * threads / block_k).max(1);
        let enough = 2 * multiprocessors as usize;
        let mut block_n = most.min(16);
        while block_n > 1 && form.batch() * n.div_ceil(block_n) < enough {
            block_n /= 2;
        }
        Config { algorithm: Algorithm::Gemv, rows, block_n, block_k, num_warps, ..Config::PLAIN }
    }

    /// Many rows: the largest tiles that still give every multiprocessor one.
    fn tiled(problem: &Problem, device: DeviceClass) -> Config {
        let &Problem { form, class, by_columns: swap, .. } = problem;
        let (m, n) = if swap { (problem.n, problem.m) } else { (problem.m, problem.n) };
        let (compute, multiprocessors) = match device {
            DeviceClass::Gpu { compute, multiprocessors } => (compute, multiprocessors),
            DeviceClass::Host { threads } => (0, threads),
        };
        // With two matrices a thread has twice the sums.
        let narrow = class.bits() == 32 || !class.has_tensor_cores(compute) || form == Form::Gated;
        let shapes: &[(usize, usize)] = if narrow {
            // Without tensor cores a thread holds 4 × 4 sums.
            &[(64, 64), (32, 64), (16, 64)]
        } else {
            &[(128, 128), (128, 64), (64, 64), (32, 64), (16, 64)]
        };
        let fits = |&&(rows, block_n): &&(usize, usize)| {
            (rows <= m.next_power_of_two())
                && form.batch() * m.div_ceil(rows) * n.div_ceil(block_n) >= multiprocessors as usize
        };
        // Without enough tiles of any size: the smallest that does not waste half of its rows.
        let smallest =
            || shapes.iter().rev().find(|s| s.0 >= m.next_power_of_two().min(64)).expect("64 rows are there");
        let &(rows, block_n) = shapes.iter().find(fits).unwrap_or_else(smallest);
        // Large tiles need their registers for sums, and have enough to do between two barriers with a shallow step.
        let block_k = if narrow || rows * block_n == 128 * 128 { 32 } else { 64 };
        Config { rows, block_n, block_k, swizzle: 8, num_warps: 4, num_stages: 4, swap, ..Config::PLAIN }
    }

    /// The config for a launch that stores `output_bits` wide elements. Beside the sums of a tile of 128 × 128 there are no registers
    /// for as many f32 elements that are added to them.
    pub fn with_epilogue(self, output_bits: u32, numerics: Numerics) -> Config {
        let adds_tile = numerics.residual || numerics.accumulate;
        if adds_tile && matches!(self.algorithm, Algorithm::Persistent | Algorithm::StreamK) {
            return self.with_fewer_sums();
        }
        if output_bits == 32 && adds_tile && self.rows * self.block_n == 128 * 128 {
            return Config { block_n: 64, block_k: 64, ..self };
        }
        self
    }

    /// The same with at most 64 sums a thread: tiles of half the columns, or twice the warps instead of two groups.
    fn with_fewer_sums(self) -> Config {
        if self.sums(Form::Single) <= 64 {
            self
        } else if self.beside > 0 {
            Config { beside: 0, ..self }.with_fewer_sums()
        } else if self.warp_specialize == WarpSpecialize::PingPong {
            Config { warp_specialize: WarpSpecialize::Cooperative, num_warps: 2 * self.num_warps, ..self }
        } else {
            Config { block_n: self.block_n / 2, ..self }
        }
    }

    /// The legal configs that may be the fastest for a problem: for tuning. The one that [`Config::choose`] gives is among them.
    pub fn candidates(problem: &Problem, device: DeviceClass) -> Vec<Config> {
        let chosen = Config::choose(problem, true, device);
        let whole = Config::choose(problem, false, device);
        let mut all = vec![chosen, whole];
        if whole.algorithm == Algorithm::Gemv {
            let columns = |block_n| Config { block_n, ..whole };
            all.extend([1, 2, 4, 8, 16].map(columns));
            all.extend([1, 2, 4, 8].map(|block_n| Config { num_warps: 8, ..columns(block_n) }));
            all.extend([1, 2, 4].map(|block_n| Config { block_k: whole.block_k / 2, ..columns(block_n) }));
            all.extend([1, 2].map(|block_n| Config { block_k: whole.block_k / 4, ..columns(block_n) }));
        }
        if problem.m <= 64 && problem.class.bits() < 32 && matches!(device, DeviceClass::Gpu { .. }) {
            for (rows, block_n) in [(16, 32), (16, 64), (16, 128), (32, 64), (64, 64)] {
                let tile = Config::tiled(problem, device);
                all.push(Config { rows, block_n, block_k: 64, ..tile });
            }
        }
        if problem.m <= 16 && problem.class == Class::Half && matches!(device, DeviceClass::Gpu { .. }) {
            // Much of the weights under way in each of several programs of a multiprocessor.
            for (block_n, block_k, num_stages) in [(16, 256, 4), (32, 256, 4), (64, 128, 5)] {
                let tile = Config::tiled(problem, device);
                all.push(Config { rows: 16, block_n, block_k, num_stages, ..tile });
            }
        }
        if device.is_hopper() && problem.tensor_copies {
            all.extend(hopper::candidates(problem).map(|(config, _)| config));
        }
        let mut legal: Vec<Config> = Vec::new();
        for config in all {
            // Tiles mostly of padding are not worth a try, nor are many narrow ones where x has many rows.
            let m = problem.m.next_power_of_two();
            let fits = match config.algorithm {
                Algorithm::Persistent | Algorithm::StreamK if config.swap => {
                    config.block_n <= usize::max(8, 2 * m) && m <= 2 * config.block_n
                }
                Algorithm::Persistent | Algorithm::StreamK => m > MMA_ROWS && config.rows <= 2 * m,
                Algorithm::Tiled | Algorithm::Gemv => true,
            };
            if fits && !legal.contains(&config) && config.check(problem, device).is_ok() {
                legal.push(config);
            }
        }
        legal
    }

    /// What the choice gives for the shapes that [`shapes`] lists, and, of the operands that models are served with, for the layers that [`served`] lists on an H200.
    pub fn space(form: Form, class: Class) -> Vec<Config> {
        let mut space = Vec::new();
        let layers = served().filter(|_| matches!(class, Class::Half | Class::Float8));
        Config::chosen(form, class, DeviceClass::H200, shapes().chain(layers), &mut space);
        for device in [DeviceClass::A100, DeviceClass::Host { threads: 2 }] {
            Config::chosen(form, class, device, shapes(), &mut space);
        }
        space
    }

    /// Adds what the choice gives for these shapes, each once.
    fn chosen(
        form: Form,
        class: Class,
        device: DeviceClass,
        shapes: impl Iterator<Item = [usize; 3]>,
        space: &mut Vec<Config>,
    ) {
        for [m, n, k] in shapes {
            for split in [false, true] {
                let problem = Problem { form, ..Problem::dense([m, n, k], class) };
                let config = Config::choose(&problem, split, device);
                if !space.contains(&config) {
                    space.push(config);
                }
            }
        }
    }
}

/// \[M, N, K\] over the sizes at which choices change, with the layers of models of 0.1 to 70 billion parameters in between.
pub fn shapes() -> impl Iterator<Item = [usize; 3]> {
    let rows = [1, 2, 3, 5, 8, 16, 33, 64, 128, 256, 4096];
    let layers = [
        [1, 1],
        [7, 33],
        [64, 64],
        [576, 576],
        [960, 576],
        [576, 1536],
        [3072, 576],
        [4096, 4096],
        [28672, 4096],
        [8192, 28672],
        [49152, 576],
    ];
    rows.into_iter().flat_map(move |m| layers.map(|[n, k]| [m, n, k]))
}

/// \[N, K\] of the layers of models that are served (Llama 3, Qwen 2.5 and 3, DeepSeek-V3, gpt-oss), the halves of gated units among them.
#[rustfmt::skip]
const SERVED: &[[usize; 2]] = &[
    [1024, 4096], [6144, 4096], [4096, 4096], [28672, 4096], [14336, 4096], [4096, 14336], [128256, 4096],
    [1024, 8192], [10240, 8192], [8192, 8192], [57344, 8192], [28672, 8192], [8192, 28672], [128256, 8192],
    [512, 3584], [4608, 3584], [3584, 3584], [37888, 3584], [18944, 3584], [3584, 18944],
    [24576, 4096], [12288, 4096], [4096, 12288], [5120, 2048], [2048, 4096], [1536, 2048], [768, 2048], [2048, 768],
    [2112, 7168], [24576, 1536], [32768, 512], [7168, 16384], [36864, 7168], [18432, 7168], [7168, 18432],
    [4096, 7168], [2048, 7168], [7168, 2048], [5120, 2880], [2880, 4096], [5760, 2880], [2880, 2880],
];

/// \[M, N, K\] of those layers, for the numbers of rows of decoding, speculation and prefill between which choices change.
pub fn served() -> impl Iterator<Item = [usize; 3]> {
    let few = [1, 2, 3, 4, 5, 8, 16, 32, 33, 48, 64, 83, 96, 128, 160, 192, 256, 320, 384, 512];
    let many = [640, 768, 1024, 1280, 1536, 2048, 3072, 4096, 8192, 16384];
    few.into_iter().chain(many).flat_map(|m| SERVED.iter().map(move |&[n, k]| [m, n, k]))
}

/// What the registry lists.
pub fn entries() -> [Entry; 4] {
    let mut entries =
        ["gemm", "gemm_batched", "gemm_gated", "gemm_split"].map(|name| Entry { name, variants: Vec::new() });
    let spaces = &mut Spaces::default();
    variants_of::<f32, f32>("f32, f32", spaces, &mut entries);
    variants_of::<f16, f16>("f16, f16", spaces, &mut entries);
    variants_of::<f16, f32>("f16, f32", spaces, &mut entries);
    variants_of::<bf16, bf16>("bf16, bf16", spaces, &mut entries);
    variants_of::<bf16, f32>("bf16, f32", spaces, &mut entries);
    variants_of::<f8e4m3, bf16>("f8e4m3, bf16", spaces, &mut entries);
    variants_of::<f8e4m3, f32>("f8e4m3, f32", spaces, &mut entries);
    variants_of::<f8e5m2, bf16>("f8e5m2, bf16", spaces, &mut entries);
    variants_of::<i8, bf16>("i8, bf16", spaces, &mut entries);
    variants_of::<i8, i32>("i8, i32", spaces, &mut entries);
    entries
}

/// Spaces that were asked for: many numerics and results have one, which takes thousands of choices to find.
#[derive(Default)]
struct Spaces(Vec<(Form, Class, Vec<Config>)>);

impl Spaces {
    fn of(&mut self, form: Form, class: Class) -> Vec<Config> {
        if let Some((.., space)) = self.0.iter().find(|(f, c, _)| (*f, *c) == (form, class)) {
            return space.clone();
        }
        let space = Config::space(form, class);
        self.0.push((form, class, space.clone()));
        space
    }
}

fn variants_of<T: Factor, O: Rounded>(
    types: &str,
    spaces: &mut Spaces,
    [single, batched, gated, split]: &mut [Entry; 4],
) {
    for numerics in Numerics::space(T::CLASS) {
        let class = numerics.class::<T>();
        // What is usual of a class, for which there is all of Hopper's space; with other numerics, what is chosen.
        let usual = numerics.usual(class) && !(class == Class::Float8 && O::ELEM == f32::ELEM);
        let mut space = |form| {
            let all = spaces.of(form, class);
            let with_epilogue = |config: Config| config.with_epilogue(O::ELEM.bits(), numerics);
            let hopper = hopper::space(class, usize::MAX).filter(|_| usual && form == Form::Single);
            let mut space: Vec<Config> = Vec::new();
            for config in all.into_iter().chain(hopper).map(with_epilogue) {
                if !(space.contains(&config) || numerics.tf32 && config.algorithm == Algorithm::Gemv) {
                    space.push(config);
                }
            }
            space
        };
        single.variants.extend(space(Form::Single).into_iter().map(|config| {
            let stage = move || staged::<T, O, 2>(config, numerics);
            Variant::new(types, (config, numerics), stage)
        }));
        // Functions of several matrices or outputs: with what is usual, for results as wide as usual.
        if !(usual || numerics == Numerics::PLAIN && class == Class::F32)
            || T::ELEM != O::ELEM && class == Class::Half
        {
            continue;
        }
        // Any number of products that is not 1: the choice depends on how many tiles there are in all.
        batched.variants.extend(space(Form::Batched(8)).into_iter().map(|config| {
            let stage = move || staged::<T, O, 3>(config, numerics);
            Variant::new(types, (config, numerics), stage)
        }));
        let silu = (Keep, Activate::Silu);
        let numerics_of_two = Numerics { up_scale: numerics.w_scale, ..numerics };
        gated.variants.extend(space(Form::Gated).into_iter().map(|config| {
            let stage = move || fused::gated::<T, O, (Keep, Activate)>::stage(config, numerics_of_two, silu);
            Variant::new(types, (config, numerics_of_two, silu), stage)
        }));
        split.variants.extend(space(Form::Split).into_iter().map(|config| {
            let stage = move || fused::split::<T, O, O::Added, Keep>::stage(config, numerics, Keep);
            Variant::new(types, (config, numerics), stage)
        }));
    }
}

fn staged<T: Factor, O: Rounded, const R: usize>(
    config: Config,
    numerics: Numerics,
) -> Result<Kernel, Diagnostics> {
    match config.algorithm {
        Algorithm::Tiled => kernel::tiled::<T, O, O::Added, Keep, R>::stage(config, numerics, Keep),
        Algorithm::Persistent => kernel::persistent::<T, O, O::Added, Keep, R>::stage(config, numerics, Keep),
        Algorithm::StreamK => kernel::stream_k::<T, O, O::Added, Keep>::stage(config, numerics, Keep),
        Algorithm::Gemv => kernel::gemv::<T, O, O::Added, Keep, R>::stage(config, numerics, Keep),
    }
}
