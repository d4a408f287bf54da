//! From the syntax tree to a flat list of operations a function, everything resolved and checked.
//!
//! [`Program::load`] is the way in. `function.rs` walks a body and resolves names; each family of instructions has a file that takes an
//! instruction's modifiers apart with [`modifiers::Modifiers`], which insists that every one is understood. What a launch adds
//! (addresses of variables, `%tid`) are [`Constant`]s.

pub mod asynchronous;
mod atomic;
mod class;
mod compare;
mod control;
mod convert;
mod float;
mod flow;
mod function;
mod integer;
pub mod matrix;
mod memory;
mod modifiers;
mod moves;
pub mod op;
pub mod operands;
mod scope;
mod special;
pub mod types;
mod variables;
mod warp;

use std::sync::Arc;

pub use class::Class;
pub use function::{Decoder, truncate};
pub use modifiers::Modifiers;
pub use special::Special;
pub use variables::{ConstBank, GlobalVar, Relocation, SharedVar};

use crate::error::{PtxError, Span};
use crate::ptx::ast::Loc;
use op::{Inst, Slot};

/// A decoded module, ready to launch any number of times.
#[derive(Debug)]
pub struct Program {
    /// The PTX text.
    pub source: Arc<str>,
    /// `sm_90a`.
    pub target: String,
    /// `.file` numbers and names.
    pub files: Vec<(u32, String)>,
    /// Kernels and functions with a body.
    pub functions: Vec<Function>,
    /// Variables in global memory, with their initial values.
    pub globals: Vec<GlobalVar>,
    /// The constant bank.
    pub constants: ConstBank,
    /// Variables in shared memory.
    pub shared: Vec<SharedVar>,
}

/// A kernel or a function.
#[derive(Debug, Default)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// A kernel?
    pub is_entry: bool,
    /// Its operations; a pc is an index.
    pub code: Vec<Inst>,
    /// Where each of them comes from.
    pub places: Vec<Place>,
    /// For each pc, its rank in an order in which what comes later in the flow has a higher one: diverged lanes meet soonest if those with
    /// the lowest rank go first.
    pub order: Vec<u32>,
    /// What [`op::Slots`] index.
    pub lists: Vec<Slot>,
    /// What [`op::Op::BranchIndexed`] indexes.
    pub targets: Vec<u32>,
    /// How many register slots a frame has.
    pub slots: u32,
    /// How many predicate slots a frame has.
    pub preds: u32,
    /// What some slots hold from the beginning.
    pub constants: Vec<(Slot, Constant)>,
    /// Bytes of `.local` and `.param` variables in a frame.
    pub local_bytes: u32,
    /// For each pc, whether it touches a register that some wgmma of the function has as accumulator or as A; empty without wgmma.
    pub wgmma_touches: Vec<bool>,
    /// Parameters: of a kernel in the launch's block of bytes, of a function in the frame.
    pub params: Vec<Param>,
    /// What a function returns, in the frame.
    pub returns: Vec<Param>,
    /// Bytes of a kernel's parameters.
    pub param_bytes: u32,
    /// Shared variables that it uses by itself.
    pub shared_used: Vec<u32>,
    /// Functions that it calls.
    pub calls: Vec<u32>,
    /// What it asks of a launch.
    pub bounds: LaunchBounds,
    /// Names of register slots: first slot, count, prefix (the whole name if the count is 1), declared type's bits.
    pub register_names: Vec<(Slot, u32, String)>,
    /// May other CTAs see what it writes while it runs, or it what they write (atomics, volatile or ordered accesses of global memory)?
    pub communicates: bool,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Where it begins.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
}

/// What a kernel's directives ask of its launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchBounds {
    /// `.reqntid`: threads a CTA, exactly.
    pub required_threads: Option<[u32; 3]>,
    /// `.maxntid`: threads a CTA, at most (of the product).
    pub max_threads: Option<u32>,
    /// `.maxnreg`: registers a thread.
    pub max_registers: Option<u32>,
    /// `.reqnctapercluster`: CTAs a cluster.
    pub required_cluster: Option<[u32; 3]>,
    /// `.minnctapersm`
    pub min_ctas_per_sm: Option<u32>,
}

/// Where an operation comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The instruction's text.
    pub span: Span,
    /// The source line, where the PTX says it.
    pub loc: Option<Loc>,
}

/// The value of a slot that no instruction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Constant {
    /// An immediate.
    Bits(u64),
    /// A special register that does not change while a thread runs.
    Special(Special),
    /// The address of the frame's own variables in local memory.
    FrameBase,
    /// The address of a variable in shared memory.
    Shared(u32),
    /// The address of a variable in global memory.
    Global(u32),
}

impl Program {
    /// Reads and decodes a PTX module.
    ///
    /// # Errors
    /// What is not PTX, or not known, with its line and instruction.
    pub fn load(source: &str) -> Result<Program, PtxError> {
        let module = crate::ptx::parse(source)?;
        function::program(source, &module)
    }

    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Option<u32> {
        self.functions.iter().position(|f| f.is_entry && f.name == name).map(|i| i as u32)
    }

    /// The PTX line (from 1) of a place.
    pub fn ptx_line(&self, place: &Place) -> u32 {
        let end = (place.span.start as usize).min(self.source.len());
        1 + self.source.as_bytes()[..end].iter().filter(|&&b| b == b'\n').count() as u32
    }

    /// The instruction's text at a place, on one line.
    pub fn text(&self, place: &Place) -> String {
        let text = self.source.get(place.span.start as usize..place.span.end as usize).unwrap_or("");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The name of a `.file`.
    pub fn file(&self, number: u32) -> Option<&str> {
        self.files.iter().find(|f| f.0 == number).map(|f| f.1.as_str())
    }
}

impl Function {
    /// What a slot is called in the PTX text.
    pub fn register_name(&self, slot: Slot) -> Option<String> {
        let after = self.register_names.partition_point(|r| r.0.0 <= slot.0);
        let (first, count, name) = self.register_names.get(after.checked_sub(1)?)?;
        let index = slot.0 - first.0;
        match *count {
            0 => (index == 0).then(|| name.clone()),
            count => (index < count).then(|| format!("{name}{index}")),
        }
    }

    /// The slots of a list.
    pub fn list(&self, slots: op::Slots) -> &[Slot] {
        &self.lists[slots.start as usize..(slots.start + slots.len) as usize]
    }
}
