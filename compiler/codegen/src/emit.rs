//! What a compilation is asked for, and what it gives.

use std::{fmt, time::Duration};

use crate::ptxas::{Assembled, PtxasOptions};

/// How to compile.
#[derive(Clone, Debug)]
pub struct Options {
    /// How far LLVM optimises.
    pub opt_level: OptLevel,
    /// Write the kernels' source lines into the PTX (`.loc`) and the cubin. Costs no speed of the kernel.
    pub line_info: bool,
    /// Verify after every MLIR and LLVM pass. Slow; a failure is a bug in a pass.
    pub verify_passes: bool,
    /// Whether to run ptxas.
    pub assemble: Assemble,
    /// How to run it.
    pub ptxas: PtxasOptions,
    /// Which intermediate stages to keep.
    pub emit: Emit,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            opt_level: OptLevel::O3,
            line_info: true,
            verify_passes: false,
            assemble: Assemble::IfFound,
            ptxas: PtxasOptions::default(),
            emit: Emit::default(),
        }
    }
}

/// How far LLVM optimises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OptLevel {
    /// Not at all.
    O0,
    /// SSA form and folding.
    O1,
    /// The full list.
    #[default]
    O3,
    /// A pass pipeline in the syntax of LLVM's `opt -passes`, for experiments.
    Custom(String),
}

/// Whether to assemble the PTX to a cubin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Assemble {
    /// PTX is all that is wanted.
    No,
    /// Assemble if ptxas is installed; without it the driver compiles the PTX when it loads it.
    #[default]
    IfFound,
    /// No ptxas is an error.
    Require,
}

/// Which intermediate stages to keep as text. PTX is always kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emit {
    /// MLIR as it came in.
    pub mlir: bool,
    /// MLIR after the passes: the `llvm` dialect.
    pub mlir_lowered: bool,
    /// LLVM IR before optimisation.
    pub llvm_input: bool,
    /// LLVM IR after optimisation.
    pub llvm: bool,
    /// SASS (needs ptxas and nvdisasm).
    pub sass: bool,
}

impl Emit {
    /// Every stage.
    pub const ALL: Self = Self { mlir: true, mlir_lowered: true, llvm_input: true, llvm: true, sass: true };
}

/// What a compilation gives.
#[derive(Clone, Debug)]
pub struct Artifacts {
    /// MLIR as it came in, if asked for.
    pub mlir: Option<String>,
    /// MLIR after the passes, if asked for.
    pub mlir_lowered: Option<String>,
    /// LLVM IR before optimisation, if asked for.
    pub llvm_input: Option<String>,
    /// LLVM IR after optimisation, if asked for.
    pub llvm: Option<String>,
    /// PTX.
    pub ptx: String,
    /// The cubin and ptxas's report, if ptxas ran.
    pub assembled: Option<Assembled>,
    /// SASS as nvdisasm prints it, if asked for.
    pub sass: Option<String>,
    /// How long each stage took.
    pub times: StageTimes,
}

/// How long each stage of one compilation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Parsing (or, of a module built in memory, verifying) MLIR.
    pub parse: StageTime,
    /// MLIR passes.
    pub passes: StageTime,
    /// Translation to LLVM IR, verification included.
    pub translate: StageTime,
    /// LLVM's optimisation.
    pub optimize: StageTime,
    /// NVPTX code generation.
    pub ptx: StageTime,
    /// ptxas, process start included.
    pub ptxas: StageTime,
    /// nvdisasm, process start included.
    pub sass: StageTime,
}

impl StageTimes {
    /// The stages by name, in order.
    pub fn stages(&self) -> [(&'static str, Duration); 7] {
        [
            ("parse", self.parse.0),
            ("mlir passes", self.passes.0),
            ("translate", self.translate.0),
            ("llvm passes", self.optimize.0),
            ("ptx", self.ptx.0),
            ("ptxas", self.ptxas.0),
            ("nvdisasm", self.sass.0),
        ]
    }

    /// From MLIR to PTX: everything that happens in this process.
    pub fn to_ptx(&self) -> Duration {
        self.stages()[..5].iter().map(|(_, time)| *time).sum()
    }
}

impl fmt::Display for StageTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, time)) in self.stages().into_iter().filter(|(_, time)| !time.is_zero()).enumerate()
        {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{name} {:.2} ms", time.as_secs_f64() * 1e3)?;
        }
        Ok(())
    }
}

/// The time of one stage; zero if it did not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime(pub Duration);

impl StageTime {
    /// Runs `stage` and adds its time.
    pub(crate) fn measure<R>(&mut self, stage: impl FnOnce() -> R) -> R {
        let start = std::time::Instant::now();
        let result = stage();
        self.0 += start.elapsed();
        result
    }
}
