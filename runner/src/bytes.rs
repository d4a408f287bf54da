//! The bytes of a weight file: mapped, so that loading reads each page once and keeps no second copy; or owned, for tests.

use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::time::SystemTime;

use memmap2::Mmap;

use crate::error::{Error, Fault};

/// A file's content.
pub enum Bytes {
    /// A map of a file.
    Mapped(Mapped),
    /// Memory.
    Owned(Vec<u8>),
}

/// A file that is mapped, and what it was like then.
pub struct Mapped {
    map: Mmap,
    file: File,
    stamp: Stamp,
}

/// What changes with a file's content.
#[derive(PartialEq)]
struct Stamp {
    length: u64,
    /// `None` where the system does not say.
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(file: &File) -> std::io::Result<Stamp> {
        let metadata = file.metadata()?;
        Ok(Stamp { length: metadata.len(), modified: metadata.modified().ok() })
    }
}

impl Bytes {
    /// Maps a file.
    ///
    /// Nobody may change the file while it is mapped. Strings of its header (names, the vocabulary) are read in place, checked once to be UTF-8:
    /// changed bytes there are undefined behaviour, and in a file that is shortened the system ends the process (SIGBUS). Model files are replaced,
    /// not edited in place. A change is looked for before each tensor and each field is read ([`Bytes::check_unchanged`]), and is then an error;
    /// one that happens in the milliseconds of reading it is not found in time.
    ///
    /// # Errors
    /// If there is no such file, it may not be read, or it is no ordinary file.
    pub fn map(path: &Path) -> Result<Bytes, Error> {
        let file = open(path)?;
        let stamp = Stamp::of(&file).map_err(|error| Error::io(path, &error))?;
        if stamp.length == 0 {
            return Ok(Bytes::Owned(Vec::new()));
        }
        // SAFETY: the map is private to us and only read. That its bytes do not change as long as it lives is what whoever names the file
        // promises, as stated above and where files are opened: no program can enforce it for a file that others may write to.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::io(path, &error))?;
        Ok(Bytes::Mapped(Mapped { map, file, stamp }))
    }

    /// Is the file still as it was when it was mapped, by its length and the time of its last change? To be asked before its bytes are read. Costs a
    /// call of the system.
    ///
    /// # Errors
    /// If it is not.
    pub fn check_unchanged(&self) -> Result<(), Fault> {
        match self {
            Bytes::Owned(_) => Ok(()),
            Bytes::Mapped(mapped) => match Stamp::of(&mapped.file) {
                Ok(stamp) if stamp == mapped.stamp => Ok(()),
                Ok(Stamp { length, .. }) if length < mapped.stamp.length => {
                    let before = mapped.stamp.length;
                    Err(Fault::new(
                        "the file",
                        format!("was shortened from {before} to {length} bytes while it was being read"),
                    ))
                }
                Ok(_) => Err(Fault::new("the file", "was changed while it was being read: start again")),
                Err(error) => Err(Fault::new("the file", error.to_string())),
            },
        }
    }
}

/// Opens an ordinary file.
///
/// # Errors
/// If it is another thing, or may not be read.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    let io = |error| Error::io(path, &error);
    // Asked before it is opened: opening a pipe waits for whoever writes to it, and devices do what they like.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(Fault::new("the file", "is not an ordinary file").in_file(path));
    }
    File::open(path).map_err(io)
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(mapped) => &mapped.map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}
