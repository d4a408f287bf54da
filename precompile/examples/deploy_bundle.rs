//! The bundle of a program that is not in it: what `deploy`, an example of the kernel library, launches on an H200, and what `rms_norm.py` calls by its name.
//!
//! The program's own functions are called, on an H200 that is not there, and each kernel that they launch is compiled: no list of kernels has to be kept.
//!
//! ```console
//! $ cargo run --release -p tegula-precompile --features jit --example deploy_bundle -- kernels.tegula
//! $ deploy cuda kernels.tegula
//! ```

use std::error::Error;
use std::process::ExitCode;

use tegula_codegen::Options;
use tegula_codegen::compile::PtxCompiler;
use tegula_precompile::{Manifest, h200, launched, table, write_file};

#[path = "../../kernel-lib/examples/deploy.rs"]
#[allow(dead_code, reason = "a program by itself, of which this one calls a part")]
mod deploy;

/// Kernels that are called by their names, as those of the registry.
const BY_NAME: &str = r#"
output = "kernels.tegula"
[targets]
sm_90a = "cubin"
[[kernels]]
name = "rms_norm"
types = ["bf16, bf16", "f16, f16"]
configs = ["block: 1024", "block: 4096", "block: 8192, one_block: true"]
"#;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: deploy_bundle BUNDLE");
        return ExitCode::from(2);
    };
    match make(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make(path: &str) -> Result<(), Box<dyn Error>> {
    let kernels = launched::<Box<dyn Error>>(&h200(), |device| {
        deploy::everything(&mut deploy::Report::of_launches(), device, false)
    })?;
    let registry = tegula_kernels::registry::all_kernels();
    let plan = Manifest::parse(BY_NAME)?.plan(&registry)?.launched("deploy", "bf16", "launch", &kernels);
    let compiler = PtxCompiler::new(Options { line_info: false, ..Options::default() });
    let outcome = plan.run(&compiler, None, &|_| ())?;
    print!("{}", table(&outcome));
    if let Some(failure) = outcome.failures.first() {
        return Err(format!("{}: {}", failure.label.name, failure.message).into());
    }
    debug_assert_eq!(plan.coverage(&kernels, "sm_90a")?.missing.len(), 0);
    Ok(write_file(path.as_ref(), &outcome.bundle)?)
}
