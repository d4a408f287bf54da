//! Kernels of a bundle, launched by their names: for programs that do not have the kernels' source, as those in other languages.
//!
//! What a `#[kernel]` function promises by its types is checked here against what the bundle says of the parameters; what the compiler relies on beyond
//! that (arguments of one launch do not overlap, a grid covers what it should) is up to the caller, as it is in CUDA.

use tegula_bundle::{Bundle, Found, Label, ParamKind, ParamRecord, Record};
use tegula_ir::artifact::ResourceReport;
use tegula_ir::kernel::ParamFacts;
use xxhash_rust::xxh3::xxh3_128;

use super::args::{Arg, ArgValue};
use super::grid::Grid;
use super::key::Key;
use super::{facts, fits};
use crate::backend::{Code, Executable, LaunchConfig};
use crate::bundles;
use crate::device::Device;
use crate::error::LaunchError;
use crate::memory::{self, Access};
use crate::stream::Stream;

/// A kernel of a bundle, for all devices and arguments that the bundle has it for.
#[derive(Debug, Clone)]
pub struct BundledKernel {
    bundle: Bundle,
    record: Record,
    label: Label,
    /// Tells it from every other kernel, of this bundle and of others.
    key: u128,
}

impl BundledKernel {
    /// The kernel that is called so.
    ///
    /// # Errors
    /// If several kernels are called so, or what the bundle says of the kernel makes no sense.
    pub fn find(bundle: &Bundle, label: &Label) -> Result<Option<BundledKernel>, tegula_bundle::Error> {
        let found = bundle.find_label(label)?;
        Ok(found.map(|record| BundledKernel::new(bundle, label.clone(), record)))
    }

    /// The kernel with this number, below [`Bundle::label_count`].
    ///
    /// # Errors
    /// If what the bundle says of the kernel makes no sense.
    pub fn at(bundle: &Bundle, number: usize) -> Result<Option<BundledKernel>, tegula_bundle::Error> {
        let found = bundle.labelled(number)?;
        Ok(found.map(|(label, record)| BundledKernel::new(bundle, label, record)))
    }

    fn new(bundle: &Bundle, label: Label, record: Record) -> BundledKernel {
        let identity = [&record.source.0[..], bundle.checksum()].concat();
        BundledKernel { bundle: bundle.clone(), record, label, key: xxh3_128(&identity) }
    }

    /// What it is called.
    pub fn label(&self) -> &Label {
        &self.label
    }

    /// What it takes.
    pub fn params(&self) -> &[ParamRecord] {
        &self.record.params
    }

    /// Runs it on a stream, as [`Launch::launch`](super::Launch::launch) does.
    ///
    /// # Safety
    /// A kernel stays inside of the views it is given, but pointers have no bounds; and it may have been compiled from code whose own promises (`assume`, extents that agree)
    /// are not known here. The arguments must be such as the kernel was written for, and what it stores to must not overlap with anything else that it is given.
    ///
    /// # Errors
    /// Arguments that do not fit, no code for this device and arguments, damaged code, and what a launch can fail with.
    pub unsafe fn launch(
        &self,
        args: &[ArgValue<'_>],
        grid: impl Into<Grid>,
        stream: &Stream,
    ) -> Result<(), LaunchError> {
        let device = stream.device();
        let grid = grid.into().check().map_err(|message| self.configuration(message))?;
        let executable = self.executable(args, device)?;
        if grid.contains(&0) {
            return Ok(());
        }
        let uses = args.iter().filter_map(|arg| arg.memory()?.used());
        let _turn = memory::order(stream, uses)
            .map_err(|error| LaunchError::Device { kernel: self.label.name.clone(), error })?;
        executable
            .launch(args, &LaunchConfig { grid, max_ctas: None }, &*stream.0.raw)
            .map_err(|m| self.run_error(device, m))
    }

    /// Loads the code for such arguments without running it.
    ///
    /// # Errors
    /// As for [`BundledKernel::launch`].
    pub fn warm_up(
        &self,
        args: &[ArgValue<'_>],
        device: &Device,
    ) -> Result<Option<ResourceReport>, LaunchError> {
        Ok(self.executable(args, device)?.report().cloned())
    }

    fn executable<'d>(
        &self,
        args: &[ArgValue<'_>],
        device: &'d Device,
    ) -> Result<&'d dyn Executable, LaunchError> {
        let params = &self.record.params;
        if args.len() != params.len() {
            let message = format!("it takes {} arguments, but {} were passed", params.len(), args.len());
            return Err(self.configuration(message));
        }
        for (arg, param) in args.iter().zip(params) {
            if !fits(arg, device) || !takes(param.kind, arg) {
                return Err(LaunchError::Argument {
                    kernel: self.label.name.clone(),
                    param: param.name.clone(),
                    message: format!(
                        "{arg:?} was passed, but the kernel takes {} on {}",
                        param.kind,
                        device.name()
                    ),
                });
            }
        }
        let bits: smallvec::SmallVec<[u64; 16]> = args.iter().map(facts::bits).collect();
        let key = Key { kernel: self.key, facts: &bits[..], hints: [0; 4] };
        if let Some(ready) = device.0.kernels.get(key) {
            return Ok(ready);
        }
        device.0.kernels.get_or_prepare(key, || {
            let known: Vec<ParamFacts> =
                args.iter().zip(&bits).map(|(arg, &bits)| facts::expand(bits, arg)).collect();
            let Some(target) = device.0.backend.target() else {
                return Err(self.configuration(format!(
                    "bundles hold machine code, which device `{}` does not run: use `cuda` or `emulated`",
                    device.name()
                )));
            };
            let found = self.bundle.choose(&self.record, &known, target, bundles::wanted(device));
            let found = found.map_err(|error| LaunchError::Bundle {
                kernel: self.label.name.clone(),
                error: Box::new(error),
            })?;
            let code = match found {
                Found::Kernel(code) => *code,
                why => {
                    let message = format!(
                        "{}: {}",
                        self.bundle.name(),
                        bundles::explain(&why, &self.label.name, &self.bundle)
                    );
                    return Err(LaunchError::NotInBundles {
                        kernel: self.label.name.clone(),
                        target: target.to_owned(),
                        message,
                    });
                }
            };
            device.0.backend.prepare(Code::Compiled(code)).map_err(|message| self.run_error(device, message))
        })
    }

    #[cold]
    fn configuration(&self, message: String) -> LaunchError {
        LaunchError::Configuration { kernel: self.label.name.clone(), message }
    }

    #[cold]
    fn run_error(&self, device: &Device, message: String) -> LaunchError {
        LaunchError::Run { kernel: self.label.name.clone(), device: device.name().to_owned(), message }
    }
}

/// Does the parameter take the argument? As `args::check_type`, by what a bundle says.
fn takes(kind: ParamKind, arg: &ArgValue<'_>) -> bool {
    match (&arg.0, kind) {
        (Arg::View(view), ParamKind::View { elem, rank, mutable }) => {
            view.memory.elem == elem
                && view.dims().len() == usize::from(rank)
                && (!mutable || view.memory.access == Access::Write)
        }
        (Arg::Pointer(pointer), ParamKind::Pointer { elem }) => pointer.elem == elem,
        (Arg::Scalar(scalar), ParamKind::Scalar { elem }) => scalar.elem == elem,
        _ => false,
    }
}
