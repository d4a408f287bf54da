//! Embedding: a copy, so exact up to one rounding; and what happens with ids that are not in the table.

use expect_test::expect;
use tegula::prelude::*;

use super::reference;
use crate::quant_gemm::reference::dequantize;
use crate::quant_gemm::{Format, QuantizedMatrix};
use crate::testing::{Padded, Rng, device, shown, to_f64};
use crate::{Activation, embedding, embedding_quantized};

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

fn blocks(format: Format, [vocab, cols]: [usize; 2], rng: &mut Rng) -> Vec<u8> {
    let mut blocks: Vec<u8> =
        (0..vocab * cols / 32 * format.block_bytes()).map(|_| rng.bits() as u8).collect();
    for block in blocks.chunks_exact_mut(format.block_bytes()) {
        for half in block[..if format.has_mins() { 4 } else { 2 }].chunks_exact_mut(2) {
            half.copy_from_slice(&f16::from_f64(rng.normal()).to_le_bytes());
        }
    }
    blocks
}

fn gathers_quantized<T: Activation>(format: Format, vocab: usize, cols: usize, tokens: usize, pad: usize) {
    let device = device();
    let mut rng = Rng::new((vocab + cols) as u64);
    let blocks = blocks(format, [vocab, cols], &mut rng);
    let table = QuantizedMatrix::from_gguf(format, [vocab, cols], &blocks, &device).unwrap();
    let ids = random_ids(&mut rng, tokens, vocab);
    let weights = rounded::<f32>(dequantize(format, &blocks));
    let expected = rounded::<T>(reference::embedding(&weights, cols, &ids));
    let mut y = Padded::<T>::poisoned(&device, [tokens, cols], pad);
    embedding_quantized(&table, &ids, y.view_mut(), &device.stream()).unwrap();
    assert_same(&y.values_f64(), &expected);
    y.assert_padding_untouched();
}

#[test]
fn dequantises_rows_in_every_format_and_type() {
    for format in Format::ALL {
        for (vocab, cols, tokens) in [(1, 32, 1), (100, 576, 7), (65, 96, 5), (2, 20_000, 2)] {
            for pad in [0, 1] {
                gathers_quantized::<f32>(format, vocab, cols, tokens, pad);
                gathers_quantized::<f16>(format, vocab, cols, tokens, pad);
                gathers_quantized::<bf16>(format, vocab, cols, tokens, pad);
            }
        }
    }
}

#[test]
fn ids_on_the_device_that_are_not_in_the_table_give_nan() {
    let device = device();
    let stream = device.stream();
    let ids = [2, -1, 4, i32::MAX, i32::MIN, 0, 63, -64];
    let on_device = device.from_slice(&ids, &[8]).unwrap();
    let table = device.from_vec(Rng::new(1).normals::<f32>(4 * 64), &[4, 64]).unwrap();
    let mut y = device.alloc::<f32>(&[8, 64]).unwrap();
    embedding(&table, &on_device, &mut y, &stream).unwrap();
    let expected = reference::embedding(&to_f64(&table.to_vec().unwrap()), 64, &ids);
    assert_same(&to_f64(&y.to_vec().unwrap()), &expected);

    // Of a panel of 64 rows there are four.
    for format in Format::ALL {
        let blocks = blocks(format, [4, 64], &mut Rng::new(2));
        let table = QuantizedMatrix::from_gguf(format, [4, 64], &blocks, &device).unwrap();
        embedding_quantized(&table, &on_device, &mut y, &stream).unwrap();
        let expected = reference::embedding(&rounded::<f32>(dequantize(format, &blocks)), 64, &ids);
        assert_same(&to_f64(&y.to_vec().unwrap()), &expected);
    }
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
    let blocks = blocks(Format::Q8_0, [4, 64], &mut Rng::new(3));
    let quantized = QuantizedMatrix::from_gguf(Format::Q8_0, [4, 64], &blocks, &device).unwrap();
    let narrow = embedding_quantized(&quantized, &[0, 1], &mut y, &stream);
    let absent = embedding_quantized(&quantized, &[0, 63], &mut y, &stream);
    expect![[r#"
        `embedding`, argument `ids`: id 4 at position 1, but the table has 4 rows; is it the tokenizer of this model?
        `embedding`, argument `ids`: id -7 at position 0, but the table has 4 rows; is it the tokenizer of this model?
        `embedding`, argument `y`: shape [2, 48], but [1, 48] is needed: a row for each id, as long as those of the table
        `embedding_quantized`, argument `y`: shape [2, 48], but [2, 64] is needed: a row for each id, as long as those of the table
        `embedding_quantized`, argument `ids`: id 63 at position 1, but the table has 4 rows; is it the tokenizer of this model?
    "#]]
    .assert_eq(&shown([too_large, negative, too_few, narrow, absent]));
}
