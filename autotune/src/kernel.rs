//! What can be tuned: a kernel says which shapes and configs it has, which of them are legal, what the work is, and how to run and check it.
//!
//! Configs are data here ([`Config`]: names and values), so that a kernel of anyone's has records, trials and reports as those of the kernel library do.

use tegula::runtime::{Device, Stream};
pub use tegula_records::{Config, Dim, Shape};

use crate::cost::{Plan, Work};
use crate::device::DeviceInfo;
use crate::shapes::{Demand, Workload};

/// A kernel that can be tuned. All but [`Tunable::instance`] is arithmetic: no device is needed to know what would be tried.
pub trait Tunable: Send + Sync {
    /// Its name: of the record's file, and on command lines.
    fn name(&self) -> &str;

    /// The extents of its shapes, in order, and which of them a record covers a range of.
    fn dims(&self) -> &[Dim];

    /// A hash of what its code is made of ([`tegula_records::source_hash`]): with another one, records are stale.
    fn source(&self) -> String;

    /// Changes when a config's names or their meaning do: records with another version are stale. A config that is only *added* changes nothing.
    fn space_version(&self) -> u32 {
        1
    }

    /// The shapes that a model needs; none by default, for kernels that are tuned for named shapes or a log of them.
    ///
    /// # Errors
    /// If the model cannot be divided among so many devices.
    fn shapes(&self, _workload: &Workload) -> Result<Demand, String> {
        Ok(Demand::default())
    }

    /// All configs worth a try, each once, legal or not.
    fn space(&self, shape: &Shape, device: &DeviceInfo) -> Vec<Config>;

    /// What runs without a record. It is tried first, and all others are measured beside it.
    fn default_config(&self, shape: &Shape, device: &DeviceInfo) -> Config;

    /// Can the config run? Asked before anything is compiled: alignment, shared memory, registers, the grid.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, shape: &Shape, config: &Config, device: &DeviceInfo) -> Result<(), String>;

    /// What there is to do, whatever the config: for rooflines.
    fn work(&self, shape: &Shape) -> Work;

    /// How a config does it, for the cost model that orders configs; `None`: they are tried in the order of [`Tunable::space`].
    fn plan(&self, _shape: &Shape, _config: &Config, _device: &DeviceInfo) -> Option<Plan> {
        None
    }

    /// A smaller shape that stands for a large one where every instruction is emulated.
    fn emulated_shape(&self, shape: &Shape) -> Shape {
        shape.clone()
    }

    /// Makes inputs on a device. Called in a worker process.
    ///
    /// # Errors
    /// If there is no memory.
    fn instance(&self, shape: &Shape, device: &Device, purpose: Purpose)
    -> Result<Box<dyn Instance>, String>;
}

/// What an instance is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Launches are recorded and never run: memory needs no contents.
    Compile,
    /// Launches are checked and timed. Inputs of successive calls should not be in the device's cache: more than this many bytes in all.
    Run {
        /// Bytes to go through.
        rotate: usize,
    },
}

/// A kernel with its inputs, at one shape.
pub trait Instance: Send {
    /// Launches once, with the inputs of this call (they rotate).
    ///
    /// # Errors
    /// What the launch says.
    fn launch(&mut self, config: &Config, call: usize, stream: &Stream) -> Result<(), String>;

    /// Launches with the inputs of call 0 into an output that has been poisoned, and compares with the reference.
    ///
    /// # Errors
    /// [`Fault::Wrong`] with the first wrong element; [`Fault::Failed`] if it did not run.
    fn verify(&mut self, config: &Config, stream: &Stream) -> Result<(), Fault>;

    /// Seconds of a call by a model of the kernel's own, which replaces measurement: for deterministic tests.
    fn simulated(&mut self, _config: &Config) -> Option<f64> {
        None
    }
}

/// Why an instance's result is no good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It ran, and the result is wrong.
    Wrong(String),
    /// It did not run.
    Failed(String),
}

impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault::Failed(message)
    }
}

/// A shape with the kernel's extents in the kernel's order, of one written by hand.
///
/// # Errors
/// Extents that are missing, unknown or 0.
pub fn shape_of(kernel: &dyn Tunable, written: &Shape) -> Result<Shape, String> {
    let names: Vec<&str> = kernel.dims().iter().map(|dim| dim.name).collect();
    tegula_records::in_order(&names, written).map_err(|e| format!("{}: {e}", kernel.name()))
}

/// The shape that stands for all of a bucket: the largest, for which what is legal is legal for the others as far as registers and grids go.
pub fn representative(kernel: &dyn Tunable, shape: &Shape) -> Shape {
    let valid = tegula_records::bucket(kernel.dims(), shape);
    let mut largest = shape.clone();
    for (name, range) in valid.iter() {
        largest.set(name, range[1]);
    }
    largest
}
