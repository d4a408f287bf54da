//! Where a bundle's bytes are: in a map of a file, in the program, or in memory.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// The bytes.
pub(crate) enum Source {
    Mapped(Mmap),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl Source {
    /// Maps a file: opening it costs the pages of its manifest, and each part is read when its kernel is launched first.
    ///
    /// Whoever installs bundles replaces files (write, then rename) and does not edit them in place: in a mapped file that is shortened the system
    /// ends the process (SIGBUS). A change of content is found, since no byte is used that was not copied out and then compared with its checksum.
    pub(crate) fn map(path: &Path) -> io::Result<Source> {
        // Asked before it is opened, since opening a pipe waits for a writer, and opening a device may do anything; and asked again of what was
        // opened, in case it was replaced meanwhile.
        regular(&std::fs::metadata(path)?)?;
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        regular(&metadata)?;
        // An empty range cannot be mapped.
        if metadata.len() == 0 {
            return Ok(Source::Owned(Vec::new()));
        }
        // SAFETY: the map is private to us and only read. That its bytes do not change while it lives is what whoever installs bundles promises,
        // as stated above: no program can enforce it for a file that others may write to. Nothing here relies on bytes staying as they were
        // checked: all that is checked is copied before.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Source::Mapped(map))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Source::Mapped(map) => map,
            Source::Static(bytes) => bytes,
            Source::Owned(bytes) => bytes,
        }
    }
}

/// Only of a regular file are the bytes all there.
fn regular(metadata: &Metadata) -> io::Result<()> {
    match metadata.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_dir() => Err(io::Error::other("it is a folder, not a file")),
        _ => Err(io::Error::other(
            "it is a pipe or a device, not a file: bundles are mapped, so copy it to a file first",
        )),
    }
}
