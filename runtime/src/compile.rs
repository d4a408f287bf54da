//! From a staged kernel to one that is ready to run on a device: from a bundle, from the cache on disk, or compiled.

use std::sync::Arc;

use tegula_ir::artifact::CompiledKernel;
use tegula_ir::kernel::Kernel;

use crate::backend::{Code, Executable};
use crate::bundles::{self, Search};
use crate::cache;
use crate::device::Device;
use crate::error::LaunchError;

/// Finds or compiles the kernel if the device needs machine code, and gets it ready.
pub(crate) fn prepare(
    name: &str,
    kernel: Kernel,
    device: &Device,
) -> Result<Arc<dyn Executable>, LaunchError> {
    let code = match device.0.backend.target() {
        None => {
            verify(name, &kernel)?;
            Code::Ir(Box::new(kernel))
        }
        Some(target) => match bundles::search(name, &kernel, target, device)? {
            // Verified when it was compiled.
            Search::Found(code) => Code::Compiled(*code),
            Search::Missed(missed) => {
                verify(name, &kernel)?;
                Code::Compiled(compiled(name, &kernel, target, device, missed)?)
            }
        },
    };
    device.0.backend.prepare(code).map_err(|message| LaunchError::Run {
        kernel: name.to_owned(),
        device: device.name().to_owned(),
        message,
    })
}

fn verify(name: &str, kernel: &Kernel) -> Result<(), LaunchError> {
    tegula_ir::verify::verify(kernel).map_err(|errors| LaunchError::Stage {
        kernel: name.to_owned(),
        message: errors.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("\n"),
    })
}

/// From the disk, or the compiler. `missed`: why bundles do not have it.
fn compiled(
    name: &str,
    kernel: &Kernel,
    target: &str,
    device: &Device,
    missed: Vec<String>,
) -> Result<CompiledKernel, LaunchError> {
    let Some(compiler) = device.compiler() else {
        let (kernel, target) = (name.to_owned(), target.to_owned());
        return Err(match missed.is_empty() {
            true => LaunchError::NoCompiler { kernel, target },
            false => LaunchError::NotInBundles { kernel, target, message: missed.join("\n") },
        });
    };
    let takes_ptx = device.0.backend.takes_ptx();
    let compile =
        || if takes_ptx { compiler.compile_to_ptx(kernel, target) } else { compiler.compile(kernel, target) };
    let Some(disk) = device.disk_cache() else { return Ok(compile()?) };
    // Apart, so that a GPU never finds an entry without its cubin.
    let kind = if takes_ptx { format!("{target} ptx") } else { target.to_owned() };
    let address = cache::address(kernel, &kind, compiler.version());
    if let Some(found) = disk.load(address) {
        return Ok(found);
    }
    let compiled = compile()?;
    disk.store(address, &compiled);
    Ok(compiled)
}
