//! The GEMM kernels among the fixtures.

use half::bf16;
use tegula_emulator::asynchronous::{TensorDataType, TensorMapBuilder};
use tegula_emulator::matrix::Swizzle;
use tegula_emulator::{GlobalMemory, Launch, Module, Options, Outcome};

use super::{Parameters, Random, gemm_reference, relative_error};

/// A GEMM kernel: C = A·Bᵀ.
#[derive(Clone, Copy)]
pub struct Gemm {
    /// Its name.
    pub name: &'static str,
    /// The PTX.
    pub source: &'static str,
    /// Rows and columns of a tile.
    pub tile: [usize; 2],
    /// CTAs of a cluster.
    pub cluster: u32,
    /// Rows of B that one copy brings.
    pub box_b: u32,
}

/// Those that are known right on an H200.
pub const GEMMS: [Gemm; 4] = [
    Gemm {
        name: "k_p256",
        source: include_str!("../fixtures/k_p256.ptx"),
        tile: [128, 256],
        cluster: 1,
        box_b: 256,
    },
    Gemm {
        name: "k_p256c2",
        source: include_str!("../fixtures/k_p256c2.ptx"),
        tile: [128, 256],
        cluster: 2,
        box_b: 128,
    },
    Gemm {
        name: "k_p128_s6",
        source: include_str!("../fixtures/k_p128_s6.ptx"),
        tile: [128, 128],
        cluster: 1,
        box_b: 128,
    },
    Gemm {
        name: "k_pp_128x128",
        source: include_str!("../fixtures/k_pp_128x128.ptx"),
        tile: [128, 128],
        cluster: 1,
        box_b: 128,
    },
];

/// Bytes of dynamic shared memory of the GEMMs.
const GEMM_SHARED: u32 = 230656;
/// Threads of all these kernels.
pub const THREADS: u32 = 384;

/// Little-endian bytes.
pub fn bytes(values: &[bf16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// `count` bf16 from device memory.
pub fn read_bf16(memory: &GlobalMemory, address: u64, count: usize) -> Vec<f64> {
    let mut raw = vec![0; count * 2];
    memory.read(address, &mut raw).unwrap();
    raw.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f64()).collect()
}

/// A row-major matrix, in boxes of `rows` by 64.
pub fn matrix_map(address: u64, [height, width]: [usize; 2], rows: u32) -> [u8; 128] {
    let (dims, strides) = ([width as u64, height as u64], [width as u64 * 2]);
    TensorMapBuilder::new(TensorDataType::Bf16, address, &dims, &strides, &[64, rows])
        .swizzle(Swizzle::B128)
        .build()
        .unwrap()
        .encode()
}

/// Runs `source`, which is the kernel's or a change of it, with `ctas` CTAs at most: what was found, and the relative error.
pub fn run_gemm(
    kernel: &Gemm,
    source: &str,
    [m, n, k]: [usize; 3],
    ctas: u32,
    options: &Options,
) -> (Outcome, f64) {
    let mut random = Random(options.seed + 1);
    let (a, b) = (random.bf16(m * k), random.bf16(n * k));
    let mut memory = GlobalMemory::new();
    let module = Module::load(source, &mut memory).unwrap();
    let [pa, pb] = [("a", &a), ("b", &b)].map(|(name, x)| memory.allocate_from(&bytes(x), name));
    let pc = memory.allocate(m as u64 * n as u64 * 2, "c");
    let parameters = Parameters::default()
        .map(&matrix_map(pa, [m, k], kernel.tile[0] as u32))
        .map(&matrix_map(pb, [n, k], kernel.box_b))
        .map(&matrix_map(pc, [m, n], 64))
        .u64(pc)
        .u32(m as u32)
        .u32(n as u32)
        .u32(k as u32);
    let tiles = (m / kernel.tile[0] * (n / kernel.tile[1])) as u32;
    let launch = Launch {
        cluster: Some([kernel.cluster, 1, 1]),
        dynamic_shared: GEMM_SHARED,
        ..Launch::new(kernel.name, [tiles.min(ctas), 1, 1], [THREADS, 1, 1], &parameters.0)
    };
    let outcome = module.launch(&memory, &launch, options).unwrap();
    let error = relative_error(&read_bf16(&memory, pc, m * n), &gemm_reference(&a, &b, m, n, k));
    (outcome, error)
}

/// Runs it and checks the result, and that nothing is reported.
pub fn check_gemm(kernel: &Gemm, shape: [usize; 3], ctas: u32, options: &Options) {
    let (outcome, error) = run_gemm(kernel, kernel.source, shape, ctas, options);
    let at = format!("{} {shape:?} seed {} {:?}", kernel.name, options.seed, options.timing);
    assert!(outcome.reports.is_empty(), "{at}: {}", outcome.reports[0]);
    // Rounding the output to bf16 is at most 2^-9 an element, 2^-9/√3 in the mean of all if errors are uniform; f32 sums add 1e-6.
    assert!(error < 2f64.powi(-9), "{at}: relative error {error:.2e}");
}
