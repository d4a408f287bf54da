//! Runs the tests under `tests/filetests`: text in, text out, one file a test.
//!
//! ```text
//! // run: simplify
//! // What this file is about.
//! kernel @k(…) { … }
//! // output:
//! kernel @k(…) { … }
//! ```
//! The first line names the kind of test and its arguments. What stands above the line `// output:` goes in, and what comes out must be
//! what stands below it, to the letter: a test that compares everything shows every effect of a change, and there is nothing to
//! maintain by hand, since `cargo xtask bless` (that is, `TEGULA_BLESS=1`) rewrites what stands below. Whoever blesses reads the diff.
//!
//! A crate provides kinds of tests behind [`Subtest`] and calls [`run`] from a test with `harness = false`. The harness knows only
//! text, so that the crates under test can use it without depending on each other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

const RUN: &str = "// run:";
const OUTPUT: &str = "// output:";

/// A kind of test.
pub trait Subtest: Send + Sync {
    /// What follows `// run:`.
    fn name(&self) -> &str;

    /// Turns the input into the output. `arguments` are the words after the name. Lines of the input are those of the file, so
    /// that places in messages can be looked up there.
    ///
    /// # Errors
    /// Where there is no output to compare, with a message for whoever wrote the test.
    fn run(&self, input: &str, arguments: &[&str]) -> Result<String, String>;
}

/// Runs every `.tile` file in these folders of `tests/filetests`, as the command line asks (filters, `--list`, …).
pub fn run(folders: &[&str], subtests: Vec<Box<dyn Subtest>>) -> ExitCode {
    let root = find_root();
    let subtests: Arc<[Box<dyn Subtest>]> = subtests.into();
    let mut files = Vec::new();
    for folder in folders {
        collect(&root.join(folder), &mut files);
    }
    let trials = files
        .into_iter()
        .map(|file| {
            let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
            let subtests = subtests.clone();
            Trial::test(name, move || check_file(&file, &subtests).map_err(Failed::from))
        })
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The folder `tests/filetests` of the repository that the test runs in: cargo starts tests in their package's folder.
fn find_root() -> PathBuf {
    let here = std::env::current_dir().expect("the current folder exists");
    let found = here.ancestors().map(|folder| folder.join("tests/filetests")).find(|folder| folder.is_dir());
    found.unwrap_or_else(|| panic!("no folder tests/filetests in {} or above it", here.display()))
}

/// All `.tile` files below a folder, sorted by path. An absent folder is a mistake in the caller's list.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "tile") {
            files.push(path);
        }
    }
}

fn check_file(file: &Path, subtests: &[Box<dyn Subtest>]) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|e| e.to_string())?;
    let (input, expected) = split(&text);
    let line = input.lines().next().and_then(|l| l.strip_prefix(RUN));
    let mut words = line.ok_or(format!("the first line is not `{RUN} <kind>`"))?.split_whitespace();
    let kind = words.next().unwrap_or("");
    let subtest = subtests.iter().find(|s| s.name() == kind).ok_or_else(|| {
        let known: Vec<&str> = subtests.iter().map(|s| s.name()).collect();
        format!("no test is of the kind `{kind}` (there are: {})", known.join(", "))
    })?;
    let found = subtest.run(input, &words.collect::<Vec<_>>())?;
    if Some(found.as_str()) == expected {
        return Ok(());
    }
    if std::env::var_os("TEGULA_BLESS").is_some_and(|v| v == "1") {
        let separator = if input.ends_with('\n') { "" } else { "\n" };
        return fs::write(file, format!("{input}{separator}{OUTPUT}\n{found}")).map_err(|e| e.to_string());
    }
    Err(format!(
        "the output changed (- expected, + found):\n{}\nIf the change is right, `cargo xtask bless` writes it into {}.",
        difference(expected.unwrap_or(""), &found),
        file.display()
    ))
}

/// What stands above and below the line `// output:`; nothing below if there is no such line.
fn split(text: &str) -> (&str, Option<&str>) {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end() == OUTPUT {
            return (&text[..start], Some(&text[start + line.len()..]));
        }
        start += line.len();
    }
    (text, None)
}

/// The lines that differ, without those that both texts begin and end with, and up to three of those around them.
fn difference(expected: &str, found: &str) -> String {
    const CONTEXT: usize = 3;
    let (a, b): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), found.lines().collect());
    let prefix = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let suffix = a[prefix..].iter().rev().zip(b[prefix..].iter().rev()).take_while(|(x, y)| x == y).count();
    let mut out = String::new();
    let mut show = |mark: char, lines: &[&str]| {
        lines.iter().for_each(|line| out.push_str(&format!("{mark} {line}\n")));
    };
    show(' ', &a[prefix.saturating_sub(CONTEXT)..prefix]);
    show('-', &a[prefix..a.len() - suffix]);
    show('+', &b[prefix..b.len() - suffix]);
    let after = a.len() - suffix;
    show(' ', &a[after..(after + CONTEXT).min(a.len())]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_and_output_are_split_at_the_marker() {
        assert_eq!(split("a\n// output:\nb\n"), ("a\n", Some("b\n")));
        assert_eq!(split("a // output:\n"), ("a // output:\n", None));
        assert_eq!(split("// output:\n"), ("", Some("")));
    }

    #[test]
    fn differences_show_what_changed() {
        assert_eq!(
            difference("1\n2\n3\n4\n5\n6\n7\n8\n9", "1\n2\n3\n4\nx\ny\n6\n7\n8\n9"),
            "  2\n  3\n  4\n- 5\n+ x\n+ y\n  6\n  7\n  8\n"
        );
        assert_eq!(difference("a", "a\na"), "  a\n+ a\n");
    }
}
