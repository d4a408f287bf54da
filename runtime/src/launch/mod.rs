//! Launches: from a kernel's name and arguments to running code.
//!
//! A call of a `#[kernel]` function makes a [`Launch`]; nothing happens until [`Launch::launch`]. The hot path (the kernel was launched
//! before with such arguments) checks, hashes, looks up, packs and submits, without allocation. Only where nothing is found is the
//! body staged and compiled.
//!
//! What `#[kernel] fn scale<T: Float>(x: View<T, 1>, y: ViewMut<T, 1>, by: Scalar<f32>, block: usize)` becomes:
//!
//! ```ignore
//! pub fn scale<'a, T: Float>(
//!     x: impl IntoArg<'a, View<T, 1>>,
//!     y: impl IntoArg<'a, ViewMut<T, 1>>,
//!     by: impl IntoArg<'a, Scalar<f32>>,
//!     block: usize,
//! ) -> Launch<'a, 3, impl Stage> {
//!     static INFO: KernelInfo =
//!         KernelInfo::new(concat!(module_path!(), "::scale"), "scale", &["x", "y", "by"], file!(), line!());
//!     let key = KernelKey::new(&INFO).type_param::<T>().meta(&block);
//!     Launch::new(&INFO, key, [x.into_arg(), y.into_arg(), by.into_arg()], move || stage(/* … */))
//! }
//! ```

mod args;
mod bundled;
pub(crate) mod facts;
mod grid;
mod key;

use std::cell::Cell;
use std::fmt::Display;
use std::marker::PhantomData;
use std::num::NonZeroU32;

use tegula_ir::artifact::ResourceReport;
use tegula_ir::kernel::{Kernel, KernelHints};

pub(crate) use args::{Arg, ViewArg};
pub use args::{ArgValue, IntoArg};
pub use bundled::BundledKernel;
pub use grid::{Extent, Grid};
pub(crate) use key::Key;
pub use key::{KernelInfo, KernelKey};

use crate::backend::{Executable, LaunchConfig};
use crate::device::Device;
use crate::error::LaunchError;
use crate::memory;
use crate::stream::Stream;

/// Builds a kernel in tile IR. Implemented for closures that return a kernel or errors to show.
pub trait Stage {
    /// The kernel, or the rendered errors.
    fn stage(&self) -> Result<Kernel, String>;
}

impl<F, E> Stage for F
where
    F: Fn() -> Result<Kernel, E>,
    E: Display,
{
    fn stage(&self) -> Result<Kernel, String> {
        self().map_err(|e| e.to_string())
    }
}

/// Hints that a launch sets over those of the kernel: warps, stages, registers, CTAs. Values start at 1, so 0 stands for what is not set.
#[derive(Clone, Copy, Debug, Default)]
struct HintOverrides([u32; 4]);

const NUM_WARPS: usize = 0;
const NUM_STAGES: usize = 1;
const MAX_REGISTERS: usize = 2;
const MIN_CTAS: usize = 3;

/// A 0 that a caller sets.
const ZERO: u32 = u32::MAX;

impl HintOverrides {
    #[inline]
    fn set(&mut self, hint: usize, value: u32) {
        self.0[hint] = if value == 0 { ZERO } else { value };
    }

    /// What is wrong, before a kernel is staged; so none is ever found by a key with hints that are.
    fn check(self) -> Result<(), String> {
        let warps = self.0[NUM_WARPS];
        if warps != 0 && !(warps.is_power_of_two() && warps <= 32) {
            let warps = if warps == ZERO { 0 } else { warps };
            return Err(format!("num_warps is {warps}, but 1, 2, 4, 8, 16 or 32 is possible"));
        }
        if self.0.contains(&ZERO) {
            return Err("a hint is 0: num_stages, max_registers and min_ctas start at 1".to_owned());
        }
        Ok(())
    }

    fn apply(self, hints: &mut KernelHints) {
        let set = |hint: usize| Some(self.0[hint]).filter(|&value| value != 0);
        hints.num_warps = set(NUM_WARPS).unwrap_or(hints.num_warps);
        hints.num_stages = set(NUM_STAGES).unwrap_or(hints.num_stages);
        hints.max_registers = set(MAX_REGISTERS).or(hints.max_registers);
        hints.min_ctas = set(MIN_CTAS).or(hints.min_ctas);
    }
}

/// Does an argument fit the kernel and the device?
#[inline]
fn fits(arg: &ArgValue<'_>, device: &Device) -> bool {
    let rank = match &arg.0 {
        Arg::View(view) => view.dims().len() == view.expected_rank as usize,
        _ => true,
    };
    rank && arg.memory().is_none_or(|memory| memory.device() == device)
}

/// A kernel with its arguments, ready to be launched. `N` is the number of run-time arguments.
///
/// It may be launched again and again, from one thread at a time: it holds the only reference to what the kernel writes.
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<tegula_runtime::Launch<'static, 0, fn() -> Result<tegula_ir::kernel::Kernel, String>>>();
/// ```
#[must_use = "nothing runs until `.launch(&stream)`"]
pub struct Launch<'a, const N: usize, S> {
    info: &'static KernelInfo,
    /// [`KernelKey::finish`]
    key: u128,
    args: [ArgValue<'a>; N],
    stage: S,
    /// None yet is not one program: a forgotten grid would compute a part of the result, silently.
    grid: Option<Grid>,
    hints: HintOverrides,
    max_ctas: Option<NonZeroU32>,
    /// Not `Sync`: see above, and `memory.rs`.
    one_thread: PhantomData<Cell<()>>,
}

impl<'a, const N: usize, S: Stage> Launch<'a, N, S> {
    /// A launch that has no grid yet. Called by what `#[kernel]` writes: `key` holds type and meta-parameters, and `stage` must build the same
    /// kernel whenever `key` is the same.
    #[inline]
    pub fn new(
        info: &'static KernelInfo,
        key: KernelKey,
        args: [ArgValue<'a>; N],
        stage: S,
    ) -> Launch<'a, N, S> {
        let hints = HintOverrides::default();
        Launch {
            info,
            key: key.finish(),
            args,
            stage,
            grid: None,
            hints,
            max_ctas: None,
            one_thread: PhantomData,
        }
    }

    /// The number of programs: an integer, or a tuple or array of up to three. An empty grid runs nothing. Every launch says it; only what
    /// does not run ([`Launch::warm_up`], [`Launch::kernel`]) needs none.
    #[inline]
    pub fn grid(mut self, grid: impl Into<Grid>) -> Self {
        self.grid = Some(grid.into());
        self
    }

    /// Warps in a CTA: 1, 2, 4, 8, 16 or 32.
    #[inline]
    pub fn num_warps(mut self, n: u32) -> Self {
        self.hints.set(NUM_WARPS, n);
        self
    }

    /// Depth of software pipelines in loops that do not say their own.
    #[inline]
    pub fn num_stages(mut self, n: u32) -> Self {
        self.hints.set(NUM_STAGES, n);
        self
    }

    /// Upper bound on registers a thread.
    #[inline]
    pub fn max_registers(mut self, n: u32) -> Self {
        self.hints.set(MAX_REGISTERS, n);
        self
    }

    /// CTAs that should fit on one multiprocessor.
    #[inline]
    pub fn min_ctas(mut self, n: u32) -> Self {
        self.hints.set(MIN_CTAS, n);
        self
    }

    /// CTAs of it that share a multiprocessor at most; 0: as many as there is room for. Nothing is compiled for it. A GPU deals programs out unevenly where there is room for more than
    /// there are: say how many a multiprocessor should get, if all run at once. More programs at a time than a kernel needs to keep memory busy only stand in each other's way.
    #[inline]
    pub fn max_ctas(mut self, n: u32) -> Self {
        self.max_ctas = NonZeroU32::new(n);
        self
    }

    /// Runs the kernel on a stream: submits it, or runs it at once on the host device.
    ///
    /// # Errors
    /// No grid; arguments and options that do not fit; a kernel that cannot be built or compiled; and a failure of the device, which for CUDA
    /// may come from earlier work.
    pub fn launch(&self, stream: &Stream) -> Result<(), LaunchError> {
        let device = stream.device();
        let grid = match self.grid.map(Grid::check) {
            Some(Ok(grid)) => grid,
            bad => return Err(self.no_grid(bad)),
        };
        let executable = self.executable(device)?;
        if grid.contains(&0) {
            return Ok(());
        }
        let uses = self.args.iter().filter_map(|arg| arg.memory()?.used());
        let _turn = memory::order(stream, uses).map_err(|e| self.device_error(e))?;
        let config = LaunchConfig { grid, max_ctas: self.max_ctas };
        executable
            .launch(&self.args, &config, &*stream.0.raw)
            .map_err(|message| self.run_error(device, message))
    }

    /// Compiles the kernel for a device, or finds it, without running it. Gives what ptxas says of it, where it was at hand.
    pub fn warm_up(&self, device: &Device) -> Result<Option<ResourceReport>, LaunchError> {
        Ok(self.executable(device)?.report().cloned())
    }

    /// The kernel in tile IR, with this launch's hints and the facts of its arguments: what a compiler gets.
    pub fn kernel(&self) -> Result<Kernel, LaunchError> {
        self.staged(&self.facts())
    }

    /// Finds or makes what runs on the device, after a check of the arguments.
    #[inline]
    fn executable<'d>(&self, device: &'d Device) -> Result<&'d dyn Executable, LaunchError> {
        for (index, arg) in self.args.iter().enumerate() {
            if !fits(arg, device) {
                return Err(self.bad_argument(index, device));
            }
        }
        let facts = self.facts();
        let key = Key { kernel: self.key, facts: &facts[..], hints: self.hints.0 };
        match device.0.kernels.get(key) {
            Some(executable) => Ok(executable),
            None => self.prepare(key, &facts, device),
        }
    }

    #[inline]
    fn facts(&self) -> [u64; N] {
        std::array::from_fn(|i| facts::bits(&self.args[i]))
    }

    /// The slow path: everything that happens once a kernel.
    #[cold]
    fn prepare<'d>(
        &self,
        key: Key<&[u64]>,
        facts: &[u64; N],
        device: &'d Device,
    ) -> Result<&'d dyn Executable, LaunchError> {
        device
            .0
            .kernels
            .get_or_prepare(key, || crate::compile::prepare(self.info.name, self.staged(facts)?, device))
    }

    fn staged(&self, facts: &[u64; N]) -> Result<Kernel, LaunchError> {
        self.hints.check().map_err(|message| self.configuration(message))?;
        let name = || self.info.name.to_owned();
        let mut kernel =
            self.stage.stage().map_err(|message| LaunchError::Stage { kernel: name(), message })?;
        self.hints.apply(&mut kernel.hints);
        if kernel.params.len() != N {
            return Err(self.configuration(format!(
                "it was staged with {} parameters but is launched with {N} arguments",
                kernel.params.len()
            )));
        }
        for (index, (arg, &bits)) in self.args.iter().zip(facts).enumerate() {
            let ty = kernel.ty(kernel.params[index].value);
            args::check_type(arg, ty).map_err(|message| LaunchError::Argument {
                kernel: name(),
                param: kernel.params[index].name.clone(),
                message,
            })?;
            kernel.params[index].facts = facts::expand(bits, arg);
        }
        Ok(kernel)
    }

    /// What is wrong with an argument that does not fit.
    #[cold]
    fn bad_argument(&self, index: usize, device: &Device) -> LaunchError {
        let arg = &self.args[index];
        let message = match (&arg.0, arg.memory()) {
            (Arg::View(view), _) if view.dims().len() != view.expected_rank as usize => format!(
                "a tensor of rank {} (shape {:?}) was passed, but the kernel takes rank {}",
                view.dims().len(),
                view.dims(),
                view.expected_rank
            ),
            (_, Some(memory)) => format!(
                "the tensor is on device `{}`, but the stream is of device `{}`",
                memory.device().name(),
                device.name()
            ),
            (_, None) => "it does not fit".to_owned(),
        };
        LaunchError::Argument {
            kernel: self.info.name.to_owned(),
            param: self.info.param(index).to_owned(),
            message,
        }
    }

    #[cold]
    fn no_grid(&self, grid: Option<Result<[u32; 3], String>>) -> LaunchError {
        let message = match grid {
            Some(Err(message)) => message,
            _ => "the launch has no grid: say how many programs run, as in `.grid(1)` or `.grid(n.div_ceil(block))`"
                .to_owned(),
        };
        self.configuration(message)
    }

    #[cold]
    fn configuration(&self, message: String) -> LaunchError {
        LaunchError::Configuration { kernel: self.info.name.to_owned(), message }
    }

    #[cold]
    fn device_error(&self, error: crate::error::Error) -> LaunchError {
        LaunchError::Device { kernel: self.info.name.to_owned(), error }
    }

    #[cold]
    fn run_error(&self, device: &Device, message: String) -> LaunchError {
        LaunchError::Run { kernel: self.info.name.to_owned(), device: device.name().to_owned(), message }
    }
}
