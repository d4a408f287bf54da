//! In which order the blocks of queries are gone through by programs that stay: as many as the GPU runs at once, each of which takes block after block.
//!
//! Blocks of equal weight are dealt out in turn. Blocks of a causal attention see from one tile of keys to all of them: they are dealt out in pairs, the heaviest with the
//! lightest, the next with the next, so that every pair weighs the same. A program takes both, one after the other: the second one's loads run under the first one's end.
//!
//! What is dealt out evenly ends evenly only if it comes out even. So the blocks of the last sequences may have programs of their own, behind those that stay, which the GPU starts where there is room:
//! the heaviest first, so that the lightest are what the end is made of.
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
    /// Sequences that are dealt out to programs that stay, and those behind them, whose blocks have a program each.
    sequences: Scalar<u32>,
    singly: Scalar<u32>,
    /// Are blocks dealt out in pairs (1), or one by one (0)?
    paired: Scalar<u32>,
    /// Programs that stay.
    stay: Scalar<i32>,
}

impl Schedule {
    /// `dealt`: 1, if blocks are dealt out in pairs, and twice the number of sequences whose blocks are dealt out singly. Whatever it is, something is dealt out that views can take.
    pub fn new(blocks: Scalar<i32>, sequences: Scalar<i32>, dealt: Scalar<i32>) -> Schedule {
        let singly = (dealt >> 1).clamp(0, sequences);
        let stay = max(num_programs(0) - singly * blocks, 0);
        let [blocks, sequences, singly, paired] =
            [blocks, sequences - singly, singly, dealt & 1].map(|x| x.cast::<u32>());
        Schedule { blocks, sequences, singly, paired, stay }
    }

    /// What is dealt out of one sequence. Of an odd number of blocks, the heaviest has a partner that is not there.
    fn portions(&self) -> Scalar<u32> {
        (self.blocks + self.paired) >> self.paired
    }

    /// Does this program have a single block?
    fn is_single(&self) -> Scalar<bool> {
        program_id(0).ge(self.stay)
    }

    /// This program's turns.
    pub fn turns(&self) -> DeviceRange<i32> {
        let left = (self.portions() * self.sequences).cast::<i32>() - program_id(0);
        let turns = cdiv(left, max(self.stay, 1)) << self.paired.cast::<i32>();
        range(0, select(self.is_single(), 1, turns))
    }

    /// What it does in a turn: the block, counted from the heaviest of its sequence, and the sequence. (A partner that is not there has the number behind the last one's.)
    pub fn at(&self, turn: Scalar<i32>) -> (Scalar<i32>, Scalar<u32>) {
        let turn = turn.cast::<u32>();
        let (program, stay) = (program_id(0).cast::<u32>(), self.stay.cast::<u32>());
        let portions = self.portions();
        // Pairs sequence after sequence; single blocks of all sequences by weight.
        let single = self.is_single();
        let number = select(single, program - stay, (turn >> self.paired) * stay + program);
        let among = select(single, max(self.singly, 1), portions);
        let (whole, rest) = (number / among, number % among);
        let light = (portions << self.paired) - 1 - rest;
        let in_pair = select((turn & self.paired).eq_(0), rest, light);
        let block = select(single, whole, in_pair);
        (block.cast::<i32>(), select(single, self.sequences + rest, whole))
    }
}
