//! What rustc says of wrong kernels, word for word. `TRYBUILD=overwrite cargo test --test ui` blesses what it says now; read the difference.

#[test]
fn messages() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
