//! Bytes with a shadow: a CTA's shared memory, a lane's local memory.

use super::window::{RANK_SHIFT, SHARED_START};

/// Bytes, each with a flag: has it been written?
#[derive(Debug, Default)]
pub struct ByteMemory {
    bytes: Vec<u8>,
    written: Vec<u8>,
}

impl ByteMemory {
    /// `size` bytes, none of them written.
    pub fn new(size: usize) -> ByteMemory {
        // A pattern that is a NaN in every float format, and large in every integer one.
        ByteMemory { bytes: vec![0xFF; size], written: vec![0; size] }
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Grows to `size` bytes; what is new has not been written.
    pub fn grow(&mut self, size: usize) {
        self.bytes.resize(size.max(self.bytes.len()), 0xFF);
        self.written.resize(self.bytes.len(), 0);
    }

    /// Forgets that `bytes` bytes at `at` were ever written.
    pub fn forget(&mut self, at: usize, bytes: usize) {
        self.written[at..at + bytes].fill(0);
    }

    /// Are these bytes inside?
    #[inline]
    pub fn has(&self, at: u64, bytes: u64) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.bytes.len() as u64)
    }

    /// Loads up to 8 bytes.
    #[inline]
    pub fn load(&self, at: usize, bytes: u32) -> u64 {
        match bytes {
            4 => u64::from(u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("4 bytes"))),
            8 => u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes")),
            2 => u64::from(u16::from_le_bytes(self.bytes[at..at + 2].try_into().expect("2 bytes"))),
            _ => u64::from(self.bytes[at]),
        }
    }

    /// Stores up to 8 bytes.
    #[inline]
    pub fn store(&mut self, at: usize, bytes: u32, value: u64) {
        let n = bytes as usize;
        if n == 4 {
            // Most stores; a constant length is one move each.
            self.bytes[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
            self.written[at..at + 4].copy_from_slice(&[1; 4]);
            return;
        }
        self.bytes[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
        self.written[at..at + n].fill(1);
    }

    /// Have all of these bytes been written?
    #[inline]
    pub fn is_written(&self, at: usize, bytes: u32) -> bool {
        let flags = &self.written[at..at + bytes as usize];
        // Words are most of it: four flags at a time.
        let (words, rest) = flags.as_chunks::<4>();
        words.iter().all(|w| *w == [1; 4]) && rest.iter().all(|&w| w != 0)
    }

    /// The bytes themselves.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes to be written: they count as written.
    pub fn bytes_mut(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        self.written[at..at + bytes].fill(1);
        &mut self.bytes[at..at + bytes]
    }
}

/// The shared memory of one CTA. Addresses are those of the `.shared` space.
#[derive(Debug, Default)]
pub struct SharedMemory {
    /// The rank of its CTA in the cluster.
    pub rank: u32,
    /// Its bytes, from [`SHARED_START`] on.
    pub memory: ByteMemory,
}

impl SharedMemory {
    /// `size` bytes of the CTA `rank`.
    pub fn new(rank: u32, size: usize) -> SharedMemory {
        SharedMemory { rank, memory: ByteMemory::new(size) }
    }

    /// The address of the first byte.
    pub fn start(&self) -> u64 {
        (u64::from(self.rank) << RANK_SHIFT) + u64::from(SHARED_START)
    }

    /// Which byte of [`SharedMemory::memory`] an address is, if all of `bytes` are inside.
    #[inline]
    pub fn index(&self, address: u64, bytes: u64) -> Option<usize> {
        let at = address.checked_sub(self.start())?;
        self.memory.has(at, bytes).then_some(at as usize)
    }
}
