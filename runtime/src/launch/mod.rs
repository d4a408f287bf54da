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
mod facts;
mod grid;
mod key;

use std::cell::Cell;
use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::Arc;

use tegula_ir::artifact::ResourceReport;
use tegula_ir::kernel::{Kernel, KernelHints};

pub(crate) use args::Arg;
pub use args::{ArgValue, IntoArg};
pub use grid::{Extent, Grid};
pub use key::{KernelInfo, KernelKey};

use crate::backend::{Executable, LaunchConfig};
use crate::device::Device;
use crate::error::LaunchError;
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

/// Hints that a launch sets over those of the kernel.
#[derive(Clone, Copy, Debug, Default)]
struct HintOverrides {
    num_warps: Option<u32>,
    num_stages: Option<u32>,
    max_registers: Option<u32>,
    min_ctas: Option<u32>,
}

impl HintOverrides {
    /// For the key. Values start at 1, so 0 stands for what is not set; a 0 that a caller sets is refused before.
    fn words(self) -> [u32; 4] {
        [self.num_warps, self.num_stages, self.max_registers, self.min_ctas].map(Option::unwrap_or_default)
    }

    fn apply(self, hints: &mut KernelHints) {
        hints.num_warps = self.num_warps.unwrap_or(hints.num_warps);
        hints.num_stages = self.num_stages.unwrap_or(hints.num_stages);
        hints.max_registers = self.max_registers.or(hints.max_registers);
        hints.min_ctas = self.min_ctas.or(hints.min_ctas);
    }
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
    key: KernelKey,
    args: [ArgValue<'a>; N],
    stage: S,
    /// None yet is not one program: a forgotten grid would compute a part of the result, silently.
    grid: Option<Grid>,
    hints: HintOverrides,
    /// Not `Sync`: see above, and `Buffer::order`.
    one_thread: PhantomData<Cell<()>>,
}

impl<'a, const N: usize, S: Stage> Launch<'a, N, S> {
    /// A launch that has no grid yet. Called by what `#[kernel]` writes: `key` holds type and meta-parameters, and `stage` must build the same
    /// kernel whenever `key` is the same.
    pub fn new(
        info: &'static KernelInfo,
        key: KernelKey,
        args: [ArgValue<'a>; N],
        stage: S,
    ) -> Launch<'a, N, S> {
        let hints = HintOverrides::default();
        Launch { info, key, args, stage, grid: None, hints, one_thread: PhantomData }
    }

    /// The number of programs: an integer, or a tuple or array of up to three. An empty grid runs nothing. Every launch says it; only what
    /// does not run ([`Launch::warm_up`], [`Launch::kernel`]) needs none.
    pub fn grid(mut self, grid: impl Into<Grid>) -> Self {
        self.grid = Some(grid.into());
        self
    }

    /// Warps in a CTA: 1, 2, 4, 8, 16 or 32.
    pub fn num_warps(mut self, n: u32) -> Self {
        self.hints.num_warps = Some(n);
        self
    }

    /// Depth of software pipelines in loops that do not say their own.
    pub fn num_stages(mut self, n: u32) -> Self {
        self.hints.num_stages = Some(n);
        self
    }

    /// Upper bound on registers a thread.
    pub fn max_registers(mut self, n: u32) -> Self {
        self.hints.max_registers = Some(n);
        self
    }

    /// CTAs that should fit on one multiprocessor.
    pub fn min_ctas(mut self, n: u32) -> Self {
        self.hints.min_ctas = Some(n);
        self
    }

    /// Runs the kernel on a stream: submits it, or runs it at once on the host device.
    ///
    /// # Errors
    /// No grid; arguments and options that do not fit; a kernel that cannot be built or compiled; and a failure of the device, which for CUDA
    /// may come from earlier work.
    pub fn launch(&self, stream: &Stream) -> Result<(), LaunchError> {
        let device = stream.device();
        let Some(grid) = self.check(device)? else {
            return Err(self.configuration(
                "the launch has no grid: say how many programs run, as in `.grid(1)` or `.grid(n.div_ceil(block))`".to_owned(),
            ));
        };
        let (key, facts) = self.specialise();
        let executable = match device.0.kernels.get(key) {
            Some(executable) => executable,
            None => self.prepare(key, &facts, device)?,
        };
        if grid.contains(&0) {
            return Ok(());
        }
        for arg in &self.args {
            if let Some(memory) = arg.memory()
                && let Some(buffer) = memory.buffer()
            {
                buffer.before(memory.access, stream).map_err(|e| self.device_error(e))?;
            }
        }
        let config = LaunchConfig { grid };
        executable
            .launch(&self.args, &config, &*stream.0.raw)
            .map_err(|message| self.run_error(device, message))
    }

    /// Compiles the kernel for a device, or finds it, without running it. Gives what ptxas says of it, where it was at hand.
    pub fn warm_up(&self, device: &Device) -> Result<Option<ResourceReport>, LaunchError> {
        self.check(device)?;
        let (key, facts) = self.specialise();
        let executable = match device.0.kernels.get(key) {
            Some(executable) => executable,
            None => self.prepare(key, &facts, device)?,
        };
        Ok(executable.report().cloned())
    }

    /// The kernel in tile IR, with this launch's hints and the facts of its arguments: what a compiler gets.
    pub fn kernel(&self) -> Result<Kernel, LaunchError> {
        self.staged(&self.specialise().1)
    }

    /// Checks what is known before staging; the grid, if there is one.
    fn check(&self, device: &Device) -> Result<Option<[u32; 3]>, LaunchError> {
        for (index, arg) in self.args.iter().enumerate() {
            self.check_arg(arg, device).map_err(|message| LaunchError::Argument {
                kernel: self.info.name.to_owned(),
                param: self.info.param(index).to_owned(),
                message,
            })?;
        }
        if [self.hints.num_stages, self.hints.max_registers, self.hints.min_ctas].contains(&Some(0)) {
            return Err(self
                .configuration("a hint is 0: num_stages, max_registers and min_ctas start at 1".to_owned()));
        }
        if let Some(warps) = self.hints.num_warps
            && !(warps.is_power_of_two() && warps <= 32)
        {
            return Err(
                self.configuration(format!("num_warps is {warps}, but 1, 2, 4, 8, 16 or 32 is possible"))
            );
        }
        self.grid.map(Grid::check).transpose().map_err(|message| self.configuration(message))
    }

    #[inline]
    fn check_arg(&self, arg: &ArgValue<'_>, device: &Device) -> Result<(), String> {
        if let Arg::View(view) = &arg.0
            && view.dims().len() != view.expected_rank as usize
        {
            return Err(format!(
                "a tensor of rank {} (shape {:?}) was passed, but the kernel takes rank {}",
                view.dims().len(),
                view.dims(),
                view.expected_rank
            ));
        }
        if let Some(memory) = arg.memory()
            && memory.device() != device
        {
            return Err(format!(
                "the tensor is on device `{}`, but the stream is of device `{}`",
                memory.device().name(),
                device.name()
            ));
        }
        Ok(())
    }

    /// The key of the code that this launch needs, and the facts in it.
    #[inline]
    fn specialise(&self) -> (u128, [u64; N]) {
        let facts: [u64; N] = std::array::from_fn(|i| facts::bits(&self.args[i]));
        (self.key.clone().finish(&facts, self.hints.words()), facts)
    }

    /// The slow path: everything that happens once a kernel.
    #[cold]
    fn prepare(
        &self,
        key: u128,
        facts: &[u64; N],
        device: &Device,
    ) -> Result<Arc<dyn Executable>, LaunchError> {
        device
            .0
            .kernels
            .get_or_prepare(key, || crate::compile::prepare(self.info.name, self.staged(facts)?, device))
    }

    fn staged(&self, facts: &[u64; N]) -> Result<Kernel, LaunchError> {
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

    fn configuration(&self, message: String) -> LaunchError {
        LaunchError::Configuration { kernel: self.info.name.to_owned(), message }
    }

    fn device_error(&self, error: crate::error::Error) -> LaunchError {
        LaunchError::Device { kernel: self.info.name.to_owned(), error }
    }

    fn run_error(&self, device: &Device, message: String) -> LaunchError {
        LaunchError::Run { kernel: self.info.name.to_owned(), device: device.name().to_owned(), message }
    }
}
