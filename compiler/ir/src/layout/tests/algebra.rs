//! Inverses, kernels, products, shapes and the text form.

use super::{Rng, random_distributed};
use crate::layout::*;

const SHAPES: [&[u32]; 6] = [&[], &[64], &[16, 8], &[32, 64], &[4, 8, 16], &[128, 64]];

fn random_layouts() -> impl Iterator<Item = LinearLayout> {
    let mut rng = Rng(1);
    (0..600).map(move |i| {
        let warp_bits = rng.below(4) as u32;
        random_distributed(&mut rng, SHAPES[i % SHAPES.len()], 5, warp_bits, i % 2 == 0)
    })
}

#[test]
fn preimage_is_the_smallest_holder() {
    for layout in random_layouts().take(120) {
        assert!(layout.is_surjective(), "{layout}");
        let basis = layout.basis();
        let mut first = vec![None; 1 << layout.dims().total_bits()];
        let mut holders = vec![0u32; first.len()];
        for input in 0..1u64 << layout.input_bits() {
            let element = layout.flat(input) as usize;
            first[element].get_or_insert(input);
            holders[element] += 1;
        }
        for (element, &smallest) in first.iter().enumerate() {
            assert_eq!(basis.solve(element as u64), smallest, "{layout}");
            assert_eq!(holders[element], 1 << layout.kernel().len(), "{layout}");
            assert_eq!(smallest.unwrap() & layout.free_inputs(), 0, "{layout}");
        }
        assert_eq!(layout.is_injective(), holders.iter().all(|&n| n == 1));
        let inverse = layout.right_inverse().unwrap();
        for element in 0..first.len() as u64 {
            assert_eq!(layout.flat(apply_columns(&inverse, element)), element);
        }
        for k in layout.kernel() {
            assert_eq!(layout.flat(k), 0);
        }
    }
}

#[test]
fn text_round_trips() {
    for layout in random_layouts() {
        assert_eq!(layout.to_string().parse(), Ok(layout));
    }
    let spaced = " [ 4 ,2]{ lane = [ [1,0],[2, 0]] , reg=[[0,1]]} ".parse::<LinearLayout>().unwrap();
    assert_eq!(spaced.to_string(), "[4,2]{reg=[[0,1]], lane=[[1,0],[2,0]]}");
    for (text, at) in [
        ("", 0),
        ("[3]{}", 3),
        ("[4]{reg=[[4]]}", 12),
        ("[4]{reg=[[1,1]]}", 14),
        ("[4]{thread=[[1]]}", 10),
        ("[4]{reg=[[1]],reg=[[2]]}", 17),
        ("[4]{reg=[[1]]} x", 15),
        ("[4]{reg=[[1]", 12),
        ("[99999999999]{}", 12),
    ] {
        match text.parse::<LinearLayout>() {
            Err(LayoutError::Parse { at: found, .. }) => assert_eq!(found, at, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn product_divides() {
    let mut rng = Rng(2);
    for _ in 0..20 {
        let a = random_distributed(&mut rng, &[4, 8], 2, 1, true);
        let b = random_distributed(&mut rng, &[8, 2], 3, 1, true);
        let product = &a * &b;
        assert_eq!(product.dims().shape().as_slice(), [32, 16]);
        assert_eq!(product.divide_left(&a), Some(b.clone()));
        for input in 0..1u64 << product.input_bits() {
            let split = |layout: &LinearLayout, high: bool| {
                let parts = Space::ALL.map(|s| {
                    let index = product.index(input, s);
                    let low = a.bits(s);
                    (s, if high { index >> low } else { index & ((1 << low) - 1) })
                });
                layout.apply(&parts)
            };
            let (x, y) = (split(&a, false), split(&b, true));
            let whole = product.dims().unpack(product.flat(input));
            assert_eq!(whole.as_slice(), [x[0] + 4 * y[0], x[1] + 8 * y[1]]);
        }
    }
    // Not a prefix: the fragment's registers run along K, not M.
    let a = mma_operand_a(&[64, 64], 16, &[2, 2]);
    assert!(a.divide_left(&ldmatrix_tile(16, false)).is_some());
    assert!(a.divide_left(&ldmatrix_tile(16, true)).is_none());
    assert!(mma_operand_b(&[64, 64], 16, &[2, 2]).divide_left(&ldmatrix_tile(16, true)).is_some());
    assert!(mma_operand_a(&[64, 64], 8, &[2, 2]).divide_left(&ldmatrix_tile(8, false)).is_some());
}

#[test]
fn shape_operations_keep_elements_in_place() {
    for layout in random_layouts().filter(|l| l.dims().rank() >= 2).take(60) {
        let dims = layout.dims();
        let rank = dims.rank();
        let perm: Vec<usize> = (0..rank).map(|d| (d + 1) % rank).collect();
        let transposed = layout.transpose(&perm);
        let reshaped = layout.reshape(&[1 << dims.total_bits()]);
        let expanded = layout.expand_dims(1).broadcast(1, 4);
        let projected = layout.project(0);
        for input in 0..1u64 << layout.input_bits() {
            let at = dims.unpack(layout.flat(input));
            let permuted: Coords = perm.iter().map(|&d| at[d]).collect();
            assert_eq!(transposed.dims().unpack(transposed.flat(input)), permuted);
            assert_eq!(reshaped.flat(input), layout.flat(input));
            assert_eq!(projected.dims().unpack(projected.flat(input)).as_slice(), &at[1..]);
        }
        let high = layout.size(Space::Register);
        for register in 0..expanded.size(Space::Register) {
            let at = expanded.apply(&[(Space::Register, register)]);
            let old = layout.apply(&[(Space::Register, register % high)]);
            assert_eq!((at[0], at[1], at[2]), (old[0], register / high, old[1]));
        }
        assert_eq!(layout.slice(0).free_variables(Space::Register), 0);
        assert!(layout.slice(0).is_surjective());

        let joined = layout.join();
        assert_eq!(joined.split(), Some((layout.clone(), 0)));
        assert_eq!(joined.project(rank).without_register_bits(1), layout);
    }
}

#[test]
fn compact_registers_keep_the_held_set() {
    for layout in random_layouts() {
        let compact = layout.without_redundant_registers();
        let held = |l: &LinearLayout, lane| {
            let mut elements: Vec<u64> = (0..l.size(Space::Register))
                .map(|r| l.flat(l.input(&[(Space::Register, r), (Space::Lane, lane)])))
                .collect();
            elements.sort_unstable();
            elements.dedup();
            elements
        };
        for lane in 0..32 {
            let elements = held(&compact, lane);
            assert_eq!(elements, held(&layout, lane));
            assert_eq!(elements.len(), compact.size(Space::Register) as usize);
        }
    }
}
