//! SmolLM2-135M against an independent implementation. Without the model (`cargo xtask model` brings it) each test says so and passes.

mod common;

use common::gpu;
use common::smollm2::{cases, model};
use tegula::runtime::Device;
use tegula_runner::model::{ActivationType, Options, load};
use tegula_runner::tokenizer::Message;
use tegula_runner::{Checkpoint, Sampling};

#[test]
fn token_ids_are_those_of_the_fixture() {
    let Some(path) = model() else { return };
    let tokenizer = Checkpoint::open(&path).unwrap().tokenizer().unwrap();
    for case in cases() {
        assert_eq!(tokenizer.encode(&case.prompt).unwrap(), case.tokens, "{:?}", case.prompt);
        let plain = case.prompt.replace("<|im_start|>", "").replace("<|im_end|>", "");
        assert_eq!(tokenizer.decode(&case.tokens), plain);
    }
}

#[test]
fn the_chat_template_writes_the_turns() {
    let Some(path) = model() else { return };
    let tokenizer = Checkpoint::open(&path).unwrap().tokenizer().unwrap();
    let text = tokenizer.chat_template().unwrap().render(&[Message::new("user", "Hi")]).unwrap();
    let system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
    assert_eq!(
        text,
        format!(
            "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
    );
    let ids = tokenizer.encode_chat(&[Message::new("user", "Hi")]).unwrap();
    assert_eq!(ids[0], 1);
    assert!(tokenizer.stops().contains(&2) && tokenizer.stops().contains(&0), "{:?}", tokenizer.stops());
}

/// How far a device may be from the fixture, which is f32 on the CPU.
struct Tolerance {
    logit: f32,
    nll: f64,
    /// Greedy tokens must be equal where the best is so much better than the second.
    margin: f32,
}

fn speaks_as_the_fixture(device: &Device, dtype: ActivationType, tolerance: &Tolerance) {
    let Some(path) = model() else { return };
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut engine = load(&checkpoint, device, Options { dtype, capacity: 64 }, &mut |_, _| ()).unwrap();
    for case in cases() {
        engine.rewind(0);
        let scores = engine.score(&case.tokens).unwrap();
        let nll = scores.iter().sum::<f64>() / scores.len() as f64;
        assert!((nll - case.mean_nll).abs() <= tolerance.nll, "{:?}: mean NLL {nll}", case.prompt);

        let logits = engine.logits().unwrap();
        for &(token, logit) in &case.last_top5 {
            let found = logits[token as usize];
            assert!((found - logit).abs() <= tolerance.logit, "{:?}: token {token}: {found}", case.prompt);
        }
        // Along the fixture's own tokens: where two are nearly as good, either may be picked.
        for (i, (&token, &margin)) in case.greedy.iter().zip(&case.greedy_margin).enumerate() {
            let picked = engine.pick(&Sampling::GREEDY).unwrap();
            assert!(picked == token || margin <= tolerance.margin, "{:?}: step {i}: {picked}", case.prompt);
            engine.extend(&[token]).unwrap();
        }
    }
}

#[test]
fn the_host_speaks_as_the_fixture() {
    let tolerance = Tolerance { logit: 0.02, nll: 0.002, margin: 0.1 };
    speaks_as_the_fixture(&tegula::device("host").unwrap(), ActivationType::F32, &tolerance);
}

#[test]
fn a_gpu_speaks_as_the_fixture() {
    let Some(device) = gpu() else { return };
    let tolerance = Tolerance { logit: 0.25, nll: 0.02, margin: 0.6 };
    speaks_as_the_fixture(&device, ActivationType::BF16, &tolerance);
}
