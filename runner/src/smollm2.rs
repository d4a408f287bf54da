//! Where the model for tests and the demo is: SmolLM2-135M-Instruct in Q4_1, which `cargo xtask model` fetches.

use std::path::PathBuf;

/// The file, by its maker's name.
pub const FILE_NAME: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The environment variable that names the file where it is elsewhere.
pub const VARIABLE: &str = "TEGULA_SMOLLM2";

/// The file that `TEGULA_SMOLLM2` names, or the one in the user's cache folder (`~/.cache/tegula/models` on Linux), if it is there.
pub fn find() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let cached = || Some(directories::BaseDirs::new()?.cache_dir().join("tegula/models").join(FILE_NAME));
    named.map(PathBuf::from).or_else(cached).filter(|path| path.is_file())
}
