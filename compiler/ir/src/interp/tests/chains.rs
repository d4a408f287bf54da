//! Which elementwise operations run together, and what they keep.

use super::*;
use crate::interp::program::{Instr, STRIP, StripStep};
use crate::interp::stretch::Stretch;

const TEXT: &str = "
kernel @k(%x: view<?x?xi32>, %r: view<?xi32>, %y: view_mut<?x?xi32>) {
  %0 = const 0 : i32
  %t = view_load %x[%0, %0] : tile<8x8xi32>
  %a = add %t, %t : tile<8x8xi32>
  %row = view_load %r[%0] : tile<8xi32>
  %twice = add %row, %row : tile<8xi32>
  %e = expand {axis = 1} %twice : tile<8x1xi32>
  %c = broadcast %e : tile<8x8xi32>
  %b = mul %a, %c : tile<8x8xi32>
  %d = sub %b, %a : tile<8x8xi32>
  view_store %y[%0, %0], %d
}";

#[test]
fn operations_around_a_load_are_one_chain_that_keeps_only_its_result() {
    let kernel = crate::text::parse(TEXT).unwrap().remove(0);
    let program = crate::interp::prepare::lower(&kernel).unwrap();
    let chains: Vec<_> = program
        .code
        .iter()
        .filter_map(|i| match i {
            Instr::Strips(s) => Some(s),
            _ => None,
        })
        .collect();
    let maps = |i: usize| -> Vec<_> {
        let each = |s: &StripStep| match s {
            StripStep::Map { dst, .. } => Some(*dst),
            StripStep::Spread(_) => None,
        };
        chains[i].steps.iter().filter_map(each).collect()
    };
    // `twice` works on other tiles: it runs before. Of the chain around it only `d` is stored in full.
    assert_eq!(chains.len(), 2);
    assert_eq!(maps(0).len(), 1);
    let kept: Vec<bool> = maps(1).iter().map(|o| o.at == Stretch::FULL).collect();
    assert_eq!(kept, [false, false, true]);
    for local in &maps(1)[..2] {
        assert!(program.slots[local.slot as usize] <= (STRIP * 4).max(64));
    }
}

#[test]
fn a_chain_computes_what_its_operations_do() {
    let memory = Memory::new();
    let x = buffer(&memory, &(0..64).collect::<Vec<i32>>());
    let r = buffer(&memory, &(0..8).collect::<Vec<i32>>());
    let y = buffer(&memory, &[0i32; 64]);
    let args = [
        Arg::row_major(x.address(), &[8, 8]),
        Arg::row_major(r.address(), &[8]),
        Arg::row_major(y.address(), &[8, 8]),
    ];
    run_text(TEXT, [1; 3], &args, &memory);
    let want: Vec<i32> = (0..64).map(|i| 2 * i * 2 * (i / 8) - 2 * i).collect();
    assert_eq!(contents::<i32>(&y), want);
}
