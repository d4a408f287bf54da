//! What library functions compute, run by the interpreter.

use tegula_ir::interp::{Arg, Launch, Memory, Options, run};

use super::staged;
use crate::Argument;
use crate::prelude::*;

/// The elements of the tile that `body` makes, in row-major order.
pub(super) fn values<T: Element>(body: impl FnOnce() -> Tile<T>) -> Vec<T> {
    let mut count = 0;
    let kernel = staged(|| {
        let out = PtrMut::<T>::declare("out");
        let tile = body().ravel();
        count = tile.shape().num_elements() as usize;
        (out + arange(0, count)).store(tile);
    })
    .unwrap();
    let memory = Memory::new();
    let size = size_of::<T::Storage>();
    let out = memory.allocate(count * size).unwrap();
    let args = [Arg::Ptr { address: out.address() }];
    run(&kernel, &Launch { grid: [1, 1, 1] }, &args, &memory, &Options::default()).unwrap();
    let element = |i: usize| {
        let mut bytes = [0; 8];
        out.read(i * size, &mut bytes[..size]);
        T::from_bits64(u64::from_le_bytes(bytes))
    };
    (0..count).map(element).collect()
}

/// Some numbers in no order, with equal ones among them.
fn scrambled(n: usize) -> Tile<i32> {
    (arange(0, n) * 37 + 11) % 23
}

fn scrambled_on_host(n: i32) -> Vec<i32> {
    (0..n).map(|i| (i * 37 + 11) % 23).collect()
}

#[test]
fn sorting() {
    let mut expected = scrambled_on_host(64);
    expected.sort_unstable();
    assert_eq!(values(|| scrambled(64).sort(0)), expected);
    expected.reverse();
    assert_eq!(values(|| scrambled(64).sort_descending(-1)), expected);
    assert_eq!(values(|| scrambled(64).topk(8, 0).0), expected[..8]);
    let at = values(|| scrambled(64).topk(8, 0).1);
    let numbers = scrambled_on_host(64);
    assert!(at.iter().zip(&expected).all(|(&i, &x)| numbers[i as usize] == x));
    // Along another axis than the last: columns.
    let columns = values(|| scrambled(32).reshape([8, 4]).sort(0));
    let mut first: Vec<i32> = scrambled_on_host(32).into_iter().step_by(4).collect();
    first.sort_unstable();
    assert_eq!(columns.into_iter().step_by(4).collect::<Vec<_>>(), first);
}

#[test]
fn nan_is_above_every_number() {
    // 31 numbers, infinities among them, and five NaN in between.
    let on_host: Vec<f32> = (0..32)
        .map(|i| match (i, i % 7) {
            (_, 3) => f32::NAN,
            (4, _) => f32::INFINITY,
            (6, _) => f32::NEG_INFINITY,
            _ => ((i * 37 + 11) % 23) as f32,
        })
        .collect();
    let x = || {
        let i = arange(0, 32);
        let numbers = ((i * 37 + 11) % 23).cast::<f32>();
        let numbers = select(i.eq_(4), f64::INFINITY, select(i.eq_(6), f64::NEG_INFINITY, numbers));
        select((i % 7).eq_(3), f64::NAN, numbers)
    };
    let bits =
        |x: &[f32]| x.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect::<Vec<_>>();
    let mut expected = on_host.clone();
    expected.sort_by(f32::total_cmp);
    assert_eq!(bits(&values(|| x().sort(0))), bits(&expected));
    expected.reverse();
    assert_eq!(bits(&values(|| x().sort_descending(0))), bits(&expected));
    assert_eq!(bits(&values(|| x().topk(8, 0).0)), bits(&expected[..8]));
    let at = values(|| x().topk(8, 0).1);
    let found: Vec<f32> = at.iter().map(|&i| on_host[i as usize]).collect();
    assert_eq!(bits(&found), bits(&expected[..8]));
}

#[test]
fn host_values_of_the_tiles_own_type() {
    let small = |x: u8| values(|| (arange(0, 4).cast::<u8>() + x) * 2);
    assert_eq!(small(100), [200, 202, 204, 206]);
    assert_eq!(values(|| arange(0, 2).cast::<i8>() - i8::MIN), [-128, -127]);
    assert_eq!(values(|| arange(0, 2).cast::<i16>() | 4i16), [4, 5]);
    assert_eq!(values(|| arange(0, 2).cast::<u16>() + u16::MAX), [u16::MAX, 0]);
    let third = bf16::from_f32(1.0 / 3.0);
    assert_eq!(values(|| zeros::<bf16>([2]) + third), [third; 2]);
    assert_eq!(values(|| zeros::<f16>([1]) + f16::NEG_INFINITY), [f16::NEG_INFINITY]);
    let infinity = f8e5m2::from_bits64(0x7c);
    assert!(values(|| full::<f8e5m2>([2], infinity)).iter().all(|x| x.to_bits64() == 0x7c));
    assert_eq!(values(|| arange(0, 4).cast::<u8>().lt(2u8)), [true, true, false, false]);
}

#[test]
fn rearranging() {
    assert_eq!(values(|| arange(0, 8).flip(0)), [7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(values(|| arange(0, 8).reshape([2, 4]).slice(1, 1, 2)), [1, 2, 5, 6]);
    assert_eq!(values(|| interleave(arange(0, 2), arange(2, 4))), [0, 2, 1, 3]);
    let halves = || (arange(0, 4).reshape([2, 2]), arange(4, 8).reshape([2, 2]));
    assert_eq!(values(|| cat(halves().0, halves().1, 0)), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(values(|| cat(halves().0, halves().1, 1)), [0, 1, 4, 5, 2, 3, 6, 7]);
}

#[test]
fn places_of_extremes() {
    // NaN first, then the largest twice.
    let x = || {
        let i = arange(0, 8).cast::<f32>();
        select(i.lt(2.0), f64::NAN, select((i % 3.0).eq_(2.0), 9.0, i))
    };
    assert_eq!(values(|| x().argmax(0)), [2]);
    assert_eq!(values(|| x().max_with_index(0).0), [9.0]);
    assert_eq!(values(|| x().argmin(0)), [3]);
    assert_eq!(values(|| full::<f32>([8], f64::NAN).argmax(0)), [0]);
    assert_eq!(
        values(|| scrambled(64).argmin(0)),
        [{
            let numbers = scrambled_on_host(64);
            (0..64).min_by_key(|&i| (numbers[i as usize], i)).unwrap()
        }]
    );
}

#[test]
fn scans() {
    assert_eq!(values(|| (arange(0, 4) + 1).cumsum(0)), [1, 3, 6, 10]);
    assert_eq!(values(|| (arange(0, 4) + 1).cumprod(0)), [1, 2, 6, 24]);
    assert_eq!(values(|| scan_reverse(arange(0, 4), 0, |a, b| a + b)), [6, 6, 5, 3]);
}

#[test]
fn softmax_sums_to_one() {
    let p = values(|| arange(0, 4).cast::<f64>().softmax(0));
    let e: Vec<f64> = (0..4).map(|i| f64::from(i - 3).exp()).collect();
    let sum: f64 = e.iter().sum();
    assert!(p.iter().zip(&e).all(|(p, e)| (p - e / sum).abs() < 1e-15), "{p:?}");
}

#[test]
fn ceiling_division_and_swizzle() {
    assert_eq!(values(|| cdiv(arange(0, 8), 3usize)), [0, 1, 1, 1, 2, 2, 2, 3]);
    assert_eq!(cdiv(7usize, 3usize), 3);
    // A grid of 3 by 2 in groups of 2 rows: down the columns of the first two rows, then along the last.
    let place = || {
        let program = arange(0, 8) % 6;
        swizzle2d(program / 2, program % 2, 3, 2, 2)
    };
    assert_eq!(values(|| place().0)[..6], [0, 1, 0, 1, 2, 2]);
    assert_eq!(values(|| place().1)[..6], [0, 0, 1, 1, 0, 1]);
}

#[test]
fn random_numbers_are_spread() {
    let uniform = values(|| rand(1u64, arange(0, 4096)));
    assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)));
    let mean = uniform.iter().sum::<f32>() / 4096.0;
    assert!((mean - 0.5).abs() < 0.02, "{mean}");
    let normal = values(|| randn(2u64, arange(0, 4096)));
    let (sum, squares) = normal.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    assert!((sum / 4096.0f32).abs() < 0.06 && (squares / 4096.0f32 - 1.0).abs() < 0.1, "{sum} {squares}");
}

#[test]
fn prints_fill_their_places() {
    let kernel = staged(|| {
        device_print!("{} of {}", arange(0, 2) + 5, program_id(1));
        device_print!("row", arange(3, 4));
        device_print!("here");
    })
    .unwrap();
    let text = std::sync::Mutex::new(String::new());
    let print = |line: &str| text.lock().unwrap().push_str(line);
    let options = Options { print: &print, ..Options::default() };
    run(&kernel, &Launch { grid: [1, 1, 1] }, &[], &Memory::new(), &options).unwrap();
    expect_test::expect![[r#"
        program (0, 0, 0) [0]: 5 of 0
        program (0, 0, 0) [1]: 6 of 0
        program (0, 0, 0) [0]: row 3
        program (0, 0, 0): here
    "#]]
    .assert_eq(&text.into_inner().unwrap());
}
