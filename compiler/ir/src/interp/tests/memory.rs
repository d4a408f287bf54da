//! Views, pointers, atomics.

use half::{bf16, f16};

use super::*;

#[test]
fn views_pad_loads_and_drop_stores() {
    let memory = Memory::new();
    let x = buffer(&memory, &(0..15).map(|i| i as f32).collect::<Vec<_>>());
    let y = buffer(&memory, &[7f32; 15]);
    // A tile that hangs over two edges of a 3 × 5 view, loaded and stored elsewhere.
    run_text(
        "
kernel @k(%x: view<?x?xf32>, %y: view_mut<?x?xf32>) {
  %m1 = const -1 : i32
  %2 = const 2 : i64
  %3 = const 3 : i64
  %t = view_load {padding = neg_inf} %x[%m1, %2] : tile<4x4xf32>
  view_store %y[%2, %3], %t
  %m2 = const -2 : i64
  view_store %y[%m2, %m2], %t
}",
        [1; 3],
        &[Arg::row_major(x.address(), &[3, 5]), Arg::row_major(y.address(), &[3, 5])],
        &memory,
    );
    let tile = |r: i32, c: i32| {
        let (r, c) = (r - 1, c + 2);
        if (0..3).contains(&r) && (0..5).contains(&c) { (r * 5 + c) as f32 } else { f32::NEG_INFINITY }
    };
    let mut want = [7f32; 15];
    for r in 0..4 {
        for c in 0..4 {
            for (dr, dc) in [(2, 3), (-2, -2)] {
                if (0..3).contains(&(r + dr)) && (0..5).contains(&(c + dc)) {
                    want[((r + dr) * 5 + c + dc) as usize] = tile(r, c);
                }
            }
        }
    }
    assert_eq!(contents::<f32>(&y), want);
}

/// Programs add to one place; what hangs over an edge of the view is dropped.
#[test]
fn additions_of_many_programs() {
    let memory = Memory::new();
    let x = buffer(&memory, &(0..16).map(|i| i as f32).collect::<Vec<_>>());
    let y = buffer(&memory, &[0.5f32; 15]);
    run_text(
        "
kernel @k(%x: view<?x?xf32>, %y: view_mut<?x?xf32>) {
  %0 = const 0 : i32
  %m1 = const -1 : i32
  %3 = const 3 : i32
  %t = view_load %x[%0, %0] : tile<4x4xf32>
  view_reduce_add %y[%m1, %3], %t
}",
        [100, 1, 1],
        &[Arg::row_major(x.address(), &[4, 4]), Arg::row_major(y.address(), &[3, 5])],
        &memory,
    );
    let mut want = [0.5f32; 15];
    for (r, c) in (0..3).flat_map(|r| (3..5).map(move |c| (r, c))) {
        want[r * 5 + c] += 100.0 * ((r + 1) * 4 + c - 3) as f32;
    }
    assert_eq!(contents::<f32>(&y), want);
}

#[test]
fn strides_of_any_kind() {
    let memory = Memory::new();
    let x = buffer(&memory, &(0..32).map(|i| i as u16).collect::<Vec<_>>());
    let y = buffer(&memory, &[0u16; 16]);
    let text = "
kernel @k(%x: view<?x?xu16>, %y: view_mut<?x?xu16>) {
  %0 = const 0 : i32
  %t = view_load %x[%0, %0] : tile<4x4xu16>
  view_store %y[%0, %0], %t
}";
    let y_view = Arg::row_major(y.address(), &[4, 4]);
    let view = |offset: u64, strides: [i64; 2]| Arg::View {
        address: x.address() + offset,
        dims: smallvec::smallvec![4, 4],
        strides: strides.as_slice().into(),
    };
    // Transposed, every other, repeated, backwards.
    for (offset, strides) in [(0, [1, 4]), (0, [8, 2]), (6, [0, 1]), (62, [-4, -1])] {
        run_text(text, [1; 3], &[view(offset, strides), y_view.clone()], &memory);
        let start = offset as i64 / 2;
        let want: Vec<u16> =
            (0..16).map(|i| (start + i / 4 * strides[0] + i % 4 * strides[1]) as u16).collect();
        assert_eq!(contents::<u16>(&y), want);
    }
    // Stores along the same strides: the transpose of the transpose.
    run_text(text, [1; 3], &[y_view.clone(), view(0, [1, 4])], &memory);
    assert_eq!(contents::<u16>(&x)[..16], [31, 27, 23, 19, 30, 26, 22, 18, 29, 25, 21, 17, 28, 24, 20, 16]);
}

#[test]
fn view_descriptions_can_be_taken_apart_and_made() {
    let memory = Memory::new();
    let x = buffer(&memory, &(0..12).map(|i| i as i32).collect::<Vec<_>>());
    let y = buffer(&memory, &[0i64; 3]);
    run_text(
        "
kernel @k(%x: view_mut<?x?xi32>, %y: view_mut<?xi64>) {
  %0 = const 0 : i32
  %1 = const 1 : i32
  %2 = const 2 : i32
  %d = view_dim 0 %x : i64
  %s = view_stride 0 %x : i64
  %td = reshape %d : tile<1xi64>
  %ts = reshape %s : tile<1xi64>
  view_store %y[%0], %td
  view_store %y[%1], %ts
  %p = view_base %x : ptr<i32>
  %q = ptr_add %p, %1 : ptr<i32>
  %six = const 6 : i64
  %two = const 2 : i64
  %v = make_view %q, [%six], [%two] : view_mut<?xi32>
  %t = view_load %v[%0] : tile<8xi32>
  %sum = reduce {axis = 0} %t : i32 {
  ^(%a: i32, %b: i32):
    %c = add %a, %b : i32
    yield %c
  }
  %wide = cast %sum : i64
  %tw = reshape %wide : tile<1xi64>
  view_store %y[%2], %tw
}",
        [1; 3],
        &[Arg::row_major(x.address(), &[3, 4]), Arg::row_major(y.address(), &[3])],
        &memory,
    );
    assert_eq!(contents::<i64>(&y), [3, 4, 1 + 3 + 5 + 7 + 9 + 11]);
}

#[test]
fn masked_loads_do_not_touch_what_is_off() {
    let memory = Memory::new();
    let x = buffer(&memory, &(0..40).map(|i| i as i16).collect::<Vec<_>>());
    let y = buffer(&memory, &[-9i16; 64]);
    run_text(
        "
kernel @k(%x: ptr<i16>, %y: ptr<i16>) {
  %i = iota 0 : tile<64xi32>
  %n = const 40 : tile<64xi32>
  %in = cmp lt %i, %n : tile<64xi1>
  %3 = const 3 : tile<64xi32>
  %r = rem %i, %3 : tile<64xi32>
  %0 = const 0 : tile<64xi32>
  %third = cmp ne %r, %0 : tile<64xi1>
  %xs = broadcast %x : tile<64xptr<i16>>
  %xp = ptr_add %xs, %i : tile<64xptr<i16>>
  %ys = broadcast %y : tile<64xptr<i16>>
  %yp = ptr_add %ys, %i : tile<64xptr<i16>>
  %other = const -5 : tile<64xi16>
  %v = load %xp, %in, %other : tile<64xi16>
  store %yp, %v, %third
}",
        [1; 3],
        &[Arg::Ptr { address: x.address() }, Arg::Ptr { address: y.address() }],
        &memory,
    );
    let want: Vec<i16> = (0..64)
        .map(|i| {
            if i % 3 == 0 {
                -9
            } else if i < 40 {
                i
            } else {
                -5
            }
        })
        .collect();
    assert_eq!(contents::<i16>(&y), want);
}

#[test]
fn truth_values_in_memory_are_any_byte_but_0() {
    let memory = Memory::new();
    let x = buffer(&memory, &[0u8, 1, 2, 255]);
    let y = buffer(&memory, &[9u8; 4]);
    run_text(
        "
kernel @k(%x: view<?xi1>, %y: view_mut<?xi1>) {
  %0 = const 0 : i32
  %t = view_load %x[%0] : tile<4xi1>
  %n = not %t : tile<4xi1>
  view_store %y[%0], %n
}",
        [1; 3],
        &[Arg::row_major(x.address(), &[4]), Arg::row_major(y.address(), &[4])],
        &memory,
    );
    assert_eq!(contents::<u8>(&y), [1, 0, 0, 0]);
}

#[test]
fn atomics_of_many_programs_add_up() {
    let memory = Memory::new();
    let (i, f, h, b) = (
        buffer(&memory, &[0i32; 2]),
        buffer(&memory, &[0f32; 1]),
        buffer(&memory, &[f16::ZERO; 3]),
        buffer(&memory, &[bf16::ZERO; 1]),
    );
    let args = [&i, &f, &h, &b].map(|a| Arg::Ptr { address: a.address() });
    run_text(
        "
kernel @k(%i: ptr<i32>, %f: ptr<f32>, %h: ptr<f16>, %b: ptr<bf16>) {
  %id = program_id 0 : i32
  %1 = const 1 : i32
  %o = atomic_rmw add %i, %1 : i32
  %i1 = ptr_add %i, %1 : ptr<i32>
  %p = atomic_rmw max %i1, %id : i32
  %half = const 0.5 : f32
  %q = atomic_rmw add %f, %half : f32
  %h1 = ptr_add %h, %1 : ptr<f16>
  %one = const 1.0 : f16
  %r = atomic_rmw add %h1, %one : f16
  %oneb = const 1.0 : bf16
  %s = atomic_rmw add %b, %oneb : bf16
}",
        [1000, 1, 1],
        &args,
        &memory,
    );
    assert_eq!(contents::<i32>(&i), [1000, 999]);
    assert_eq!(contents::<f32>(&f), [500.0]);
    assert_eq!(contents::<f16>(&h), [0.0, 1000.0, 0.0].map(f16::from_f32));
    // 257 is not a bf16: from 256 on, adding 1 rounds back.
    assert_eq!(contents::<bf16>(&b), [bf16::from_f32(256.0)]);
}

#[test]
fn a_lock_made_of_compare_and_swap() {
    let memory = Memory::new();
    let (lock, count) = (buffer(&memory, &[0u32; 1]), buffer(&memory, &[0i32; 1]));
    let args = [&lock, &count].map(|a| Arg::Ptr { address: a.address() });
    run_text(
        "
kernel @k(%lock: ptr<u32>, %count: ptr<i32>) {
  %free = const 0 : u32
  %taken = const 1 : u32
  %true = const true : i1
  %w = while carry(%again = %true) : i1 {
    condition %again, %again
  } do (%x) {
    %old = atomic_cas %lock, %free, %taken : u32
    %busy = cmp ne %old, %free : i1
    yield %busy
  }
  %c = load %count : i32
  %1 = const 1 : i32
  %d = add %c, %1 : i32
  store %count, %d
  %o = atomic_rmw xchg %lock, %free : u32
}",
        [500, 1, 1],
        &args,
        &memory,
    );
    assert_eq!(contents::<i32>(&count), [500]);
}
