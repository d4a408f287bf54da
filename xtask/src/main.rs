//! Set-up, tests, demo and bundles: `cargo xtask help`.
fn main() {}
