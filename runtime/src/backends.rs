//! The devices there are, by name.

use crate::backend::Backend;
use crate::cuda;
use crate::error::Error;
use crate::host;

/// Opens a backend by its full name.
pub(crate) fn open(name: &str) -> Result<Box<dyn Backend>, Error> {
    if name == "host" || name == "host:races" {
        return Ok(host::open(name, name == "host:races"));
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
    format!("`host`, `host:races`{gpus}")
}
