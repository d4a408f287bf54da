//! Attention forward at shapes that others have got wrong: odd pairs of lengths, thousands of rows, more heads than a grid's second dimension has, offsets beyond 32 bits, views that begin anywhere.

use tegula::ir::op::Opcode;
use tegula::ir::target::GpuFeatures;
use tegula::ir::transform::schedule;
use tegula::prelude::*;
use tegula::runtime::{Device, Tensor, TensorView};

use crate::attention::reference::Problem;
use crate::attention::testing::{Case, Memory, Placed};
use crate::attention::{ForwardOptions, Inputs, Outputs, forward};
use crate::registry::{all_kernels, with_usual_facts};
use crate::testing::{device, fast_device, sized, to_f64};

fn problem(queries: usize, keys: usize, heads: (usize, usize), head_dim: usize, causal: bool) -> Problem {
    let (heads, kv_heads) = heads;
    let value_dim = head_dim;
    Problem { batch: 1, queries, keys, heads, kv_heads, head_dim, value_dim, causal, ..Problem::default() }
}

/// Output and LSE.
fn attend(device: &Device, case: &Case<bf16>) -> (Vec<f64>, Vec<f64>) {
    let p = &case.problem;
    let [q, k, v] = case.place(device, Memory::Bshd);
    let mut out = Placed::<bf16>::poisoned(device, [p.batch, p.queries, p.heads, p.value_dim], Memory::Bshd);
    let mut lse = device.alloc::<f32>(&[p.batch, p.heads, p.queries]).unwrap();
    let options = ForwardOptions { causal: p.causal, ..ForwardOptions::default() };
    let outputs = Outputs::new(out.view_mut()).with_lse(&mut lse);
    forward(Inputs::new(q.view(), k.view(), v.view()), outputs, &options, &device.stream()).unwrap();
    (out.values(), to_f64(&lse.to_vec().unwrap()))
}

/// Compares some rows of the first head: each is an attention of one query, whose position is known.
fn check_rows(case: &Case<bf16>, (out, lse): &(Vec<f64>, Vec<f64>), rows: impl IntoIterator<Item = usize>) {
    let p = &case.problem;
    for row in rows {
        let one = Problem {
            queries: 1,
            heads: 1,
            kv_heads: 1,
            q_start: Some(vec![(row + p.keys) as i32 - p.queries as i32]),
            ..p.clone()
        };
        let of_first_head = |x: &[bf16], heads: usize, dim: usize| -> Vec<bf16> {
            x.chunks(heads * dim).flat_map(|row| row[..dim].to_vec()).collect()
        };
        let case = Case {
            q: case.q[row * p.heads * p.head_dim..][..p.head_dim].to_vec(),
            k: of_first_head(&case.k, p.kv_heads, p.head_dim),
            v: of_first_head(&case.v, p.kv_heads, p.value_dim),
            problem: one,
        };
        let own = &out[row * p.heads * p.value_dim..][..p.value_dim];
        case.check(own, Some(&lse[row..=row]), &format!("row {row} of {p:?}"));
    }
}

/// Lengths at which public libraries were wrong, or are tested for that reason.
#[test]
fn pairs_of_lengths() {
    let lengths =
        [(1, 1), (239, 1), (799, 3), (113, 203), (108, 256), (384, 256), (1023, 1024), (1024, 1023)];
    // What is long is long on the emulator.
    let most = sized(lengths.len(), 4);
    for (seed, (queries, keys)) in lengths.into_iter().enumerate().take(most) {
        let (heads, dim) = [((2, 1), 64), ((1, 1), 128), ((3, 1), 40)][seed % 3];
        let p = problem(queries, keys, heads, dim, seed % 2 == 0);
        for p in [p.clone(), Problem { causal: !p.causal, ..p }] {
            let case = Case::<bf16>::random(p, 1.0, seed as u64);
            let found = attend(&fast_device(), &case);
            check_rows(&case, &found, (0..queries).step_by((queries / 7).max(1)).chain([queries - 1]));
        }
    }
}

/// Kernels may keep weights relative to a maximum that has been exceeded by little: scores that grow from tile to tile, by little in some rows and by much in their neighbours.
#[test]
fn maxima_that_grow() {
    // Keys are gone through from the last one on. The steps are one or two tiles of the kernels.
    let growth = [90.0, 80.0, 72.0, 24.0, 8.0, 0.0];
    let slopes = [4.0, 0.0, 1.0, -3.0, 12.0];
    for (dim, causal) in [(256, false), (256, true), (128, false), (64, true)] {
        let p = problem(128, 64 * growth.len(), (1, 1), dim, causal);
        let mut case = Case::<bf16>::random(p, 1.0, dim as u64);
        for (row, q) in case.q.chunks_mut(dim).enumerate() {
            q[0] = bf16::from_f32(slopes[row % slopes.len()]);
        }
        for (key, k) in case.k.chunks_mut(dim).enumerate() {
            k[0] = bf16::from_f32(growth[key / 64] * dim as f32 / 256.0);
        }
        check_rows(&case, &attend(&fast_device(), &case), 0..128);
    }
}

/// Of one dimension of a grid there are 65535 at most, but for the first.
#[test]
fn more_heads_than_65535() {
    // Some 65 thousand programs take minutes on the emulator.
    let heads = sized(65_540, 4);
    let p = problem(2, 3, (heads, heads / 4), 16, true);
    let case = Case::<bf16>::random(p, 1.0, 3);
    let (out, lse) = attend(&fast_device(), &case);
    case.check(&out, Some(&lse), "many heads");
}

#[test]
fn lengths_of_4224() {
    if sized(false, true) {
        return;
    }
    for causal in [false, true] {
        let case = Case::<bf16>::random(problem(4224, 4224, (2, 1), sized(64, 16), causal), 1.0, 1);
        let found = attend(&fast_device(), &case);
        check_rows(&case, &found, [0, 1, 63, 64, 2111, 2112, 4095, 4096, 4222, 4223]);
    }
}

/// Groups and dimensions that are no powers of two, in views that begin at an odd element.
#[test]
fn views_that_begin_anywhere() {
    let device = device();
    let shapes = [((3, 1), 40), ((5, 1), 72), ((7, 1), 160), ((6, 2), 64)];
    for (seed, (heads, dim)) in shapes.into_iter().enumerate().step_by(sized(1, 2)) {
        let p = problem(19, 45, heads, dim, seed % 2 == 0);
        let case = Case::<bf16>::random(p.clone(), 1.0, seed as u64);
        // A row of NaN in front of each row, and an odd number of them at its ends.
        let place = |x: &[bf16], [rows, heads]: [usize; 2], first: usize| {
            let width = dim + 5;
            let mut all = vec![bf16::NAN; rows * heads * width];
            for (to, from) in all.chunks_exact_mut(width).zip(x.chunks_exact(dim)) {
                to[first..][..dim].copy_from_slice(from);
            }
            device.from_slice(&all, &[1, rows, heads, width]).unwrap()
        };
        let [q, k, v] = [
            place(&case.q, [p.queries, p.heads], 1),
            place(&case.k, [p.keys, p.kv_heads], 3),
            place(&case.v, [p.keys, p.kv_heads], 5),
        ];
        let mut out = place(&vec![bf16::NAN; case.q.len()], [p.queries, p.heads], 2);
        let mut lse = device.alloc::<f32>(&[1, p.heads, p.queries]).unwrap();
        let options = ForwardOptions { causal: p.causal, ..ForwardOptions::default() };
        {
            let inputs = Inputs::new(slice(&q, 1, dim), slice(&k, 3, dim), slice(&v, 5, dim));
            let outputs = Outputs::new(out.view_mut().slice(3, 2..2 + dim).unwrap()).with_lse(&mut lse);
            forward(inputs, outputs, &options, &device.stream()).unwrap();
        }
        let found = to_f64(&slice(&out, 2, dim).to_vec().unwrap());
        case.check(&found, Some(&to_f64(&lse.to_vec().unwrap())), &format!("{p:?} in odd places"));
        let whole = to_f64(&out.to_vec().unwrap());
        let outside = |i: &usize| !(2..2 + dim).contains(&(i % (dim + 5)));
        assert!((0..whole.len()).filter(outside).all(|i| whole[i].is_nan()), "a store went between the rows");
    }
}

fn slice(x: &Tensor<bf16>, first: usize, dim: usize) -> TensorView<'_, bf16> {
    x.view().slice(3, first..first + dim).unwrap()
}

/// Elements behind the 2³¹st, and a sequence whose own offset is: on a GPU only, since it takes 26 GB.
#[test]
fn offsets_beyond_two_to_the_31() {
    let device = device();
    if !device.name().starts_with("cuda") {
        return;
    }
    // Three sequences, a little more than 2³⁰ elements apart.
    let (apart, heads, dim) = ((1usize << 30) + 4096, 2, 64);
    let rows = apart / (heads * dim);
    for (queries, causal) in [(40, true), (200, true), (200, false)] {
        let p = Problem { batch: 3, ..problem(queries, 130, (heads, heads), dim, causal) };
        let case = Case::<bf16>::random(p.clone(), 1.0, 8);
        let mut tensors = [0; 4].map(|_| device.alloc::<bf16>(&[3, rows, heads, dim]).unwrap());
        for (x, (values, n)) in tensors.iter_mut().zip([(&case.q, queries), (&case.k, 130), (&case.v, 130)]) {
            for (batch, values) in values.chunks(n * heads * dim).enumerate() {
                x.view_mut()
                    .select(0, batch)
                    .unwrap()
                    .slice(0, ..n)
                    .unwrap()
                    .copy_from_slice(values)
                    .unwrap();
            }
        }
        let mut lse = device.alloc::<f32>(&[3, heads, queries]).unwrap();
        let options = ForwardOptions { causal, ..ForwardOptions::default() };
        let [q, k, v, out] = &mut tensors;
        let inputs = Inputs::new(
            q.view().slice(1, ..queries).unwrap(),
            k.view().slice(1, ..130).unwrap(),
            v.view().slice(1, ..130).unwrap(),
        );
        let outputs = Outputs::new(out.view_mut().slice(1, ..queries).unwrap()).with_lse(&mut lse);
        forward(inputs, outputs, &options, &device.stream()).unwrap();
        let part = |batch: usize| {
            out.view().select(0, batch).unwrap().slice(0, ..queries).unwrap().to_vec().unwrap()
        };
        let found: Vec<f64> = (0..3).flat_map(|batch| to_f64(&part(batch))).collect();
        case.check(&found, Some(&to_f64(&lse.to_vec().unwrap())), "far apart");
    }
}

/// Nothing that one run has and another has not: the same bits each time.
#[test]
fn the_same_bits_each_time() {
    let case = Case::<bf16>::random(problem(sized(300, 70), 200, (4, 2), 64, true), 1.0, 9);
    let device = fast_device();
    let first = attend(&device, &case);
    for _ in 0..3 {
        assert_eq!(attend(&device, &case), first);
    }
}

/// Every kernel for Hopper gets warps of its own for loads, and stores by tensor copies: compiled otherwise, its tiles are far too large.
#[test]
fn kernels_for_hopper_are_specialised() {
    let kernels = all_kernels();
    let mut seen = 0;
    for entry in kernels.iter().filter(|entry| entry.name.starts_with("attention_forward_hopper")) {
        for variant in &entry.variants {
            let kernel = with_usual_facts(variant.stage().unwrap());
            let scheduled = schedule::run(&kernel, &GpuFeatures::SM_90).unwrap();
            let specialised = scheduled.kernel.warp_groups().is_some();
            let mut stores = 0;
            scheduled.kernel.walk(scheduled.kernel.body, &mut |op| {
                stores += usize::from(matches!(scheduled.kernel.ops[op].opcode, Opcode::TensorStore { .. }));
            });
            let what = format!("{} <{}> {}", entry.name, variant.types, variant.config);
            assert!(specialised, "{what} is not specialised");
            // Through registers and shared memory the output of heads of 256 would take more than there is.
            assert_eq!(stores, 1, "{what} stores its output by tensor copies");
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen} variants");
}
