//! What there is to test, as arguments of `cargo test`: first everything that needs no LLVM, then what does.
//!
//! Two rules make it quick. Whatever links LLVM is a binary of 100 MB that takes seconds to link, so only tests that compile kernels do:
//! the packages that reach the code generator by themselves, tests of others that ask for it by `required-features`, and the kernel library on
//! emulated GPUs. And trybuild
//! builds the package under test a second time, with the features that it was given: without default features, that leaves LLVM out.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::workspace::{Dependency, Package, Workspace};

/// The one package that links LLVM; whatever depends on it does too.
const LLVM_PACKAGE: &str = "tegula-codegen";

/// The package whose unit tests run on emulated GPUs, too, and the feature with which they compile kernels.
pub const ON_EMULATOR: (&str, &str) = ("tegula-kernels", "jit");

/// The members of the workspace, by whether they reach LLVM once default features are off.
pub struct Suites<'a> {
    workspace: &'a Workspace,
    with_llvm: Vec<String>,
}

impl<'a> Suites<'a> {
    /// Follows the members' dependencies.
    pub fn of(workspace: &'a Workspace) -> Self {
        Suites { workspace, with_llvm: members_reaching(LLVM_PACKAGE, &workspace.packages) }
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
            let on_emulator = package.name == ON_EMULATOR.0;
            let tests = package.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "test"));
            // `--no-default-features` leaves out the tests that ask for a feature, and only those.
            let tests: Vec<_> = tests.filter(|test| all || !test.required_features.is_empty()).collect();
            if all || on_emulator || !tests.is_empty() {
                packages.extend(["--package", &package.name]);
            }
            if on_emulator {
                features.insert(format!("{}/{}", package.name, ON_EMULATOR.1));
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

/// Names of the members that are `package` or depend on it, directly or not, with default features off.
///
/// Read from the manifests: what `cargo metadata` resolves has the features that any member asks for, so a single member that wants the
/// facade with its compiler would make it seem that the facade always has one.
fn members_reaching(package: &str, members: &[Package]) -> Vec<String> {
    let mut reaching = BTreeSet::from([package]);
    let of_name = |name: &str| members.iter().find(|member| member.name == name);
    // To the fixed point: the graph is small, and dev-dependencies may make it cyclic.
    loop {
        let before = reaching.len();
        for member in members {
            let reaches = |dependency: &Dependency| {
                // A feature of the dependency, the default ones included, may switch on an optional dependency of its own.
                let by_feature = || {
                    (dependency.uses_default_features || !dependency.features.is_empty())
                        && of_name(&dependency.name).is_some_and(|member| {
                            member
                                .dependencies
                                .iter()
                                .any(|d| d.optional && reaching.contains(d.name.as_str()))
                        })
                };
                !dependency.optional && (reaching.contains(dependency.name.as_str()) || by_feature())
            };
            if member.dependencies.iter().any(reaches) {
                reaching.insert(&member.name);
            }
        }
        if reaching.len() == before {
            break;
        }
    }
    reaching.into_iter().filter(|name| of_name(name).is_some()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(manifests: serde_json::Value) -> Vec<Package> {
        serde_json::from_value(manifests).unwrap()
    }

    fn member(name: &str, dependencies: &[serde_json::Value]) -> serde_json::Value {
        serde_json::json!({"name": name, "manifest_path": "/x/Cargo.toml", "targets": [], "dependencies": dependencies})
    }

    fn on(name: &str, optional: bool, default: bool) -> serde_json::Value {
        serde_json::json!({"name": name, "optional": optional, "uses_default_features": default, "features": []})
    }

    #[test]
    fn packages_reach_llvm_directly_indirectly_or_by_a_feature() {
        let members = members(serde_json::json!([
            member("tegula-codegen", &[on("ir", false, true)]),
            member("ir", &[]),
            member("facade", &[on("tegula-codegen", true, true), on("ir", false, true)]),
            member("with_default_features", &[on("facade", false, true)]),
            member("without", &[on("facade", false, false)]),
            member("direct", &[on("tegula-codegen", false, false)]),
            member("indirect", &[on("direct", false, false)]),
        ]));
        let reaching = members_reaching("tegula-codegen", &members);
        assert_eq!(reaching, ["direct", "indirect", "tegula-codegen", "with_default_features"]);
        assert_eq!(members_reaching("absent", &members), [""; 0]);
    }

    fn workspace() -> Workspace {
        serde_json::from_value(serde_json::json!({
            "workspace_root": "/x", "target_directory": "/x/target",
            "packages": [
                {"name": "tegula", "manifest_path": "/x/Cargo.toml", "dependencies": [], "targets": [
                    {"name": "ui", "kind": ["test"]}, {"name": "gpu", "kind": ["bench"], "required-features": ["jit"]},
                    {"name": "a", "kind": ["test"], "required-features": ["jit"]},
                    {"name": "b", "kind": ["test"], "required-features": ["jit"]}]},
                {"name": "tegula-codegen", "manifest_path": "/x/c/Cargo.toml", "dependencies": [], "targets": []},
                {"name": "tegula-kernels", "manifest_path": "/x/k/Cargo.toml", "dependencies": [], "targets": []},
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
        let targets = "--lib --bins --test a --test b";
        let packages = "--package tegula --package tegula-codegen --package tegula-kernels";
        let with_llvm = format!("{packages} {targets} --features tegula-kernels/jit --features tegula/jit");
        assert_eq!(suites.with_llvm().unwrap().join(" "), with_llvm);
        let named = suites.of_packages(&["tegula".into()]).unwrap();
        let named: Vec<_> = named.iter().map(|words| words.join(" ")).collect();
        assert_eq!(
            named,
            [
                "--package tegula --no-default-features",
                &format!("--package tegula {targets} --features tegula/jit")
            ]
        );
        assert!(suites.of_packages(&["absent".into()]).is_err());
    }
}
