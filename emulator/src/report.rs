//! What a run found wrong: where in the source, which thread, which address, and who else.

use std::fmt;

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReportKind {
    /// An access outside of every allocation, or of the CTA's shared memory.
    OutOfBounds,
    /// An address that is not a multiple of what the access needs.
    Misaligned,
    /// A store to read-only memory.
    ReadOnly,
    /// Memory is read that nobody has written.
    UninitialisedMemory,
    /// A register is used that nobody has written.
    UninitialisedRegister,
    /// Two threads access memory with no order between them, and one writes.
    Race,
    /// The generic and the asynchronous proxy access memory with no proxy fence between.
    AsyncHazard,
    /// Nobody can go on.
    Deadlock,
    /// Nothing that counts as progress has happened for very long.
    Livelock,
    /// A barrier is used with different numbers of threads, by too many threads, or before it is initialised.
    BarrierMisuse,
    /// An instruction that lanes must execute together is executed by some of them.
    Divergence,
    /// `setmaxnreg` asks for more registers than the pool has.
    RegisterPool,
    /// Asynchronous work is pending when its CTA ends.
    Leak,
    /// The kernel executed `trap`, or something that no GPU could execute.
    Trap,
    /// An operand has a value that the ISA does not allow.
    IllegalOperand,
}

impl fmt::Display for ReportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReportKind::OutOfBounds => "out of bounds",
            ReportKind::Misaligned => "misaligned access",
            ReportKind::ReadOnly => "store to read-only memory",
            ReportKind::UninitialisedMemory => "uninitialised memory",
            ReportKind::UninitialisedRegister => "uninitialised register",
            ReportKind::Race => "data race",
            ReportKind::AsyncHazard => "hazard with the asynchronous proxy",
            ReportKind::Deadlock => "deadlock",
            ReportKind::Livelock => "no progress",
            ReportKind::BarrierMisuse => "misused barrier",
            ReportKind::Divergence => "convergent instruction under divergence",
            ReportKind::RegisterPool => "register pool",
            ReportKind::Leak => "asynchronous work left over",
            ReportKind::Trap => "trap",
            ReportKind::IllegalOperand => "illegal operand",
        })
    }
}

/// A place in the program.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Location {
    /// The source file that `.loc` names.
    pub file: Option<String>,
    /// Its line; 0 if unknown.
    pub line: u32,
    /// Its column; 0 if unknown.
    pub column: u32,
    /// The line of the PTX text.
    pub ptx_line: u32,
    /// The instruction.
    pub instruction: String,
}

/// Which threads.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Party {
    /// `%ctaid`
    pub cta: [u32; 3],
    /// The warp's number in its CTA.
    pub warp: u32,
    /// The lane that was looked at.
    pub lane: u32,
    /// `%tid` of that lane.
    pub thread: [u32; 3],
    /// Where it is.
    pub location: Location,
}

/// One finding. Findings of one kind at one instruction are counted, not repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What kind.
    pub kind: ReportKind,
    /// In which kernel.
    pub kernel: String,
    /// What is wrong.
    pub message: String,
    /// Who did it.
    pub party: Party,
    /// The address, where one is to blame.
    pub address: Option<u64>,
    /// The other party of a race or hazard.
    pub other: Option<Party>,
    /// How often it was found.
    pub count: u64,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) if self.column > 0 => write!(f, "{file}:{}:{} ", self.line, self.column)?,
            Some(file) => write!(f, "{file}:{} ", self.line)?,
            None => {}
        }
        write!(f, "(PTX line {}: {})", self.ptx_line, self.instruction)
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([cx, cy, cz], [tx, ty, tz]) = (self.cta, self.thread);
        write!(
            f,
            "CTA ({cx},{cy},{cz}) warp {} lane {} thread ({tx},{ty},{tz})\n    at {}",
            self.warp, self.lane, self.location
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n  in kernel {}, {}", self.kind, self.message, self.kernel, self.party)?;
        if let Some(other) = &self.other {
            write!(f, "\n  and {other}")?;
        }
        if self.count > 1 {
            write!(f, "\n  ({} times)", self.count)?;
        }
        Ok(())
    }
}
