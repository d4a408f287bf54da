//! Philox against the known answers of the Random123 distribution (`kat_vectors`, philox4x32 10).

use super::run::values;
use super::staged;
use crate::create::constant;
use crate::{Argument, Scalar, Tile, philox, randint4x};

fn words(make: impl Fn() -> [Tile<u32>; 4]) -> [u32; 4] {
    std::array::from_fn(|i| values(|| make()[i])[0])
}

#[test]
fn known_answers() {
    let cases = [
        ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
        (
            [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
            [0xa4093822, 0x299f31d0],
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
        ),
    ];
    for (counter, key, expected) in cases {
        assert_eq!(words(|| philox(key.map(constant), counter.map(constant))), expected);
    }
}

#[test]
fn seeds_are_keys_and_offsets_are_counters() {
    let seeded = words(|| randint4x(0x299f31d0_a4093822u64, constant(0x85a308d3_243f6a88u64)));
    let [key, counter] = [[0xa4093822, 0x299f31d0], [0x243f6a88u32, 0x85a308d3]].map(|pair: [u32; 2]| pair);
    let zero = || constant(0u32);
    let direct =
        words(|| philox(key.map(constant), [constant(counter[0]), constant(counter[1]), zero(), zero()]));
    assert_eq!(seeded, direct);
}

#[test]
fn operations_are_placed_where_the_user_called() {
    let line = line!() + 3;
    let kernel = staged(|| {
        let seed = Scalar::<u64>::declare("seed");
        let _ = crate::randn(seed, crate::arange(0, 8));
    })
    .unwrap();
    for &op in &kernel.blocks[kernel.body].ops {
        assert_eq!((kernel.source(op).line, &*kernel.source(op).file), (line, file!()));
    }
}
