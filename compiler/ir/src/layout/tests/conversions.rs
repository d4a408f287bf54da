//! Conversions, executed.

use super::{Rng, random_distributed};
use crate::layout::*;

/// Runs the conversion on a tile whose elements are their own indices.
fn check(plan: &Conversion, src: &LinearLayout, dst: &LinearLayout) {
    let data: Vec<u64> = (0..1 << src.input_bits()).map(|input| src.flat(input)).collect();
    let result = plan.simulate(src, &data);
    assert_eq!(result.len(), 1 << dst.input_bits());
    for (input, &element) in result.iter().enumerate() {
        assert_eq!(element, dst.flat(input as u64), "{src} -> {dst} by {plan:?}");
    }
}

fn convert(src: &LinearLayout, dst: &LinearLayout, elem_bits: u32) -> Conversion {
    let plan = plan_conversion(src, dst, elem_bits).unwrap();
    check(&plan, src, dst);
    plan
}

#[test]
fn random_layouts_convert() {
    let mut rng = Rng(5);
    let mut kinds = [0; 4];
    for i in 0..150000 {
        let shape: &[u32] = [&[16, 16][..], &[8, 4], &[128], &[4, 4, 8], &[2]][i % 5];
        let warp_bits = rng.below(3) as u32;
        let lane_bits = [3, 5][i % 2];
        let mixed = rng.below(2) == 0;
        let src = random_distributed(&mut rng, shape, lane_bits, warp_bits, mixed);
        let dst = random_distributed(&mut rng, shape, lane_bits, warp_bits, mixed);
        let elem_bits = [8, 16, 32, 64][i % 4];
        let plan = convert(&src, &dst, elem_bits);
        let kind = match plan {
            Conversion::None => 0,
            Conversion::Registers(_) => 1,
            Conversion::Shuffle(_) => 2,
            Conversion::Shared(_) => 3,
        };
        kinds[kind] += 1;
        let shared = plan_shared(&src, &dst, elem_bits).unwrap();
        check(&Conversion::Shared(Box::new(shared)), &src, &dst);
    }
    assert!(kinds[2] > 50 && kinds[3] > 50, "{kinds:?}");
}

/// A random layout that keeps each warp's elements: the same warp columns, the rest mixed anew.
fn within_warps(rng: &mut Rng, src: &LinearLayout) -> LinearLayout {
    let mut columns: Vec<u64> =
        [Space::Register, Space::Lane].iter().flat_map(|&s| src.columns(s).to_vec()).collect();
    for _ in 0..2 * columns.len() {
        let (a, b) = (rng.below(columns.len() as u64) as usize, rng.below(columns.len() as u64) as usize);
        if a != b {
            columns[a] ^= columns[b];
        }
        columns.swap(b, 0);
    }
    let (lanes, registers) = columns.split_at(src.bits(Space::Lane) as usize);
    LinearLayout::new(
        &src.dims().shape(),
        &[(Space::Register, registers), (Space::Lane, lanes), (Space::Warp, src.columns(Space::Warp))],
    )
}

#[test]
fn warps_convert_by_shuffles() {
    let mut rng = Rng(6);
    for i in 0..80000 {
        let shape: &[u32] = [&[16, 16][..], &[8, 8], &[128]][i % 3];
        let warp_bits = rng.below(3) as u32;
        let src = random_distributed(&mut rng, shape, 5, warp_bits, i % 2 == 0);
        let dst = within_warps(&mut rng, &src);
        let elem_bits = [8, 16, 32, 64][i % 4];
        convert(&src, &dst, elem_bits);
        let plan = plan_shuffle(&src, &dst, elem_bits).unwrap();
        let plan = plan.unwrap_or_else(|| panic!("no shuffles for {src} -> {dst}"));
        check(&Conversion::Shuffle(Box::new(plan)), &src, &dst);
    }
}

#[test]
fn the_cheapest_plan_is_chosen() {
    // Equal maps, and registers in another order.
    let acc = mma_m16n8_acc(&[64, 64], &[2, 2]);
    assert_eq!(convert(&acc, &acc, 32), Conversion::None);
    let renamed: LinearLayout = "[4,4]{reg=[[0,1],[1,0]], lane=[[0,2],[2,0]]}".parse().unwrap();
    let other: LinearLayout = "[4,4]{reg=[[1,0],[0,1]], lane=[[0,2],[2,0]]}".parse().unwrap();
    assert_eq!(convert(&renamed, &other, 32), Conversion::Registers(vec![0, 2, 1, 3]));
    // FlashAttention's P: the accumulator of QKᵀ is operand A of PV without moving a thing between lanes.
    let acc = mma_m16n8_acc(&[64, 64], &[4, 1]);
    let a = mma_operand_a(&[64, 64], 16, &[4, 1]);
    assert!(matches!(convert(&acc, &a, 16), Conversion::None | Conversion::Registers(_)));
    let acc = wgmma_acc(&[64, 64], &[1, 1]);
    let a = wgmma_operand_a(&[64, 64], 16, &[1, 1]);
    assert!(matches!(convert(&acc, &a, 16), Conversion::None | Conversion::Registers(_)));
    // In 8 bits the pairs of the accumulator must become quads: a shuffle inside the quad.
    let a8 = wgmma_operand_a(&[64, 64], 8, &[1, 1]);
    let Conversion::Shuffle(plan) = convert(&acc, &a8, 8) else { panic!("fp8 P needs a shuffle") };
    assert!(plan.shuffles() <= 8, "{plan:?}");
    // Rows reduced in one layout, wanted in another: copies make it free.
    let row = acc.slice(1);
    assert_eq!(convert(&row, &row.clone(), 32), Conversion::None);
    let blocked = coalesced_blocked(&[64, 64], &[1, 0], 32, 4, 4);
    convert(&row, &blocked.slice(1), 32);
    // Across warps: shared memory.
    assert!(matches!(convert(&blocked, &acc, 32), Conversion::Shared(_)));
    // Narrower copies: every lane has everything already.
    let all: LinearLayout = "[4]{reg=[[1],[2]], lane=[[0],[0]]}".parse().unwrap();
    let one: LinearLayout = "[4]{lane=[[1],[2]]}".parse().unwrap();
    let Conversion::Shuffle(plan) = convert(&all, &one, 32) else { panic!("registers chosen by lane") };
    assert_eq!((plan.shuffles(), plan.before.len()), (0, 2));
}

#[test]
fn blocks_of_a_cluster() {
    // Two blocks with half the tile each convert on their own…
    let src: LinearLayout =
        "[8,8]{reg=[[0,1],[0,2]], lane=[[0,4],[1,0]], warp=[[2,0]], block=[[4,0]]}".parse().unwrap();
    let dst: LinearLayout =
        "[8,8]{reg=[[1,0],[2,0]], lane=[[0,1],[0,2]], warp=[[0,4]], block=[[4,0]]}".parse().unwrap();
    assert!(matches!(convert(&src, &dst, 16), Conversion::Shared(p) if p.bytes == 64));
    // … and from copies each block takes its half…
    let copies: LinearLayout =
        "[8,8]{reg=[[0,1],[0,2],[4,0]], lane=[[0,4],[1,0]], warp=[[2,0]], block=[[0,0]]}".parse().unwrap();
    convert(&copies, &dst, 16);
    convert(&copies, &src, 16);
    // … but not the other's half.
    assert!(matches!(plan_conversion(&src, &copies, 16), Err(LayoutError::CrossBlock { .. })));
    let fewer: LinearLayout = "[8,8]{reg=[[0,1]]}".parse().unwrap();
    assert!(matches!(plan_conversion(&src, &fewer, 16), Err(LayoutError::ThreadMismatch(..))));
    assert!(matches!(plan_conversion(&src, &src.reshape(&[64]), 16), Err(LayoutError::ShapeMismatch(..))));
}

/// The same map with its highest warp bit made a block bit.
fn with_block(layout: &LinearLayout) -> LinearLayout {
    let warps = layout.columns(Space::Warp);
    let (warps, block) = warps.split_at(warps.len() - 1);
    let spaces = [
        (Space::Register, layout.columns(Space::Register)),
        (Space::Lane, layout.columns(Space::Lane)),
        (Space::Warp, warps),
        (Space::Block, block),
    ];
    LinearLayout::new(&layout.dims().shape(), &spaces)
}

#[test]
fn random_clusters_convert_or_say_why_not() {
    let mut rng = Rng(7);
    let (mut converted, mut refused) = (0, 0);
    for i in 0..600 {
        let mixed = i % 4 == 0;
        let mut layout = || with_block(&random_distributed(&mut rng, &[8, 4], 3, 2, mixed));
        let (src, dst) = (layout(), layout());
        // Refusing is right only if block 0 lacks an element it will hold.
        let held = src.restricted(|s| s != Space::Block).basis();
        let own = dst.restricted(|s| s != Space::Block);
        let missing = own.all_columns().iter().any(|&c| !held.contains(c))
            || !held.contains(src.columns(Space::Block)[0] ^ dst.columns(Space::Block)[0]);
        match plan_conversion(&src, &dst, 32) {
            Ok(plan) => {
                assert!(!missing, "{src} -> {dst}");
                check(&plan, &src, &dst);
                converted += 1;
            }
            Err(error) => {
                assert!(missing && matches!(error, LayoutError::CrossBlock { .. }), "{error}");
                refused += 1;
            }
        }
    }
    assert!(converted > 50 && refused > 50, "{converted} {refused}");
}
