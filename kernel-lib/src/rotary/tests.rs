//! Rotary position embedding against f64: both pairings, whole and partial, in place and not, at the edges of shapes.

use expect_test::expect;
use tegula::prelude::*;
use tegula::runtime::{Device, Tensor, TensorView, TensorViewMut};

use super::{Pairing, inverse_frequencies, reference};
use crate::testing::{Bound, Rng, assert_close, device, shown, sized, to_f64};
use crate::{Activation, rotary, rotary_in_place};

/// Heads in a larger tensor: one more head, and `pad` more dimensions, which are NaN and must stay so.
struct Heads<T: Element> {
    whole: Tensor<T>,
    shape: [usize; 3],
}

impl<T: Element> Heads<T> {
    fn of(device: &Device, shape: [usize; 3], pad: usize, mut value: impl FnMut() -> f64) -> Heads<T> {
        let [tokens, heads, dim] = shape;
        let mut all = vec![T::from_f64(f64::NAN); tokens * (heads + 1) * (dim + pad)];
        for (row, to) in all.chunks_exact_mut(dim + pad).enumerate() {
            if row % (heads + 1) != heads {
                to[..dim].fill_with(|| T::from_f64(value()));
            }
        }
        Heads { whole: device.from_slice(&all, &[tokens, heads + 1, dim + pad]).unwrap(), shape }
    }

    fn view(&self) -> TensorView<'_, T> {
        self.whole.view().slice(1, ..self.shape[1]).unwrap().slice(2, ..self.shape[2]).unwrap()
    }

    fn view_mut(&mut self) -> TensorViewMut<'_, T> {
        self.whole.view_mut().slice(1, ..self.shape[1]).unwrap().slice(2, ..self.shape[2]).unwrap()
    }

    fn values(&self) -> Vec<f64> {
        to_f64(&self.view().to_vec().unwrap())
    }

    fn assert_surroundings_untouched(&self) {
        let [_, heads, dim] = self.shape;
        let beside = self.whole.view().slice(1, heads..).unwrap().to_vec().unwrap();
        let behind = self.whole.view().slice(2, dim..).unwrap().to_vec().unwrap();
        assert!(beside.iter().chain(&behind).all(|x| x.to_f64().is_nan()));
    }
}

fn against_f64<T: Activation>(shape: [usize; 3], turned: usize, pad: usize, pairing: Pairing) {
    let [tokens, heads, head_dim] = shape;
    let device = device();
    let stream = device.stream();
    let mut rng = Rng::new((head_dim * tokens + heads) as u64);
    // Negative positions are as good as others, and large ones have large angles.
    let position: Vec<i32> = (0..tokens).map(|i| [0, 1, -5, 4000, 131_071][(i + 3) % 5] + i as i32).collect();
    let frequencies = inverse_frequencies(turned, 10_000.0);
    let positions = device.from_slice(&position, &[tokens]).unwrap();
    let inv_freq = device.from_slice(&frequencies, &[turned / 2]).unwrap();
    let mut x = Heads::<T>::of(&device, shape, pad, || rng.normal());
    let before = x.values();
    let exact = reference::rotary(&before, heads, head_dim, &position, &to_f64(&frequencies), pairing);

    let mut bounds = vec![0.0; exact.len()];
    for (head, bounds) in bounds.chunks_exact_mut(head_dim).enumerate() {
        let at = head * head_dim;
        for (i, frequency) in frequencies.iter().enumerate() {
            let [a, b] = reference::pair(i, turned / 2, pairing);
            let angle = (f64::from(position[head / heads]) * f64::from(*frequency)).abs();
            // The angle's rounding, the function's 1.2 ulp (2.4 u, of at most 1), and a product, each relative to the coordinates; and the sum's.
            let size = before[at + a].abs() + before[at + b].abs();
            let error = size * (angle + 2.4 + 1.0 + 1.0) * 2f64.powi(-24);
            for j in [a, b] {
                bounds[j] = Bound::rounded_to::<T>(exact[at + j], error);
            }
        }
    }
    let mut y = Heads::<T>::of(&device, shape, pad + 1, || f64::NAN);
    rotary(x.view(), &positions, &inv_freq, pairing, y.view_mut(), &stream).unwrap();
    assert_close(&y.values(), &exact, bounds);
    y.assert_surroundings_untouched();
    rotary_in_place(x.view_mut(), &positions, &inv_freq, pairing, &stream).unwrap();
    assert_eq!(x.values(), y.values());
    x.assert_surroundings_untouched();
}

#[test]
fn agrees_with_f64_in_every_type() {
    let cases = [
        ([1, 1, 2], 2),
        ([1, 9, 64], 64),
        ([7, 3, 64], 64),
        ([5, 5, 96], 96), // halves of 48
        ([3, 2, 80], 32), // partial
        ([4, 1, 10], 6),  // partial, nothing a power of two
        ([sized(300, 20), 12, 64], 64),
        ([2, 3, 256], 64),
    ];
    for (shape, turned) in cases {
        for pairing in [Pairing::Half, Pairing::Interleaved] {
            for pad in [0, 3] {
                against_f64::<f32>(shape, turned, pad, pairing);
                against_f64::<f16>(shape, turned, pad, pairing);
                against_f64::<bf16>(shape, turned, pad, pairing);
            }
        }
    }
}

#[test]
fn the_two_pairings_are_a_permutation_of_each_other() {
    let device = device();
    let stream = device.stream();
    let mut rng = Rng::new(3);
    let x: Vec<f32> = rng.normals(64);
    // What llama.cpp does to the rows of Wq and Wk when it converts a model.
    let interleaved: Vec<f32> = (0..64).map(|j| x[j / 2 + 32 * (j % 2)]).collect();
    let positions = device.from_slice(&[77], &[1]).unwrap();
    let inv_freq = device.from_vec(inverse_frequencies(64, 100_000.0), &[32]).unwrap();
    let turn = |values: &[f32], pairing| {
        let mut x = device.from_slice(values, &[1, 1, 64]).unwrap();
        rotary_in_place(&mut x, &positions, &inv_freq, pairing, &stream).unwrap();
        x.to_vec().unwrap()
    };
    let (half, pairs) = (turn(&x, Pairing::Half), turn(&interleaved, Pairing::Interleaved));
    assert_eq!(pairs, (0..64).map(|j| half[j / 2 + 32 * (j % 2)]).collect::<Vec<_>>());
    assert_ne!(turn(&x, Pairing::Half), turn(&x, Pairing::Interleaved));
}

#[test]
fn the_plain_frequencies() {
    assert_eq!(inverse_frequencies(4, 100.0), [1.0, 0.1]);
    assert_eq!(inverse_frequencies(64, 10_000.0)[31], 10_000f64.powf(-62.0 / 64.0) as f32);
}

#[test]
fn no_tokens_are_no_work_and_what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let inv_freq = device.zeros::<f32>(&[4]).unwrap();
    let (none, mut empty) = (device.zeros::<i32>(&[0]).unwrap(), device.zeros::<f32>(&[0, 2, 8]).unwrap());
    rotary_in_place(&mut empty, &none, &inv_freq, Pairing::Half, &stream).unwrap();
    let mut x = device.zeros::<f32>(&[3, 2, 8]).unwrap();
    let mut y = device.zeros::<f32>(&[3, 2, 9]).unwrap();
    let positions = device.zeros::<i32>(&[3]).unwrap();
    let no_positions = rotary_in_place(&mut x, &none, &inv_freq, Pairing::Half, &stream);
    let too_many = device.zeros::<f32>(&[5]).unwrap();
    let frequencies = rotary_in_place(&mut x, &positions, &too_many, Pairing::Half, &stream);
    let output = rotary(&x, &positions, &inv_freq, Pairing::Interleaved, &mut y, &stream);
    expect![[r#"
        `rotary_in_place`, argument `positions`: shape [0], but [3] is needed: one position for each token of `x`
        `rotary_in_place`, argument `inv_freq`: 5 frequencies turn 10 dimensions, but heads of `x` have 8; pass one for each pair of dimensions that turns
        `rotary`, argument `y`: shape [3, 2, 9], but [3, 2, 8] is needed: the shape of `x`
    "#]]
    .assert_eq(&shown([no_positions, frequencies, output]));
}
