//! Where ptxas, nvdisasm and cuobjdump are.
//!
//! In this order: the tool's environment variable (`TEGULA_PTXAS`, …); for the disassemblers, beside ptxas;
//! `target/tools/cuda/bin` of the workspace, where `cargo xtask setup` puts them (found by walking up from the
//! running program and from the current folder); `PATH`; the CUDA toolkit's usual folder.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
};

use super::PtxasError;

/// Where `cargo xtask setup` puts the tools, below the workspace's root.
pub const TOOLS_FOLDER: &str = "target/tools/cuda/bin";

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

/// `target/tools/cuda/bin` of every folder above the running program and the current folder. A program that cargo
/// built lies in `target/…`, so that the first of the two finds the workspace from anywhere.
fn workspace_folders() -> Vec<PathBuf> {
    let starts = [env::current_exe().ok(), env::current_dir().ok()];
    let mut folders: Vec<PathBuf> = Vec::new();
    for start in starts.into_iter().flatten() {
        for folder in start.ancestors() {
            let mut candidates = vec![folder.join(TOOLS_FOLDER)];
            if folder.file_name() == Some(OsStr::new("target")) {
                candidates.push(folder.join("tools/cuda/bin"));
            }
            for candidate in candidates {
                if candidate.is_dir() && !folders.contains(&candidate) {
                    folders.push(candidate);
                }
            }
        }
    }
    folders
}
