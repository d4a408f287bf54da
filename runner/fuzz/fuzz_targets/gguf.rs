//! Any bytes as a GGUF file: config, tokenizer and all tensors are read, or there is an error of one line.
#![no_main]

#[allow(dead_code, reason = "the other format has a target of its own")]
#[path = "../../tests/common/open.rs"]
mod open;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Err(error) = open::gguf(data.to_vec()) {
        let line = error.to_string();
        assert!(!line.contains('\n') && line.len() < 2000, "{line}");
    }
});
