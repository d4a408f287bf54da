//! What tuning found: configs that launches take instead of their defaults, and the shapes that were tuned.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use tegula_kernels::DeviceClass;
use tegula_kernels::served;
use tegula_kernels::tuned;
use tegula_records::library::{self, Loaded, dims};
use tegula_runtime::Properties;

use crate::launched::launched;
use crate::plan::{Error, Plan};

/// `[records]` of a manifest.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Records {
    /// The folder that `tegula-autotune` wrote, relative to the manifest's.
    pub folder: PathBuf,
    /// The kernels whose tuned shapes are compiled; all that have records, if absent.
    pub kernels: Option<Vec<String>>,
}

impl Records {
    /// Installs what counts for the device, for all launches that follow, and adds what is launched for the shapes of these records, and at the ends of what they count for. What is wrong
    /// with a record is an error: a bundle that lacks what was tuned is found out late.
    ///
    /// # Errors
    /// If a file or a record is refused, none is of this device or of a kernel that is named, or this process has installed records before.
    pub(crate) fn add_to(&self, plan: &mut Plan<'_>, device: &Properties) -> Result<(), Error> {
        let failed = |message: String| Error::Manifest(format!("records: {message}"));
        let folder = self.folder.display();
        let Loaded { tuned, used, stale, refused, records } =
            library::load(&self.folder, &device.model, class_of(device)?);
        if let Some(first) = refused.first() {
            return Err(failed(format!("{first}{}", if refused.len() > 1 { ", and more" } else { "" })));
        }
        let changed = if stale == 0 {
            String::new()
        } else {
            format!("; {stale} of kernels that have changed since do not: tune again")
        };
        if used == 0 {
            return Err(failed(format!(
                "{folder} has none that count for a device {:?}{changed}",
                device.model
            )));
        }
        if self.kernels.as_ref().is_some_and(Vec::is_empty) {
            return Err(failed("`kernels` is empty: leave it out, or name some".to_owned()));
        }
        for name in self.kernels.iter().flatten() {
            if !records.iter().any(|(kernel, _)| kernel == name) {
                let none = format!(
                    "{folder} has none of kernel {name:?} that count for a device {:?}",
                    device.model
                );
                return Err(failed(format!("{none}{changed}")));
            }
        }
        if tuned::install(tuned).is_err() {
            return Err(failed("this process has installed some before, and launches take those".to_owned()));
        }
        plan.note(format!("{used} records of {folder} count{changed}"));
        let wanted = |kernel: &String| self.kernels.as_ref().is_none_or(|names| names.contains(kernel));
        for (kernel, record) in records.iter().filter(|(kernel, _)| wanted(kernel)) {
            let mut shapes = vec![record.shape.clone(), record.corner(false), record.corner(true)];
            shapes.dedup();
            for shape in shapes {
                let extents: Vec<u64> =
                    dims(kernel).iter().map(|dim| shape.extent(dim.name) as u64).collect();
                // An end of a range need not be a shape.
                let Some(call) = served::of_record(kernel, &extents) else { continue };
                let kernels = launched(device, |device| call.call(device))
                    .map_err(|e| failed(format!("{kernel}, line {}: {e}", record.line)))?;
                plan.add_launched([call.name, call.types, &call.shape], &kernels, None);
            }
        }
        Ok(())
    }

    pub(crate) fn resolve(&mut self, folder: &Path) {
        self.folder = folder.join(&self.folder);
    }
}

/// The class of a GPU that is not there.
fn class_of(device: &Properties) -> Result<DeviceClass, Error> {
    let device = tegula_runtime::Device::compiling_for(device).map_err(|e| Error::Manifest(e.to_string()))?;
    Ok(DeviceClass::of(&device))
}
