//! What there is to test, as arguments of `cargo test`: first everything that needs no LLVM, then what does.
//!
//! Two rules make it quick. Whatever links LLVM is a binary of 100 MB that takes seconds to link, so only tests that compile kernels do:
//! the packages that reach the code generator by themselves, and tests of others that ask for it by `required-features`. And trybuild
//! builds the package under test a second time, with the features that it was given: without default features, that leaves LLVM out.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::workspace::Workspace;

/// The one package that links LLVM; whatever depends on it does too.
const LLVM_PACKAGE: &str = "tegula-codegen";

/// The members of the workspace, by whether they reach LLVM once default features are off.
pub struct Suites<'a> {
    workspace: &'a Workspace,
    with_llvm: Vec<String>,
}

impl<'a> Suites<'a> {
    /// Asks cargo for the dependency graph.
    pub fn of(workspace: &'a Workspace) -> Result<Self> {
        let mut command = workspace.cargo();
        command.args(["metadata", "--format-version", "1", "--no-default-features"]);
        let output = command.output().context("cannot run cargo")?;
        if !output.status.success() {
            bail!("`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let graph: Graph = serde_json::from_slice(&output.stdout)?;
        Ok(Suites { workspace, with_llvm: graph.members_reaching(LLVM_PACKAGE) })
    }

    /// Selects all that needs no LLVM, for any cargo command.
    pub fn without_llvm(&self) -> Vec<String> {
        let exclusions = self.with_llvm.iter().flat_map(|name| ["--exclude", name]);
        ["--workspace"]
            .into_iter()
            .chain(exclusions)
            .chain(["--no-default-features"])
            .map(Into::into)
            .collect()
    }

    /// Selects the tests that need LLVM.
    pub fn with_llvm(&self) -> Option<Vec<String>> {
        self.with_llvm_among(|_| true)
    }

    /// As both of the above, for these packages only.
    pub fn of_packages(&self, names: &[String]) -> Result<Vec<Vec<String>>> {
        for name in names {
            self.workspace.package(name)?;
        }
        let light = names.iter().filter(|name| !self.with_llvm.contains(name));
        let light: Vec<_> = light.flat_map(|name| ["--package".to_owned(), name.clone()]).collect();
        let without = (!light.is_empty()).then(|| [light, vec!["--no-default-features".to_owned()]].concat());
        Ok(without.into_iter().chain(self.with_llvm_among(|name| names.contains(name))).collect())
    }

    /// One selection and not one a package, since cargo builds what they share again when its features differ by a hair.
    fn with_llvm_among(&self, wanted: impl Fn(&String) -> bool) -> Option<Vec<String>> {
        let (mut packages, mut targets, mut features) = (Vec::new(), Vec::new(), BTreeSet::new());
        for package in self.workspace.packages.iter().filter(|package| wanted(&package.name)) {
            let all = self.with_llvm.contains(&package.name);
            let tests = package.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "test"));
            // `--no-default-features` leaves out the tests that ask for a feature, and only those.
            let tests: Vec<_> = tests.filter(|test| all || !test.required_features.is_empty()).collect();
            if all || !tests.is_empty() {
                packages.extend(["--package", &package.name]);
            }
            for test in tests {
                targets.extend(["--test", &test.name]);
                features.extend(
                    test.required_features.iter().map(|feature| format!("{}/{feature}", package.name)),
                );
            }
        }
        let features = features.into_iter().flat_map(|feature| ["--features".to_owned(), feature]);
        let words = packages.iter().chain(&["--lib", "--bins"]).chain(&targets).map(ToString::to_string);
        (!packages.is_empty()).then(|| words.chain(features).collect())
    }
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

    fn workspace() -> Workspace {
        serde_json::from_value(serde_json::json!({
            "workspace_root": "/x", "target_directory": "/x/target",
            "packages": [
                {"name": "tegula", "manifest_path": "/x/Cargo.toml", "targets": [
                    {"name": "ui", "kind": ["test"]}, {"name": "gpu", "kind": ["bench"], "required-features": ["jit"]},
                    {"name": "a", "kind": ["test"], "required-features": ["jit"]},
                    {"name": "b", "kind": ["test"], "required-features": ["jit"]}]},
                {"name": "tegula-codegen", "manifest_path": "/x/c/Cargo.toml", "targets": []},
            ],
        }))
        .unwrap()
    }

    #[test]
    fn tests_that_ask_for_features_are_the_only_ones_that_get_them() {
        let workspace = workspace();
        let suites = Suites { workspace: &workspace, with_llvm: vec!["tegula-codegen".into()] };
        assert_eq!(
            suites.without_llvm().join(" "),
            "--workspace --exclude tegula-codegen --no-default-features"
        );
        let facade = "--lib --bins --test a --test b --features tegula/jit";
        let with_llvm = format!("--package tegula --package tegula-codegen {facade}");
        assert_eq!(suites.with_llvm().unwrap().join(" "), with_llvm);
        let named = suites.of_packages(&["tegula".into()]).unwrap();
        let named: Vec<_> = named.iter().map(|words| words.join(" ")).collect();
        assert_eq!(named, ["--package tegula --no-default-features", &format!("--package tegula {facade}")]);
        assert!(suites.of_packages(&["absent".into()]).is_err());
    }
}
