//! Appending, exactly, and what must not change.

use expect_test::expect;
use tegula::prelude::*;
use tegula::runtime::TensorView;

use crate::Activation;
use crate::attention::kv_append;
use crate::attention::testing::{Memory, Placed};
use crate::testing::{Rng, device, shown, to_f64};

/// Appends to caches of NaN, at positions that may lie outside, and compares every slot.
fn against_copy<T: Activation>(
    [tokens, heads, head_dim, value_dim]: [usize; 4],
    capacity: usize,
    positions: &[i32],
    memory: Memory,
) {
    let device = device();
    let mut rng = Rng::new(capacity as u64);
    let batch = positions.len();
    let at = device.from_slice(positions, &[batch]).unwrap();
    let [k, v] = [head_dim, value_dim].map(|d| rng.normals::<T>(batch * tokens * heads * d));
    let new_k = Placed::new(&device, &k, [batch, tokens, heads, head_dim], memory);
    let new_v = Placed::new(&device, &v, [batch, tokens, heads, value_dim], memory);
    let mut k_cache = Placed::<T>::poisoned(&device, [batch, capacity, heads, head_dim], memory);
    let mut v_cache = Placed::<T>::poisoned(&device, [batch, capacity, heads, value_dim], memory);
    kv_append(new_k.view(), new_v.view(), &at, k_cache.view_mut(), v_cache.view_mut(), &device.stream())
        .unwrap();
    for (new, cache, d) in [(&k, &k_cache, head_dim), (&v, &v_cache, value_dim)] {
        let new = to_f64(new);
        for (i, found) in cache.values().into_iter().enumerate() {
            let (b, slot, rest) = (i / (capacity * heads * d), i / (heads * d) % capacity, i % (heads * d));
            let token = slot as i64 - i64::from(positions[b]);
            if (0..tokens as i64).contains(&token) {
                assert_eq!(
                    found,
                    new[(b * tokens + token as usize) * heads * d + rest],
                    "slot {slot} of {b}"
                );
            } else {
                assert!(found.is_nan(), "slot {slot} of {b} was written");
            }
        }
    }
}

#[test]
fn what_is_new_arrives_and_the_rest_stays() {
    let positions = [0, 3, 12, 19, 20, -2, i32::MAX, i32::MIN];
    for (tokens, memory) in [(1, Memory::Bshd), (3, Memory::Bhsd), (8, Memory::Sbhd)] {
        against_copy::<f32>([tokens, 3, 64, 64], 20, &positions, memory);
        against_copy::<f16>([tokens, 1, 80, 16], 20, &positions, memory);
        against_copy::<bf16>([tokens, 5, 24, 96], 20, &positions, memory);
    }
    against_copy::<f32>([300, 3, 64, 64], 310, &[5], Memory::Bshd);
}

#[test]
fn nothing_to_append() {
    let device = device();
    let new = device.alloc::<f32>(&[1, 0, 2, 16]).unwrap();
    let mut cache = device.zeros::<f32>(&[1, 4, 2, 16]).unwrap();
    let (k, v) = cache.view_mut().split_at(1, 2).unwrap();
    kv_append(&new, &new, &[2], k, v, &device.stream()).unwrap();
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let stream = device.stream();
    let tensor = |shape: &[usize]| device.zeros::<f32>(shape).unwrap();
    let new = tensor(&[2, 3, 2, 16]);
    let call = |v: TensorView<'_, f32>, positions: &[i32], k_cache: &[usize], v_cache: &[usize]| {
        kv_append(new.view(), v, positions, &mut tensor(k_cache), &mut tensor(v_cache), &stream)
    };
    let other = tensor(&[2, 2, 2, 16]);
    let results = [
        call(other.view(), &[0, 0], &[2, 8, 2, 16], &[2, 8, 2, 16]),
        call(new.view(), &[0, 0], &[2, 8, 4, 16], &[2, 8, 2, 16]),
        call(new.view(), &[0, 0], &[2, 8, 2, 16], &[2, 9, 2, 16]),
        call(new.view(), &[0], &[2, 8, 2, 16], &[2, 8, 2, 16]),
        call(new.view(), &[0, 6], &[2, 8, 2, 16], &[2, 8, 2, 16]),
        call(new.view(), &[-1, 0], &[2, 8, 2, 16], &[2, 8, 2, 16]),
        call(new.view(), &[0, 5], &[2, 8, 2, 16], &[2, 8, 2, 16]),
    ];
    expect![[r#"
        `attention::kv_append`, argument `v`: shape [2, 2, 2, 16], but [2, 3, 2, 16] is needed: all but the last extent is that of `k`
        `attention::kv_append`, argument `k_cache`: shape [2, 8, 4, 16], but [2, 8, 2, 16] is needed: all but the capacity is that of the new tokens
        `attention::kv_append`, argument `v_cache`: shape [2, 9, 2, 16], but [2, 8, 2, 16] is needed: the capacity is that of `k_cache`, all else that of the new tokens
        `attention::kv_append`, argument `positions`: shape [1], but [2] is needed: a position for each sequence
        `attention::kv_append`, argument `positions`: 3 tokens at position 6 of sequence 1, but the cache has room for 8
        `attention::kv_append`, argument `positions`: 3 tokens at position -1 of sequence 0, but the cache has room for 8
        no error
    "#]].assert_eq(&shown(results));
}
