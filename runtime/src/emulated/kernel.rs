//! Compiled kernels on the emulator.

use std::fmt::Write as _;
use std::sync::Arc;

use tegula_emulator::{Launch, Module, Options, Outcome, ReportKind};
use tegula_ir::artifact::CompiledKernel;

use super::tensor_map::Encoder;
use super::{Emulation, Shared};
use crate::backend::{Executable, LaunchConfig, RawStream};
use crate::device::lock;
use crate::error::Error;
use crate::immediate::ImmediateStream;
use crate::launch::ArgValue;
use crate::pack::Packing;

/// A kernel loaded into an emulated device.
pub(super) struct EmulatedKernel {
    program: Arc<Program>,
    packing: Packing,
    encoder: Encoder,
}

struct Program {
    module: Module,
    shared: Arc<Shared>,
    device: String,
    entry: String,
    threads: u32,
    shared_bytes: u32,
    cluster: u32,
}

impl EmulatedKernel {
    pub(super) fn load(
        shared: Arc<Shared>,
        kernel: CompiledKernel,
        device: &str,
        limit: usize,
    ) -> Result<EmulatedKernel, String> {
        if kernel.ptx.is_empty() {
            return Err(format!(
                "it is compiled for {} without PTX, which is what is emulated",
                kernel.target
            ));
        }
        if kernel.shared_bytes as usize > limit {
            return Err(format!(
                "it needs {} bytes of shared memory, but {} has {limit} for a CTA: use smaller tiles or fewer stages",
                kernel.shared_bytes, kernel.target
            ));
        }
        let packing = Packing::new(&kernel.abi)?;
        let module = shared
            .change(|memory| Module::load(&kernel.ptx, memory))
            .map_err(|e| format!("the emulator does not take its PTX: {e}"))?;
        let encoder = match packing.takes_tensor_maps() {
            true => Encoder::new(shared.scratch()),
            false => Encoder::without_scratch(),
        };
        let program = Program {
            module,
            shared,
            device: device.to_owned(),
            entry: kernel.entry,
            threads: kernel.threads,
            shared_bytes: kernel.shared_bytes,
            cluster: kernel.cluster.max(1),
        };
        Ok(EmulatedKernel { program: Arc::new(program), packing, encoder })
    }
}

impl Program {
    /// Runs the kernel to its end. What it printed goes where the host device prints.
    fn run(&self, grid: [u32; 3], params: &[u8], arguments: &str) -> Result<(), String> {
        let settings = *lock(&self.shared.settings);
        let launch = Launch {
            kernel: &self.entry,
            grid,
            block: [self.threads, 1, 1],
            cluster: (self.cluster > 1).then_some([self.cluster, 1, 1]),
            dynamic_shared: self.shared_bytes,
            params,
        };
        let options = Options { counters: lock(&self.shared.counts).is_some(), ..settings.options() };
        let outcome =
            self.module.launch(&self.shared.memory(), &launch, &options).map_err(|e| e.to_string())?;
        if let Some(counts) = &mut *lock(&self.shared.counts) {
            counts.add(&outcome.counters.total());
        }
        let printed = String::from_utf8_lossy(&outcome.printed);
        eprint!("{printed}");
        if outcome.reports.is_empty() {
            Ok(())
        } else {
            Err(findings(&outcome, &printed, settings, arguments))
        }
    }
}

/// All that was found, in full.
fn findings(outcome: &Outcome, printed: &str, settings: Emulation, arguments: &str) -> String {
    let mut text = String::new();
    // An assertion prints its words before it traps.
    if outcome.reports.iter().any(|report| report.kind == ReportKind::Trap) && !printed.is_empty() {
        let _ = writeln!(text, "{}", printed.trim_end());
    }
    for report in &outcome.reports {
        let _ = writeln!(text, "{report}");
    }
    let Emulation { seed, timing, .. } = settings;
    let _ = write!(text, "{arguments}(emulated with seed {seed}, asynchronous work {timing:?})");
    text
}

/// Where the arguments' memory is, for who reads addresses in a report.
fn describe(args: &[ArgValue<'_>]) -> String {
    let mut text = String::new();
    for (index, arg) in args.iter().enumerate() {
        if let Some(memory) = arg.memory() {
            let _ = writeln!(text, "argument {index} is {arg:?} at {:#x}", memory.address);
        }
    }
    text
}

impl Executable for EmulatedKernel {
    fn launch(
        &self,
        args: &[ArgValue<'_>],
        config: &LaunchConfig,
        stream: &dyn RawStream,
    ) -> Result<(), String> {
        let stream = ImmediateStream::of(stream).map_err(|e| e.to_string())?;
        let (grid, arguments) = (config.ctas(self.program.cluster)?, describe(args));
        self.packing.with_packed(args, &self.encoder, |block| {
            if !stream.is_recording() {
                return self.program.run(grid, block, &arguments);
            }
            let (program, block) = (self.program.clone(), block.to_vec());
            let run =
                move || program.run(grid, &block, &arguments).map_err(|message| failed(&program, message));
            stream.submit(run).map_err(|e| e.to_string())
        })
    }
}

/// An error in a replayed graph, where no launch is there to name the kernel.
fn failed(program: &Program, message: String) -> Error {
    let message = format!("kernel `{}`: {message}", program.entry);
    Error::Driver { device: program.device.clone(), call: "a kernel of a graph", message }
}
