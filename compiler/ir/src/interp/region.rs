//! Reductions and scans with any combine region: the region runs on as many pairs of elements at once as there are.

use std::mem::take;

use bytemuck::Pod;

use super::buffer::Buffer;
use super::exec::{Exec, Step, by_size};
use super::program::*;

impl Exec<'_> {
    pub(super) fn region_fold(&mut self, fold: &RegionFold) -> Step {
        let total = (fold.outer * fold.n * fold.inner) as usize;
        for t in &fold.tiles {
            self.copy(t.src, t.work, total * t.size as usize);
        }
        if fold.scan {
            self.scan_region(fold)?
        } else {
            self.reduce_region(fold)?
        }
        let left = if fold.scan { total } else { (fold.outer * fold.inner) as usize };
        for t in &fold.tiles {
            if fold.scan {
                self.copy(t.work, t.dst, left * t.size as usize);
                continue;
            }
            // What is left of each block is its first row.
            let row = fold.inner as usize * t.size as usize;
            let mut out = self.take(t.dst);
            let work = self.get::<u8>(t.work).chunks_exact(row * fold.n as usize);
            for (to, from) in out.get_mut::<u8>().chunks_exact_mut(row).zip(work.take(fold.outer as usize)) {
                to.copy_from_slice(&from[..row]);
            }
            self.put(t.dst, out);
        }
        Ok(())
    }

    /// Halves the dimension until one is left: element `i` takes in element `i + rest`.
    fn reduce_region(&mut self, fold: &RegionFold) -> Step {
        let mut len = fold.n as usize;
        while len > 1 {
            let half = len / 2;
            let rest = len - half;
            self.combine(fold, half, 0, rest, 0)?;
            len = rest;
        }
        Ok(())
    }

    /// Hillis and Steele's scan: in each of log₂ n rounds every element takes in the one `distance` before it. More combinations
    /// than one after another, but all of a round at once.
    fn scan_region(&mut self, fold: &RegionFold) -> Step {
        let n = fold.n as usize;
        let mut distance = 1;
        while distance < n {
            if fold.reverse {
                self.combine(fold, n - distance, distance, 0, 0)?;
            } else {
                self.combine(fold, n - distance, 0, distance, distance)?;
            }
            distance *= 2;
        }
        Ok(())
    }

    /// In every block: rows `to ..` become rows `first ..` combined with rows `second ..`, `rows` of them.
    fn combine(&mut self, fold: &RegionFold, rows: usize, first: usize, second: usize, to: usize) -> Step {
        let (outer, n, inner) = (fold.outer as usize, fold.n as usize, fold.inner as usize);
        let count = outer * rows * inner;
        for t in &fold.tiles {
            let size = t.size as usize;
            for (start, slot) in [(first, t.first), (second, t.second)] {
                let mut packed = self.take(slot);
                let chunks = packed.get_mut::<u8>().chunks_exact_mut(rows * inner * size);
                for (o, chunk) in chunks.take(outer).enumerate() {
                    let at = (o * n + start) * inner * size;
                    chunk.copy_from_slice(&self.get::<u8>(t.work)[at..][..chunk.len()]);
                }
                self.put(slot, packed);
            }
        }
        let lanes = fold.lanes as usize;
        for start in (0..count).step_by(lanes) {
            let now = lanes.min(count - start);
            for t in &fold.tiles {
                for (from, to) in [(t.first, t.running), (t.second, t.element)] {
                    let mut arg = self.take(to);
                    let size = t.size as usize;
                    let bytes = &self.get::<u8>(from)[start * size..][..now * size];
                    arg.get_mut::<u8>()[..bytes.len()].copy_from_slice(bytes);
                    self.put(to, arg);
                }
            }
            let outside = std::mem::replace(&mut self.lanes, now);
            let done = self.run(&fold.code);
            self.lanes = outside;
            done?;
            for t in &fold.tiles {
                // `first` is not needed any more up to here: it collects the results.
                let mut packed = take(&mut self.frame.slots[t.first as usize]);
                let from = &self.frame.slots[t.yielded as usize];
                by_size!(t.size, W => collect::<W>(from, t.same, &mut packed, start, now));
                self.put(t.first, packed);
            }
        }
        for t in &fold.tiles {
            let size = t.size as usize;
            let mut work = self.take(t.work);
            let chunks = self.get::<u8>(t.first).chunks_exact(rows * inner * size);
            for (o, chunk) in chunks.take(outer).enumerate() {
                let at = (o * n + to) * inner * size;
                work.get_mut::<u8>()[at..][..chunk.len()].copy_from_slice(chunk);
            }
            self.put(t.work, work);
        }
        Ok(())
    }

    fn copy(&mut self, from: Slot, to: Slot, bytes: usize) {
        let mut out = self.take(to);
        out.get_mut::<u8>()[..bytes].copy_from_slice(&self.get::<u8>(from)[..bytes]);
        self.put(to, out);
    }
}

/// Copies a yielded value for each lane; a region may yield the same for all.
fn collect<T: Pod>(from: &Buffer, same: bool, to: &mut Buffer, start: usize, count: usize) {
    let (from, to) = (from.get::<T>(), &mut to.get_mut::<T>()[start..][..count]);
    match same {
        true => to.fill(from[0]),
        false => to.copy_from_slice(&from[..count]),
    }
}
