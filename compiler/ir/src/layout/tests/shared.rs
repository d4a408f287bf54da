//! Swizzles against address arithmetic, and bank conflicts against counting.

use std::collections::{HashMap, HashSet};

use super::{Rng, random_distributed};
use crate::layout::*;

/// Wavefronts of one warp's access, counted lane by lane: lanes of a phase that want different words of one
/// bank wait for each other.
fn count_wavefronts(offsets: &LinearLayout, elem_bits: u32, vec: u32) -> u32 {
    let bytes = vec * elem_bits / 8;
    let lanes = offsets.size(Space::Lane);
    let in_phase = lanes.min(128 / bytes.max(4));
    let mut total = 0;
    for phase in 0..lanes / in_phase {
        let mut words: HashMap<u64, HashSet<u64>> = HashMap::new();
        for lane in phase * in_phase..(phase + 1) * in_phase {
            let offset = offsets.flat(offsets.input(&[(Space::Lane, lane)]));
            let address = offset * u64::from(elem_bits) / 8;
            for byte in 0..u64::from(bytes) {
                let word = (address + byte) / 4;
                words.entry(word % 32).or_default().insert(word);
            }
        }
        total += words.values().map(|w| w.len() as u32).max().unwrap();
    }
    total
}

#[test]
fn wavefronts_count_conflicts() {
    let mut rng = Rng(4);
    let mut seen = HashSet::new();
    for i in 0..300 {
        let layout = random_distributed(&mut rng, &[64, 64], 5, 2, i % 2 == 0);
        let shared = random_distributed(&mut rng, &[64, 64], 0, 0, i % 3 == 0);
        let shared = LinearLayout::new(&[64, 64], &[(Space::Offset, shared.columns(Space::Register))]);
        let offsets = access_offsets(&shared, &layout).unwrap();
        let elem_bits = [8, 16, 32, 64][rng.below(4) as usize];
        let vec = vector_width(&offsets, 0, 128 / elem_bits);
        let algebra = wavefronts(&offsets, elem_bits, vec);
        assert_eq!(
            algebra.total(),
            count_wavefronts(&offsets, elem_bits, vec),
            "{offsets} {elem_bits} {vec}"
        );
        seen.insert(algebra.per_phase);
    }
    assert!(seen.len() >= 4, "random layouts show many degrees of conflict: {seen:?}");
    // Known ones: columns of a 32 × 32 f32 tile, plain and swizzled.
    let column = blocked(&[32, 32], &[1, 1], &[32, 1], &[1, 1], &[0, 1]);
    let plain = row_major(&[32, 32], &[1, 0]);
    assert_eq!(bank_conflicts(&plain, &column, 32, 1).unwrap().total(), 32);
    let swizzle = swizzled(&[32, 32], &[1, 0], 1, 1, 32);
    assert_eq!(bank_conflicts(&swizzle, &column, 32, 1).unwrap().total(), 1);
}

#[test]
fn swizzled_follows_its_formula() {
    for (vec, per_phase, max_phase) in [(1, 1, 1), (8, 1, 8), (8, 2, 4), (4, 4, 2)] {
        let layout = swizzled(&[32, 64], &[1, 0], vec, per_phase, max_phase);
        assert!(layout.is_surjective() && layout.is_injective());
        for row in 0..32 {
            for column in 0..64 {
                let phase = (row / per_phase) % max_phase;
                let offset = row * 64 + (((column / vec) ^ phase) * vec + column % vec);
                assert_eq!(layout.apply(&[(Space::Offset, offset)]).as_slice(), [row, column]);
            }
        }
    }
    assert_eq!(row_major(&[2, 4], &[0, 1]).apply(&[(Space::Offset, 3)]).as_slice(), [1, 1]);
}

#[test]
fn tma_modes_permute_sixteen_byte_chunks() {
    for (mode, elem_bits) in [
        (SwizzleMode::B128, 16),
        (SwizzleMode::B128, 8),
        (SwizzleMode::B64, 16),
        (SwizzleMode::B32, 32),
        (SwizzleMode::B128, 64),
    ] {
        let shape = [64, 256 * 8 / elem_bits];
        let layout = tma_swizzled(&shape, elem_bits, &[1, 0], mode).unwrap();
        assert!(layout.is_surjective() && layout.is_injective());
        let (bytes, elem) = (mode.bytes(), elem_bits / 8);
        for row in 0..shape[0] {
            for column in 0..shape[1] {
                // A slab of `bytes` columns, rows packed; then the hardware's XOR on the address.
                let x = column * elem;
                let address = x / bytes * (shape[0] * bytes) + row * bytes + x % bytes;
                let swizzled = address ^ ((address >> 3) & (bytes - 16));
                let found = layout.apply(&[(Space::Offset, swizzled / elem)]);
                assert_eq!(found.as_slice(), [row, column], "{mode:?} {elem_bits}");
            }
        }
    }
    assert_eq!(tma_swizzled(&[64, 32], 16, &[1, 0], SwizzleMode::B128), None);
    assert!(tma_swizzled(&[4, 64, 64], 16, &[2, 1, 0], SwizzleMode::B128).unwrap().is_surjective());
}

#[test]
fn ldmatrix_rows_are_conflict_free_in_tma_swizzles() {
    // ldmatrix: eight lanes give the addresses of the 16-byte rows of a matrix.
    let rows: LinearLayout =
        "[64,64]{reg=[[0,1],[0,2],[0,4]], lane=[[1,0],[2,0],[4,0],[8,0],[0,8]]}".parse().unwrap();
    let conflicts = |shared: &LinearLayout| bank_conflicts(shared, &rows, 16, 8).unwrap();
    let b128 = tma_swizzled(&[64, 64], 16, &[1, 0], SwizzleMode::B128).unwrap();
    assert_eq!(conflicts(&b128), Wavefronts { phases: 4, per_phase: 1 });
    let b64 = tma_swizzled(&[64, 64], 16, &[1, 0], SwizzleMode::B64).unwrap();
    assert_eq!(conflicts(&b64).conflicts(), 0);
    assert_eq!(conflicts(&row_major(&[64, 64], &[1, 0])).per_phase, 8);
}

#[test]
fn optimal_swizzle_has_no_conflicts() {
    let loads = coalesced_blocked(&[64, 64], &[1, 0], 16, 4, 8);
    let columns = coalesced_blocked(&[64, 64], &[0, 1], 16, 4, 8);
    let acc = mma_m16n8_acc(&[64, 64], &[2, 2]);
    let a = mma_operand_a(&[64, 64], 16, &[2, 2]);
    let b = mma_operand_b(&[64, 64], 16, &[2, 2]);
    let wgmma = wgmma_acc(&[64, 64], &[1, 1]);
    let all = [loads, columns, acc, a, b, wgmma];
    for src in &all {
        for dst in &all {
            for elem_bits in [8, 16, 32, 64] {
                let plan = plan_shared(src, dst, elem_bits).unwrap();
                for (side, vec) in [(&plan.store, plan.store_vec), (&plan.load, plan.load_vec)] {
                    let cost = wavefronts(side, elem_bits, vec);
                    assert_eq!(cost.conflicts(), 0, "{src} -> {dst} {elem_bits}: {}", plan.layout);
                }
            }
        }
    }
    // Transposing bf16: both sides cannot be wide, one can.
    let plan = plan_shared(&all[0], &all[1], 16).unwrap();
    assert_eq!(plan.store_vec.max(plan.load_vec), 8, "{plan:?}");
    // Accumulator to rows: both hold the column pair and two rows 32 apart, so even the narrower side moves
    // four elements, and the accumulator's eight.
    let plan = plan_shared(&all[2], &all[0], 16).unwrap();
    assert_eq!((plan.store_vec, plan.load_vec, plan.bytes), (8, 4, 8192), "{plan:?}");
}
