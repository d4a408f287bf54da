//! SmolLM2-135M against an independent implementation. Without the model (`cargo xtask model` brings it) each test says so and passes.

mod common;

use common::smollm2::{cases, model};
use tegula_runner::Checkpoint;
use tegula_runner::tokenizer::Message;

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
