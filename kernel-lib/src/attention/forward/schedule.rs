//! In which order the blocks of queries are gone through by programs that stay: as many as the GPU runs at once, each of which takes block after block.

use tegula::prelude::*;

/// The blocks of all sequences (here: one head of one batch entry), heaviest first if block 0 is the heaviest.
#[derive(Clone, Copy)]
pub(super) struct Schedule {
    /// Blocks of a sequence.
    pub blocks: Scalar<i32>,
    pub sequences: Scalar<i32>,
    /// How many sequences are gone through side by side, a divisor of all: their keys and values stay in the L2 cache meanwhile.
    pub together: Scalar<i32>,
    /// Do blocks differ in weight?
    pub uneven: bool,
}

impl Schedule {
    /// The rounds of this program.
    pub fn rounds(&self) -> DeviceRange<i32> {
        let (total, programs) = (self.blocks * self.sequences, num_programs(0));
        let (whole, rest) = (total / programs, total % programs);
        range(0, whole + self.place(whole).lt(rest).cast::<i32>())
    }

    /// The block and its sequence in a round. With uneven blocks, programs go to and fro: who has the heaviest block of one round has the lightest of the next, so that all end at about the same time.
    pub fn at(&self, round: Scalar<i32>) -> (Scalar<i32>, Scalar<i32>) {
        let id = round * num_programs(0) + self.place(round);
        let section = self.blocks * self.together;
        let (first, within) = (id / section * self.together, id % section);
        (within / self.together, first + within % self.together)
    }

    /// This program's place in a round.
    fn place(&self, round: Scalar<i32>) -> Scalar<i32> {
        let program = program_id(0);
        if !self.uneven {
            return program;
        }
        select((round % 2).eq_(0), program, num_programs(0) - 1 - program)
    }
}
