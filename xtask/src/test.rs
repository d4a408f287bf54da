//! `cargo xtask test`: everything that a change must pass, in the order in which it is cheapest to hear of it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::setup::{self, Scope};
use crate::steps::Steps;
use crate::tidy;
use crate::workspace::Workspace;

/// The one package that links LLVM; whatever depends on it does too.
const LLVM_PACKAGE: &str = "tegula-codegen";

/// Private items are documented too, and linked to: a module's header is read by those who work on it.
const RUSTDOCFLAGS: &str = "-D warnings -A rustdoc::private_intra_doc_links";

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Leave out the slow checks: lints and docs
    #[arg(long)]
    quick: bool,
    /// Build and test only what needs no LLVM: no package that reaches the code generator, no default features
    #[arg(long)]
    no_llvm: bool,
}

/// Runs `cargo xtask test`.
pub fn main(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let scope = if args.no_llvm { Scope::Native } else { Scope::Everything };
    setup::ensure(workspace, scope)
        .context("set-up failed (`cargo xtask test --no-llvm` tests what needs no LLVM)")?;

    let selection = if args.no_llvm { without_llvm(workspace)? } else { vec!["--workspace".into()] };
    let cargo = |subcommand: &str| {
        let mut command = workspace.cargo();
        command.arg(subcommand).args(&selection);
        command
    };
    let mut steps = Steps::default();
    steps.command(workspace.cargo().args(["fmt", "--all", "--check"]));
    steps.run("tidy", || tidy::check(workspace));
    if !args.quick {
        steps.command(cargo("clippy").args(["--all-targets", "--", "-D", "warnings"]));
        steps.command(
            cargo("doc").args(["--no-deps", "--document-private-items"]).env("RUSTDOCFLAGS", RUSTDOCFLAGS),
        );
    }
    steps.tests(cargo("test").arg("--no-fail-fast"));
    Ok(steps.finish())
}

/// The arguments that select every member that does not reach [`LLVM_PACKAGE`] once default features are off.
fn without_llvm(workspace: &Workspace) -> Result<Vec<String>> {
    let mut command = workspace.cargo();
    command.args(["metadata", "--format-version", "1", "--no-default-features"]);
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let graph: Graph = serde_json::from_slice(&output.stdout)?;
    let excluded = graph.members_reaching(LLVM_PACKAGE);
    println!("without LLVM: leaves out {} and default features", excluded.join(", "));
    let exclusions = excluded.into_iter().flat_map(|name| ["--exclude".to_owned(), name]);
    Ok(["--workspace".into(), "--no-default-features".into()].into_iter().chain(exclusions).collect())
}

/// The resolved dependency graph, as `cargo metadata` prints it.
#[derive(Deserialize)]
struct Graph {
    packages: Vec<Named>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Named {
    id: String,
    name: String,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    /// Ids of all that the package depends on, for building, running or testing.
    dependencies: Vec<String>,
}

impl Graph {
    /// Names of the workspace members that are `package` or depend on it, directly or not.
    fn members_reaching(&self, package: &str) -> Vec<String> {
        let names: BTreeMap<_, _> = self.packages.iter().map(|p| (p.id.as_str(), p.name.as_str())).collect();
        let mut reaching: BTreeSet<&str> =
            self.packages.iter().filter(|p| p.name == package).map(|p| p.id.as_str()).collect();
        // To the fixed point: the graph is small, and dev-dependencies may make it cyclic.
        loop {
            let before = reaching.len();
            for node in &self.resolve.nodes {
                if node.dependencies.iter().any(|id| reaching.contains(id.as_str())) {
                    reaching.insert(&node.id);
                }
            }
            if reaching.len() == before {
                break;
            }
        }
        let members = reaching.into_iter().filter(|id| self.workspace_members.contains(*id));
        members.filter_map(|id| names.get(id).map(|name| (*name).to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_that_reach_llvm_indirectly_are_left_out() {
        let graph: Graph = serde_json::from_value(serde_json::json!({
            "packages": [
                {"id": "c", "name": "tegula-codegen"}, {"id": "r", "name": "tegula"},
                {"id": "a", "name": "tegula-autotune"}, {"id": "i", "name": "tegula-ir"}, {"id": "x", "name": "outside"},
            ],
            "workspace_members": ["c", "r", "a", "i"],
            "resolve": {"nodes": [
                {"id": "a", "dependencies": ["r"]}, {"id": "r", "dependencies": ["c", "i"]},
                {"id": "c", "dependencies": ["i"]}, {"id": "i", "dependencies": []}, {"id": "x", "dependencies": ["c"]},
            ]},
        }))
        .unwrap();
        assert_eq!(graph.members_reaching("tegula-codegen"), ["tegula-autotune", "tegula-codegen", "tegula"]);
        assert_eq!(graph.members_reaching("absent"), [""; 0]);
    }
}
