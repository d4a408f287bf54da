//! Who accessed each byte last: the shadow of shared and global memory.
//!
//! Memory is shadowed in pages of 1 KiB, a cell for 4 bytes; a page that sees a narrower access gets a cell for 2 bytes or one from there on. A cell
//! has the last write and the reads since that are not ordered among themselves (FastTrack, Flanagan and Freund, PLDI 2009): most often one, in
//! the cell itself; more are in a list beside it.

use std::collections::HashMap;

/// Bytes of a page.
const PAGE: u64 = 1024;

/// Who accesses: lanes of a warp, or an asynchronous operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The warp's number in the cluster, or [`OPERATION`].
    pub agent: u16,
    /// Was it atomic, or of the strong kind (relaxed, volatile, …)?
    pub strong: bool,
    /// The warp's epoch, or the operation's number; 0: nobody.
    pub epoch: u32,
    /// Which lanes.
    pub lanes: u32,
    /// The instruction: function and pc.
    pub place: u32,
}

/// [`Stamp::agent`] of an asynchronous operation.
pub const OPERATION: u16 = u16::MAX;

/// The shadow of a few bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cell {
    /// The last write.
    pub write: Stamp,
    /// A read since.
    read: Stamp,
    /// One more than where the others are; 0: there are none.
    others: u32,
}

struct Page {
    /// log2 of the bytes of a cell.
    shift: u32,
    cells: Vec<Cell>,
}

/// Lists of reads, of cells that have several.
#[derive(Default)]
pub struct Lists {
    lists: Vec<Vec<Stamp>>,
    free: Vec<u32>,
}

/// The shadow of an address space.
#[derive(Default)]
pub struct Shadow {
    pages: HashMap<u64, u32>,
    store: Vec<Page>,
    /// The page that was looked at last.
    last: (u64, u32),
    lists: Lists,
}

impl Cell {
    /// Calls `f` for each read since the last write.
    pub fn for_each_read(&self, lists: &Lists, mut f: impl FnMut(&Stamp)) {
        if self.read.epoch != 0 && self.read.lanes != 0 {
            f(&self.read);
        }
        if self.others != 0 {
            lists.lists[self.others as usize - 1].iter().for_each(f);
        }
    }

    /// Notes a read; `ordered` says of an earlier one whether the new one is ordered behind it, and so stands for it.
    pub fn note_read(&mut self, new: &Stamp, lists: &mut Lists, ordered: impl Fn(&Stamp) -> bool) {
        let same = |old: &Stamp| {
            (old.agent, old.epoch, old.strong) == (new.agent, new.epoch, new.strong) && old.epoch != 0
        };
        if same(&self.read) {
            self.read.lanes |= new.lanes;
            return;
        }
        // A lane's own earlier read is ordered, whatever the other lanes of the stamp did.
        let forget = |old: &mut Stamp| {
            if old.agent == new.agent && new.agent != OPERATION {
                old.lanes &= !new.lanes;
            }
        };
        forget(&mut self.read);
        if self.others == 0 {
            if self.read.lanes == 0 || self.read.epoch == 0 || ordered(&self.read) {
                self.read = *new;
                return;
            }
            let at = lists.free.pop().unwrap_or_else(|| {
                lists.lists.push(vec![]);
                lists.lists.len() as u32 - 1
            });
            self.others = at + 1;
        }
        let list = &mut lists.lists[self.others as usize - 1];
        if let Some(old) = list.iter_mut().find(|old| same(old)) {
            old.lanes |= new.lanes;
            return;
        }
        list.iter_mut().for_each(forget);
        list.retain(|old| old.lanes != 0 && !ordered(old));
        list.push(*new);
    }

    /// Notes a write: reads before it are of no interest any more.
    pub fn note_write(&mut self, new: &Stamp, lists: &mut Lists) {
        self.write = *new;
        self.read = Stamp::default();
        if self.others != 0 {
            lists.lists[self.others as usize - 1].clear();
            lists.free.push(self.others - 1);
            self.others = 0;
        }
    }
}

impl Page {
    /// Makes its cells smaller.
    fn refine(&mut self, shift: u32, lists: &mut Lists) {
        let times = 1 << (self.shift - shift);
        let mut cells = Vec::with_capacity(self.cells.len() * times);
        for cell in &self.cells {
            for part in 0..times {
                let mut copy = *cell;
                if part > 0 && cell.others != 0 {
                    let list = lists.lists[cell.others as usize - 1].clone();
                    lists.lists.push(list);
                    copy.others = lists.lists.len() as u32;
                }
                cells.push(copy);
            }
        }
        (self.shift, self.cells) = (shift, cells);
    }
}

impl Shadow {
    /// Calls `f(address, cell, lists)` for each cell of these bytes.
    #[inline]
    pub fn for_each(&mut self, address: u64, bytes: u32, mut f: impl FnMut(u64, &mut Cell, &mut Lists)) {
        let end = address + u64::from(bytes);
        // The finest that this access needs: its ends lie between cells.
        let need = (address | end).trailing_zeros().min(2);
        let mut at = address;
        while at < end {
            let number = at / PAGE;
            let stop = end.min((number + 1) * PAGE);
            let index = self.page(number);
            let page = &mut self.store[index as usize];
            if page.shift > need {
                page.refine(need, &mut self.lists);
            }
            let first = (at % PAGE) >> page.shift;
            let count = (stop - at) >> page.shift;
            for (i, cell) in page.cells[first as usize..(first + count) as usize].iter_mut().enumerate() {
                f(at + ((i as u64) << page.shift), cell, &mut self.lists);
            }
            at = stop;
        }
    }

    #[inline]
    fn page(&mut self, number: u64) -> u32 {
        if self.last.0 == number + 1 {
            return self.last.1;
        }
        let index = *self.pages.entry(number).or_insert_with(|| {
            self.store.push(Page { shift: 2, cells: vec![Cell::default(); PAGE as usize / 4] });
            self.store.len() as u32 - 1
        });
        self.last = (number + 1, index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(agent: u16, epoch: u32, lanes: u32) -> Stamp {
        Stamp { agent, epoch, lanes, ..Stamp::default() }
    }

    fn reads(shadow: &mut Shadow, address: u64, bytes: u32) -> Vec<Stamp> {
        let mut all = vec![];
        shadow.for_each(address, bytes, |_, cell, lists| cell.for_each_read(lists, |read| all.push(*read)));
        all
    }

    #[test]
    fn unordered_reads_are_kept_and_a_write_forgets_them() {
        let mut shadow = Shadow::default();
        for (agent, epoch, lanes) in [(0, 1, 1), (0, 1, 2), (1, 4, 1), (2, 5, 1), (1, 4, 8)] {
            let new = stamp(agent, epoch, lanes);
            shadow.for_each(1000, 4, |_, cell, lists| cell.note_read(&new, lists, |_| false));
        }
        assert_eq!(reads(&mut shadow, 1000, 4), [stamp(0, 1, 3), stamp(1, 4, 9), stamp(2, 5, 1)]);
        shadow.for_each(1000, 4, |_, cell, lists| cell.note_write(&stamp(3, 1, 1), lists));
        assert_eq!(reads(&mut shadow, 1000, 4), []);
    }

    #[test]
    fn narrow_accesses_refine_a_page_and_keep_what_is_known() {
        let mut shadow = Shadow::default();
        for agent in [1, 2] {
            shadow.for_each(64, 8, |_, cell, lists| cell.note_read(&stamp(agent, 1, 1), lists, |_| false));
        }
        shadow.for_each(66, 1, |_, cell, lists| cell.note_write(&stamp(9, 1, 1), lists));
        assert_eq!(reads(&mut shadow, 66, 1), []);
        assert_eq!(reads(&mut shadow, 64, 2).len(), 4);
        let mut addresses = vec![];
        shadow.for_each(1016, 10, |address, _, _| addresses.push(address));
        assert_eq!(addresses, [1016, 1017, 1018, 1019, 1020, 1021, 1022, 1023, 1024]);
    }
}
