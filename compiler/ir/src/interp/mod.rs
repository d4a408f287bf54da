//! The tile interpreter: runs a verified kernel on the host, tile by tile. It is the embedded default device and the oracle: what an
//! operation of the IR means is what it does here.
//!
//! [`Prepared::new`] turns a kernel into straight lists of instructions over numbered slots (`prepare`), once; [`Prepared::run`] runs
//! the programs of a grid over them, in parallel (`exec`). Whole tiles are worked on at a time (`region`, `fold`, `dot`), or strips of them by
//! chains of elementwise operations (`map`, `elementwise`), so the cost of interpreting is spread over many elements and the inner loops are
//! vector code. Broadcasts are not carried out but looked through (`stretch`). Memory is [`memory`].
//!
//! # What is checked
//! Every access through a pointer or a view is inside an allocation and aligned; assertions and promises hold; with
//! [`Options::check_races`], no two programs store to the same byte. The first program (in the order x, y, z) in which a check fails is
//! reported, whatever ran in parallel; later programs may have run too.
//!
//! # What is promised
//! A kernel that the verifier accepts does not panic here. What the scheduling passes make (shared buffers, asynchronous
//! copies, barriers) is refused by [`Prepared::new`]: they do not change what a kernel computes.
//!
//! Rejected: one enum of values per element (an order of magnitude slower), and compiling to machine code (a second code generator to
//! trust; the interpreter is what the first is checked against).

// Casts to and from a type that a macro names are trivial for one of the types.
#![allow(clippy::unnecessary_cast)]

mod access;
mod atomic;
mod buffer;
mod dot;
mod elementwise;
mod error;
mod exec;
mod few_rows;
mod fold;
mod liveness;
mod map;
pub mod memory;
mod prepare;
mod print;
mod program;
mod region;
mod shadow;
mod stretch;
mod team;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pulp::Arch;
use smallvec::SmallVec;

pub use error::{Access, Fault, InterpError, Nearby, PrepareError};
pub use memory::{Allocation, Memory, Snapshot};

use crate::element::Element;
use crate::kernel::{Kernel, Loc, SourceLoc};
use crate::transform::merge_warp_groups;
use crate::types::{Elem, ElemType, Type};
use exec::{Exec, Frame, Step};
use program::Program;
use shadow::Shadow;

/// How many programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Extents of the grid along x, y, z.
    pub grid: [u32; 3],
}

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// A scalar: the bit pattern of a value of the parameter's type.
    Scalar {
        /// Its element type.
        elem: Elem,
        /// The bits, in the low end.
        bits: u64,
    },
    /// A pointer.
    Ptr {
        /// The address.
        address: u64,
    },
    /// A view.
    View {
        /// The address of element 0.
        address: u64,
        /// The extents.
        dims: SmallVec<[i64; 4]>,
        /// The strides, in elements.
        strides: SmallVec<[i64; 4]>,
    },
}

impl Arg {
    /// A scalar.
    pub fn scalar<T: Element>(x: T) -> Arg {
        Arg::Scalar { elem: T::ELEM, bits: x.to_bits64() }
    }

    /// A view of rows after rows: each stride is the product of the later extents.
    pub fn row_major(address: u64, dims: &[i64]) -> Arg {
        let mut strides: SmallVec<[i64; 4]> = SmallVec::from_elem(1, dims.len());
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i] * dims[i];
        }
        Arg::View { address, dims: dims.into(), strides }
    }
}

/// Choices of a run.
pub struct Options<'a> {
    /// Report two programs that store to one byte, neither atomically. Programs then run one after another, and every byte stored
    /// to costs four of bookkeeping.
    pub check_races: bool,
    /// Run programs in parallel, on this thread and those of rayon's current pool. The pool is not waited for: see `team.rs`.
    pub parallel: bool,
    /// Receives the text of `print`, whole lines. A kernel that prints runs its programs one after another, in order.
    pub print: &'a (dyn Fn(&str) + Sync),
}

impl Default for Options<'_> {
    /// In parallel, without looking for races, printing to standard error.
    fn default() -> Self {
        Options { check_races: false, parallel: true, print: &|text| eprint!("{text}") }
    }
}

/// A kernel ready to run, any number of times and from several threads.
pub struct Prepared {
    code: Arc<Code>,
    /// Nanoseconds that one program took in the launch before; 0 before the first.
    pace: AtomicU64,
}

/// What all threads share that run the kernel.
struct Code {
    program: Program,
    /// Frames that no worker uses at the moment.
    frames: Mutex<Vec<Frame>>,
}

/// The programs of one launch, handed out to those who run them.
struct Queue {
    grid: [u32; 3],
    /// Programs in all.
    total: u64,
    /// Programs handed out at a time.
    chunk: u64,
    next: AtomicU64,
    /// The first program that failed: later ones need not run, earlier ones must, to know whether they fail too.
    failed_at: AtomicU64,
    first: Mutex<Option<(u64, InterpError)>>,
}

/// Chunks of programs handed out per thread: enough that an uneven grid is spread evenly.
const CHUNKS_PER_THREAD: u64 = 16;

/// A launch that takes less than this on one thread, in nanoseconds, is not worth waking others.
const SHORT: u64 = 20_000;

impl Prepared {
    /// Prepares a verified kernel.
    pub fn new(kernel: &Kernel) -> Result<Prepared, PrepareError> {
        let mut one = None;
        if kernel.explicit_groups().is_some() {
            merge_warp_groups::run(one.insert(kernel.clone()));
        }
        let program = prepare::lower(one.as_ref().unwrap_or(kernel))?;
        let code = Code { program, frames: Mutex::new(Vec::new()) };
        Ok(Prepared { code: Arc::new(code), pace: AtomicU64::new(0) })
    }

    /// Runs a grid of programs and waits for them.
    pub fn run(
        &self,
        launch: &Launch,
        args: &[Arg],
        memory: &Memory,
        options: &Options<'_>,
    ) -> Result<(), InterpError> {
        let code = &self.code;
        code.check_args(args)?;
        let grid = launch.grid;
        let total = grid.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
        let Some(total) = total.filter(|&n| n < u32::MAX as u64) else {
            return Err(code.bad_arguments(format!("the grid {grid:?} has too many programs")));
        };
        let snapshot = memory.snapshot();
        if options.check_races {
            let mut shadow = Shadow::default();
            return code.with_frame(args, |frame| {
                let mut exec = code.exec(frame, grid, &snapshot, options, Some(&mut shadow));
                (0..total).try_for_each(|p| code.program_at(&mut exec, p))
            });
        }
        let threads = match options.parallel && !code.program.prints && !self.is_short(total) {
            true => (rayon::current_num_threads() as u64).min(total).max(1),
            false => 1,
        };
        let start = Instant::now();
        let first = if threads == 1 {
            let queue = Queue::new(grid, total, 1);
            code.work(args, &snapshot, options, &queue);
            queue.first_error()
        } else {
            let queue = Arc::new(Queue::new(grid, total, threads));
            let (code, args, of_all) = (code.clone(), args.to_vec(), queue.clone());
            // Nothing prints here.
            let work = move || code.work(&args, &snapshot, &Options::default(), &of_all);
            team::work_together(Arc::new(work), threads - 1);
            queue.first_error()
        };
        let pace = start.elapsed().as_nanos() as u64 * threads / total.max(1);
        self.pace.store(pace.max(1), Ordering::Relaxed);
        first.map_or(Ok(()), Err)
    }

    /// Are so many programs done sooner than another thread has woken up, going by the launch before?
    fn is_short(&self, programs: u64) -> bool {
        let pace = self.pace.load(Ordering::Relaxed);
        pace != 0 && pace.saturating_mul(programs) < SHORT
    }
}

impl Queue {
    fn new(grid: [u32; 3], total: u64, threads: u64) -> Queue {
        let chunk = total.div_ceil(threads * CHUNKS_PER_THREAD).max(1);
        let (next, failed_at) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        Queue { grid, total, chunk, next, failed_at, first: Mutex::new(None) }
    }

    fn fail(&self, program: u64, error: InterpError) {
        self.failed_at.fetch_min(program, Ordering::Relaxed);
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|(q, _)| program < *q) {
            *first = Some((program, error));
        }
    }

    fn first_error(&self) -> Option<InterpError> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take().map(|(_, error)| error)
    }
}

impl Code {
    /// Runs programs of a queue until none is left.
    fn work(&self, args: &[Arg], memory: &Snapshot, options: &Options<'_>, queue: &Queue) {
        self.with_frame(args, |frame| {
            let mut exec = self.exec(frame, queue.grid, memory, options, None);
            loop {
                let start = queue.next.fetch_add(queue.chunk, Ordering::Relaxed);
                for p in start..queue.total.min(start + queue.chunk) {
                    if p > queue.failed_at.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Err(error) = self.program_at(&mut exec, p) {
                        return queue.fail(p, error);
                    }
                }
                if start + queue.chunk >= queue.total {
                    return;
                }
            }
        });
    }

    fn exec<'a>(
        &'a self,
        frame: &'a mut Frame,
        grid: [u32; 3],
        memory: &'a Snapshot,
        options: &'a Options<'a>,
        shadow: Option<&'a mut Shadow>,
    ) -> Exec<'a> {
        let (arch, program) = (Arch::new(), &self.program);
        Exec { program, frame, arch, grid, id: [0; 3], memory, recent: 0, lanes: 1, options, shadow }
    }

    /// Runs the program of this number.
    fn program_at(&self, exec: &mut Exec<'_>, number: u64) -> Result<(), InterpError> {
        let [x, y, _] = exec.grid.map(|d| d as u64);
        exec.id = [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32];
        let done: Step = exec.run(&exec.program.code);
        done.map_err(|stop| InterpError {
            kernel: self.program.name.clone(),
            at: self.source(stop.loc),
            program: exec.id,
            element: stop.element,
            fault: Box::new(stop.fault),
        })
    }

    fn source(&self, loc: Loc) -> SourceLoc {
        use cranelift_entity::EntityRef;
        self.program.locs[loc.index()].clone()
    }

    /// Calls `f` with a frame in which the arguments are set.
    fn with_frame<R>(&self, args: &[Arg], f: impl FnOnce(&mut Frame) -> R) -> R {
        let kept = self.frames.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut frame = kept.unwrap_or_else(|| Frame::new(&self.program));
        for (param, arg) in self.program.params.iter().zip(args) {
            let slot = &mut frame.slots[param.slot as usize];
            match arg {
                // Little-endian or not, the low bytes of the pattern are the element.
                Arg::Scalar { elem, bits } => elementwise::by_width!(*elem, W => slot.set_scalar(*bits as W)),
                Arg::Ptr { address } => slot.set_scalar(*address),
                Arg::View { address, dims, strides } => {
                    let fields = [*address as i64]
                        .into_iter()
                        .chain(dims.iter().copied())
                        .chain(strides.iter().copied());
                    slot.get_mut::<i64>().iter_mut().zip(fields).for_each(|(x, field)| *x = field);
                }
            }
        }
        let result = f(&mut frame);
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
        result
    }

    fn bad_arguments(&self, message: String) -> InterpError {
        let at = self.program.locs[0].clone();
        InterpError {
            kernel: self.program.name.clone(),
            at,
            program: [0; 3],
            element: None,
            fault: Box::new(Fault::Arguments { message }),
        }
    }

    fn check_args(&self, args: &[Arg]) -> Result<(), InterpError> {
        let params = &self.program.params;
        if params.len() != args.len() {
            let message = format!("takes {} arguments, {} were given", params.len(), args.len());
            return Err(self.bad_arguments(message));
        }
        for (param, arg) in params.iter().zip(args) {
            let fits = match (arg, param.ty) {
                (Arg::Scalar { elem, .. }, ty) => ty.is_scalar_of(*elem),
                (Arg::Ptr { .. }, Type::Tile(t)) => matches!(t.elem, ElemType::Ptr(_)) && t.shape.rank() == 0,
                (Arg::View { dims, strides, .. }, Type::View(v)) => {
                    dims.len() == v.rank as usize && strides.len() == dims.len()
                }
                _ => false,
            };
            if !fits {
                let given = match arg {
                    Arg::Scalar { elem, .. } => elem.to_string(),
                    Arg::Ptr { .. } => "a pointer".to_owned(),
                    Arg::View { dims, .. } => format!("a view of {} dimensions", dims.len()),
                };
                let message =
                    format!("parameter `{}` is {}, but the argument is {given}", param.name, param.ty);
                return Err(self.bad_arguments(message));
            }
        }
        Ok(())
    }
}

/// Prepares and runs a kernel once; keep a [`Prepared`] to run it again.
pub fn run(
    kernel: &Kernel,
    launch: &Launch,
    args: &[Arg],
    memory: &Memory,
    options: &Options<'_>,
) -> Result<(), RunError> {
    Ok(Prepared::new(kernel)?.run(launch, args, memory, options)?)
}

/// Why [`run`] failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The kernel cannot run here.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The run was stopped.
    #[error(transparent)]
    Run(#[from] InterpError),
}
