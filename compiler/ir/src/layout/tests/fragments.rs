//! Constructors against element-by-element formulas written from the PTX ISA and Triton's definitions,
//! not from the constructors.

use crate::layout::*;

/// Checks register `i` of `lane` (and warp) against `at`, over a whole layout.
fn check(layout: &LinearLayout, at: impl Fn(u32, u32, u32) -> (u32, u32)) {
    for warp in 0..layout.size(Space::Warp) {
        for lane in 0..32 {
            for i in 0..layout.size(Space::Register) {
                let found = layout.apply(&[(Space::Register, i), (Space::Lane, lane), (Space::Warp, warp)]);
                let (row, column) = at(i, lane, warp);
                assert_eq!(found.as_slice(), [row, column], "warp {warp} lane {lane} reg {i}");
            }
        }
    }
}

#[test]
fn mma_accumulators() {
    // groupID = lane >> 2; threadID_in_group = lane % 4;
    // row = groupID for c0, c1; groupID + 8 for c2, c3; col = threadID_in_group * 2 + (i & 1).
    let isa = |i: u32, lane: u32| {
        let row = if i < 2 { lane >> 2 } else { (lane >> 2) + 8 };
        (row, (lane % 4) * 2 + (i & 1))
    };
    check(&mma_m16n8_acc(&[16, 8], &[1, 1]), |i, lane, _| isa(i, lane));
    // 2 × 2 warps over 64 × 32: warps along N first, then registers along N, then M.
    check(&mma_m16n8_acc(&[64, 32], &[2, 2]), |i, lane, warp| {
        let (row, column) = isa(i % 4, lane);
        let (tile_n, tile_m) = (i / 4 % 2, i / 8);
        (row + 16 * (warp / 2) + 32 * tile_m, column + 8 * (warp % 2) + 16 * tile_n)
    });
    // f64 m8n8k4: row = groupID, col = threadID_in_group * 2 + i.
    check(&mma_m8n8_acc(&[8, 8], &[1, 1]), |i, lane, _| (lane >> 2, (lane % 4) * 2 + i));
}

#[test]
fn mma_operands() {
    // m16n8k16, 16 bits: A row = groupID for ai where 0 <= i < 2 || 4 <= i < 6, else groupID + 8;
    // col = threadID_in_group * 2 + (i & 1), + 8 for i >= 4.
    check(&mma_operand_a(&[16, 16], 16, &[1, 1]), |i, lane, _| {
        let row = if i < 2 || (4..6).contains(&i) { lane >> 2 } else { (lane >> 2) + 8 };
        (row, (lane % 4) * 2 + (i & 1) + if i >= 4 { 8 } else { 0 })
    });
    // B row = threadID_in_group * 2 + (i & 1), + 8 for i >= 2; col = groupID.
    check(&mma_operand_b(&[16, 8], 16, &[1, 1]), |i, lane, _| {
        ((lane % 4) * 2 + (i & 1) + if i >= 2 { 8 } else { 0 }, lane >> 2)
    });
    // m16n8k32, 8 bits: A row = groupID for 0 <= i < 4 || 8 <= i < 12, else + 8;
    // col = threadID_in_group * 4 + (i & 3), + 16 for i >= 8.
    check(&mma_operand_a(&[16, 32], 8, &[1, 1]), |i, lane, _| {
        let row = if i < 4 || (8..12).contains(&i) { lane >> 2 } else { (lane >> 2) + 8 };
        (row, (lane % 4) * 4 + (i & 3) + if i >= 8 { 16 } else { 0 })
    });
    check(&mma_operand_b(&[32, 8], 8, &[1, 1]), |i, lane, _| {
        ((lane % 4) * 4 + (i & 3) + if i >= 4 { 16 } else { 0 }, lane >> 2)
    });
    // m16n8k64, 4 bits: A row = groupID for 0 <= i < 8 || 16 <= i < 24, else + 8;
    // col = threadID_in_group * 8 + (i & 7), + 32 for i >= 16.
    check(&mma_operand_a(&[16, 64], 4, &[1, 1]), |i, lane, _| {
        let row = if i < 8 || (16..24).contains(&i) { lane >> 2 } else { (lane >> 2) + 8 };
        (row, (lane % 4) * 8 + (i & 7) + if i >= 16 { 32 } else { 0 })
    });
    // m16n8k8, tf32: a0 (g, t), a1 (g + 8, t), a2 (g, t + 4), a3 (g + 8, t + 4); b0 (t, g), b1 (t + 4, g).
    check(&mma_operand_a(&[16, 8], 32, &[1, 1]), |i, lane, _| {
        ((lane >> 2) + [0, 8, 0, 8][i as usize], lane % 4 + [0, 0, 4, 4][i as usize])
    });
    check(&mma_operand_b(&[8, 8], 32, &[1, 1]), |i, lane, _| (lane % 4 + 4 * i, lane >> 2));
    // m8n8k4, f64: A row = lane >> 2, col = lane % 4; B row = lane % 4, col = lane >> 2.
    check(&mma_operand_a(&[8, 4], 64, &[1, 1]), |_, lane, _| (lane >> 2, lane % 4));
    check(&mma_operand_b(&[4, 8], 64, &[1, 1]), |_, lane, _| (lane % 4, lane >> 2));
}

#[test]
fn operands_follow_the_accumulators_warps() {
    // Whatever the warp, its accumulator rows must be its A rows, and its columns its B columns.
    for (warps, bits) in [([2, 2], 16), ([4, 1], 8), ([1, 8], 32), ([2, 4], 64)] {
        let acc = if bits == 64 { mma_m8n8_acc } else { mma_m16n8_acc }(&[128, 64], &warps);
        let a = mma_operand_a(&[128, 32], bits, &warps);
        let b = mma_operand_b(&[32, 64], bits, &warps);
        let held = |layout: &LinearLayout, warp, dim: usize| {
            let mut seen = 0u128;
            for lane in 0..32 {
                for i in 0..layout.size(Space::Register) {
                    let at = [(Space::Register, i), (Space::Lane, lane), (Space::Warp, warp)];
                    seen |= 1 << layout.apply(&at)[dim];
                }
            }
            seen
        };
        for warp in 0..warps[0] * warps[1] {
            assert_eq!(held(&acc, warp, 0), held(&a, warp, 0));
            assert_eq!(held(&acc, warp, 1), held(&b, warp, 1));
            assert_eq!(held(&a, warp, 1), (1 << 32) - 1);
            assert_eq!(held(&b, warp, 0), (1 << 32) - 1);
        }
        assert_eq!(a.free_variables(Space::Warp), warps[1] - 1);
        assert_eq!(b.free_variables(Space::Warp), (warps[0] - 1) * warps[1]);
    }
}

#[test]
fn wgmma_fragments() {
    // D of m64nNk16: row = 16 (warp % 4) + groupID + 8 (i / 2 % 2); col = 8 (i / 4) + 2 threadID + i % 2.
    check(&wgmma_acc(&[128, 256], &[2, 1]), |i, lane, warp| {
        let row = 16 * (warp % 4) + (lane >> 2) + 8 * (i / 2 % 2);
        (row + 64 * (warp / 4), 8 * (i / 4) + 2 * (lane % 4) + i % 2)
    });
    // Two warpgroups side by side: each has its half of the columns.
    check(&wgmma_acc(&[64, 128], &[1, 2]), |i, lane, warp| {
        let row = 16 * (warp % 4) + (lane >> 2) + 8 * (i / 2 % 2);
        (row, 8 * (i / 4) + 2 * (lane % 4) + i % 2 + 64 * (warp / 4))
    });
    // A of m64k16, 16 bits, and m64k32, 8 bits.
    check(&wgmma_operand_a(&[64, 32], 16, &[1, 1]), |i, lane, warp| {
        let row = 16 * warp + (lane >> 2) + 8 * (i / 2 % 2);
        (row, 2 * (lane % 4) + i % 2 + 8 * (i / 4 % 2) + 16 * (i / 8))
    });
    check(&wgmma_operand_a(&[128, 32], 8, &[2, 1]), |i, lane, warp| {
        let row = 16 * (warp % 4) + (lane >> 2) + 8 * (i / 4 % 2) + 64 * (warp / 4);
        (row, 4 * (lane % 4) + i % 4 + 16 * (i / 8 % 2))
    });
}

#[test]
fn blocked_wraps_and_repeats() {
    // Larger than its block: 2 × 4 elements a thread, 8 × 4 threads, 2 × 2 warps make 32 × 32.
    let layout = blocked(&[64, 128], &[2, 4], &[8, 4], &[2, 2], &[1, 0]);
    check(&layout, |i, lane, warp| {
        let row = i / 4 % 2 + 2 * (lane / 4) + 16 * (warp / 2) + 32 * (i / 32);
        (row, i % 4 + 4 * (lane % 4) + 16 * (warp % 2) + 32 * (i / 8 % 4))
    });
    // Column-major order.
    let layout = blocked(&[32, 32], &[4, 1], &[8, 4], &[1, 2], &[0, 1]);
    check(&layout, |i, lane, warp| (i % 4 + 4 * (lane % 8), lane / 8 + 4 * warp + 8 * (i / 4)));
    // Smaller: lanes past the 16 elements, and all warps, repeat.
    let layout = blocked(&[16], &[2], &[32], &[4], &[0]);
    check_line(&layout, |i, lane, _| i + 2 * (lane % 8));
    assert_eq!(layout.free_variables(Space::Lane), 0b11000);
    assert_eq!(layout.free_variables(Space::Warp), 0b11);
}

fn check_line(layout: &LinearLayout, at: impl Fn(u32, u32, u32) -> u32) {
    check(&layout.expand_dims(0), |i, lane, warp| (0, at(i, lane, warp)));
}

#[test]
fn coalesced_layouts_fill_sectors() {
    // bf16: 8 elements a lane, 64 of a row by 8 lanes.
    let layout = coalesced_blocked(&[64, 64], &[1, 0], 16, 4, 8);
    check(&layout, |i, lane, warp| (lane / 8 + 4 * warp + 16 * (i / 8), i % 8 + 8 * (lane % 8)));
    // A small tile narrows the vector instead of leaving lanes idle.
    let small = coalesced_blocked(&[256], &[0], 16, 4, 8);
    assert_eq!((small.size(Space::Register), small.free_inputs()), (2, 0));
    // Smaller than the block: one element a thread, the rest copies.
    let tiny = coalesced_blocked(&[8, 4], &[1, 0], 32, 4, 4);
    assert_eq!(tiny.size(Space::Register), 1);
    assert_eq!((tiny.free_variables(Space::Lane), tiny.free_variables(Space::Warp)), (0, 0b11));
    assert_eq!(coalesced_blocked(&[], &[], 32, 4, 1).to_string(), "[]{lane=[[],[],[],[],[]], warp=[[],[]]}");
    for (shape, order) in [([128, 2], [1, 0]), ([2, 128], [0, 1]), ([1, 4096], [1, 0])] {
        for (bits, warps) in [(8, 1), (16, 4), (64, 8)] {
            let layout = coalesced_blocked(&shape, &order, bits, warps, 16);
            assert!(layout.is_surjective() && layout.size(Space::Warp) == warps, "{layout}");
            assert_eq!(layout.bits(Space::Lane), 5);
        }
    }
}
