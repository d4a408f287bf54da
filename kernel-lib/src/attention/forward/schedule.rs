//! In which order the blocks of queries are gone through by programs that stay: as many as the GPU runs at once, each of which takes block after block.
//!
//! Blocks of equal weight are dealt out in turn. Blocks of a causal attention see from one tile of keys to all of them: they are dealt out in pairs, the heaviest with the
//! lightest, the next with the next, so that every pair weighs the same. A program takes both, one after the other: the second one's loads run under the first one's end.
//!
//! Rejected: dealing single blocks out to and fro, so that who has the heaviest of one round has the lightest of the next, was 0.6 times as fast on an H200: rounds and
//! sections have different lengths, and the same programs get the heavy ones again and again.

use tegula::prelude::*;

/// The blocks of all sequences (here: one head of one batch entry).
#[derive(Clone, Copy)]
pub(super) struct Schedule {
    /// Blocks of a sequence.
    pub blocks: Scalar<i32>,
    pub sequences: Scalar<i32>,
    /// How many sequences are gone through side by side, a divisor of all: their keys and values stay in the L2 cache meanwhile.
    pub together: Scalar<i32>,
    /// Are blocks dealt out in pairs (1), or one by one (0)?
    pub paired: Scalar<i32>,
}

impl Schedule {
    /// With arguments that are what they should be: at least one sequence side by side, pairs or none. That is written down, since the tensor-copy engine is let store blocks only where they are known
    /// not to begin in front of the tensor.
    pub fn new(
        blocks: Scalar<i32>,
        sequences: Scalar<i32>,
        together: Scalar<i32>,
        paired: Scalar<i32>,
    ) -> Schedule {
        Schedule { blocks, sequences, together: max(together, 1), paired: paired & 1 }
    }

    /// What is dealt out of one sequence. Of an odd number of blocks, the heaviest has a partner that is not there.
    fn portions(&self) -> Scalar<i32> {
        (self.blocks + self.paired) >> self.paired
    }

    /// This program's turns.
    pub fn turns(&self) -> DeviceRange<i32> {
        let left = self.portions() * self.sequences - program_id(0);
        range(0, cdiv(left, num_programs(0)) << self.paired)
    }

    /// What it does in a turn: the block, counted from the heaviest of its sequence, and the sequence. (A partner that is not there has the number behind the last one's.)
    pub fn at(&self, turn: Scalar<i32>) -> (Scalar<i32>, Scalar<i32>) {
        let portion = (turn >> self.paired) * num_programs(0) + program_id(0);
        let section = self.portions() * self.together;
        let (first, within) = (portion / section * self.together, portion % section);
        let (heavy, sequence) = (within / self.together, first + within % self.together);
        let light = (self.portions() << self.paired) - 1 - heavy;
        (select((turn & self.paired).eq_(0), heavy, light), sequence)
    }
}
