//! `cargo xtask bless`: rewrites the expected outputs of golden tests, and shows which changed.
//!
//! A golden test compares with a file unless `TEGULA_BLESS=1` is set, and then rewrites it (`UPDATE_EXPECT` and
//! `TRYBUILD` are the same switch of the crates expect-test and trybuild). What was blessed is for `git diff` to show
//! and for the author to read.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::setup::{self, Scope};
use crate::suites::Suites;
use crate::workspace::{Workspace, run};

/// Makes every kind of golden test rewrite its expected output.
const BLESS: [(&str, &str); 3] = [("TEGULA_BLESS", "1"), ("UPDATE_EXPECT", "1"), ("TRYBUILD", "overwrite")];

/// Arguments of `cargo xtask bless`.
#[derive(clap::Args)]
pub struct Args {
    /// Only the tests of these packages (by default the whole workspace)
    #[arg(short, long, value_name = "PACKAGE")]
    package: Vec<String>,
    /// Further arguments for `cargo test`, such as a filter: `cargo xtask bless -p tegula-ir -- simplify`
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Runs `cargo xtask bless`.
pub fn main(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    setup::ensure(workspace, Scope::Everything)?;
    let suites = Suites::of(workspace);
    let selections = if args.package.is_empty() {
        [suites.without_llvm()].into_iter().chain(suites.with_llvm()).collect()
    } else {
        suites.of_packages(&args.package)?
    };
    let mut result = Ok(());
    for selection in selections {
        let mut test = workspace.cargo();
        test.args(["test", "--quiet", "--no-fail-fast"]).args(selection).args(&args.arguments);
        // A test that still fails has more to say than its golden file; the files that changed are worth seeing anyway.
        result = result.and(run(test.envs(BLESS)));
    }
    println!("\nchanged since the last commit (read `git diff` before committing):");
    run(Command::new("git").current_dir(&workspace.root).args(["status", "--short"]))?;
    result.map(|()| ExitCode::SUCCESS)
}
