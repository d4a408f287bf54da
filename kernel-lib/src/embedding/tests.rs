//! Embedding: a copy, so exact up to one rounding; and what happens with ids that are not in the table.

use expect_test::expect;
use tegula::prelude::*;

use super::reference;
use crate::testing::{Padded, Rng, device, shown, to_f64};
use crate::{Activation, embedding, embedding_q8_0};

fn random_ids(rng: &mut Rng, n: usize, vocab: usize) -> Vec<i32> {
    (0..n).map(|_| (rng.bits() % vocab as u64) as i32).collect()
}

/// Bit for bit, but any NaN equals any other.
fn assert_same(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!(f == e || f.is_nan() && e.is_nan(), "element {i}: {f} for {e}");
    }
}

fn rounded<T: Element>(values: Vec<f64>) -> Vec<f64> {
    values.into_iter().map(|x| T::from_f64(x).to_f64()).collect()
}

fn gathers<E: Activation, T: Activation>(vocab: usize, cols: usize, tokens: usize, pad: usize) {
    let device = device();
    let mut rng = Rng::new((vocab + cols) as u64);
    let table = Padded::<E>::random(&device, [vocab, cols], pad, &mut rng);
    let ids = random_ids(&mut rng, tokens, vocab);
    let expected = rounded::<T>(reference::embedding(&table.values_f64(), cols, &ids));
    let mut y = Padded::<T>::poisoned(&device, [tokens, cols], pad);
    embedding(table.view(), &ids, y.view_mut(), &device.stream()).unwrap();
    assert_same(&y.values_f64(), &expected);
    y.assert_padding_untouched();
    let on_device = device.from_slice(&ids, &[tokens]).unwrap();
    let mut z = Padded::<T>::poisoned(&device, [tokens, cols], 0);
    embedding(table.view(), &on_device, z.view_mut(), &device.stream()).unwrap();
    assert_eq!(z.values(), y.values());
}

#[test]
fn gathers_rows_in_every_type() {
    for (vocab, cols, tokens) in [(1, 1, 1), (100, 576, 7), (3, 33, 5), (5, 20_000, 2)] {
        for pad in [0, 3] {
            gathers::<f32, f32>(vocab, cols, tokens, pad);
            gathers::<f32, bf16>(vocab, cols, tokens, pad);
            gathers::<f16, f32>(vocab, cols, tokens, pad);
            gathers::<f16, f16>(vocab, cols, tokens, pad);
            gathers::<bf16, f16>(vocab, cols, tokens, pad);
            gathers::<bf16, bf16>(vocab, cols, tokens, pad);
        }
    }
}

fn gathers_q8_0<T: Activation>(vocab: usize, cols: usize, tokens: usize, pad: usize) {
    let device = device();
    let mut rng = Rng::new((vocab + cols) as u64);
    let code: Vec<i8> = (0..vocab * cols).map(|_| rng.bits() as i8).collect();
    let codes = device.from_slice(&code, &[vocab, cols]).unwrap();
    let scales = Padded::<f16>::random(&device, [vocab, cols / 32], pad, &mut rng);
    let ids = random_ids(&mut rng, tokens, vocab);
    let table = reference::dequantize_q8_0(&code, &scales.values_f64());
    let expected = rounded::<T>(reference::embedding(&table, cols, &ids));
    let mut y = Padded::<T>::poisoned(&device, [tokens, cols], pad);
    embedding_q8_0(&codes, scales.view(), &ids, y.view_mut(), &device.stream()).unwrap();
    assert_same(&y.values_f64(), &expected);
    y.assert_padding_untouched();
}

#[test]
fn dequantises_rows_in_every_type() {
    for (vocab, cols, tokens) in [(1, 32, 1), (100, 576, 7), (9, 96, 5), (2, 20_000, 2)] {
        for pad in [0, 1] {
            gathers_q8_0::<f32>(vocab, cols, tokens, pad);
            gathers_q8_0::<f16>(vocab, cols, tokens, pad);
            gathers_q8_0::<bf16>(vocab, cols, tokens, pad);
        }
    }
}

#[test]
fn ids_on_the_device_that_are_not_in_the_table_give_nan() {
    let device = device();
    let stream = device.stream();
    let ids = [2, -1, 4, i32::MAX, i32::MIN, 0];
    let on_device = device.from_slice(&ids, &[6]).unwrap();
    let table = device.from_vec(Rng::new(1).normals::<f32>(4 * 64), &[4, 64]).unwrap();
    let mut y = device.alloc::<f32>(&[6, 64]).unwrap();
    embedding(&table, &on_device, &mut y, &stream).unwrap();
    let expected = reference::embedding(&to_f64(&table.to_vec().unwrap()), 64, &ids);
    assert_same(&to_f64(&y.to_vec().unwrap()), &expected);

    let codes = device.from_slice(&[1i8; 4 * 64], &[4, 64]).unwrap();
    let scales = device.from_slice(&[f16::from_f32(0.5); 8], &[4, 2]).unwrap();
    embedding_q8_0(&codes, &scales, &on_device, &mut y, &stream).unwrap();
    let expected = reference::embedding(&[0.5; 4 * 64], 64, &ids);
    assert_same(&to_f64(&y.to_vec().unwrap()), &expected);
}

#[test]
fn no_ids_are_no_work_and_what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let table = device.zeros::<f32>(&[4, 48]).unwrap();
    let mut y = device.zeros::<f32>(&[2, 48]).unwrap();
    embedding(&table, &[], y.view_mut().slice(0, ..0).unwrap(), &stream).unwrap();

    let too_large = embedding(&table, &[0, 4], &mut y, &stream);
    let negative = embedding(&table, &[-7, 0], &mut y, &stream);
    let too_few = embedding(&table, &[1], &mut y, &stream);
    let codes = device.zeros::<i8>(&[4, 48]).unwrap();
    let scales = device.zeros::<f16>(&[4, 1]).unwrap();
    let ragged = embedding_q8_0(&codes, &scales, &[0, 1], &mut y, &stream);
    let codes = device.zeros::<i8>(&[4, 64]).unwrap();
    let few_scales = embedding_q8_0(&codes, &scales, &[0, 1], &mut y, &stream);
    expect![[r#"
        `embedding`, argument `ids`: id 4 at position 1, but the table has 4 rows; is it the tokenizer of this model?
        `embedding`, argument `ids`: id -7 at position 0, but the table has 4 rows; is it the tokenizer of this model?
        `embedding`, argument `y`: shape [2, 48], but [1, 48] is needed: a row for each id, as long as those of the table
        `embedding_q8_0`, argument `codes`: cols is 48, but a positive multiple of 32 is needed
        `embedding_q8_0`, argument `scales`: shape [4, 1], but [4, 2] is needed: one scale for every 32 columns of `codes`
    "#]]
    .assert_eq(&shown([too_large, negative, too_few, ragged, few_scales]));
}
