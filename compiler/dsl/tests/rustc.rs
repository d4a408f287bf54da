//! What rustc says of kernels whose types are wrong: the words of `#[diagnostic::on_unimplemented]` are part of the language.
//! `TRYBUILD=overwrite` (or `cargo xtask bless`) rewrites the expected texts.

#[test]
fn messages() {
    trybuild::TestCases::new().compile_fail("tests/rustc/*.rs");
}
