//! The program, from outside: results on standard output, one line and exit code 2 for what is wrong with the input.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::gguf::Builder;

fn runner(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tegula-runner")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The error's line.
fn refused(args: &[&str]) -> String {
    let output = runner(args);
    let line = text(&output.stderr).lines().last().unwrap_or_default().to_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {line}");
    assert!(!text(&output.stderr).contains("panicked"), "{args:?}");
    line
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn what_is_wrong_with_a_file_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Builder::model().build();
    let truncated = write(folder.path(), "truncated.gguf", &whole[..whole.len() / 2]);
    for command in [&["info", &truncated][..], &["generate", "--prompt", "a", "--model", &truncated]] {
        let output = runner(command);
        let lines: Vec<_> = text(&output.stderr).lines().collect();
        assert_eq!((output.status.code(), lines.len()), (Some(2), 1), "{lines:?}");
        let start = format!("error: {truncated}: tensor `");
        assert!(
            lines[0].starts_with(&start) && lines[0].contains("past the end of the file"),
            "{}",
            lines[0]
        );
    }
    let absent = folder.path().join("absent.gguf");
    let line = refused(&["info", absent.to_str().unwrap()]);
    assert!(line.contains("absent.gguf: the file: No such file"), "{line}");
    let folder = folder.path().to_str().unwrap();
    assert!(refused(&["info", folder]).contains("has neither model.safetensors nor"));
}

#[test]
fn what_is_wrong_with_a_request_is_one_line() {
    assert_eq!(
        refused(&["logits", "--random", "--tokens", "1,256"]),
        "error: token 1: id 256 is out of range: the model's vocabulary has 256 tokens"
    );
    let line = refused(&["generate", "--random", "--prompt", "a", "--temperature=-1"]);
    assert_eq!(line, "error: the temperature: is -1, not 0 or a number from 9.536743e-7 up");
    // Before anything is loaded: there is no such file.
    let absent = ["--model", "absent.gguf", "--temperature=1e-30"];
    let line = refused(&[&["generate", "--prompt", "a"][..], &absent].concat());
    assert_eq!(
        line,
        format!("error: the temperature: is {}, not 0 or a number from 9.536743e-7 up", 1e-30f32)
    );
    let line = refused(&["generate", "--random", "--prompt", "a", "--context", "3000"]);
    assert_eq!(
        line,
        "error: the context: 3000 positions were asked for, but the model was made for 1 to 2048"
    );
    assert!(refused(&["generate", "--random", "--chat", "--prompt", "a"]).contains("no chat template"));
}

#[test]
fn info_describes_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "model.gguf", &Builder::model().build());
    let output = runner(&["info", "--tensors", &path]);
    assert!(output.status.success());
    let out = text(&output.stdout);
    for part in [
        "GGUF version 3",
        "blk.0.attn_q.weight  Q4_0 [32, 32]",
        "tensors      3 in F32, 4 in Q4_0, 3 in Q4_1, 1 in Q8_0",
        "attention    2 heads over 1 of keys and values, 16 wide",
        "tokenizer    260 tokens, with chat template, stops at <|im_end|>",
        "all weights are there",
    ] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
}

#[test]
fn a_small_file_is_read_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "model.gguf", &Builder::model().build());
    let output = runner(&["logits", "--json", "--model", &path, "--prompt", "abc"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["tokens"], serde_json::json!([257]));
    assert_eq!(report["top"].as_array().unwrap().len(), 5);
    assert!(report["mean_nll"].is_null());

    let generate = |extra: &[&str]| {
        let args = [&["generate", "--model", &path, "--prompt", "abc", "-n", "4"], extra].concat();
        let output = runner(&args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("tokens/s"));
        output.stdout
    };
    assert_eq!(generate(&[]), generate(&[]));
    assert!(text(&generate(&[])).starts_with("abc"));
}

#[test]
fn counts_of_tokens_beyond_all_bounds() {
    let most = usize::MAX.to_string();
    let output = runner(&["generate", "--random", "--prompt", "a", "-n", &most, "--context", "8"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let most = u32::MAX.to_string();
    let line = refused(&["bench", "--random", "--prompt-tokens", &most, "--tokens", &most, "--context", "8"]);
    assert_eq!(line, "error: the context: 8589934590 tokens do not fit its 8 positions");
}

#[test]
fn logits_without_numbers_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = Builder::model();
    model.tensor("output_norm.weight").data = f32::NAN.to_le_bytes().repeat(32);
    let path = write(folder.path(), "model.gguf", &model.build());
    for temperature in ["0", "1"] {
        let line = refused(&["generate", "--model", &path, "--prompt", "abc", "--temperature", temperature]);
        assert!(line.starts_with("error: the logits: none of them is a number"), "{line}");
    }
}
