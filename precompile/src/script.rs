//! For `build.rs`: a crate's kernels are compiled while it is built, or, where there is no compiler, taken from a bundle that lies with its sources.
//!
//! **Contract.** What ends up in the program has every kernel of the plan as it is now, or the build fails and says which are missing: a bundle in the sources that is out of date
//! is never taken. Nothing is written but the file in the build's folder and, if [`UPDATE`] is set, the one in the sources.

use std::path::{Path, PathBuf};

use tegula_bundle::{Bundle, write_file};
use tegula_ir::artifact::Compiler;

use crate::plan::{Error, Plan};

/// The variable with which a build that compiles also renews the bundle in the sources.
pub const UPDATE: &str = "TEGULA_UPDATE_BUNDLES";

/// Where a build reads and writes.
#[derive(Clone, Debug)]
pub struct Script {
    /// The folder with the bundle that was checked in: the crate's.
    pub sources: PathBuf,
    /// The build's folder.
    pub out: PathBuf,
    /// Is the bundle in the sources to be renewed?
    pub update: bool,
}

/// The whole of a `build.rs`: puts `name` into `OUT_DIR`, compiled if this crate was built with its feature `jit`, or else copied from the crate's folder. The program has it by
/// `include_bundle!(concat!(env!("OUT_DIR"), "/kernels.tegula"))`.
///
/// # Panics
/// If there is no such bundle, which fails the build with the reason.
pub fn build_script(name: &str, plan: &Plan<'_>) {
    let folder = |variable| PathBuf::from(std::env::var_os(variable).unwrap_or_default());
    let script = Script {
        sources: folder("CARGO_MANIFEST_DIR"),
        out: folder("OUT_DIR"),
        update: std::env::var_os(UPDATE).is_some(),
    };
    // A file that is not there would be one that has always changed.
    if script.sources.join(name).exists() {
        println!("cargo::rerun-if-changed={name}");
    }
    println!("cargo::rerun-if-changed=src");
    for variable in [UPDATE, "TEGULA_PTXAS"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    #[cfg(feature = "jit")]
    let compiler = Some(tegula_codegen::compile::PtxCompiler::new(tegula_codegen::Options {
        line_info: false,
        ..Default::default()
    }));
    #[cfg(not(feature = "jit"))]
    let compiler = None::<&dyn Compiler>;
    #[cfg(feature = "jit")]
    let compiler = compiler.as_ref().map(|compiler| compiler as &dyn Compiler);
    if let Err(error) = script.bundle(name, plan, compiler) {
        panic!("{error}");
    }
}

impl Script {
    /// Writes the bundle into the build's folder.
    ///
    /// # Errors
    /// If the compiler refuses a kernel; or, without one, if the bundle in the sources is damaged or has not everything.
    pub fn bundle(&self, name: &str, plan: &Plan<'_>, compiler: Option<&dyn Compiler>) -> Result<(), Error> {
        let (source, out) = (self.sources.join(name), self.out.join(name));
        let Some(compiler) = compiler else { return copy(&source, &out, plan) };
        // What the last build or whoever checked a bundle in compiled is not compiled again. A bundle that cannot be opened is one that nothing is taken from.
        let previous = Bundle::open(&out).or_else(|_| Bundle::open(&source)).ok();
        let outcome = plan.run(compiler, previous.as_ref(), &|_| ())?;
        if let Some(failure) = outcome.failures.into_iter().next() {
            return Err(Error::Refused(Box::new(failure)));
        }
        write_file(&out, &outcome.bundle)?;
        if self.update {
            write_file(&source, &outcome.bundle)?;
        }
        Ok(())
    }
}

fn copy(source: &Path, out: &Path, plan: &Plan<'_>) -> Result<(), Error> {
    let bundle = Bundle::open(source)?;
    if let Some(error) = bundle.verify().err().and_then(|errors| errors.into_iter().next()) {
        return Err(error.into());
    }
    let missing = plan.missing_in(&bundle)?;
    if !missing.is_empty() {
        return Err(Error::OutOfDate { bundle: source.to_owned(), missing: missing.join("; ") });
    }
    Ok(write_file(out, bundle.bytes())?)
}
