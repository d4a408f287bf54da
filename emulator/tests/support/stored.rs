//! Kernels that Tegula's compiler specialised, in which each group of warps hands something to another: consumers a computed operand to the tensor cores of both warpgroups, and results to warps that
//! add and store them. They are `queries_once` and `a_step_late` of `tests/filetests/transform/specialize_warps`: the first has a vector besides that threads read, and a tile that a loop carries in its
//! slot; the second one's loop carries the computed operand.

use half::bf16;
use tegula_emulator::asynchronous::{TensorDataType, TensorMapBuilder};
use tegula_emulator::matrix::Swizzle;
use tegula_emulator::{GlobalMemory, Launch, Module, Options, Outcome};

use super::gemm::{THREADS, bytes, matrix_map, read_bf16};
use super::specialised::shared_bytes;
use super::{Parameters, Random, relative_error};

/// PTX for `sm_90a`.
pub const ONCE: &str = include_str!("../fixtures/tile_queries_once.ptx");
pub const LATE: &str = include_str!("../fixtures/tile_a_step_late.ptx");

/// Keys, and dimensions of a head.
const KEYS: usize = 128;
const DIM: usize = 128;
/// Steps of 64 queries: rings of two slots and of three go round.
const STEPS: usize = 7;
const STEP: usize = 64;
const QUERIES: usize = STEPS * STEP;

/// What is allocated, and the parameters that say where.
struct Memory {
    global: GlobalMemory,
    views: Parameters,
}

impl Memory {
    fn of(source: &str) -> (Memory, Module) {
        let mut global = GlobalMemory::new();
        let module = Module::load(source, &mut global).unwrap_or_else(|e| panic!("{e}"));
        (Memory { global, views: Parameters::default() }, module)
    }

    /// A matrix, row by row.
    fn matrix(&mut self, name: &str, values: &[bf16], width: usize) -> u64 {
        let at = self.global.allocate_from(&bytes(values), name);
        self.view(at, values.len() / width, width);
        at
    }

    fn floats(&mut self, name: &str, values: &[f32], width: usize) -> u64 {
        let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let at = self.global.allocate_from(&raw, name);
        self.view(at, values.len() / width, width);
        at
    }

    fn view(&mut self, at: u64, rows: usize, width: usize) {
        let views = std::mem::take(&mut self.views);
        self.views = views.u64(at).u32(rows as u32).u32(width as u32).u32(width as u32);
    }

    fn read_floats(&self, at: u64, count: usize) -> Vec<f64> {
        let mut raw = vec![0; count * 4];
        self.global.read(at, &mut raw).unwrap();
        raw.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect()
    }
}

/// A matrix of f32, in boxes of `rows` × `columns`.
fn map_of_floats(
    at: u64,
    [height, width]: [usize; 2],
    [rows, columns]: [u32; 2],
    swizzle: Swizzle,
) -> [u8; 128] {
    let (dims, strides) = ([width as u64, height as u64], [width as u64 * 4]);
    let map = TensorMapBuilder::new(TensorDataType::F32, at, &dims, &strides, &[columns, rows]);
    map.swizzle(swizzle).build().unwrap().encode()
}

/// Maps come in the order in which the producer first loads tiles, and then the storing warps store them.
fn launch(
    memory: &Memory,
    module: &Module,
    name: &str,
    source: &str,
    maps: &[[u8; 128]],
    options: &Options,
) -> Outcome {
    let scalars = Parameters(memory.views.0.clone()).u32(QUERIES as u32);
    let p = maps.iter().fold(scalars, |p, map| p.map(map));
    let shared = shared_bytes(source);
    let launch = Launch { dynamic_shared: shared, ..Launch::new(name, [1; 3], [THREADS, 1, 1], &p.0) };
    module.launch(&memory.global, &launch, options).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The products of a row of each.
fn dot(a: &[bf16], b: &[bf16]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64()).sum()
}

/// Row `i`.
fn row(x: &[bf16], i: usize) -> &[bf16] {
    &x[i * DIM..][..DIM]
}

/// Runs `source`, which is [`ONCE`] or a change of it: what was found, and the larger relative error of the two results.
///
/// With S = K·Qᵀ and U = K·Gᵀ, P = S ∘ e ∘ U in bf16, where e has a number for each query: o += Kᵀ·P, and d = P·Q.
pub fn run_once(source: &str, options: &Options) -> (Outcome, f64) {
    let mut random = Random(options.seed + 1);
    let (q, g, k) = (random.bf16(QUERIES * DIM), random.bf16(QUERIES * DIM), random.bf16(KEYS * DIM));
    let e: Vec<f32> = (0..QUERIES).map(|_| random.normal()).collect();
    let (mut memory, module) = Memory::of(source);
    let [pq, pg, pk] = [("q", &q), ("g", &g), ("k", &k)].map(|(name, x)| memory.matrix(name, x, DIM));
    let pe = memory.floats("e", &e, QUERIES);
    let po = memory.floats("o", &[1.0; DIM * QUERIES], QUERIES);
    let pd = memory.matrix("d", &[bf16::NAN; KEYS * DIM], DIM);
    let maps = [
        matrix_map(pk, [KEYS, DIM], KEYS as u32),
        matrix_map(pq, [QUERIES, DIM], STEP as u32),
        matrix_map(pg, [QUERIES, DIM], STEP as u32),
        map_of_floats(pe, [1, QUERIES], [1, STEP as u32], Swizzle::None),
        map_of_floats(po, [DIM, QUERIES], [64, 32], Swizzle::B128),
        matrix_map(pd, [KEYS, DIM], 64),
    ];
    let outcome = launch(&memory, &module, "queries_once", ONCE, &maps, options);
    let (mut o, mut d) = (vec![1.0; DIM * QUERIES], vec![0.0; KEYS * DIM]);
    for (query, key) in (0..QUERIES).flat_map(|query| (0..KEYS).map(move |key| (query, key))) {
        let keys = row(&k, key);
        let p = dot(keys, row(&q, query)) * f64::from(e[query]) * dot(keys, row(&g, query));
        for i in 0..DIM {
            o[i * QUERIES + query] += keys[i].to_f64() * p;
            d[key * DIM + i] += p * row(&q, query)[i].to_f64();
        }
    }
    let of_added = relative_error(&memory.read_floats(po, o.len()), &o);
    (outcome, of_added.max(relative_error(&read_bf16(&memory.global, pd, d.len()), &d)))
}

/// Runs `source`, which is [`LATE`] or a change of it: what was found, and the relative error.
///
/// With P = K·Qᵀ in bf16, Kᵀ·P is added to o, a step further on, and that of the last step at the beginning.
pub fn run_late(source: &str, options: &Options) -> (Outcome, f64) {
    let mut random = Random(options.seed + 1);
    let (q, k) = (random.bf16(QUERIES * DIM), random.bf16(KEYS * DIM));
    let (mut memory, module) = Memory::of(source);
    let [pq, pk] = [("q", &q), ("k", &k)].map(|(name, x)| memory.matrix(name, x, DIM));
    let po = memory.floats("o", &[1.0; DIM * QUERIES], QUERIES);
    let maps = [
        matrix_map(pk, [KEYS, DIM], KEYS as u32),
        matrix_map(pq, [QUERIES, DIM], STEP as u32),
        map_of_floats(po, [DIM, QUERIES], [64, 32], Swizzle::B128),
    ];
    let outcome = launch(&memory, &module, "a_step_late", LATE, &maps, options);
    let mut o = vec![1.0; DIM * QUERIES];
    for (query, key) in (0..QUERIES).flat_map(|query| (0..KEYS).map(move |key| (query, key))) {
        let keys = row(&k, key);
        let p = dot(keys, row(&q, query));
        for i in 0..DIM {
            o[i * QUERIES + (query + STEP) % QUERIES] += keys[i].to_f64() * p;
        }
    }
    (outcome, relative_error(&memory.read_floats(po, o.len()), &o))
}
