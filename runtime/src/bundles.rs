//! Where launches look for kernels that were compiled before.
//!
//! In this order; the first that has the kernel for the device, and for arguments with such facts, is taken:
//!
//! 1. bundles that were given to the device ([`Device::add_bundle`](crate::Device::add_bundle)), the latest first;
//! 2. bundles that were given to the program ([`register_bundle`]): those opened from files, then those that are part of the program, the latest first;
//! 3. bundles on the search path: the variable `TEGULA_BUNDLE_PATH` names files, and folders whose files `*.tegula` are taken in the order of their names;
//! 4. the cache on disk, which is the compiler's: it is asked only where there is one;
//! 5. the compiler, in programs that have one.
//!
//! What a program asks for by name comes before what its user's environment says, so that a variable that is left over does not change what a tested program
//! runs. Code in a bundle that is damaged is an error, also where there is a compiler: that would hide a fault that has to be mended, and cost a pause at
//! each start. On the search path, a file that is no whole bundle is left out, which is said once.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{OnceLock, PoisonError, RwLock};

use tegula_bundle::{Bundle, Found, SourceHash, Wanted};
use tegula_ir::artifact::CompiledKernel;
use tegula_ir::kernel::{Kernel, ParamFacts};

use crate::device::Device;
use crate::error::LaunchError;

/// A list of bundles, in the order they were given.
#[derive(Default)]
pub(crate) struct Bundles(RwLock<Vec<Bundle>>);

impl Bundles {
    pub(crate) const fn new() -> Bundles {
        Bundles(RwLock::new(Vec::new()))
    }

    pub(crate) fn add(&self, bundle: Bundle) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(bundle);
    }

    /// The latest first.
    fn latest_first(&self) -> Vec<Bundle> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }
}

static REGISTERED: Bundles = Bundles::new();

/// Lets all launches of this program look in a bundle: one from a file, or, with `include_bundle!` of the crate `tegula`, one that is part of the program.
/// Kernels that have run before stay what they are.
pub fn register_bundle(bundle: Bundle) {
    REGISTERED.add(bundle);
}

/// What was found, or why nothing was.
pub(crate) enum Search {
    Found(Box<CompiledKernel>),
    /// A line for each bundle that was asked.
    Missed(Vec<String>),
}

/// Looks for a staged kernel, whose facts are those of its launch.
pub(crate) fn search(
    name: &str,
    kernel: &Kernel,
    target: &str,
    device: &Device,
) -> Result<Search, LaunchError> {
    let all = all(device);
    if all.is_empty() {
        return Ok(Search::Missed(Vec::new()));
    }
    let source = SourceHash::of(kernel);
    let facts: Vec<ParamFacts> = kernel.params.iter().map(|param| param.facts.clone()).collect();
    let wanted = wanted(device);
    let mut missed = Vec::new();
    for bundle in all {
        let found = bundle.code(&source, &facts, target, wanted);
        match found
            .map_err(|error| LaunchError::Bundle { kernel: name.to_owned(), error: Box::new(error) })?
        {
            Found::Kernel(code) => return Ok(Search::Found(code)),
            why => missed.push(format!("{}: {}", bundle.name(), explain(&why, name, &bundle))),
        }
    }
    Ok(Search::Missed(missed))
}

/// What code the device takes.
pub(crate) fn wanted(device: &Device) -> Wanted {
    if device.0.backend.takes_ptx() { Wanted::Ptx } else { Wanted::Machine }
}

/// Why a bundle has nothing for a launch.
pub(crate) fn explain(why: &Found, name: &str, bundle: &Bundle) -> String {
    match why {
        Found::OtherTargets(targets) => format!("the kernel is there, but for {} only", targets.join(", ")),
        Found::OtherFacts => "the kernel is there, but only for arguments that are aligned, contiguous or divisible as these are not \
             (it has no variant without facts)"
            .to_owned(),
        _ => {
            let named = bundle.records().flatten().filter(|r| r.labels.iter().any(|label| label.name == name)).count();
            match named {
                0 => "there is no kernel of this name".to_owned(),
                n => format!("there are {n} kernels of this name, but of other element types, meta-parameters or hints, or of another version of its source"),
            }
        }
    }
}

/// Every bundle that a launch on the device looks in, in order.
fn all(device: &Device) -> Vec<Bundle> {
    let mut all = device.0.bundles.latest_first();
    let (embedded, files): (Vec<_>, Vec<_>) =
        REGISTERED.latest_first().into_iter().partition(Bundle::is_embedded);
    all.extend(files);
    all.extend(embedded);
    all.extend_from_slice(on_search_path());
    all
}

/// Opened when a kernel is looked for first.
fn on_search_path() -> &'static [Bundle] {
    static FOUND: OnceLock<Vec<Bundle>> = OnceLock::new();
    FOUND.get_or_init(|| match std::env::var_os("TEGULA_BUNDLE_PATH") {
        Some(path) => open_all(&path, &mut |message| {
            eprintln!("tegula: {message} (named by TEGULA_BUNDLE_PATH; it is left out)")
        }),
        None => Vec::new(),
    })
}

/// The bundles that a search path names; what cannot be opened is told.
fn open_all(path: &OsStr, tell: &mut dyn FnMut(String)) -> Vec<Bundle> {
    let mut bundles = Vec::new();
    for place in std::env::split_paths(path).filter(|p| !p.as_os_str().is_empty()) {
        for file in files(&place) {
            match Bundle::open(&file) {
                Ok(bundle) => bundles.push(bundle),
                Err(error) => tell(error.to_string()),
            }
        }
    }
    bundles
}

/// A file, or the bundles in a folder.
fn files(place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(place) else { return vec![place.to_owned()] };
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "tegula"))
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use tegula_bundle::{Builder, write_file};

    #[test]
    fn a_search_path_names_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let empty = Builder::new().finish();
        std::fs::create_dir(at("many")).unwrap();
        for name in ["one.bundle", "many/b.tegula", "many/a.tegula", "many/readme.txt", "unnamed.tegula"] {
            write_file(&at(name), &empty).unwrap();
        }
        std::fs::write(at("many/c.tegula"), "no bundle").unwrap();
        let path = std::env::join_paths([at("many"), at("absent.tegula"), at("one.bundle")]).unwrap();
        let mut told = Vec::new();
        let bundles = open_all(&path, &mut |message| told.push(message));
        let names: Vec<_> = bundles.iter().map(|b| b.name().rsplit('/').next().unwrap().to_owned()).collect();
        assert_eq!(names, ["a.tegula", "b.tegula", "one.bundle"]);
        assert!(
            told.len() == 2 && told[0].contains("c.tegula") && told[1].contains("absent.tegula"),
            "{told:?}"
        );
    }
}
