//! Loops, branches, and what moves between them.

use super::*;

/// Runs a kernel that stores i32 results at `%out`, `n` of them.
fn results(n: usize, text: &str) -> Vec<i32> {
    let memory = Memory::new();
    let out = buffer(&memory, &vec![-1i32; n]);
    run_text(text, [1; 3], &[Arg::row_major(out.address(), &[n as i64])], &memory);
    contents(&out)
}

#[test]
fn loops_that_do_not_run_yield_their_initial_values() {
    let got = results(
        2,
        "
kernel @k(%out: view_mut<?xi32>) {
  %0 = const 0 : i32
  %1 = const 1 : i32
  %five = const 5 : i32
  %minus = const -3 : i32
  %a = for %i = %five to %0 step %1 carry(%x = %minus) : i32 {
    yield %i
  }
  %t = reshape %a : tile<1xi32>
  view_store %out[%0], %t
  %false = const false : i1
  %w = while carry(%y = %five) : i32 {
    condition %false, %y
  } do (%z) {
    yield %0
  }
  %u = reshape %w : tile<1xi32>
  view_store %out[%1], %u
}",
    );
    assert_eq!(got, [-3, 5]);
}

#[test]
fn parallel_loops_run_backwards() {
    // Each iteration stores its index at its own place, and at one that all of them share, against what they promise.
    let got = results(
        12,
        "
kernel @k(%out: view_mut<?xi32>) {
  %2 = const 2 : i32
  %3 = const 3 : i32
  %last = const 11 : i32
  %none = const 2 : i32
  for {parallel} %i = %2 to %last step %3 {
    %t = broadcast %i : tile<1xi32>
    view_store %out[%i], %t
    view_store %out[%last], %t
    yield
  }
  for {parallel} %i = %2 to %none step %3 {
    %t = broadcast %3 : tile<1xi32>
    view_store %out[%last], %t
    yield
  }
}",
    );
    assert_eq!(got, [-1, -1, 2, -1, -1, 5, -1, -1, 8, -1, -1, 2]);
}

#[test]
fn carried_values_move_all_at_once() {
    // Fibonacci: (a, b) becomes (b, a + b); and a rotation of three, of which one is also a copy of another.
    let got = results(
        8,
        "
kernel @k(%out: view_mut<?xi32>) {
  %0 = const 0 : i32
  %1 = const 1 : i32
  %10 = const 10 : i32
  %7 = const 7 : i32
  %a, %b = for %i = %0 to %10 step %1 carry(%x = %0, %y = %1) : i32, i32 {
    %s = add %x, %y : i32
    yield %y, %s
  }
  %p, %q, %r, %t = for %i = %0 to %7 step %1 carry(%x = %0, %y = %1, %z = %7, %w = %10) : i32, i32, i32, i32 {
    yield %y, %z, %x, %x
  }
  %c0 = join %a, %b : tile<2xi32>
  %c1 = join %p, %q : tile<2xi32>
  %c2 = join %r, %t : tile<2xi32>
  %2 = const 2 : i32
  %4 = const 4 : i32
  view_store %out[%0], %c0
  view_store %out[%2], %c1
  view_store %out[%4], %c2
}",
    );
    assert_eq!(got, [55, 89, 1, 7, 0, 0, -1, -1]);
}

#[test]
fn while_and_if() {
    // Collatz steps of 27, and the largest value on the way.
    let got = results(
        2,
        "
kernel @k(%out: view_mut<?xi32>) {
  %0 = const 0 : i32
  %1 = const 1 : i32
  %2 = const 2 : i32
  %3 = const 3 : i32
  %27 = const 27 : i32
  %n, %steps, %top = while carry(%x = %27, %s = %0, %m = %27) : i32, i32, i32 {
    %more = cmp ne %x, %1 : i1
    condition %more, %x, %s, %m
  } do (%x1, %s1, %m1) {
    %odd = and %x1, %1 : i32
    %is = cmp ne %odd, %0 : i1
    %next = if %is : i32 {
      %t = mul %x1, %3 : i32
      %u = add %t, %1 : i32
      yield %u
    } else {
      %h = div %x1, %2 : i32
      yield %h
    }
    %s2 = add %s1, %1 : i32
    %m2 = max %m1, %next : i32
    yield %next, %s2, %m2
  }
  %c = join %steps, %top : tile<2xi32>
  view_store %out[%0], %c
}",
    );
    assert_eq!(got, [111, 9232]);
}

#[test]
fn a_dot_accumulates_in_place_only_where_nobody_sees() {
    // The accumulator of each round is also stored before the dot replaces it, and the initial value is used after the loop.
    let memory = Memory::new();
    let out = buffer(&memory, &[0f32; 12]);
    run_text(
        "
kernel @k(%out: view_mut<?x?x?xf32>) {
  %0 = const 0 : i32
  %1 = const 1 : i32
  %2 = const 2 : i32
  %one = const 1.0 : tile<2x2xf32>
  %init = add %one, %one : tile<2x2xf32>
  %d = for %i = %0 to %2 step %1 carry(%acc = %init) : tile<2x2xf32> {
    %sum = dot %one, %acc, %acc : tile<2x2xf32>
    %e = expand {axis = 0} %acc : tile<1x2x2xf32>
    view_store %out[%i, %0, %0], %e
    yield %sum
  }
  %last = dot %d, %init, %init : tile<2x2xf32>
  %both = add %last, %init : tile<2x2xf32>
  %e = expand {axis = 0} %both : tile<1x2x2xf32>
  view_store %out[%2, %0, %0], %e
}",
        [1; 3],
        &[Arg::row_major(out.address(), &[3, 2, 2])],
        &memory,
    );
    let got: Vec<f32> = contents(&out);
    // 2, then 2 + 2·2 = 6, then 18; 18·2·2 + 2 + 2 = 76.
    assert_eq!(got, [2.0, 2.0, 2.0, 2.0, 6.0, 6.0, 6.0, 6.0, 76.0, 76.0, 76.0, 76.0]);
}

#[test]
fn a_dot_does_not_accumulate_in_place_into_what_is_broadcast() {
    // A carried row, and a carried scalar, whose last use is to be spread over the accumulator.
    for (carried, init, next) in [
        ("tile<1x4xf32>", "const 1.0 : tile<1x4xf32>", "%m = reshape %s : tile<1x4xf32>"),
        (
            "f32",
            "const 1.0 : f32",
            "%m = reduce {axis = 0} %s : f32 {\n    ^(%u: f32, %v: f32):\n      %w = max %u, %v : f32\n      yield %w\n    }",
        ),
    ] {
        let memory = Memory::new();
        let out = buffer(&memory, &[0f32; 16]);
        let text = format!(
            "
kernel @k(%out: view_mut<?x?xf32>) {{
  %0 = const 0 : i32
  %1 = const 1 : i32
  %2 = const 2 : i32
  %one = const 1.0 : tile<4x4xf32>
  %init = {init}
  %r = for %i = %0 to %2 step %1 carry(%b = %init) : {carried} {{
    %a = broadcast %b : tile<4x4xf32>
    %d = dot %one, %one, %a : tile<4x4xf32>
    view_store %out[%0, %0], %d
    %s = reduce {{axis = 0}} %d : tile<4xf32> {{
    ^(%p: f32, %q: f32):
      %x = max %p, %q : f32
      yield %x
    }}
    {next}
    yield %m
  }}
}}"
        );
        run_text(&text, [1; 3], &[Arg::row_major(out.address(), &[4, 4])], &memory);
        // 1 + 4, then 5 + 4.
        assert_eq!(contents::<f32>(&out), [9.0; 16], "{carried}");
    }
}

#[test]
fn programs_know_their_place() {
    let memory = Memory::new();
    let out = buffer(&memory, &[0i32; 2 * 3 * 4]);
    run_text(
        "
kernel @k(%out: view_mut<?x?x?xi32>) {
  %x = program_id 0 : i32
  %y = program_id 1 : i32
  %z = program_id 2 : i32
  %nx = num_programs 0 : i32
  %100 = const 100 : i32
  %10 = const 10 : i32
  %a = mul %x, %100 : i32
  %b = mul %y, %10 : i32
  %c = add %a, %b : i32
  %d = add %c, %z : i32
  %n = mul %nx, %d : i32
  %t = broadcast %n : tile<1x1x1xi32>
  view_store %out[%x, %y, %z], %t
}",
        [2, 3, 4],
        &[Arg::row_major(out.address(), &[2, 3, 4])],
        &memory,
    );
    let want: Vec<i32> = (0..24).map(|i| 2 * (i / 12 * 100 + i / 4 % 3 * 10 + i % 4)).collect();
    assert_eq!(contents::<i32>(&out), want);
}

#[test]
fn printing_is_in_program_order() {
    let kernel = crate::text::parse(
        "
kernel @k() {
  %x = program_id 0 : i32
  %i = iota 5 : tile<2xi32>
  %h = const 0.5 : tile<2xf16>
  print \"pair\", %i, %h
  print \"scalar\", %x
}",
    )
    .unwrap()
    .remove(0);
    let text = Mutex::new(String::new());
    let print = |t: &str| text.lock().unwrap().push_str(t);
    let options = Options { print: &print, ..Options::default() };
    run(&kernel, &Launch { grid: [2, 1, 1] }, &[], &Memory::new(), &options).unwrap();
    expect_test::expect![[r#"
        program (0, 0, 0) [0]: pair 5 0.5
        program (0, 0, 0) [1]: pair 6 0.5
        program (0, 0, 0): scalar 0
        program (1, 0, 0) [0]: pair 5 0.5
        program (1, 0, 0) [1]: pair 6 0.5
        program (1, 0, 0): scalar 1
    "#]]
    .assert_eq(&text.into_inner().unwrap());
}
