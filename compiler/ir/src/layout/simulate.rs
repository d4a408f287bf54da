//! Conversion plans executed on data: the definition of what a plan means, for tests and debugging.

use super::convert::{Conversion, SharedPlan};
use super::linear::{LinearLayout, Space};
use super::shuffle::{SelectStage, ShufflePlan};

impl Conversion {
    /// Runs the plan. `data` has one value for each flat input index of `src`, the source layout it was planned
    /// for; the result has one for each flat input index of the destination.
    ///
    /// # Panics
    /// If the plan is broken: it reads what nobody wrote, or writes one place twice.
    pub fn simulate<T: Copy>(&self, src: &LinearLayout, data: &[T]) -> Vec<T> {
        assert_eq!(data.len(), 1 << src.input_bits());
        let registers = |layout: &LinearLayout| layout.size(Space::Register) as usize;
        match self {
            Self::None => data.to_vec(),
            Self::Registers(from) => {
                let threads = data.chunks_exact(registers(src));
                threads.flat_map(|thread| from.iter().map(|&r| thread[r as usize])).collect()
            }
            Self::Shuffle(plan) => {
                let warps = data.chunks_exact(registers(src) << src.bits(Space::Lane));
                let run = |(i, warp)| plan.simulate_warp(i as u32 % src.size(Space::Warp), warp);
                warps.enumerate().flat_map(run).collect()
            }
            Self::Shared(plan) => {
                let of_block = 1usize << src.input_shift(Space::Block);
                let blocks = data.chunks_exact(of_block);
                blocks.enumerate().flat_map(|(block, data)| plan.simulate_block(block as u32, data)).collect()
            }
        }
    }
}

impl ShufflePlan {
    fn simulate_warp<T: Copy>(&self, warp: u32, data: &[T]) -> Vec<T> {
        let stages = |stages: &[SelectStage], lane: usize, registers: &mut Vec<T>| {
            for stage in stages.iter().filter(|s| s.applies(lane as u32, warp)) {
                let old = registers.clone();
                for (i, register) in registers.iter_mut().enumerate() {
                    *register = old[i ^ stage.register_xor as usize];
                }
            }
        };
        let mut lanes: Vec<Vec<T>> = data.chunks_exact(1 << self.source_bits).map(<[T]>::to_vec).collect();
        lanes.iter_mut().enumerate().for_each(|(lane, registers)| stages(&self.before, lane, registers));
        let receive = |lane: usize| {
            let mut received: Vec<Option<T>> = vec![None; 1 << self.received_bits];
            for round in &self.rounds {
                let from = self.source_lane(round, lane as u32, warp) as usize;
                assert!(!round.local || from == lane, "a local round reads another lane");
                for &(offered, to) in &round.moves {
                    let old = received[to as usize].replace(lanes[from][offered as usize]);
                    assert!(old.is_none(), "register received twice");
                }
            }
            let mut received: Vec<T> =
                received.into_iter().map(|v| v.expect("every register is received")).collect();
            stages(&self.after, lane, &mut received);
            self.result.iter().map(move |&r| received[r as usize]).collect::<Vec<T>>()
        };
        (0..lanes.len()).flat_map(receive).collect()
    }
}

impl SharedPlan {
    fn simulate_block<T: Copy>(&self, block: u32, data: &[T]) -> Vec<T> {
        let mut memory: Vec<Option<T>> = vec![None; self.layout.size(Space::Offset) as usize];
        let stores = self.stores();
        assert_eq!(stores.width(), self.store_vec);
        let threads = |layout: &LinearLayout| {
            let (lanes, warps) = (layout.size(Space::Lane), layout.size(Space::Warp));
            (0..warps).flat_map(move |warp| (0..lanes).map(move |lane| (warp, lane)))
        };
        let input = |layout: &LinearLayout, register, (warp, lane)| {
            layout.input(&[
                (Space::Register, register),
                (Space::Lane, lane),
                (Space::Warp, warp),
                (Space::Block, block),
            ])
        };
        for thread in threads(&self.store).filter(|&(warp, lane)| self.owners.owns(lane, warp, block)) {
            for vector in stores.vectors() {
                let start = self.store.flat(input(&self.store, vector[0], thread)) as usize;
                assert_eq!(start % vector.len(), 0, "misaligned store");
                for (i, &register) in vector.iter().enumerate() {
                    let slot = input(&self.store, register, thread) as usize & (data.len() - 1);
                    let old = memory[start + i].replace(data[slot]);
                    assert!(old.is_none(), "offset {} stored twice", start + i);
                }
            }
        }
        let loads = self.loads();
        assert_eq!(loads.width(), self.load_vec);
        let same = self.load.register_representatives();
        let mut result = Vec::new();
        for thread in threads(&self.load) {
            let mut registers: Vec<Option<T>> = vec![None; same.len()];
            for vector in loads.vectors() {
                let start = self.load.flat(input(&self.load, vector[0], thread)) as usize;
                assert_eq!(start % vector.len(), 0, "misaligned load");
                for (i, &register) in vector.iter().enumerate() {
                    registers[register as usize] = memory[start + i];
                }
            }
            result.extend(same.iter().map(|&r| registers[r as usize].expect("loaded before stored")));
        }
        result
    }
}
