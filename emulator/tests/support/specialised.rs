//! Kernels that Tegula's compiler specialised by warps: persistent products C = A·Bᵀ of bf16, by TMA and wgmma.
//!
//! The fixtures are the PTX for `sm_90a` of what `tests/filetests/transform/specialize_warps` has as tile IR; a test of `tests/conformance-gpu` sees that
//! they are what the compiler makes now.

use tegula_emulator::{GlobalMemory, Launch, Module, Options, Outcome};

use super::gemm::{THREADS, bytes, matrix_map, read_bf16};
use super::{Parameters, Random, gemm_reference, relative_error};

/// A kernel, and a problem for it that its rings of slots go round in.
pub struct Specialised {
    /// Of the kernel; the fixture's is this behind `tile_`.
    pub name: &'static str,
    pub source: &'static str,
    /// Rows and columns of a tile.
    tile: [usize; 2],
    /// CTAs of a cluster, which share a tile's rows.
    cluster: u32,
    /// Groups of consumers that share a tile's rows, with a warpgroup each; 1: there are two warpgroups, whatever they share.
    groups: u32,
    /// M, N, K.
    shape: [usize; 3],
}

/// Cooperative, ping-pong, in clusters of two with multicast, and by three groups beside each other. One program does all tiles.
pub const SPECIALISED: [Specialised; 4] = [
    Specialised {
        name: "gemm",
        source: include_str!("../fixtures/tile_gemm.ptx"),
        tile: [128, 256],
        cluster: 1,
        groups: 1,
        shape: [256, 256, 320],
    },
    // Each of the two consumers has two tiles.
    Specialised {
        name: "turns",
        source: include_str!("../fixtures/tile_turns.ptx"),
        tile: [128, 128],
        cluster: 1,
        groups: 1,
        shape: [256, 256, 256],
    },
    Specialised {
        name: "halves",
        source: include_str!("../fixtures/tile_halves.ptx"),
        tile: [256, 256],
        cluster: 2,
        groups: 1,
        shape: [512, 256, 256],
    },
    // All groups read the slots of B; of A, each has its own. Both rings are gone round twice or more.
    Specialised {
        name: "strips",
        source: include_str!("../fixtures/tile_strips.ptx"),
        tile: [192, 128],
        cluster: 1,
        groups: 3,
        shape: [768, 384, 64],
    },
];

impl Specialised {
    fn shared(&self) -> u32 {
        shared_bytes(self.source)
    }
}

/// Bytes of shared memory, which a fixture's first line begins with.
pub fn shared_bytes(source: &str) -> u32 {
    let bytes = source.strip_prefix("// ").and_then(|text| text.split(' ').next());
    bytes.and_then(|bytes| bytes.parse().ok()).expect("the first line says how much shared memory")
}

/// Runs `source`, which is the kernel's or a change of it: what was found, and the relative error.
pub fn run_specialised(kernel: &Specialised, source: &str, options: &Options) -> (Outcome, f64) {
    let [m, n, k] = kernel.shape;
    let mut random = Random(options.seed + 1);
    let (a, b) = (random.bf16(m * k), random.bf16(n * k));
    let mut memory = GlobalMemory::new();
    let module = Module::load(source, &mut memory).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
    let [pa, pb] = [("a", &a), ("b", &b)].map(|(name, x)| memory.allocate_from(&bytes(x), name));
    let pc = memory.allocate(m as u64 * n as u64 * 2, "c");
    let columns = n / kernel.tile[1];
    let tiles = m / kernel.tile[0] * columns;
    let view = |p: Parameters, at: u64, rows: usize, width: usize| {
        p.u64(at).u32(rows as u32).u32(width as u32).u32(width as u32)
    };
    let p = view(view(view(Parameters::default(), pa, m, k), pb, n, k), pc, m, n);
    // Each CTA loads its share of a tile of A and of B; of A, each group's by itself.
    let share = |extent: usize| extent as u32 / kernel.cluster;
    let threads = if kernel.groups > 1 { 128 * (kernel.groups + 1) } else { THREADS };
    let p = p
        .u32(tiles as u32)
        .u32(columns as u32)
        .u32(k as u32)
        .map(&matrix_map(pa, [m, k], share(kernel.tile[0]) / kernel.groups))
        .map(&matrix_map(pb, [n, k], share(kernel.tile[1])))
        .map(&matrix_map(pc, [m, n], 64));
    let launch = Launch {
        cluster: Some([kernel.cluster, 1, 1]),
        dynamic_shared: kernel.shared(),
        ..Launch::new(kernel.name, [kernel.cluster, 1, 1], [threads, 1, 1], &p.0)
    };
    let outcome = module.launch(&memory, &launch, options).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
    let error = relative_error(&read_bf16(&memory, pc, m * n), &gemm_reference(&a, &b, m, n, k));
    (outcome, error)
}
