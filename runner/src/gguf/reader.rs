//! Reads little-endian fields out of untrusted bytes. Every length is compared with what is left before it is used.

use std::ops::Range;

use crate::error::Fault;

/// A position in a file's bytes, and the field that is being read, which errors name.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// What is being read, for messages.
    pub(super) field: String,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0, field: "the header".into() }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// A fault of the field that is being read.
    pub(super) fn fault(&self, problem: impl Into<String>) -> Fault {
        Fault::new(self.field.clone(), problem)
    }

    /// The place of the next `n` bytes, which are passed over.
    pub(super) fn skip(&mut self, n: u64) -> Result<Range<usize>, Fault> {
        // What is left fits a usize, so an `n` that is not larger does too.
        if n > self.left() as u64 {
            return Err(self.fault(format!(
                "needs {n} bytes at byte {}, but the file ends at byte {}: it is damaged or truncated, fetch it again",
                self.at,
                self.bytes.len()
            )));
        }
        let start = self.at;
        self.at += n as usize;
        Ok(start..self.at)
    }

    pub(super) fn take(&mut self, n: u64) -> Result<&'a [u8], Fault> {
        Ok(&self.bytes[self.skip(n)?])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let bytes = self.take(N as u64)?;
        // `take` gives as many as were asked for.
        Ok(std::array::from_fn(|i| bytes[i]))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A string: its length, then its bytes.
    pub(super) fn string(&mut self) -> Result<Range<usize>, Fault> {
        let n = self.u64()?;
        self.skip(n)
    }

    /// A string that names something: at most 64 KiB of UTF-8.
    pub(super) fn name(&mut self) -> Result<&'a str, Fault> {
        let range = self.string()?;
        if range.len() > 0xFFFF {
            return Err(self.fault(format!("a name of {} bytes: the file is damaged", range.len())));
        }
        std::str::from_utf8(&self.bytes[range])
            .map_err(|_| self.fault("a name that is not UTF-8: the file is damaged"))
    }

    /// A count of things that take at least `least` bytes each.
    pub(super) fn count(&mut self, what: &str, least: u64) -> Result<usize, Fault> {
        let n = self.u64()?;
        if n > self.left() as u64 / least {
            return Err(self.fault(format!(
                "says {n} {what}, more than the {} bytes left can hold: the file is damaged or truncated",
                self.left()
            )));
        }
        Ok(n as usize)
    }
}
