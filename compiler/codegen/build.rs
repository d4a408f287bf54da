//! Hashes this crate's sources into `TEGULA_SOURCE_HASH`: compiled kernels are cached under it, and must not outlive a change of the passes.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

fn main() {
    let mut files = BTreeSet::new();
    collect(Path::new("src"), &mut files);
    let mut hash = DefaultHasher::new();
    for file in &files {
        hash.write(file.to_string_lossy().as_bytes());
        hash.write(&fs::read(file).unwrap_or_default());
    }
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rustc-env=TEGULA_SOURCE_HASH={:016x}", hash.finish());
}

fn collect(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.insert(path);
        }
    }
}
