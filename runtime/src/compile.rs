//! From a staged kernel to one that is ready to run on a device.

use std::sync::Arc;

use tegula_ir::artifact::CompiledKernel;
use tegula_ir::kernel::Kernel;

use crate::backend::{Code, Executable};
use crate::cache;
use crate::device::Device;
use crate::error::LaunchError;

/// Compiles the kernel if the device needs machine code, and gets it ready.
pub(crate) fn prepare(
    name: &str,
    kernel: Kernel,
    device: &Device,
) -> Result<Arc<dyn Executable>, LaunchError> {
    tegula_ir::verify::verify(&kernel).map_err(|errors| LaunchError::Stage {
        kernel: name.to_owned(),
        message: errors.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("\n"),
    })?;
    let code = match device.0.backend.target() {
        None => Code::Ir(Box::new(kernel)),
        Some(target) => Code::Compiled(compiled(name, &kernel, target, device)?),
    };
    device.0.backend.prepare(code).map_err(|message| LaunchError::Run {
        kernel: name.to_owned(),
        device: device.name().to_owned(),
        message,
    })
}

/// From the disk, or the compiler.
fn compiled(
    name: &str,
    kernel: &Kernel,
    target: &str,
    device: &Device,
) -> Result<CompiledKernel, LaunchError> {
    let compiler = device
        .compiler()
        .ok_or_else(|| LaunchError::NoCompiler { kernel: name.to_owned(), target: target.to_owned() })?;
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
