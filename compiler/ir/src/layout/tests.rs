//! Tests of the layout algebra: against independent definitions, and on random layouts.

mod algebra;
mod conversions;
mod fragments;
mod matrix;
mod shared;
mod vector;

use super::{LayoutBuilder, LinearLayout, Space, TileDims};

/// A small deterministic generator (SplitMix64).
pub(super) struct Rng(pub u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A random surjective distributed layout of `shape` over 32 lanes and `2^warp_bits` warps: unit columns in
/// random places, some copies, and (if `mixed`) sums of columns.
pub(super) fn random_distributed(
    rng: &mut Rng,
    shape: &[u32],
    lane_bits: u32,
    warp_bits: u32,
    mixed: bool,
) -> LinearLayout {
    let dims = TileDims::new(shape);
    let total = dims.total_bits();
    let mut columns: Vec<u64> = (0..total).map(|i| 1 << i).collect();
    if mixed && total > 1 {
        // Adding one column to another keeps them independent.
        for _ in 0..total * 2 {
            let (a, b) = (rng.below(total.into()) as usize, rng.below(total.into()) as usize);
            if a != b {
                columns[a] ^= columns[b];
            }
        }
    }
    let threads = (lane_bits + warp_bits) as usize;
    // Copies: zeros, or repeats of what other bits reach.
    let wanted = (total as usize + rng.below(3) as usize).max(threads);
    while columns.len() < wanted {
        let copy = mixed && rng.below(3) == 0;
        columns.push(if copy { rng.next() & ((1 << total) - 1) } else { 0 });
    }
    for i in (1..columns.len()).rev() {
        columns.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let mut builder = LayoutBuilder::new(dims);
    for (i, &column) in columns.iter().enumerate() {
        let space = match i as u32 {
            i if i < lane_bits => Space::Lane,
            i if i < lane_bits + warp_bits => Space::Warp,
            _ => Space::Register,
        };
        builder.push(space, column);
    }
    builder.build()
}
