//! What staging reports, word for word. `UPDATE_EXPECT=1 cargo test --test macros` blesses what it says now; read the difference.

use expect_test::expect;

use crate::faulty;

#[test]
fn of_shapes() {
    expect![[r#"
        error: shapes [16, 64] and [32, 16] have no dot
          --> tests/macros/faulty.rs:9:19
          |
        7 |     let a = x.load([0, 0], [m, 64]);
          |               ---- this has shape [16, 64]
        8 |     let b = x.load([0, 0], [32, m]);
          |               ---- this has shape [32, 16]
        9 |     let mut acc = dot(a, b);
          |                   ^^^
          |
          = note: a dot is of [m, k] and [k, n], or of [b, m, k] and [b, k, n]

        error: `row` changes its shape inside a device loop
           --> tests/macros/faulty.rs:16:5
           |
        15 |     let mut row = a.sum(1);
           |                     --- this has shape [16]
        16 |     for _ in 0..n {
           |     ^^^ [16] before the loop, [64] at the end of its body
        17 |         row = a.sum(0);
           |                 --- this has shape [64]
           |
           = note: the loop's next round would get another type; every round must get the same

        error: the condition of a device `while` has shape [16, 64]
           --> tests/macros/faulty.rs:20:5
           |
        20 |     while a > 0.0 {
           |     ^^^^^ all elements take the same way, so this must be one truth value
           |
           = help: choose element by element with `select(condition, a, b)`, or reduce the condition to a scalar

        error: the branches give different shapes
           --> tests/macros/faulty.rs:23:16
           |
         7 |     let a = x.load([0, 0], [m, 64]);
           |               ---- this has shape [16, 64]
           .
        23 |     let wide = if n > 0 { row.expand(0) } else { a };
           |                ^^             ------ this has shape [1, 16]
           |                |
           |                [1, 16] if true, [16, 64] otherwise
           |
           = help: give both the same shape, with `.expand(axis)`, `.broadcast(shape)` or `full(shape, value)`

        error: kernel `shapes` was not built due to 4 errors"#]].assert_eq(&faulty::shapes::stage(16).unwrap_err().to_string());
}

#[test]
fn of_what_a_variable_holds() {
    expect![[r#"
        error: `maybe` changes its number of tiles inside a device loop or branch
           --> tests/macros/faulty.rs:34:9
           |
        34 |         if x > 0.0 {
           |         ^^ 0 before it, 1 at the end of a part of it
           |
           = note: the part may run any number of times, or not at all; the tiles must be the same ones after it
           = help: give it all its tiles before the loop or branch, and assign to them inside

        error: `all` changes its number of tiles inside a device loop or branch
           --> tests/macros/faulty.rs:32:5
           |
        32 |     for _ in 0..n {
           |     ^^^ 1 before it, 2 at the end of a part of it
           |
           = note: the part may run any number of times, or not at all; the tiles must be the same ones after it
           = help: give it all its tiles before the loop or branch, and assign to them inside

        error: kernel `structure` was not built due to 2 errors"#]].assert_eq(&faulty::structure::stage().unwrap_err().to_string());
}

#[test]
fn of_a_change_that_the_macro_cannot_see() {
    expect![[r#"
        error: a value is used after the loop or branch that made it
           --> tests/macros/faulty.rs:63:7
           |
        50 |         self.0 += 1.0;
           |         ---- made here
           .
        63 |     y.store(hidden.0);
           |       ^^^^^
           |
           = help: declare it with `let mut` before the loop or branch and assign to it inside

        error: kernel `unseen` was not built due to 1 error"#]]
    .assert_eq(&faulty::unseen::stage().unwrap_err().to_string());
}

#[test]
fn of_a_change_that_the_next_round_would_not_see() {
    expect![[r#"
        error: `a` changes inside a device loop, unseen by `#[kernel]`
           --> tests/macros/faulty.rs:92:19
           |
        92 |         increase!(a, 1.0);
           |                   ^ by a macro, or by a method that takes `&mut self` or is of a `Cell`
           |
           = note: the next round would see the tile of before the loop: only changes that the macro sees are carried from round to round
           = help: write `a = …` or `a += …` in the loop itself, or show the change with `&mut a`

        error: `counter` changes inside a device loop, unseen by `#[kernel]`
           --> tests/macros/faulty.rs:93:9
           |
        93 |         counter.advance();
           |         ^^^^^^^ by a macro, or by a method that takes `&mut self` or is of a `Cell`
           |
           = note: the next round would see the tile of before the loop: only changes that the macro sees are carried from round to round
           = help: write `counter = …` or `counter += …` in the loop itself, or show the change with `&mut counter`

        error: `cell` changes inside a device loop, unseen by `#[kernel]`
           --> tests/macros/faulty.rs:94:9
           |
        94 |         cell.set(x + 1.0);
           |         ^^^^ by a macro, or by a method that takes `&mut self` or is of a `Cell`
           |
           = note: the next round would see the tile of before the loop: only changes that the macro sees are carried from round to round
           = help: write `cell = …` or `cell += …` in the loop itself, or show the change with `&mut cell`

        error: `b` changes inside a device loop, unseen by `#[kernel]`
            --> tests/macros/faulty.rs:101:13
            |
        101 |             b -= 1.0;
            |             ^ by a macro, or by a method that takes `&mut self` or is of a `Cell`
            |
            = note: the next round would see the tile of before the loop: only changes that the macro sees are carried from round to round
            = help: write `b = …` or `b += …` in the loop itself, or show the change with `&mut b`

        error: kernel `lost` was not built due to 4 errors"#]].assert_eq(&faulty::lost::stage().unwrap_err().to_string());
}
