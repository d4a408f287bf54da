//! Device memory.
//!
//! CTAs on several host threads share it without locks: an allocation is words of 32 bits that are loaded and stored atomically, relaxed,
//! which costs what plain accesses cost. Two CTAs that race get one of the values, as on a GPU, and no undefined behaviour. Stores of
//! less than a word replace their bytes only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use super::window;

/// Room between allocations, and the alignment of their addresses: a pointer that leaves its allocation by less than a MiB hits nothing.
const GAP: u64 = 1 << 20;
/// Freed allocations that reports know.
const REMEMBERED: usize = 256;

/// An allocation.
#[derive(Debug)]
pub struct Allocation {
    base: u64,
    size: u64,
    name: Arc<str>,
    words: Box<[AtomicU32]>,
    /// Bit i of a word's shadow: its byte i has been written.
    written: Box<[AtomicU8]>,
}

/// All allocations of a device. A clone is the same memory: it keeps what was allocated when it was made, whatever is allocated or freed since.
#[derive(Clone, Debug, Default)]
pub struct GlobalMemory {
    /// By rising address.
    allocations: Vec<Arc<Allocation>>,
    /// Base, size, name of what is no more, for reports: the last of them.
    freed: VecDeque<(u64, u64, Arc<str>)>,
    used: u64,
}

/// An access by the host outside of any allocation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {address:#x} are not inside of one allocation{note}")]
pub struct MemoryError {
    /// Where.
    pub address: u64,
    /// How many bytes.
    pub bytes: u64,
    /// What is near.
    pub note: String,
}

impl GlobalMemory {
    /// Memory without allocations.
    pub fn new() -> GlobalMemory {
        GlobalMemory::default()
    }

    /// Allocates `bytes` bytes, not written yet; `name` is what reports call it. Its address is a multiple of 1 MiB.
    pub fn allocate(&mut self, bytes: u64, name: &str) -> u64 {
        let base = window::GLOBAL + self.used;
        self.used = (self.used + bytes).next_multiple_of(GAP) + GAP;
        let words = bytes.div_ceil(4) as usize;
        self.allocations.push(Arc::new(Allocation {
            base,
            size: bytes,
            name: name.into(),
            words: (0..words).map(|_| AtomicU32::new(0xBAD0_BEEF)).collect(),
            written: (0..words).map(|_| AtomicU8::new(0)).collect(),
        }));
        base
    }

    /// Allocates a copy of `bytes`.
    pub fn allocate_from(&mut self, bytes: &[u8], name: &str) -> u64 {
        let base = self.allocate(bytes.len() as u64, name);
        self.write(base, bytes).expect("the allocation is as large as what is written");
        base
    }

    /// Frees the allocation that begins at `address`.
    ///
    /// # Errors
    /// If none does.
    pub fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        match self.allocations.binary_search_by_key(&address, |a| a.base) {
            Ok(i) => {
                let gone = self.allocations.remove(i);
                if self.freed.len() == REMEMBERED {
                    self.freed.pop_front();
                }
                self.freed.push_back((gone.base, gone.size, gone.name.clone()));
                Ok(())
            }
            Err(_) => Err(self.error(address, 0)),
        }
    }

    /// Writes from the host.
    ///
    /// # Errors
    /// If the bytes are not inside of one allocation.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let a =
            self.find(address, bytes.len() as u64).ok_or_else(|| self.error(address, bytes.len() as u64))?;
        a.store_bytes((address - a.base) as usize, bytes);
        Ok(())
    }

    /// Reads from the host.
    ///
    /// # Errors
    /// If the bytes are not inside of one allocation.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let a =
            self.find(address, bytes.len() as u64).ok_or_else(|| self.error(address, bytes.len() as u64))?;
        a.load_bytes((address - a.base) as usize, bytes);
        Ok(())
    }

    /// Copies `bytes` bytes; those that have not been written count as not written behind it, too. The two places may overlap.
    ///
    /// # Errors
    /// If either place is not inside of one allocation.
    pub fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), MemoryError> {
        let source = self.find(from, bytes).ok_or_else(|| self.error(from, bytes))?;
        let target = self.find(to, bytes).ok_or_else(|| self.error(to, bytes))?;
        let (at, to_at) = ((from - source.base) as usize, (to - target.base) as usize);
        let mut copied = vec![0; bytes as usize];
        source.load_bytes(at, &mut copied);
        let unwritten: Vec<usize> = (0..bytes as usize).filter(|i| !source.is_written(at + i, 1)).collect();
        target.store_bytes(to_at, &copied);
        unwritten.into_iter().for_each(|i| target.forget_written(to_at + i));
        Ok(())
    }

    fn error(&self, address: u64, bytes: u64) -> MemoryError {
        MemoryError { address, bytes, note: self.describe(address) }
    }

    /// The allocation that has all of these bytes.
    pub fn find(&self, address: u64, bytes: u64) -> Option<&Allocation> {
        self.find_near(address, bytes, &mut 0)
    }

    /// As [`GlobalMemory::find`]; `hint` remembers which allocation it was, and is tried first.
    #[inline]
    pub fn find_near(&self, address: u64, bytes: u64, hint: &mut usize) -> Option<&Allocation> {
        if let Some(a) = self.allocations.get(*hint)
            && a.has(address, bytes)
        {
            return Some(a);
        }
        *hint = self.allocations.partition_point(|a| a.base <= address).checked_sub(1)?;
        Some(&*self.allocations[*hint]).filter(|a| a.has(address, bytes))
    }

    /// What an address is near to: ", 4 bytes behind the 64 bytes of `x` at 0x…".
    pub fn describe(&self, address: u64) -> String {
        let live = self.allocations.iter().map(|a| (a.base, a.size, &a.name, false));
        let dead = self.freed.iter().map(|f| (f.0, f.1, &f.2, true));
        let distance = |base: u64, size: u64| {
            if address < base { base - address } else { (address + 1).saturating_sub(base + size) }
        };
        let Some((base, size, name, freed)) = live.chain(dead).min_by_key(|a| (distance(a.0, a.1), a.3))
        else {
            return "; nothing is allocated".to_owned();
        };
        let what = if freed { "freed " } else { "" };
        if address < base {
            format!("; {} bytes before the {what}{size} bytes of `{name}` at {base:#x}", base - address)
        } else if address >= base + size {
            format!(
                "; {} bytes behind the {what}{size} bytes of `{name}` at {base:#x}",
                address - (base + size)
            )
        } else {
            format!("; byte {} of the {what}{size} bytes of `{name}` at {base:#x}", address - base)
        }
    }
}

impl Allocation {
    /// Its address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What reports call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    #[inline]
    fn has(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && address - self.base <= self.size && bytes <= self.size - (address - self.base)
    }

    /// Loads 1, 2, 4 or 8 bytes at a multiple of their number.
    #[inline]
    pub fn load(&self, at: usize, bytes: u32) -> u64 {
        let word = self.words[at / 4].load(Relaxed);
        match bytes {
            4 => u64::from(word),
            8 => u64::from(word) | u64::from(self.words[at / 4 + 1].load(Relaxed)) << 32,
            1 => u64::from(word >> (at % 4 * 8) & 0xFF),
            _ => u64::from(word >> (at % 4 * 8) & 0xFFFF),
        }
    }

    /// Stores 1, 2, 4 or 8 bytes at a multiple of their number.
    #[inline]
    pub fn store(&self, at: usize, bytes: u32, value: u64) {
        match bytes {
            4 => self.words[at / 4].store(value as u32, Relaxed),
            8 => {
                self.words[at / 4].store(value as u32, Relaxed);
                self.words[at / 4 + 1].store((value >> 32) as u32, Relaxed);
            }
            _ => {
                let mask = if bytes == 1 { 0xFFu32 } else { 0xFFFF } << (at % 4 * 8);
                let part = (value as u32) << (at % 4 * 8) & mask;
                let replace = |word: u32| Some(word & !mask | part);
                self.words[at / 4].fetch_update(Relaxed, Relaxed, replace).expect("it always replaces");
            }
        }
        self.mark_written(at, bytes as usize);
    }

    fn mark_written(&self, at: usize, bytes: usize) {
        let mut at = at;
        let end = at + bytes;
        while at < end {
            let stop = (at / 4 * 4 + 4).min(end);
            if stop - at == 4 {
                self.written[at / 4].store(0xF, Relaxed);
            } else {
                self.written[at / 4].fetch_or(((1 << (stop - at)) - 1) << (at % 4), Relaxed);
            }
            at = stop;
        }
    }

    fn forget_written(&self, at: usize) {
        self.written[at / 4].fetch_and(!(1 << (at % 4)), Relaxed);
    }

    /// Have all of these bytes been written?
    #[inline]
    pub fn is_written(&self, at: usize, bytes: u32) -> bool {
        let (mut at, end) = (at, at + bytes as usize);
        while at < end {
            let stop = (at / 4 * 4 + 4).min(end);
            let need = ((1u8 << (stop - at)) - 1) << (at % 4);
            if self.written[at / 4].load(Relaxed) & need != need {
                return false;
            }
            at = stop;
        }
        true
    }

    /// Copies bytes out, at any alignment.
    pub fn load_bytes(&self, at: usize, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let from = at + done;
            let word = self.words[from / 4].load(Relaxed).to_le_bytes();
            let n = (4 - from % 4).min(out.len() - done);
            out[done..done + n].copy_from_slice(&word[from % 4..from % 4 + n]);
            done += n;
        }
    }

    /// Copies bytes in, at any alignment.
    pub fn store_bytes(&self, at: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let to = at + done;
            let n = (4 - to % 4).min(bytes.len() - done);
            if n == 4 {
                let word = bytes[done..done + 4].try_into().expect("four bytes");
                self.words[to / 4].store(u32::from_le_bytes(word), Relaxed);
            } else {
                for (i, &byte) in bytes[done..done + n].iter().enumerate() {
                    let shift = (to + i) % 4 * 8;
                    let replace = |word: u32| Some(word & !(0xFF << shift) | u32::from(byte) << shift);
                    self.words[to / 4].fetch_update(Relaxed, Relaxed, replace).expect("it always replaces");
                }
            }
            done += n;
        }
        self.mark_written(at, bytes.len());
    }
}
