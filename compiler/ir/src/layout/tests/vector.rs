//! Vector widths, register order and ownership.

use std::collections::HashMap;

use super::{Rng, random_distributed};
use crate::layout::*;

#[test]
fn known_widths() {
    let row = coalesced_blocked(&[64, 64], &[1, 0], 16, 4, 8);
    assert_eq!(vector_access(&row, 1, 16).width(), 8);
    assert_eq!(vector_access(&row, 1, 4).width(), 4);
    assert_eq!(vector_access(&row, 0, 8).width(), 1);
    let acc = mma_m16n8_acc(&[64, 64], &[2, 2]);
    let access = vector_access(&acc, 1, 8);
    assert_eq!(access.width(), 2);
    assert_eq!(access.vectors().take(2).collect::<Vec<_>>(), [&[0, 1], &[2, 3]]);
    // Register bits out of order still vectorise: bit 1 is the fast one here.
    let swapped: LinearLayout = "[2,4]{reg=[[1,0],[0,1]], lane=[[0,2]]}".parse().unwrap();
    let access = vector_access(&swapped, 1, 8);
    assert_eq!(access.vectors().collect::<Vec<_>>(), [&[0, 2], &[1, 3]]);
    // A lane that moves inside the would-be vector forbids it.
    let crossed: LinearLayout = "[4]{reg=[[1]], lane=[[3]]}".parse().unwrap();
    assert_eq!(vector_access(&crossed, 0, 8).width(), 1);
}

#[test]
fn vectors_are_aligned_runs_and_owners_are_unique() {
    let mut rng = Rng(3);
    for i in 0..200 {
        let shape: &[u32] = [&[16, 32][..], &[8, 8], &[256], &[4, 4, 16]][i % 4];
        let warp_bits = rng.below(3) as u32;
        let layout = random_distributed(&mut rng, shape, 3, warp_bits, i % 3 == 0);
        let dim = rng.below(shape.len() as u64) as usize;
        let access = vector_access(&layout, dim, 8);
        let mask = layout.replication();
        let mut owners = HashMap::new();
        for warp in 0..layout.size(Space::Warp) {
            for lane in 0..layout.size(Space::Lane) {
                for vector in access.vectors() {
                    let at = |r| {
                        let input = [(Space::Register, r), (Space::Lane, lane), (Space::Warp, warp)];
                        layout.apply(&input)
                    };
                    let first = at(vector[0]);
                    assert_eq!(first[dim] % access.width(), 0);
                    for (j, &r) in vector.iter().enumerate() {
                        let mut expected = first.clone();
                        expected[dim] += j as u32;
                        assert_eq!(at(r), expected, "{layout} along {dim}");
                        if mask.owns(lane, warp, 0) {
                            *owners.entry(expected).or_insert(0) += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(owners.len(), 1 << layout.dims().total_bits());
        assert!(owners.values().all(|&n| n == 1), "{layout}: {mask:?}");

        let same = layout.register_representatives();
        for (r, &representative) in same.iter().enumerate() {
            assert_eq!(layout.flat(r as u64), layout.flat(representative.into()));
            assert_eq!(representative & mask.register, 0);
        }
    }
}

/// An asynchronous copy moves 4 bytes or more, also where the tile has fewer elements than that for each thread.
#[test]
fn copies_of_small_tiles_are_of_four_bytes() {
    for bits in [8, 16, 32, 64] {
        for shape in [[8, 16], [1, 16], [16, 8], [4, 4], [64, 64]] {
            for num_warps in [1, 4, 8] {
                let layout = coalesced_copy(&shape, &[1, 0], bits, num_warps, 128 / bits);
                let vector = vector_access(&layout.without_redundant_registers(), 1, 128 / bits);
                let bytes = vector.vectors().next().unwrap().len() as u32 * bits / 8;
                assert!(bytes >= 4, "{bytes} bytes of {shape:?} with {bits} bits and {num_warps} warps");
            }
        }
    }
}
