//! Which program has stored to each byte, to find programs that store to the same one.

use std::collections::HashMap;

use super::memory::Allocation;

/// For each allocation that was stored to, by address: one more than the number of the program that stored to each byte; 0 for none.
#[derive(Default)]
pub(super) struct Shadow(HashMap<u64, Vec<u32>>);

impl Shadow {
    /// Notes a store; if another program has stored to one of the bytes, gives the first such byte and the program.
    pub(super) fn note(
        &mut self,
        a: &Allocation,
        offset: usize,
        bytes: usize,
        id: [u32; 3],
        grid: [u32; 3],
    ) -> Result<(), (usize, [u32; 3])> {
        let own = id[0] + grid[0] * (id[1] + grid[1] * id[2]) + 1;
        let owners = self.0.entry(a.address()).or_insert_with(|| vec![0; a.len()]);
        for (i, owner) in owners[offset..offset + bytes].iter_mut().enumerate() {
            if *owner != 0 && *owner != own {
                let other = *owner - 1;
                let id = [other % grid[0], other / grid[0] % grid[1], other / grid[0] / grid[1]];
                return Err((offset + i, id));
            }
            *owner = own;
        }
        Ok(())
    }
}
