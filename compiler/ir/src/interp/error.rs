//! What can go wrong in a run, and how it is said: kernel, source line, program, element, and what was wrong there.

use std::fmt;

use crate::kernel::SourceLoc;

/// Why a kernel cannot be run on this device at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel `{kernel}`: {message}\n  at {at}")]
pub struct PrepareError {
    /// The kernel.
    pub kernel: String,
    /// What is not supported.
    pub message: String,
    /// Where.
    pub at: SourceLoc,
}

/// A run that was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterpError {
    /// The kernel.
    pub kernel: String,
    /// Where in the source; line 0 if unknown.
    pub at: SourceLoc,
    /// The program (x, y, z); of several that failed, the first.
    pub program: [u32; 3],
    /// The element of the tile, if one is to blame (empty for a scalar).
    pub element: Option<Vec<u32>>,
    /// What happened.
    pub fault: Box<Fault>,
}

/// How memory was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An atomic.
    Atomic,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "reads",
            Access::Write => "writes",
            Access::Atomic => "atomically updates",
        })
    }
}

/// Where an address lies relative to the nearest buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearby {
    /// Bytes from the buffer's start (negative before it).
    pub offset: i64,
    /// Bytes in the buffer.
    pub len: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An access outside every buffer.
    OutOfBounds {
        /// What kind.
        access: Access,
        /// Bytes accessed.
        bytes: u32,
        /// The address.
        address: u64,
        /// The buffer it missed, if one is near.
        nearby: Option<Nearby>,
    },
    /// An address that is not a multiple of the element size.
    Misaligned {
        /// What kind.
        access: Access,
        /// Bytes accessed.
        bytes: u32,
        /// The address.
        address: u64,
        /// The buffer it lies in, if any.
        nearby: Option<Nearby>,
    },
    /// An assertion does not hold.
    Assert {
        /// The programmer's message.
        message: String,
    },
    /// A promise (`multiple_of`, `contiguous`) does not hold.
    Assume {
        /// Which, and the offending value.
        promise: String,
    },
    /// Two programs stored to the same bytes, neither atomically (only with `check_races`).
    Race {
        /// The program that stored before.
        other: [u32; 3],
        /// Where.
        nearby: Nearby,
        /// Bytes of the element.
        bytes: u32,
    },
    /// The arguments do not fit the kernel's parameters.
    Arguments {
        /// What does not fit.
        message: String,
    },
    /// A gather from an element that the tile does not have.
    Gather {
        /// The index.
        index: i64,
        /// The tile's extent along the axis.
        extent: u32,
    },
    /// A loop whose step is not positive.
    Step {
        /// The step.
        step: i64,
    },
}

/// "element 1024 of a buffer of 1024 elements", or in bytes where it does not divide.
struct Place(Nearby, u32);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place(Nearby { offset, len }, size) = *self;
        if offset % size as i64 == 0 && len % size as u64 == 0 {
            write!(f, "element {} of a buffer of {} elements", offset / size as i64, len / size as u64)
        } else {
            write!(f, "byte {offset} of a buffer of {len} bytes")
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::OutOfBounds { access, bytes, nearby: Some(n), .. } => {
                write!(f, "out of bounds: {access} {bytes} bytes at {}", Place(*n, *bytes))
            }
            Fault::OutOfBounds { access, bytes, address, nearby: None } => {
                write!(
                    f,
                    "out of bounds: {access} {bytes} bytes at address {address:#x}, which is in no buffer"
                )
            }
            Fault::Misaligned { access, bytes, nearby: Some(n), .. } => write!(
                f,
                "misaligned: {access} {bytes} bytes at byte {} of a buffer of {} bytes",
                n.offset, n.len
            ),
            Fault::Misaligned { access, bytes, address, nearby: None } => {
                write!(f, "misaligned: {access} {bytes} bytes at address {address:#x}")
            }
            Fault::Assert { message } => write!(f, "assertion failed: {message}"),
            Fault::Assume { promise } => write!(f, "broken promise: {promise}"),
            Fault::Race { other: [x, y, z], nearby, bytes } => write!(
                f,
                "race: writes {}, which program ({x}, {y}, {z}) has written too",
                Place(*nearby, *bytes)
            ),
            Fault::Arguments { message } => f.write_str(message),
            Fault::Gather { index, extent } => {
                write!(f, "out of bounds: gathers element {index} of {extent}")
            }
            Fault::Step { step } => write!(f, "a loop's step is {step}; it must be positive"),
        }
    }
}

impl fmt::Display for InterpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel `{}`: {}", self.kernel, self.fault)?;
        if matches!(*self.fault, Fault::Arguments { .. }) {
            return Ok(());
        }
        let [x, y, z] = self.program;
        write!(f, "\n  at {}, in program ({x}, {y}, {z})", self.at)?;
        match &self.element {
            Some(e) if !e.is_empty() => write!(f, ", tile element {e:?}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for InterpError {}
