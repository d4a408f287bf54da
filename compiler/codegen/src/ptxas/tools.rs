//! Where ptxas, nvdisasm and cuobjdump are.
//!
//! In this order: the tool's environment variable (`TEGULA_PTXAS`, …); for the disassemblers, beside ptxas;
//! `tools/cuda/bin` of the build folder, where `cargo xtask setup` puts them; `PATH`; the CUDA toolkit's usual folder.

use std::{
    env,
    path::{Path, PathBuf},
};

use super::PtxasError;

const CUDA_TOOLKIT: &str = "/usr/local/cuda/bin";

/// The environment variable that says where `tool` is.
fn variable(tool: &str) -> &'static str {
    match tool {
        "ptxas" => "TEGULA_PTXAS",
        "nvdisasm" => "TEGULA_NVDISASM",
        _ => "TEGULA_CUOBJDUMP",
    }
}

/// The path of `tool`: `"ptxas"`, `"nvdisasm"` or `"cuobjdump"`.
pub fn find(tool: &'static str) -> Result<PathBuf, PtxasError> {
    let set = |variable| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut searched = Vec::new();
    if let Some(path) = set(variable(tool)) {
        // What the user said, and nothing else: falling back to another version would surprise.
        if path.is_file() {
            return Ok(path);
        }
        return Err(PtxasError::NotFound { tool, variable: variable(tool), searched: vec![path] });
    }
    if tool != "ptxas"
        && let Some(folder) = set("TEGULA_PTXAS").as_deref().and_then(Path::parent)
    {
        searched.push(folder.to_owned());
    }
    searched.extend(workspace_folders());
    searched.extend(env::var_os("PATH").iter().flat_map(env::split_paths));
    searched.push(CUDA_TOOLKIT.into());
    searched.iter().map(|folder| folder.join(tool)).find(|path| path.is_file()).ok_or(PtxasError::NotFound {
        tool,
        variable: variable(tool),
        searched,
    })
}

/// Where `cargo xtask setup` may have put the tools: in the build folder that the running program lies in, whatever it is called
/// (`CARGO_TARGET_DIR`), or in `target/` of a folder above the current one.
fn workspace_folders() -> Vec<PathBuf> {
    let above = |start: Option<PathBuf>, tools: &str| -> Vec<PathBuf> {
        start.iter().flat_map(|start| start.ancestors()).map(|folder| folder.join(tools)).collect()
    };
    let mut folders = above(env::current_exe().ok(), "tools/cuda/bin");
    folders.extend(above(env::current_dir().ok(), "target/tools/cuda/bin"));
    folders.retain(|folder| folder.is_dir());
    folders
}
