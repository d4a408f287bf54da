//! Sampling against f64: the selected set, the frequencies, the random numbers, and one seed's tokens for good.

use expect_test::expect;
use tegula::prelude::*;

use super::{MAX_VOCAB, Sampling, reference};
use crate::testing::{Padded, Rng, device, shown, sized};
use crate::{Activation, sample};

fn sampled<T: Activation>(logits: &Padded<T>, rows: usize, sampling: &Sampling) -> Vec<i32> {
    let device = device();
    let mut ids = device.from_vec(vec![-77; rows], &[rows]).unwrap();
    sample(logits.view(), &mut ids, sampling, &device.stream()).unwrap();
    ids.to_vec().unwrap()
}

/// Random numbers are the reference's, so where they are not near the border of two tokens, the tokens are.
fn against_f64<T: Activation>(rows: usize, vocab: usize, pad: usize, sampling: Sampling) -> usize {
    let mut rng = Rng::new(vocab as u64 + sampling.seed);
    let logits: Vec<T> = (0..rows * vocab).map(|_| T::from_f64(3.0 * rng.normal())).collect();
    let logits = Padded::of(&device(), &logits, [rows, vocab], pad);
    let found = sampled(&logits, rows, &sampling);
    let mut compared = 0;
    for (row, logits) in logits.values_f64().chunks_exact(vocab).enumerate() {
        let expected = reference::distribution(logits, &sampling);
        let uniform = reference::uniform(sampling.seed, sampling.step, row as u32);
        let (id, distance) = reference::choose(&expected.probabilities, uniform);
        // A sum of weights is off by 2⁻¹⁷ of itself at most, so the border between two tokens and the share of top-p are, too.
        let decided = expected.margin.min(distance) > 2f64.powi(-16);
        if decided {
            assert_eq!(found[row], id, "row {row} of {vocab}, {sampling:?}");
            compared += 1;
        }
        assert!(found[row] >= 0 && (found[row] as usize) < vocab);
    }
    compared
}

#[test]
fn agrees_with_f64_in_every_type() {
    let mut compared = 0;
    let mut all = 0;
    for (rows, vocab) in [(1, 1), (3, 2), (9, 1003), (1, 9000)] {
        for (top_k, top_p) in [
            (None, None),
            (Some(1), None),
            (Some(50), None),
            (None, Some(0.9)),
            (Some(40), Some(0.5)),
            (Some(5000), Some(0.999)),
        ] {
            for temperature in [0.3, 1.0, 2.0] {
                let sampling =
                    Sampling { temperature, top_k, top_p, seed: 11 + rows as u64, step: vocab as u64 };
                compared += against_f64::<f32>(rows, vocab, 1, sampling);
                compared += against_f64::<f16>(rows, vocab, 0, sampling);
                compared += against_f64::<bf16>(rows, vocab, 3, sampling);
                all += 3 * rows;
            }
        }
    }
    assert!(compared * 10 > all * 9, "{compared} of {all} draws were away from a border");
}

#[test]
fn vocabularies_of_real_models() {
    for &vocab in sized(&[49_152, 128_256, 152_064][..], &[20_000]) {
        let sampling = Sampling { temperature: 0.8, top_k: Some(100), top_p: Some(0.95), seed: 5, step: 3 };
        against_f64::<bf16>(1, vocab, 0, sampling);
        against_f64::<f32>(1, vocab, 0, Sampling { top_k: None, ..sampling });
    }
}

/// All alike, so that the weights sum up to 2⁶⁴ − 2⁴⁰, and every token is as likely as it can be told by. (Where it is emulated, that row would take
/// minutes: there only the rest is seen.)
#[test]
fn the_longest_row_does_not_overflow() {
    let device = device();
    let vocab = sized(MAX_VOCAB, 1 << 15);
    let logits = device.from_vec(vec![f16::from_f32(1.0); vocab], &[1, vocab]).unwrap();
    for step in 0..3 {
        let sampling = Sampling { step, ..Sampling::at_temperature(1.0, 17) };
        let mut ids = device.from_vec(vec![-77; 1], &[1]).unwrap();
        sample(&logits, &mut ids, &sampling, &device.stream()).unwrap();
        let expected = reference::uniform(17, step, 0) * vocab as f64;
        assert_eq!(ids.to_vec().unwrap(), [expected as i32]);
    }
}

/// What can be drawn is the selected set: with as many draws as this none of its tokens is missed.
#[test]
fn the_selected_set_is_exact_with_ties() {
    // 3 is the third largest, three times over: with k = 3 it makes five.
    let logits = [1.0f32, 3.0, 5.0, 3.0, -1.0, 4.0, 3.0, f32::NAN, f32::NEG_INFINITY, 0.0, -0.0];
    let rows = sized(4000, 1000);
    let repeated: Vec<f32> = logits.iter().copied().cycle().take(rows * logits.len()).collect();
    let logits = Padded::of(&device(), &repeated, [rows, 11], 0);
    let set = |top_k, top_p| {
        let sampling = Sampling { temperature: 2.0, top_k, top_p, seed: 3, step: 9 };
        let mut ids = sampled(&logits, rows, &sampling);
        ids.sort_unstable();
        ids.dedup();
        let expected = reference::distribution(&logits.values_f64()[..11], &sampling).probabilities;
        let possible: Vec<i32> = (0..11).filter(|&i| expected[i as usize] > 0.0).collect();
        assert_eq!(ids, possible);
        ids
    };
    assert_eq!(set(Some(3), None), [1, 2, 3, 5, 6]);
    assert_eq!(set(Some(2), None), [2, 5]);
    assert_eq!(set(Some(6), None), [0, 1, 2, 3, 5, 6]);
    assert_eq!(set(Some(7), None), [0, 1, 2, 3, 5, 6, 9, 10]);
    assert_eq!(set(Some(8), None), [0, 1, 2, 3, 5, 6, 9, 10]);
    assert_eq!(set(Some(9), None), [0, 1, 2, 3, 4, 5, 6, 9, 10]);
    assert_eq!(set(Some(100), None), [0, 1, 2, 3, 4, 5, 6, 9, 10]);
    assert_eq!(set(None, Some(0.2)), [2]);
    assert_eq!(set(None, Some(0.6)), [1, 2, 3, 5, 6]);
}

/// Weights of 2⁴⁰, 2³⁹ and 2³⁹: the temperature is log₂e as far as f32 has it, so that logits are exponents of 2. The first token has a share of
/// exactly ½, which is enough.
#[test]
fn a_share_that_is_exactly_p_is_enough() {
    let logits = [0.0f32, -1.0, -1.0];
    let rows = 1000;
    let repeated: Vec<f32> = logits.iter().copied().cycle().take(rows * 3).collect();
    let logits = Padded::of(&device(), &repeated, [rows, 3], 0);
    let set = |top_p: f32| {
        let sampling =
            Sampling { top_p: Some(top_p), ..Sampling::at_temperature(std::f32::consts::LOG2_E, 7) };
        let mut ids = sampled(&logits, rows, &sampling);
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    assert_eq!(set(0.5f32.next_down()), [0]);
    assert_eq!(set(0.5), [0]);
    assert_eq!(set(0.5f32.next_up()), [0, 1, 2]);
}

/// χ² of the frequencies of 20000 draws: with 7 degrees of freedom, 24.3 is exceeded once in 1000 seeds, and this one is fixed.
#[test]
fn frequencies_are_the_probabilities() {
    let logits = [0.0f32, 1.0, 2.0, -1.0, 0.5, 1.5, 2.5, -2.0];
    let rows = 20_000;
    let repeated: Vec<f32> = logits.iter().copied().cycle().take(rows * 8).collect();
    let sampling = Sampling::at_temperature(1.3, 2026);
    let ids = sampled(&Padded::of(&device(), &repeated, [rows, 8], 0), rows, &sampling);
    let exact: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    let expected = reference::distribution(&exact, &sampling).probabilities;
    let chi2: f64 = (0..8)
        .map(|i| {
            let (n, mean) =
                (ids.iter().filter(|&&id| id == i).count() as f64, expected[i as usize] * rows as f64);
            (n - mean).powi(2) / mean
        })
        .sum();
    assert!(chi2 < 24.3, "χ² = {chi2}");
}

#[test]
fn a_seed_gives_the_same_tokens_for_good() {
    let mut rng = Rng::new(1);
    let logits: Vec<f32> = (0..4 * 5000).map(|_| (3.0 * rng.normal()) as f32).collect();
    let logits = Padded::of(&device(), &logits, [4, 5000], 0);
    let mut sampling = Sampling { temperature: 0.9, top_k: Some(200), top_p: Some(0.9), seed: 42, step: 0 };
    let mut tokens = String::new();
    for step in 0..4 {
        sampling.step = step;
        tokens += &format!("{:?}\n", sampled(&logits, 4, &sampling));
    }
    expect![[r#"
        [2060, 656, 4919, 2170]
        [1660, 4988, 4919, 610]
        [3111, 656, 4919, 4756]
        [3156, 3649, 4919, 4756]
    "#]]
    .assert_eq(&tokens);
}

#[test]
fn philox_is_philox() {
    // The known answers of the authors' Random123.
    assert_eq!(reference::philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    let ones = u32::MAX;
    assert_eq!(reference::philox([ones; 2], [ones; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
}

#[test]
fn rows_without_numbers_and_infinite_ones() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows = [
        [nan, nan, nan, nan],
        [-inf, -inf, nan, -inf],
        [-inf, -1e30, nan, -inf],
        [0.0, inf, 3.0, -inf],
        [-3e38, 3e38, 0.0, nan],
    ];
    let logits = Padded::of(&device(), rows.as_flattened(), [5, 4], 1);
    for (top_k, top_p) in [(None, None), (Some(2), None), (None, Some(0.5)), (Some(2), Some(0.5))] {
        let sampling = Sampling { temperature: 1.0, top_k, top_p, seed: 1, step: 1 };
        assert_eq!(sampled(&logits, 5, &sampling), [-1, -1, 1, 1, 1], "{sampling:?}");
    }
    assert_eq!(sampled(&logits, 5, &Sampling::greedy()), [-1, 0, 1, 1, 1]);
}

#[test]
fn no_rows_are_no_work_and_what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let plain = Sampling::at_temperature(1.0, 0);
    let mut ids = device.zeros::<i32>(&[2]).unwrap();
    let none = device.zeros::<f32>(&[0, 3]).unwrap();
    sample(&none, ids.view_mut().slice(0, ..0).unwrap(), &plain, &stream).unwrap();
    let logits = device.zeros::<f32>(&[2, 4]).unwrap();
    let few = sample(&logits, ids.view_mut().slice(0, ..1).unwrap(), &plain, &stream);
    let mut refused = vec![few];
    for wrong in [
        Sampling { temperature: -1.0, ..plain },
        Sampling { temperature: f32::NAN, ..plain },
        Sampling { temperature: 1e-9, ..plain },
        Sampling { top_k: Some(0), ..plain },
        Sampling { top_p: Some(0.0), ..plain },
        Sampling { top_p: Some(1.5), ..plain },
    ] {
        refused.push(sample(&logits, &mut ids, &wrong, &stream));
    }
    refused.push(sample(&device.zeros::<f32>(&[2, 0]).unwrap(), &mut ids, &plain, &stream));
    refused.push(sample(&device.zeros::<f32>(&[2, 0]).unwrap(), &mut ids, &Sampling::greedy(), &stream));
    expect![[r#"
        `sample`, argument `ids`: shape [1], but [2] is needed: a token for each row of `logits`
        `sample`, argument `sampling`: temperature is -1, but 0 or a number from 9.536743e-7 up is needed; 0 is greedy decoding
        `sample`, argument `sampling`: temperature is NaN, but 0 or a number from 9.536743e-7 up is needed; 0 is greedy decoding
        `sample`, argument `sampling`: temperature is 0.000000001, but 0 or a number from 9.536743e-7 up is needed; 0 is greedy decoding
        `sample`, argument `sampling`: top_k is 0, but at least 1 is needed; `None` turns it off
        `sample`, argument `sampling`: top_p is 0, but a number above 0 and up to 1 is needed; `None` turns it off
        `sample`, argument `sampling`: top_p is 1.5, but a number above 0 and up to 1 is needed; `None` turns it off
        `sample`, argument `logits`: vocab is 0, but 1 to 16777215 is possible
        `sample`, argument `logits`: cols is 0, but a positive multiple of 1 is needed
    "#]]
    .assert_eq(&shown(refused));
}
