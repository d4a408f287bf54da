//! The TOML file that says what goes into a bundle.
//!
//! ```toml
//! output = "kernels.tegula"
//! facts = ["usual", "none"]                  # optional: these are the default
//! device = "NVIDIA H200"                     # optional: on which GPU functions are launched; this is the default
//!
//! [targets]                                  # cubin, ptx or both, for each architecture
//! sm_90a = "cubin"
//! sm_80 = "ptx"                              # what newer GPUs, and emulated ones, can run
//!
//! [[kernels]]                                # of the kernel library, by the names of its registry
//! name = "rms_norm"
//! types = ["bf16, bf16"]                     # optional: only these element types; "bf16*" is all that begin so
//! configs = ["num_warps: 8"]                 # optional: only configs whose text contains one of these; "a*b": a, and b behind it
//! facts = ["usual"]                          # optional: other sets of facts than those above
//! targets = ["sm_90a"]                       # optional: only for these of the targets
//!
//! [[served]]                                 # what functions of the kernel library launch on an H200 for models that are served
//! name = "gemm*"                             # the functions, by the names of `tegula_kernels::served`
//! types = ["bf16, bf16"]                     # optional, as above; `targets` too
//! least = "rows"                             # optional: what is asked of all arguments, where kernels for any would be large
//!
//! [records]                                  # what tuning found the fastest on that GPU
//! folder = "records"                         # that `tegula-autotune` wrote
//! kernels = ["gemm"]                         # optional: whose tuned shapes are compiled
//! ```
//!
//! `name = "*"` means every kernel, and `name = "gemm*"` all that begin so. A variant or call that several lines select is as the last of them says. A line that selects nothing is
//! an error: it is a mistake in a name.
//!
//! What is `served` is found by launching it ([`launched`]), and called by function, element types and shape; facts are those of the launches, and as few as the kernel can do with, or `least`.
//! With `records`, these launches take the configs that were tuned, and the tuned shapes are launched, too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tegula_bundle::Label;
use tegula_kernels::registry::{Entry, Variant};
use tegula_kernels::served::{self, Served};
use tegula_runtime::Properties;

use crate::facts::FactSet;
use crate::launched::{known, launched};
use crate::plan::{CodeKind, Error, Plan};
use crate::records::Records;

/// A manifest.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Where the bundle goes, relative to the manifest's folder.
    pub output: PathBuf,
    /// Which sets of facts to compile under.
    #[serde(default = "default_facts")]
    pub facts: Vec<FactSet>,
    /// The model of the GPU that functions are launched on to find what they launch, and whose tuning records count.
    #[serde(default = "default_device")]
    pub device: String,
    /// Architectures, and which code of each.
    pub targets: BTreeMap<String, CodeKind>,
    /// What to compile.
    #[serde(default)]
    pub kernels: Vec<Selection>,
    /// Whose launches to compile.
    #[serde(default)]
    pub served: Vec<Calls>,
    /// What was tuned.
    pub records: Option<Records>,
}

/// Some functions.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Calls {
    /// Their name in [`tegula_kernels::served`], or a beginning of names with a `*` behind.
    pub name: String,
    /// Element types, or their beginnings with a `*` behind; all, if absent.
    pub types: Option<Vec<String>>,
    /// For which of the manifest's targets; all, if absent.
    pub targets: Option<Vec<String>>,
    /// The weakest set of facts, beside those that hold for the launches; as little as each kernel can do with, if absent. Launches of which less is known find no code.
    pub least: Option<FactSet>,
}

impl Calls {
    fn take(&self, call: &Served) -> bool {
        let any = |types: &Vec<String>| types.iter().any(|wanted| means(wanted, call.types));
        means(&self.name, call.name) && self.types.as_ref().is_none_or(any)
    }

    /// Adds what a call launches.
    fn add_to(&self, plan: &mut Plan<'_>, call: &Served, device: &Properties) -> Result<(), Error> {
        let of_launch = |message| Error::Manifest(format!("served {:?}: {message}", self.name));
        let kernels = launched(device, |device| call.call(device)).map_err(|e| of_launch(e.to_string()))?;
        let before = plan.len();
        plan.add_launched([call.name, call.types, &call.shape], &kernels, self.least);
        plan.restrict_from(before, self.targets.as_ref());
        Ok(())
    }
}

fn default_device() -> String {
    "NVIDIA H200".to_owned()
}

fn default_facts() -> Vec<FactSet> {
    FactSet::DEFAULT.to_vec()
}

/// Some variants of a kernel.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// Its name in the registry, or a beginning of names with a `*` behind.
    pub name: String,
    /// Element types, or their beginnings with a `*` behind; all, if absent.
    pub types: Option<Vec<String>>,
    /// Parts of configs; all, if absent.
    pub configs: Option<Vec<String>>,
    /// The sets of facts, instead of the manifest's.
    pub facts: Option<Vec<FactSet>>,
    /// For which of the manifest's targets; all, if absent.
    pub targets: Option<Vec<String>>,
}

/// Does the text contain these parts, between which a `*` stands, one behind the other?
fn contains_all(text: &str, parts: &str) -> bool {
    let mut rest = Some(text);
    for part in parts.split('*') {
        rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, behind)| behind);
    }
    rest.is_some()
}

/// Does a pattern, whose end may be a `*`, mean this word?
fn means(pattern: &str, word: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => word.starts_with(beginning),
        None => pattern == word,
    }
}

impl Selection {
    fn takes(&self, name: &str, variant: &Variant) -> bool {
        let any = |of: &Option<Vec<String>>, test: &dyn Fn(&str) -> bool| {
            of.as_ref().is_none_or(|all| all.iter().any(|x| test(x)))
        };
        means(&self.name, name)
            && any(&self.types, &|wanted| means(wanted, &variant.types))
            && any(&self.configs, &|parts| contains_all(&variant.config, parts))
    }
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// What is wrong, with its place.
    pub fn parse(text: &str) -> Result<Manifest, Error> {
        toml::from_str(text).map_err(|e| Error::Manifest(e.to_string()))
    }

    /// Reads a manifest's file; what it names lies relative to its folder.
    ///
    /// # Errors
    /// What is wrong, with its place.
    pub fn read(path: &Path) -> Result<Manifest, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Manifest(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| failed(&e))?;
        let mut manifest = Manifest::parse(&text).map_err(|e| failed(&e))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        manifest.output = folder.join(&manifest.output);
        if let Some(records) = &mut manifest.records {
            records.resolve(folder);
        }
        Ok(manifest)
    }

    /// The plan for these kernels. Configs for the host are left out: there is nothing to compile.
    ///
    /// # Errors
    /// If there is no target or no set of facts, a selection takes nothing, or records are wrong.
    pub fn plan<'a>(&self, registry: &'a [Entry]) -> Result<Plan<'a>, Error> {
        if self.targets.is_empty() {
            return Err(Error::Manifest("`targets` names no architecture".to_owned()));
        }
        if self.facts.is_empty() {
            return Err(Error::Manifest(
                "`facts` is empty: `none` is the set that serves every launch".to_owned(),
            ));
        }
        if self.kernels.is_empty() && self.served.is_empty() && self.records.is_none() {
            return Err(Error::Manifest(
                "nothing is asked for: there is neither `[[kernels]]` nor `[[served]]` nor `[records]`"
                    .to_owned(),
            ));
        }
        let device = known(&self.device)?;
        if self.output.as_os_str().is_empty() {
            return Err(Error::Manifest("`output` is empty: name the bundle's file".to_owned()));
        }
        // An empty list would select nothing, without a word.
        let lists = self.kernels.iter().flat_map(|s| {
            [
                ("types", s.types.as_deref()),
                ("configs", s.configs.as_deref()),
                ("targets", s.targets.as_deref()),
            ]
        });
        let of_served = self
            .served
            .iter()
            .flat_map(|s| [("types", s.types.as_deref()), ("targets", s.targets.as_deref())]);
        let empty_facts = self.kernels.iter().any(|s| s.facts.as_ref().is_some_and(Vec::is_empty));
        let empty = lists.chain(of_served).find(|(_, list)| list.is_some_and(<[String]>::is_empty));
        if let Some(name) = empty.map(|(name, _)| name).or(empty_facts.then_some("facts")) {
            return Err(Error::Manifest(format!(
                "a list `{name}` is empty: leave it out, or put something in"
            )));
        }
        let of_kernels = self.kernels.iter().filter_map(|selection| selection.targets.as_ref());
        let of_calls = self.served.iter().filter_map(|calls| calls.targets.as_ref());
        for target in of_kernels.chain(of_calls).flatten() {
            if !self.targets.contains_key(target) {
                return Err(Error::Manifest(format!("{target:?} is none of the manifest's `targets`")));
            }
        }
        let mut taken = vec![false; self.kernels.len()];
        let mut plan = Plan::new().facts(&self.facts);
        for (target, &code) in &self.targets {
            plan = plan.target(target, code);
        }
        for entry in registry {
            for variant in entry.variants.iter().filter(|variant| !variant.host_only) {
                let mut wanted = None;
                for (selection, taken) in self.kernels.iter().zip(&mut taken) {
                    if selection.takes(entry.name, variant) {
                        *taken = true;
                        wanted = Some(selection);
                    }
                }
                if let Some(selection) = wanted {
                    let (types, config) = (variant.types.clone(), variant.config.clone());
                    let label = Label { name: entry.name.to_owned(), types, config };
                    plan.add(label, move || variant.stage().map_err(|e| e.to_string()));
                    plan.restrict(selection.facts.clone(), selection.targets.clone());
                }
            }
        }
        if let Some(records) = &self.records {
            records.add_to(&mut plan, &device)?;
        }
        let calls = if self.served.is_empty() { Vec::new() } else { served::calls() };
        for (index, selection) in self.served.iter().enumerate() {
            if !calls.iter().any(|call| selection.take(call)) {
                let mut names: Vec<&str> = calls.iter().map(|call| call.name).collect();
                names.sort_unstable();
                names.dedup();
                let Calls { name, types, .. } = selection;
                return Err(Error::Manifest(format!(
                    "served[{index}] (name {name:?}, types {types:?}) selects nothing; functions are {}",
                    names.join(", ")
                )));
            }
        }
        for call in &calls {
            if let Some(selection) = self.served.iter().rev().find(|selection| selection.take(call)) {
                selection.add_to(&mut plan, call, &device)?;
            }
        }
        match taken.iter().position(|taken| !taken) {
            None => Ok(plan),
            Some(index) => {
                let names: Vec<&str> = registry.iter().map(|entry| entry.name).collect();
                let Selection { name, types, configs, .. } = &self.kernels[index];
                Err(Error::Manifest(format!(
                    "kernels[{index}] (name {name:?}, types {types:?}, configs {configs:?}) selects nothing; kernels are {}",
                    names.join(", ")
                )))
            }
        }
    }
}
