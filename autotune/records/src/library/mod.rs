//! The kernel library's records: configs as data and as types, and their installation.
//!
//! [`load`] refuses what cannot be right (unknown words, configs that are illegal at the corners of what they count for, other devices, other versions of the kernel); what
//! only a launch knows (strides, alignment, whether there is a workspace) the kernel library asks of each config at the launch.

pub mod attention;
pub mod gemm;
pub mod rms_norm;

use std::path::Path;

use tegula::runtime::Device;
use tegula_kernels::DeviceClass;
use tegula_kernels::tuned::{self, Entry, Table, Tuned};

use crate::bucket::Dim;
use crate::fields::{Config, Shape};
use crate::file::{Record, RecordFile};
use crate::folder::{Contents, Folder};
use crate::problem::Problem;
use crate::source::source_hash;

/// A kernel of the library, as records see it.
pub trait Library {
    /// The type of its configs.
    type Typed: Copy + PartialEq;
    /// The name of its records.
    const NAME: &'static str;
    /// The version of its space: changes when names of a config or their meaning do.
    const SPACE: u32;
    /// Its extents.
    const DIMS: &'static [Dim];

    /// A config as data.
    fn to_config(typed: &Self::Typed, shape: &Shape) -> Config;

    /// Data as a config.
    ///
    /// # Errors
    /// What is missing or unknown.
    fn from_config(config: &Config, shape: &Shape) -> Result<Self::Typed, String>;

    /// Is it legal, as far as shape and device say?
    ///
    /// # Errors
    /// Why not.
    fn check(typed: &Self::Typed, shape: &Shape, device: DeviceClass) -> Result<(), String>;

    /// The kernel's source.
    fn source() -> String {
        source_hash(tuned::sources(Self::NAME))
    }
}

/// The extents of a kernel of the library that has records; none of any other.
pub fn dims(kernel: &str) -> &'static [Dim] {
    match kernel {
        gemm::Gemm::NAME => gemm::Gemm::DIMS,
        rms_norm::RmsNorm::NAME => rms_norm::RmsNorm::DIMS,
        attention::Forward::NAME => attention::Forward::DIMS,
        attention::Decode::NAME => attention::Decode::DIMS,
        _ => &[],
    }
}

/// What was found in a folder for a device.
pub struct Loaded {
    /// What counts.
    pub tuned: Tuned,
    /// Records that count.
    pub used: usize,
    /// These, with the names of their kernels.
    pub records: Vec<(String, Record)>,
    /// Records that do not any more: kernels have changed. Said once here, since it is no fault of the file.
    pub stale: usize,
    /// What is wrong: file, line, reason.
    pub refused: Vec<Problem>,
}

/// Reads a folder's records of the kernel library for a device, without installing them.
pub fn load(folder: impl AsRef<Path>, model: &str, device: DeviceClass) -> Loaded {
    let Contents { files, refused } = Folder::new(folder.as_ref()).read();
    let mut loaded = Loaded { tuned: Tuned::new(model), used: 0, records: Vec::new(), stale: 0, refused };
    for (path, file) in files {
        let name = path.display().to_string();
        // One folder serves all devices of a team; another device's file is no fault unless it is under this one's name.
        let named_for_this = RecordFile::new(&file.kernel, model).name();
        if file.device != model {
            if path.file_name().is_some_and(|n| n.to_string_lossy() == named_for_this) {
                let reason = format!("the records are of {}, but this device is {model}", file.device);
                loaded.refused.push(Problem { file: name, line: 3, reason });
            }
            continue;
        }
        let mut table =
            Loading { name: &name, file: &file, device, used: Vec::new(), stale: 0, refused: vec![] };
        let tuned = &mut loaded.tuned;
        match file.kernel.as_str() {
            gemm::Gemm::NAME => table.fill::<gemm::Gemm>(&mut tuned.gemm),
            rms_norm::RmsNorm::NAME => table.fill::<rms_norm::RmsNorm>(&mut tuned.rms_norm),
            attention::Forward::NAME => table.fill::<attention::Forward>(&mut tuned.forward),
            attention::Decode::NAME => table.fill::<attention::Decode>(&mut tuned.decode),
            _ => {} // a kernel of somebody else's
        }
        loaded.used += table.used.len();
        loaded.records.extend(table.used.into_iter().map(|record| (file.kernel.clone(), record.clone())));
        loaded.stale += table.stale;
        loaded.refused.extend(table.refused);
    }
    loaded
}

/// Reads a folder's records for a device and installs them for this process. What was refused is in the result, and on nobody's way: those kernels run with their defaults.
///
/// # Errors
/// If records are installed already.
pub fn install(folder: impl AsRef<Path>, device: &Device) -> Result<Installed, AlreadyInstalled> {
    let Loaded { tuned, used, stale, refused, .. } =
        load(folder, &device.properties().model, DeviceClass::of(device));
    tuned::install(tuned).map_err(|_| AlreadyInstalled)?;
    Ok(Installed { used, stale, refused })
}

/// What [`install`] did.
#[derive(Clone, Debug, PartialEq)]
pub struct Installed {
    /// Records that count.
    pub used: usize,
    /// Records of kernels that have changed since.
    pub stale: usize,
    /// What is wrong: file, line, reason.
    pub refused: Vec<Problem>,
}

/// A process installs records once, so that launches take no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tuning records are installed already: a process installs them once")]
pub struct AlreadyInstalled;

struct Loading<'a> {
    name: &'a str,
    file: &'a RecordFile,
    device: DeviceClass,
    used: Vec<&'a Record>,
    stale: usize,
    refused: Vec<Problem>,
}

impl Loading<'_> {
    fn fill<K: Library>(&mut self, table: &mut Table<K::Typed>) {
        let source = K::source();
        for record in &self.file.records {
            if record.stale.is_some() || record.source != source || record.space != K::SPACE {
                self.stale += 1;
                continue;
            }
            match checked::<K>(record, self.device) {
                Ok(config) => {
                    let ranges = K::DIMS.iter().filter_map(|dim| record.range(dim.name)).collect();
                    table.add(Entry::new(ranges, config, format!("{}:{}", self.name, record.line)));
                    self.used.push(record);
                }
                Err(reason) => {
                    self.refused.push(Problem { file: self.name.to_owned(), line: record.line, reason });
                }
            }
        }
    }
}

/// The config of a record that is legal for the largest shape that it counts for. (What is legal for it may still not be for a smaller one: that is asked at the launch.)
///
/// # Errors
/// Why it is refused.
pub fn checked<K: Library>(record: &Record, device: DeviceClass) -> Result<K::Typed, String> {
    record.fits(K::DIMS)?;
    let shape = record.corner(true);
    let config = K::from_config(&record.config, &shape).map_err(|e| format!("config: {e}"))?;
    K::check(&config, &shape, device).map_err(|e| format!("config: {e}"))?;
    Ok(config)
}
