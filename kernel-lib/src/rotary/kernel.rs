//! Rotary position embedding as kernels: some heads of some tokens a program.
//!
//! The two halves of a head are views of their own, not offsets into one: where a half is no power of two, its bounds keep the tile of the first out of
//! the second. In place, a program reads all that it turns before it writes.
//!
//! The frequencies come with a row for each token, all the same memory (stride 0): loaded as the rectangle of the angles, they are spread over
//! the threads, so that each angle's cosine and sine are computed once and not by every thread that turns by it.

use tegula::prelude::*;

use super::config::Config;

/// y = x turned; pairs are (`first[i]`, `second[i]`).  first, second: [tokens, heads, pairs]; rest: [tokens, heads, rest]; positions: `[tokens]`; inv_freq: [tokens, pairs].
#[kernel]
pub fn rotary_half<T: Float>(
    x_first: View<T, 3>,
    x_second: View<T, 3>,
    x_rest: View<T, 3>,
    positions: View<i32, 1>,
    inv_freq: View<f32, 2>,
    y_first: ViewMut<T, 3>,
    y_second: ViewMut<T, 3>,
    y_rest: ViewMut<T, 3>,
    config: Config,
) {
    turn_halves([x_first, x_second], positions, inv_freq, [y_first, y_second], config);
    copy(x_rest, y_rest, config);
}

/// As [`rotary_half`](fn@rotary_half), in place.
#[kernel]
pub fn rotary_half_in_place<T: Float>(
    first: ViewMut<T, 3>,
    second: ViewMut<T, 3>,
    positions: View<i32, 1>,
    inv_freq: View<f32, 2>,
    config: Config,
) {
    turn_halves([first.as_view(), second.as_view()], positions, inv_freq, [first, second], config);
}

/// y = x turned; pairs are (`x[2i]`, `x[2i + 1]`).  x, y: [tokens, heads, 2 · pairs]; rest: [tokens, heads, rest]; positions: `[tokens]`; inv_freq: [tokens, pairs].
#[kernel]
pub fn rotary_interleaved<T: Float>(
    x: View<T, 3>,
    x_rest: View<T, 3>,
    positions: View<i32, 1>,
    inv_freq: View<f32, 2>,
    y: ViewMut<T, 3>,
    y_rest: ViewMut<T, 3>,
    config: Config,
) {
    turn_neighbours(x, positions, inv_freq, y, config);
    copy(x_rest, y_rest, config);
}

/// As [`rotary_interleaved`](fn@rotary_interleaved), in place.
#[kernel]
pub fn rotary_interleaved_in_place<T: Float>(
    x: ViewMut<T, 3>,
    positions: View<i32, 1>,
    inv_freq: View<f32, 2>,
    config: Config,
) {
    turn_neighbours(x.as_view(), positions, inv_freq, x, config);
}

/// Where the program's tokens and heads begin.
fn corner(config: Config) -> (Scalar<i32>, Scalar<i32>) {
    (program_id(0) * config.tokens as i32, program_id(1) * config.heads as i32)
}

/// Cosine and sine of the program's angles, [tokens, 1, pairs].
fn cos_sin(positions: View<i32, 1>, inv_freq: View<f32, 2>, config: Config) -> (Tile<f32>, Tile<f32>) {
    let Config { tokens, pairs, .. } = config;
    let (token, _) = corner(config);
    let at = positions.load((token,), [tokens]).cast::<f32>().expand(1);
    let angle = inv_freq.load((token, 0), [tokens, pairs]) * at;
    (cos(angle).expand(1), sin(angle).expand(1))
}

/// Points (a, b) turned.
fn turn([a, b]: [Tile<f32>; 2], (cos, sin): (Tile<f32>, Tile<f32>)) -> [Tile<f32>; 2] {
    [a * cos - b * sin, b * cos + a * sin]
}

fn turn_halves<T: Float>(
    x: [View<T, 3>; 2],
    positions: View<i32, 1>,
    inv_freq: View<f32, 2>,
    y: [ViewMut<T, 3>; 2],
    config: Config,
) {
    let (token, head) = corner(config);
    let shape = [config.tokens, config.heads, config.pairs];
    let points = x.map(|x| x.load((token, head, 0), shape).cast::<f32>());
    let turned = turn(points, cos_sin(positions, inv_freq, config));
    for (y, turned) in y.into_iter().zip(turned) {
        y.store((token, head, 0), turned.cast::<T>());
    }
}

fn turn_neighbours<T: Float>(
    x: View<T, 3>,
    positions: View<i32, 1>,
    inv_freq: View<f32, 2>,
    y: ViewMut<T, 3>,
    config: Config,
) {
    let Config { tokens, heads, pairs, .. } = config;
    let (token, head) = corner(config);
    let xs = x.load((token, head, 0), [tokens, heads, 2 * pairs]).cast::<f32>();
    let (a, b) = xs.reshape([tokens, heads, pairs, 2]).split();
    let [a, b] = turn([a, b], cos_sin(positions, inv_freq, config));
    y.store((token, head, 0), join(a, b).reshape([tokens, heads, 2 * pairs]).cast::<T>());
}

/// Copies what does not turn, if there is any.
fn copy<T: Float>(x: View<T, 3>, y: ViewMut<T, 3>, config: Config) {
    if config.rest > 0 {
        let (token, head) = corner(config);
        y.store((token, head, 0), x.load((token, head, 0), [config.tokens, config.heads, config.rest]));
    }
}
