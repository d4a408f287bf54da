//! The real model and its fixture: what an independent implementation in f32 says of four prompts (see the file's own note).

use std::path::PathBuf;

use serde::Deserialize;

/// One prompt.
#[derive(Deserialize)]
pub struct Case {
    pub prompt: String,
    pub tokens: Vec<u32>,
    /// Token and logit, the largest first, at the last position.
    pub last_top5: Vec<(u32, f32)>,
    /// Mean negative log-likelihood of the prompt's tokens after the first, in nats.
    pub mean_nll: f64,
    /// What greedy decoding appends.
    pub greedy: Vec<u32>,
    /// The distance of the largest logit to the second, at each step.
    pub greedy_margin: Vec<f32>,
}

/// The prompts.
pub fn cases() -> Vec<Case> {
    #[derive(Deserialize)]
    struct Fixture {
        cases: Vec<Case>,
    }
    let fixture: Fixture =
        serde_json::from_str(include_str!("../fixtures/smollm2.json")).expect("the fixture");
    fixture.cases
}

/// The model, or `None` with a message for whoever reads the test's output. With `TEGULA_REQUIRE_SMOLLM2` set it must be there.
pub fn model() -> Option<PathBuf> {
    let found = tegula_runner::smollm2::find();
    if found.is_none() {
        assert!(std::env::var_os("TEGULA_REQUIRE_SMOLLM2").is_none(), "SmolLM2 is not on this machine");
        eprintln!("skipped: SmolLM2 is not on this machine; `cargo xtask model` brings it (98 MB)");
    }
    found
}
