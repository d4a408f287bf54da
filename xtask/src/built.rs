//! Where cargo put what it built, read from the messages that it prints with `--message-format=json`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::workspace::display;

/// The part of one message that says where an executable is.
#[derive(Deserialize)]
pub struct Artifact {
    target: Target,
    executable: Option<PathBuf>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Runs a command of cargo that builds, and reads what it says. Complaints of the compiler go to the standard error.
///
/// # Errors
/// If cargo fails.
pub fn build(cargo: &mut Command) -> Result<Vec<Artifact>> {
    cargo.arg("--message-format=json-render-diagnostics");
    let output = cargo.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{} failed ({})", display(cargo), output.status);
    Ok(artifacts(&String::from_utf8_lossy(&output.stdout)))
}

/// What cargo's JSON messages, one a line, say was built.
fn artifacts(messages: &str) -> Vec<Artifact> {
    messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The executable of a target; `kind`: `bin`, `test`, `bench`, `example`, or `lib` for the unit tests of a library.
pub fn executable<'a>(artifacts: &'a [Artifact], kind: &str, name: &str) -> Option<&'a Path> {
    let is_it = |target: &Target| target.name == name && target.kind.iter().any(|k| k == kind);
    artifacts
        .iter()
        .filter(|artifact| is_it(&artifact.target))
        .find_map(|artifact| artifact.executable.as_deref())
}

/// The shared library of a package's library target.
pub fn shared_library<'a>(artifacts: &'a [Artifact], name: &str) -> Option<&'a Path> {
    let is_it = |target: &Target| target.name == name && target.kind.iter().any(|k| k == "cdylib");
    let mut files = artifacts.iter().filter(|artifact| is_it(&artifact.target)).flat_map(|a| &a.filenames);
    files
        .find(|file| file.extension().is_some_and(|e| e == std::env::consts::DLL_EXTENSION))
        .map(PathBuf::as_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_read_from_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"tegula","kind":["lib"]},"executable":null}
{"reason":"build-script-executed","package_id":"x"}
{"reason":"compiler-artifact","target":{"name":"rt","kind":["cdylib","rlib"]},"filenames":["t/librt.rlib","t/librt.so"],"executable":null}
{"reason":"compiler-artifact","target":{"name":"gpu","kind":["bench"]},"executable":"t/gpu-34"}
{"reason":"compiler-artifact","target":{"name":"gpu","kind":["test"]},"executable":"t/gpu-12"}
{"reason":"build-finished","success":true}
"#;
        let artifacts = artifacts(messages);
        assert_eq!(executable(&artifacts, "test", "gpu"), Some(Path::new("t/gpu-12")));
        assert_eq!(executable(&artifacts, "bench", "gpu"), Some(Path::new("t/gpu-34")));
        assert_eq!(executable(&artifacts, "test", "tegula"), None);
        assert_eq!(shared_library(&artifacts, "rt"), Some(Path::new("t/librt.so")));
        assert_eq!(shared_library(&artifacts, "gpu"), None);
    }
}
