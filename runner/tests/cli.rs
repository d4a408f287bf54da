//! The program, from outside: results on standard output, one line and exit code 2 for what is wrong with the input.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::gguf::{Builder, Value};

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

/// Runs it in a shell, which can redirect and limit.
#[cfg(target_os = "linux")]
fn in_shell(line: &str, args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_tegula-runner");
    Command::new("sh").args(["-c", line, program]).args(args).output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn standard_error_may_be_full_or_closed() {
    for line in [r#""$0" "$@" 2>/dev/full"#, r#""$0" "$@" 2>&-"#] {
        let output = in_shell(line, &["generate", "--random", "--prompt", "hi", "-n", "2"]);
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(!output.stdout.is_empty());
        let output = in_shell(line, &["info", "/nonexistent"]);
        assert_eq!(output.status.code(), Some(2), "{line}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_pipe_is_no_model() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.gguf", "model.safetensors", "config.json"] {
        let path = folder.path().join(name);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        // A folder whose weights are whole, so that its config is read.
        if name == "config.json" {
            std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
            let empty = [&2u64.to_le_bytes()[..], b"{}"].concat();
            write(folder.path(), "model.safetensors", &empty);
        }
        let path = if name == "config.json" { folder.path().to_owned() } else { path };
        let line = refused(&["info", path.to_str().unwrap()]);
        assert!(line.contains(name) && line.ends_with("the file: is not an ordinary file"), "{line}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_context_beyond_the_memory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = Builder::model().set("llama.context_length", Value::U32(1 << 30));
    let path = write(folder.path(), "model.gguf", &model.build());
    for extra in [["-n", "1000000000"], ["--context", "1073741824"]] {
        let args = ["generate", "--model", &path, "--prompt", "a", extra[0], extra[1]];
        let output = in_shell(r#"ulimit -v 16000000; exec "$0" "$@""#, &args);
        let line = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(line.starts_with("error: the context: not enough memory for 10"), "{line}");
    }
}

#[test]
fn what_cannot_fit_is_refused_before_loading() {
    let refused = |args: &[&str]| {
        let output = runner(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!text(&output.stderr).contains("loaded"), "{args:?}");
        text(&output.stderr).trim_end().to_owned()
    };
    let line = refused(&["bench", "--random", "--prompt-tokens", "4294967295"]);
    assert_eq!(line, "error: the context: 4294967327 tokens do not fit its 2048 positions");
    let line = refused(&["generate", "--random", "--prompt", &"a".repeat(3000)]);
    assert_eq!(line, "error: the context: 3000 tokens do not fit its 2048 positions");
    assert_eq!(
        refused(&["logits", "--random", "--tokens", "1,256"]),
        "error: token 1: id 256 is out of range: the model's vocabulary has 256 tokens"
    );
    assert_eq!(refused(&["generate", "--random", "--prompt", ""]), "error: the prompt: has no tokens");
    assert!(
        refused(&["generate", "--random", "--prompt", "a", "--device", "nonsense"]).contains("`nonsense`")
    );
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_wrong_with_standard_input_is_said_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "model.gguf", &Builder::model().build());
    let binary = write(folder.path(), "binary", b"\xff\n");
    // A line without end, a folder, bytes that are no text.
    for input in ["</dev/zero", "</", r#"<"$2""#] {
        let output = in_shell(&format!(r#""$0" generate --chat --model "$1" {input}"#), &[&path, &binary]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("error: standard input: "), "{stderr}");
    }
}

#[test]
fn names_in_files_reach_no_terminal_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = Builder::model();
    let name = format!("\u{1b}[31m{}", "x".repeat(5000));
    model.metadata.push(("general.name".into(), Value::Str(name.clone())));
    let mut extra = model.tensor("output_norm.weight").clone();
    extra.name = name;
    model.tensors.push(extra);
    let path = write(folder.path(), "model.gguf", &model.build());
    let output = runner(&["info", "--tensors", &path]);
    assert_eq!(output.status.code(), Some(2));
    for out in [text(&output.stdout), text(&output.stderr)] {
        assert!(out.contains("\\u{1b}[31mxxx") && !out.contains('\u{1b}'), "{out}");
        assert!(out.lines().all(|line| line.len() < 400));
    }
}
