//! The bytes of a weight file: mapped, so that loading reads each page once and keeps no second copy; or owned, for tests.

use std::fs::File;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

use crate::error::{Error, Fault};

/// A file's content.
pub enum Bytes {
    /// A map of a file.
    Mapped(Mmap),
    /// Memory.
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a file.
    ///
    /// Nobody may change the file while it is mapped. Strings of its header (names, the vocabulary) are read in place, checked once to be UTF-8:
    /// changed bytes there are undefined behaviour, and in a file that is shortened the system ends the process. Model files are replaced,
    /// not edited in place.
    ///
    /// # Errors
    /// If there is no such file, it may not be read, or it is no ordinary file.
    pub fn map(path: &Path) -> Result<Bytes, Error> {
        let file = open(path)?;
        if file.metadata().map_err(|error| Error::io(path, &error))?.len() == 0 {
            return Ok(Bytes::Owned(Vec::new()));
        }
        // SAFETY: the map is private to us and only read. That its bytes do not change as long as it lives is what whoever names the file
        // promises, as stated above and where files are opened: no program can enforce it for a file that others may write to.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::io(path, &error))?;
        Ok(Bytes::Mapped(map))
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
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}
