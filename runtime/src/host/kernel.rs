//! Kernels on the interpreter.

use std::sync::Arc;

use tegula_ir::interp::{self, InterpError, Memory, Options, Prepared};

use crate::backend::{Executable, LaunchConfig, RawStream};
use crate::error::Error;
use crate::immediate::ImmediateStream;
use crate::launch::{Arg, ArgValue};

/// A kernel prepared for the interpreter.
pub(super) struct HostKernel(Arc<Program>);

struct Program {
    prepared: Prepared,
    memory: Arc<Memory>,
    check_races: bool,
}

impl HostKernel {
    pub(super) fn new(prepared: Prepared, memory: Arc<Memory>, check_races: bool) -> HostKernel {
        HostKernel(Arc::new(Program { prepared, memory, check_races }))
    }
}

impl Program {
    fn run(&self, grid: [u32; 3], args: &[interp::Arg]) -> Result<(), String> {
        let options = Options { check_races: self.check_races, ..Options::default() };
        self.prepared.run(&interp::Launch { grid }, args, &self.memory, &options).map_err(|e| words(&e))
    }
}

/// The interpreter's words without the kernel's name, which the caller adds.
fn words(error: &InterpError) -> String {
    let text = error.to_string();
    match text.strip_prefix(&format!("kernel `{}`: ", error.kernel)) {
        Some(rest) => rest.to_owned(),
        None => text,
    }
}

impl Executable for HostKernel {
    fn launch(
        &self,
        args: &[ArgValue<'_>],
        config: &LaunchConfig,
        stream: &dyn RawStream,
    ) -> Result<(), String> {
        let (grid, program) = (config.grid, self.0.clone());
        let args: Vec<interp::Arg> = args.iter().map(argument).collect();
        let stream = ImmediateStream::of(stream).map_err(|e| e.to_string())?;
        if stream.is_recording() {
            let run = move || program.run(grid, &args).map_err(failed);
            return stream.submit(run).map_err(|e| e.to_string());
        }
        program.run(grid, &args)
    }
}

/// An error in a replayed graph, where no launch is there to name the kernel.
fn failed(message: String) -> Error {
    Error::Driver { device: "host".to_owned(), call: "a kernel of a graph", message }
}

fn argument(arg: &ArgValue<'_>) -> interp::Arg {
    let ints = |x: &[usize]| x.iter().map(|&d| d as i64).collect();
    match &arg.0 {
        Arg::Scalar(s) => interp::Arg::Scalar { elem: s.elem, bits: s.bits },
        Arg::Pointer(p) => interp::Arg::Ptr { address: p.address },
        Arg::View(v) => {
            interp::Arg::View { address: v.memory.address, dims: ints(v.dims()), strides: ints(v.strides()) }
        }
    }
}
