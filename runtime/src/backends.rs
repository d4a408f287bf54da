//! The devices there are, by name.

use crate::backend::Backend;
use crate::cuda;
#[cfg(feature = "emulator")]
use crate::emulated;
use crate::error::Error;
use crate::host;

/// Opens a backend by its full name.
pub(crate) fn open(name: &str) -> Result<Box<dyn Backend>, Error> {
    if name == "host" || name == "host:races" {
        return Ok(host::open(name, name == "host:races"));
    }
    if let Some(target) = name.strip_prefix("emulated:") {
        #[cfg(feature = "emulator")]
        return emulated::open(name, target);
        #[cfg(not(feature = "emulator"))]
        return Err(Error::Unsupported(format!(
            "there is no device `{name}`: to emulate {target}, build `tegula-runtime` with its feature `emulator`"
        )));
    }
    match name.strip_prefix("cuda:").map(str::parse) {
        Some(Ok(ordinal)) => cuda::open(ordinal),
        _ => Err(Error::UnknownDevice { name: name.to_owned(), known: known() }),
    }
}

/// The names that would work on this machine.
fn known() -> String {
    let gpus = (0..cuda::count()).map(|i| format!(", `cuda:{i}`")).collect::<String>();
    let gpus =
        if gpus.is_empty() { ", and `cuda` where there is a GPU (none is here)".to_owned() } else { gpus };
    let emulated = if cfg!(feature = "emulator") { ", `emulated:sm_90a`, `emulated:sm_80`" } else { "" };
    format!("`host`, `host:races`{emulated}{gpus}")
}
