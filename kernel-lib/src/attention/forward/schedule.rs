//! In which order the blocks of queries are gone through by programs that stay: as many as the GPU runs at once, each of which takes block after block.
//!
//! Blocks of equal weight are dealt out in turn. Blocks of a causal attention see from one tile of keys to all of them: they are dealt out in pairs, the heaviest with the
//! lightest, the next with the next, so that every pair weighs the same. A program takes both, one after the other: the second one's loads run under the first one's end.
//!
//! Rejected: dealing single blocks out to and fro, so that who has the heaviest of one round has the lightest of the next, was 0.6 times as fast on an H200: rounds and
//! sections have different lengths, and the same programs get the heavy ones again and again.

use tegula::prelude::*;

/// The blocks of all sequences (here: one head of one batch entry), sequence after sequence: programs that run side by side read the same keys and values.
///
/// In unsigned numbers, whose division is the shorter one: the first thing that a block's loads, and all that follows, wait for.
#[derive(Clone, Copy)]
pub(super) struct Schedule {
    /// Blocks of a sequence.
    blocks: Scalar<u32>,
    sequences: Scalar<u32>,
    /// Are blocks dealt out in pairs (1), or one by one (0)?
    paired: Scalar<u32>,
}

impl Schedule {
    /// Whatever `paired` is, it is taken as 0 or 1.
    pub fn new(blocks: Scalar<i32>, sequences: Scalar<i32>, paired: Scalar<i32>) -> Schedule {
        let [blocks, sequences, paired] = [blocks, sequences, paired & 1].map(|x| x.cast::<u32>());
        Schedule { blocks, sequences, paired }
    }

    /// What is dealt out of one sequence. Of an odd number of blocks, the heaviest has a partner that is not there.
    fn portions(&self) -> Scalar<u32> {
        (self.blocks + self.paired) >> self.paired
    }

    /// This program's turns.
    pub fn turns(&self) -> DeviceRange<i32> {
        let left = (self.portions() * self.sequences).cast::<i32>() - program_id(0);
        range(0, cdiv(left, num_programs(0)) << self.paired.cast::<i32>())
    }

    /// What it does in a turn: the block, counted from the heaviest of its sequence, and the sequence. (A partner that is not there has the number behind the last one's.)
    pub fn at(&self, turn: Scalar<i32>) -> (Scalar<i32>, Scalar<u32>) {
        let turn = turn.cast::<u32>();
        let [program, programs] = [program_id(0), num_programs(0)].map(|x| x.cast::<u32>());
        let portion = (turn >> self.paired) * programs + program;
        let portions = self.portions();
        let (sequence, heavy) = (portion / portions, portion % portions);
        let light = (portions << self.paired) - 1 - heavy;
        (select((turn & self.paired).eq_(0), heavy, light).cast::<i32>(), sequence)
    }
}
