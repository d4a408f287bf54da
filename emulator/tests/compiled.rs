//! Kernels that Tegula's compiler wrote, launched with raw parameters: a product by `mma.sync` through shared memory, contended atomics.
//!
//! The fixtures are PTX of two conformance cases (`dot/dot/bf16-f32/aligned/loop32`, `atomic/add/contended/bf16`) under shorter names. Inputs are small
//! integers, so every sum is exact and every schedule must give the same bits.

use half::bf16;
use tegula_emulator::{GlobalMemory, Launch, Module, Options, Rng, Timing};

/// Bytes of shared memory of the product, as the compiler says.
const SHARED: u32 = 16384;

fn integers(n: usize, rng: &mut Rng) -> Vec<f32> {
    (0..n).map(|_| rng.below(9) as f32 - 4.0).collect()
}

fn halves(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect()
}

fn words(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Appends a row-major view of `rows` × `columns`: address, extents, row stride.
fn view(params: &mut Vec<u8>, address: u64, rows: u32, columns: u32) {
    params.resize(params.len().next_multiple_of(8), 0);
    params.extend(address.to_le_bytes());
    [rows, columns, columns].iter().for_each(|n| params.extend(n.to_le_bytes()));
}

fn schedules() -> impl Iterator<Item = Options> {
    [Timing::Early, Timing::Late, Timing::Random]
        .into_iter()
        .flat_map(|timing| (0..3).map(move |seed| Options { timing, seed, ..Options::default() }))
}

#[test]
fn product() {
    let mut rng = Rng::new(2, 0);
    // 200 is no multiple of the loop's step: what is outside reads as zero.
    for k in [32, 128, 200] {
        let (a, b, c) = (integers(64 * k, &mut rng), integers(k * 64, &mut rng), integers(64 * 64, &mut rng));
        let expected = |i: usize| {
            let (row, column) = (i / 64, i % 64);
            c[i] + (0..k).map(|j| a[row * k + j] * b[j * 64 + column]).sum::<f32>()
        };
        let expected: Vec<f32> = (0..64 * 64).map(expected).collect();
        for options in schedules() {
            let mut memory = GlobalMemory::new();
            let module =
                Module::load(include_str!("fixtures/dot_bf16_sm_80.ptx"), &mut memory).expect("it decodes");
            let out = memory.allocate(64 * 64 * 4, "d");
            let mut params = vec![];
            view(&mut params, memory.allocate_from(&halves(&a), "a"), 64, k as u32);
            view(&mut params, memory.allocate_from(&halves(&b), "b"), k as u32, 64);
            view(&mut params, memory.allocate_from(&words(&c), "c"), 64, 64);
            view(&mut params, out, 64, 64);
            params.resize(params.len().next_multiple_of(4), 0);
            let launch =
                Launch { dynamic_shared: SHARED, ..Launch::new("dot_bf16", [1; 3], [128, 1, 1], &params) };
            let outcome = module.launch(&memory, &launch, &options).expect("the launch fits");
            assert!(outcome.reports.is_empty(), "{options:?}: {}", outcome.reports[0]);
            let mut bytes = vec![0; 64 * 64 * 4];
            memory.read(out, &mut bytes).expect("it is the allocation");
            assert!(bytes == words(&expected), "K = {k}, {options:?}: not the product");
        }
    }
}

#[test]
fn contended_atomics() {
    let n = 300;
    let values: Vec<f32> = (0..n).map(|i| (i % 3) as f32 - 1.0).collect();
    for options in schedules() {
        let mut memory = GlobalMemory::new();
        let module =
            Module::load(include_str!("fixtures/atomic_add_sm_90a.ptx"), &mut memory).expect("it decodes");
        let sums = memory.allocate_from(&halves(&[0.0; 4]), "sums");
        let values_at = memory.allocate_from(&halves(&values), "values");
        let mut params: Vec<u8> = [sums, values_at, sums].iter().flat_map(|a| a.to_le_bytes()).collect();
        params.extend((n as u32).to_le_bytes());
        let launch = Launch::new("atomic_add", [3, 1, 1], [128, 1, 1], &params);
        let outcome = module.launch(&memory, &launch, &options).expect("the launch fits");
        assert!(outcome.reports.is_empty(), "{options:?}: {}", outcome.reports[0]);
        let mut bytes = [0; 8];
        memory.read(sums, &mut bytes).expect("it is the allocation");
        let expected: Vec<f32> = (0..4).map(|i| values.iter().skip(i).step_by(4).sum()).collect();
        assert_eq!(bytes.to_vec(), halves(&expected), "{options:?}");
    }
}
