//! In which order the blocks of queries are gone through by programs that stay: as many as the GPU runs at once, each of which takes block after block.
//!
//! Blocks of equal weight are dealt out in turn. Blocks of a causal attention differ too much for that: each is a program of its own, and the GPU gives the next one to whoever is
//! free. (Dealing them out to and fro, so that who has the heaviest of one round has the lightest of the next, was 0.6 times as fast on an H200: rounds and sections have different
//! lengths, and the same programs get the heavy ones again and again.)

use tegula::prelude::*;

/// The blocks of all sequences (here: one head of one batch entry).
#[derive(Clone, Copy)]
pub(super) struct Schedule {
    /// Blocks of a sequence.
    pub blocks: Scalar<i32>,
    pub sequences: Scalar<i32>,
    /// How many sequences are gone through side by side, a divisor of all: their keys and values stay in the L2 cache meanwhile.
    pub together: Scalar<i32>,
}

impl Schedule {
    /// This program's blocks, by number.
    pub fn blocks(&self) -> DeviceRange<i32> {
        persistent(self.blocks * self.sequences)
    }

    /// The block with this number, and its sequence.
    pub fn at(&self, id: Scalar<i32>) -> (Scalar<i32>, Scalar<i32>) {
        let section = self.blocks * self.together;
        let (first, within) = (id / section * self.together, id % section);
        (within / self.together, first + within % self.together)
    }
}
