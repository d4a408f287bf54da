//! `cargo xtask tidy`: the rules that no compiler checks.
//!
//! Each rule is a pure function of a file's path and text; [`check`] walks the checkout and prints every offence as
//! `path:line: what is wrong`. The rules and their exceptions are the constants at the top: an exception is a line
//! in a review, not a comment in the source.

mod code;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use code::code_only;

/// Where `unsafe` may stand: folders (ending in `/`) and files. Elsewhere, safe code has to do.
const UNSAFE_ALLOWED: &[&str] = &[
    "bundle/src/source.rs",
    // The border to C.
    "capi/src/",
    "capi/tests/abi.rs",
    "runtime/src/cuda/",
    // `unsafe fn`: a kernel of a bundle is called as C functions are.
    "runtime/src/launch/bundled.rs",
    "runtime/tests/bundles.rs",
    "compiler/codegen/src/ffi.rs",
    "compiler/ir/src/interp/dot.rs",
    "compiler/ir/src/interp/memory.rs",
    "runner/src/bytes.rs",
    "benches/gpu/",
    "tests/conformance-gpu/tests/gpu/engine.rs",
];

/// A file is usually about 200 lines, and past 600 it is asking to be two.
const MOST_LINES: usize = 800;

/// Macros that say that something is not finished.
const UNFINISHED: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Files that people write by hand. Golden outputs (PTX has tabs) are as the compiler prints them.
const HAND_WRITTEN: &[&str] = &["rs", "toml", "md", "sh", "yml"];

/// Beginnings of paths that exist on one person's machine only.
const HOMES: &[&str] = &[concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

/// Folders below which `.rs` files are inputs of golden tests, not modules of ours.
const GOLDEN_FOLDERS: &[&str] = &["ui", "errors", "filetests", "fixtures"];

/// Runs `cargo xtask tidy`.
pub fn main(workspace: &Workspace) -> Result<ExitCode> {
    check(workspace)?;
    println!("tidy: nothing to mend");
    Ok(ExitCode::SUCCESS)
}

/// Checks every hand-written file of the checkout, and that every crate is described.
pub fn check(workspace: &Workspace) -> Result<()> {
    let mut offences = Vec::new();
    let checkout = workspace.root.to_string_lossy();
    for path in files(&workspace.root)? {
        let text = std::fs::read_to_string(workspace.root.join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        check_file(&path, &text, &checkout, &mut offences);
    }
    let architecture = std::fs::read_to_string(workspace.root.join("ARCHITECTURE.md"))
        .context("cannot read ARCHITECTURE.md")?;
    let folders = workspace.packages.iter().map(|package| workspace.folder(package));
    check_described(&architecture, folders, &mut offences);
    if offences.is_empty() {
        return Ok(());
    }
    for offence in &offences {
        println!("{offence}");
    }
    bail!("{} offences against the rules at the top of xtask/src/tidy.rs", offences.len())
}

/// What is wrong, and where.
#[derive(Debug, PartialEq)]
struct Offence {
    path: PathBuf,
    /// From 1.
    line: usize,
    what: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.what)
    }
}

/// Applies the rules for one file. `path` is relative to the checkout, which is at `checkout`.
fn check_file(path: &Path, text: &str, checkout: &str, offences: &mut Vec<Offence>) {
    let mut offend = |line: usize, what: String| offences.push(Offence { path: path.into(), line, what });
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let is_golden = path.components().any(|part| GOLDEN_FOLDERS.iter().any(|name| part.as_os_str() == *name));

    for (number, line) in (1..).zip(text.lines()) {
        if line.ends_with(char::is_whitespace) {
            offend(number, "trailing white space".into());
        }
        if line.contains('\t') {
            offend(number, "a tab".into());
        }
        if names_a_home(line) || line.contains(checkout) {
            offend(number, "a path that exists on one machine only".into());
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        offend(text.lines().count(), "no newline at the end of the file".into());
    }
    if !is_rust || is_golden {
        return;
    }
    if !has_header(text) {
        offend(1, "a module begins with a `//!` header that states its contract".into());
    }
    let lines = text.lines().count();
    if lines > MOST_LINES {
        offend(MOST_LINES, format!("{lines} lines: more than {MOST_LINES}, make it two"));
    }
    let may_be_unsafe = UNSAFE_ALLOWED.iter().any(|allowed| {
        if allowed.ends_with('/') { path.starts_with(allowed) } else { path == Path::new(allowed) }
    });
    for (number, line) in (1..).zip(code_only(text).lines()) {
        if !may_be_unsafe && has_word(line, "unsafe") {
            offend(number, format!("`unsafe` outside of {}", UNSAFE_ALLOWED.join(", ")));
        }
        for name in UNFINISHED {
            if has_word(line, name) {
                offend(number, format!("`{name}` is not for what is committed"));
            }
        }
    }
}

/// Checks that ARCHITECTURE.md has something to say of each crate's folder, as `` `folder/` ``.
fn check_described<'a>(
    architecture: &str,
    folders: impl Iterator<Item = &'a Path>,
    offences: &mut Vec<Offence>,
) {
    for folder in folders.filter(|folder| !folder.as_os_str().is_empty()) {
        if !architecture.contains(&format!("`{}/`", folder.display())) {
            let what = format!("the crate in `{}/` is not described", folder.display());
            offences.push(Offence { path: "ARCHITECTURE.md".into(), line: 1, what });
        }
    }
}

/// Whether the file begins with `//!`, after attributes and comments (a licence) at most.
fn has_header(text: &str) -> bool {
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("//!") {
            return true;
        }
        if !line.is_empty() && !line.starts_with("#") && !line.starts_with("//") {
            return false;
        }
    }
    false
}

/// Whether a home folder's path begins anywhere in the line (not `https://example.org/home/`).
fn names_a_home(line: &str) -> bool {
    let begins_path = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-/}".contains(c));
    HOMES.iter().any(|home| line.match_indices(home).any(|(at, _)| begins_path(at)))
}

/// Whether `word` stands in the line, and not as a part of a longer identifier.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(part) && (word.ends_with('!') || !line[at + word.len()..].starts_with(part))
    })
}

/// The hand-written files, relative to the root. Target folders are told by cargo's `CACHEDIR.TAG`, whatever they are
/// called; git is not asked, so that an unpacked archive can be checked too.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?
        {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            if kind.is_dir() {
                let skipped = path.file_name().is_some_and(|name| name == ".git" || name == "target");
                if !skipped && !path.join("CACHEDIR.TAG").exists() {
                    folders.push(path);
                }
            } else if kind.is_file()
                && path
                    .extension()
                    .is_some_and(|extension| HAND_WRITTEN.iter().any(|known| extension == *known))
            {
                files.push(path.strip_prefix(root)?.to_path_buf());
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offences of a file, as `line: first words`.
    fn offences(path: &str, text: &str) -> Vec<String> {
        let mut offences = Vec::new();
        check_file(Path::new(path), text, "/somewhere/checkout", &mut offences);
        offences.into_iter().map(|offence| format!("{}: {}", offence.line, offence.what)).collect()
    }

    #[test]
    fn a_tidy_file_passes() {
        assert!(offences("runtime/src/lib.rs", "//! Devices.\n\npub fn f() {}\n").is_empty());
        assert!(offences("x/src/lib.rs", "// Licence.\n#![no_std]\n\n//! Devices.\n").is_empty());
    }

    #[test]
    fn modules_need_headers_but_golden_inputs_do_not() {
        assert_eq!(offences("x/src/a.rs", "use b;\n//! late\n").len(), 1);
        assert_eq!(offences("x/src/a.rs", "").len(), 1);
        assert!(offences("dsl-macros/tests/ui/break.rs", "fn main() {}\n").is_empty());
    }

    #[test]
    fn white_space_is_checked_in_every_hand_written_file() {
        assert_eq!(
            offences("a.md", "a \n\tb\nc"),
            ["1: trailing white space", "2: a tab", "3: no newline at the end of the file"]
        );
    }

    #[test]
    fn unsafe_is_allowed_in_named_places_only() {
        let text = "//! A.\nfn f() { unsafe { g() } }\n";
        assert!(offences("compiler/codegen/src/ffi.rs", text).is_empty());
        assert!(offences("runtime/src/cuda/launch.rs", text).is_empty());
        assert_eq!(offences("runtime/src/cuda_like.rs", text).len(), 1);
        assert!(
            offences(
                "a/src/lib.rs",
                "//! A.\n#![forbid(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe\";\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn unfinished_macros_are_found_in_code_only() {
        let [todo, dbg] = [concat!("to", "do!()"), concat!("d", "bg!(x)")];
        assert_eq!(
            offences("a/src/b.rs", &format!("//! A.\nfn f() {{ {todo} }}\nfn g() {{ {dbg}; }}\n")).len(),
            2
        );
        assert!(
            offences("a/src/b.rs", &format!("//! A: {todo}\nconst S: &str = r#\"{dbg}\"#;\n")).is_empty()
        );
        assert!(offences("a/src/b.rs", "//! A.\nmy_todo!();\n").is_empty());
    }

    #[test]
    fn long_files_are_found() {
        let text = format!("//! A.\n{}", "//\n".repeat(MOST_LINES));
        assert_eq!(offences("a/src/b.rs", &text), ["800: 801 lines: more than 800, make it two"]);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let home = HOMES[0];
        assert_eq!(offences("a.toml", &format!("path = \"{home}me/x\"\n")).len(), 1);
        assert_eq!(offences("a.md", "cd /somewhere/checkout/src\n").len(), 1);
        assert!(offences("a.md", &format!("https://example.org{home}page and $HOME/x\n")).is_empty());
    }

    #[test]
    fn every_crate_is_described() {
        let mut offences = Vec::new();
        let folders = ["", "runtime", "compiler/ir"].map(Path::new);
        check_described("## `runtime/`\n", folders.into_iter(), &mut offences);
        assert_eq!(offences.len(), 1);
        assert!(offences[0].what.contains("`compiler/ir/`"));
    }
}
