//! The end of `cargo xtask demo`: a language model writes a few words, on the host, and on a GPU where there is one.
//!
//! The model is SmolLM2-135M ([`crate::model`] brings it). Where it cannot be fetched, a small model with random weights runs instead: the
//! same kernels, and no sense in its words.

use std::process::Command;

use anyhow::Result;

use crate::model;
use crate::workspace::{Workspace, run};

/// The package and its program.
const RUNNER: &str = "tegula-runner";
const PROMPT: &str = "What is gravity?";
/// Few, for the host of an unoptimised build.
const MOST_TOKENS: &str = "24";

/// Lets the model speak on each device. Fails if one did not.
pub fn speak(workspace: &Workspace, devices: &[&str], release: bool) -> Result<()> {
    println!("\n==> a language model");
    let model = model::bring().inspect_err(|error| {
        println!("no SmolLM2 here ({error:#}):\na small model with random weights runs instead, and writes nonsense");
    });
    for device in devices {
        println!("\n==> on {device}: \"{PROMPT}\"");
        let mut command = workspace.cargo();
        command.args(selection(device, release));
        match &model {
            Ok(path) => command.arg("--model").arg(path).arg("--chat"),
            Err(_) => command.arg("--random"),
        };
        run(command.args(["--prompt", PROMPT, "--max-tokens", MOST_TOKENS, "--device", device]))?;
    }
    Ok(())
}

/// `cargo run` of the runner, with the features that the device needs, up to its command.
fn selection(device: &str, release: bool) -> Vec<&'static str> {
    let mut words = vec!["run", "--quiet", "--package", RUNNER, "--no-default-features"];
    if device == "cuda" {
        words.extend(["--features", "jit"]);
    }
    if release {
        words.push("--release");
    }
    words.extend(["--", "generate"]);
    words
}

/// The command, for those who want to go on: without the prompt, and optimised.
pub fn advice() -> String {
    let mut command = Command::new("cargo");
    command.args(selection("host", true)).args(["--model", "MODEL.gguf", "--chat"]);
    crate::workspace::display(&command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_gpu_needs_the_compiler() {
        assert!(!selection("host", false).contains(&"jit"));
        assert!(selection("cuda", false).contains(&"jit"));
        assert_eq!(
            advice(),
            "cargo run --quiet --package tegula-runner --no-default-features --release -- generate --model MODEL.gguf --chat"
        );
    }
}
