//! The end of `cargo xtask demo`: a language model writes a few words, on the host, and on a GPU where there is one.
//!
//! The model is SmolLM2-135M ([`crate::model`] brings it). Where it cannot be fetched, a small model with random weights runs instead: the
//! same kernels, and no sense in its words.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::model;
use crate::workspace::{Workspace, run};

/// The package and its program.
const RUNNER: &str = "tegula-runner";
const PROMPT: &str = "What is gravity?";
/// A few sentences: some seconds on a host of two cores.
const MOST_TOKENS: &str = "64";

/// Lets the model speak on each device, and says where it is, if it is SmolLM2. Fails if it did not speak on one.
///
/// On the host the runner is built with optimisation whatever the examples are: without, loading and 24 tokens take 52 s of processor time instead of 3,
/// and what [`advice`] says to run next is then there already. For a GPU that would be the code generator and LLVM once more, and kernels are as fast.
pub fn speak(workspace: &Workspace, devices: &[&str], release: bool) -> Result<Option<PathBuf>> {
    println!("\n==> a language model");
    let model = model::bring().inspect_err(|error| {
        println!("no SmolLM2 here ({error:#}):\na small model with random weights runs instead, and writes nonsense");
    });
    for device in devices {
        println!("\n==> on {device}: \"{PROMPT}\"");
        let release = release || *device == "host";
        let mut build = workspace.cargo();
        build.arg("build").args(selection(device, release));
        println!("builds the runner{}", if release { ", optimised: minutes, the first time" } else { "" });
        run(&mut build)?;
        let mut command = workspace.cargo();
        command.args(["run", "--quiet"]).args(selection(device, release)).args(["--", "generate"]);
        match &model {
            Ok(path) => command.arg("--model").arg(path).arg("--chat"),
            Err(_) => command.arg("--random"),
        };
        run(command.args(["--prompt", PROMPT, "--max-tokens", MOST_TOKENS, "--device", device]))?;
    }
    Ok(model.ok())
}

/// cargo's arguments that select the runner, with the features that the device needs.
fn selection(device: &str, release: bool) -> Vec<&'static str> {
    let mut words = vec!["--package", RUNNER, "--no-default-features"];
    if device == "cuda" {
        words.extend(["--features", "jit"]);
    }
    if release {
        words.push("--release");
    }
    words
}

/// The command, for those who want to go on: without the prompt, in the build that is there.
pub fn advice(model: Option<&Path>) -> String {
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet"]).args(selection("host", true));
    command.args(["--", "generate", "--model"]).arg(model.unwrap_or(Path::new("MODEL.gguf"))).arg("--chat");
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
            advice(None),
            "cargo run --quiet --package tegula-runner --no-default-features --release -- generate --model MODEL.gguf --chat"
        );
        assert!(advice(Some(Path::new("a b/c.gguf"))).ends_with("--model 'a b/c.gguf' --chat"));
    }
}
