//! Models with random weights of awkward shapes, against plain loops in f64: 5 query heads over 1 KV head, heads of 96, a vocabulary of 1003.
//!
//! The tolerance is twice the error that the same loops make when they round as the device does.

mod common;

use common::gpu;
use common::reference::{Arithmetic, BF16, F32, F64, Reference};
use tegula::runtime::Device;
use tegula_runner::config::{Config, Pairs, Rope, Scaling};
use tegula_runner::format::Format;
use tegula_runner::model::{ActivationType, Options, load};
use tegula_runner::random::RandomWeights;
use tegula_runner::{Engine, Error, ModelWeights, Sampling};

fn config() -> Config {
    Config {
        architecture: "llama".into(),
        layers: 2,
        hidden: 480,
        intermediate: 608,
        heads: 5,
        kv_heads: 1,
        head_dim: 96,
        vocab: 1003,
        context: 64,
        norm_eps: 1e-5,
        rope: Rope { base: 10_000.0, dims: 96, pairs: Pairs::Half, scaling: Scaling::None },
        qkv_bias: false,
        tied: Some(true),
    }
}

fn engine(source: &dyn ModelWeights, device: &Device, dtype: ActivationType) -> Box<dyn Engine> {
    load(source, device, Options { dtype, capacity: 32 }, &mut |_, _| ()).unwrap()
}

/// Ten tokens as a prompt (attention of many queries), three one by one (of few, over the cache): each time the same logits.
fn compare(config: Config, format: Format, device: &Device, dtype: ActivationType, rounding: Arithmetic) {
    let source = RandomWeights::new(config, format, 7).unwrap();
    let tokens: Vec<u32> = (0..13).map(|i| (i * i * 31 + 5) % 1003).collect();
    let (prompt, rest) = tokens.split_at(10);
    let reference = Reference::new(&source);
    let exact = reference.logits(&tokens, F64);
    let rounded = reference.logits(&tokens, rounding);
    let largest = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let of_all = exact.iter().zip(&rounded).map(|(e, r)| largest(e, r)).fold(0.0, f64::max);

    let mut engine = engine(&source, device, dtype);
    let check = |engine: &mut dyn Engine, position: usize| {
        let logits: Vec<f64> = engine.logits().unwrap().into_iter().map(f64::from).collect();
        let error = largest(&logits, &exact[position]);
        assert!(
            error <= 2.0 * of_all,
            "{format:?}, position {position}: {error:.3e} above twice {of_all:.3e}"
        );
    };
    engine.extend(prompt).unwrap();
    check(&mut *engine, 9);
    for (i, &token) in rest.iter().enumerate() {
        engine.extend(&[token]).unwrap();
        check(&mut *engine, 10 + i);
    }
}

fn host() -> Device {
    tegula::device("host").unwrap()
}

#[test]
fn float_weights_and_a_tied_head() {
    compare(config(), Format::F32, &host(), ActivationType::F32, F32);
}

#[test]
fn four_bit_weights_and_a_head_of_its_own() {
    let rope = Rope { pairs: Pairs::Interleaved, ..config().rope };
    let config = Config { tied: Some(false), rope, ..config() };
    compare(config, Format::Q4_1, &host(), ActivationType::F32, F32);
}

#[test]
fn eight_bit_weights_biases_and_partial_rotary() {
    let rope = Rope { dims: 64, scaling: Scaling::Linear(2.0), ..config().rope };
    compare(Config { qkv_bias: true, rope, ..config() }, Format::Q8_0, &host(), ActivationType::F32, F32);
}

#[test]
fn activations_in_bf16() {
    compare(config(), Format::Q4_0, &host(), ActivationType::BF16, BF16);
}

#[test]
fn the_same_on_a_gpu() {
    let Some(device) = gpu() else { return };
    for format in [Format::F32, Format::Q4_0, Format::Q4_1, Format::Q8_0] {
        compare(config(), format, &device, ActivationType::BF16, BF16);
        compare(config(), format, &device, ActivationType::F32, F32);
    }
}

#[test]
fn what_does_not_fit_is_said() {
    let source = RandomWeights::new(config(), Format::F32, 7).unwrap();
    let mut engine = engine(&source, &host(), ActivationType::F32);
    let line = |result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    assert_eq!(
        line(engine.extend(&[1, 1003])),
        "token 1: id 1003 is out of range: the model's vocabulary has 1003 tokens"
    );
    assert_eq!(line(engine.extend(&[])), "the tokens: there are none");
    assert_eq!(
        line(engine.extend(&[0; 33])),
        "the context: 33 more tokens do not fit: 32 of 32 positions are left"
    );
    assert_eq!(
        line(engine.pick(&Sampling::GREEDY).map(drop)),
        "the logits: there are none before the first token"
    );
    let options = Options { dtype: ActivationType::F32, capacity: 65 };
    let error = load(&source, &host(), options, &mut |_, _| ()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "the context: 65 positions were asked for, but the model was made for 1 to 64"
    );
}

#[test]
fn a_seed_gives_the_same_tokens_and_rewinding_forgets() {
    // A tied head likes the token best that it has just seen.
    let source = RandomWeights::new(Config { tied: Some(false), ..config() }, Format::Q8_0, 7).unwrap();
    let mut engine = engine(&source, &host(), ActivationType::F32);
    let mut draw = |sampling: Sampling| {
        engine.rewind(0);
        let mut tokens = Vec::new();
        let request =
            tegula_runner::generate::Request { prompt: &[1, 2, 3], max_tokens: 6, sampling, stops: &[] };
        let summary = tegula_runner::generate(&mut *engine, request, |token| {
            tokens.push(token);
            std::ops::ControlFlow::Continue(())
        });
        assert_eq!(summary.unwrap().tokens, 6);
        tokens
    };
    let sampling = Sampling { temperature: 1.0, top_k: 50, top_p: 0.9, seed: 1 };
    let first = draw(sampling);
    assert_eq!(draw(sampling), first);
    assert_ne!(draw(Sampling { seed: 2, ..sampling }), first);
    assert_eq!(draw(Sampling { top_k: 1, ..sampling }), draw(Sampling::GREEDY));
}

#[test]
fn logits_are_those_of_the_last_token() {
    let source = RandomWeights::new(config(), Format::F32, 7).unwrap();
    let mut engine = engine(&source, &host(), ActivationType::F32);
    let unknown = |engine: &mut dyn Engine| {
        let error = engine.pick(&Sampling::GREEDY).unwrap_err().to_string();
        assert!(error.starts_with("the logits: the last token's are not known"), "{error}");
        assert_eq!(engine.logits().unwrap_err().to_string(), error);
    };
    let tokens: Vec<u32> = (0..10).collect();
    engine.extend(&tokens[..5]).unwrap();
    let after_five = engine.logits().unwrap();
    engine.extend(&tokens[5..]).unwrap();
    let after_ten = engine.logits().unwrap();
    engine.rewind(10);
    assert_eq!(engine.logits().unwrap(), after_ten);
    // What is refused changes nothing.
    engine.extend(&[1003]).unwrap_err();
    assert_eq!((engine.position(), engine.logits().unwrap()), (10, after_ten.clone()));
    engine.rewind(5);
    unknown(&mut *engine);
    engine.score(&tokens[5..]).unwrap();
    assert_eq!(engine.logits().unwrap(), after_ten);
    engine.rewind(4);
    engine.extend(&tokens[4..5]).unwrap();
    let again = engine.logits().unwrap();
    let largest = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Another kernel computes one token's attention than that of five: other roundings.
    assert!(largest(&again, &after_five) < 1e-3 && largest(&again, &after_ten) > 1e-1);
    engine.rewind(0);
    assert_eq!(engine.logits().unwrap_err().to_string(), "the logits: there are none before the first token");
}
