//! What is on this machine: programs on the `PATH`, files, the LLVM installation, a GPU driver.
//!
//! Everything is asked through [`Machine`], which can be pointed at an empty folder instead of `/`: so what `setup`
//! would install on a bare machine is a unit test.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Where Debian's and Ubuntu's packages put LLVM and MLIR 22.
pub const PACKAGED_LLVM: &str = "/usr/lib/llvm-22";

/// Folders in which drivers install `libcuda.so.1` (distributions, NVIDIA's installer, WSL, container toolkits).
const DRIVER_FOLDERS: &[&str] = &[
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/cuda/compat",
    "usr/local/nvidia/lib64",
];

/// A view of the machine, rooted at `/` but for tests.
pub struct Machine {
    /// The folder that stands for `/`.
    pub root: PathBuf,
    /// The folders of `PATH`.
    pub path: Vec<PathBuf>,
    /// The environment.
    pub vars: BTreeMap<OsString, OsString>,
}

impl Machine {
    /// The machine this program runs on.
    pub fn current() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Machine {
            root: "/".into(),
            path: std::env::split_paths(&path).collect(),
            vars: std::env::vars_os().collect(),
        }
    }

    /// An absolute path of this machine.
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The program of that name on the `PATH`.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        self.path.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
    }

    /// An environment variable, if it is set and not empty.
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.vars.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// The LLVM installation that a `*_PREFIX` variable names, by default the packaged one.
    pub fn prefix(&self, variable: &str) -> PathBuf {
        self.var(variable).map_or_else(|| PACKAGED_LLVM.into(), PathBuf::from)
    }

    /// Whether a GPU driver is installed, so that the `cuda` device has something to talk to.
    pub fn has_gpu_driver(&self) -> bool {
        let configured = self.var("LD_LIBRARY_PATH").unwrap_or_default();
        let configured: Vec<_> = std::env::split_paths(configured).collect();
        let known = DRIVER_FOLDERS.iter().map(|folder| self.at(folder));
        configured.into_iter().chain(known).any(|folder| folder.join("libcuda.so.1").exists())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A machine that has exactly the files of `root`, programs in `usr/bin`, and these variables.
    pub fn fake(root: &Path, vars: &[(&str, &str)]) -> Machine {
        let vars = vars.iter().map(|(name, value)| (name.into(), value.into())).collect();
        Machine { root: root.into(), path: vec![root.join("usr/bin")], vars }
    }

    /// Creates an empty file and its folders.
    pub fn touch(root: &Path, path: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn a_driver_is_found_where_distributions_put_it() {
        let root = tempfile::tempdir().unwrap();
        assert!(!fake(root.path(), &[]).has_gpu_driver());
        touch(root.path(), "usr/lib64/libcuda.so.1");
        assert!(fake(root.path(), &[]).has_gpu_driver());
    }

    #[test]
    fn a_prefix_that_is_set_wins() {
        let machine = fake(Path::new("/"), &[("MLIR_SYS_220_PREFIX", "/opt/mlir")]);
        assert_eq!(machine.prefix("MLIR_SYS_220_PREFIX"), Path::new("/opt/mlir"));
        assert_eq!(machine.prefix("LLVM_SYS_221_PREFIX"), Path::new(PACKAGED_LLVM));
    }
}
