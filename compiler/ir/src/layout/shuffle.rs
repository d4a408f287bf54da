//! Conversions within a warp by `shfl.sync.idx`.
//!
//! A shuffle lets each lane choose whose value it reads, but each lane offers only one register. The
//! correspondence says which (register, lane) each destination (register, lane) reads:
//!
//! ```text
//! register' = Ar·register ⊕ Br·lane ⊕ Cr·warp        lane' = Al·register ⊕ Bl·lane ⊕ Cl·warp
//! ```
//!
//! If all lanes filled the same destination register in one round, two lanes might read different registers
//! of one source lane (whenever Bl is singular, as in any transpose). So in round `t`, lane `l` fills register
//! `t ⊕ K·l` instead, with K chosen to make N = Al·K ⊕ Bl regular. Then each lane is read by one lane, and what
//! it must offer is a function of itself: register `P·t ⊕ Q·lane ⊕ R·warp`. That leaves three steps, each
//! simple: exchange registers within each thread by its lane's bits (the Q and R part), shuffle `P·t` in each
//! round, exchange registers by K.

use smallvec::SmallVec;

use super::convert::Correspondence;
use super::f2::{Echelon, apply_columns};
use super::linear::Space;

/// A small matrix over F2.
type Map = SmallVec<[u64; 8]>;

/// A conditional exchange of registers: in threads where `lane & lane_mask` and `warp & warp_mask` together
/// have an odd number of ones, register `i` takes the value of register `i ^ register_xor`, for all `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectStage {
    /// Lane bits whose parity decides.
    pub lane_mask: u32,
    /// Warp bits whose parity decides.
    pub warp_mask: u32,
    /// The partner of each register.
    pub register_xor: u32,
}

impl SelectStage {
    /// Whether this thread exchanges.
    #[must_use]
    pub fn applies(&self, lane: u32, warp: u32) -> bool {
        ((lane & self.lane_mask).count_ones() + (warp & self.warp_mask).count_ones()) & 1 == 1
    }
}

/// One round: some registers that every lane reads from the same other lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShuffleRound {
    /// XORed to the source lane of [`ShufflePlan::source_lane`].
    pub lane_xor: u32,
    /// (offered register, received register) pairs. As many as fit 32 bits: pack them into one shuffle. One
    /// pair of 64-bit elements takes two.
    pub moves: SmallVec<[(u32, u32); 4]>,
    /// Every lane reads itself: no shuffle, only a move.
    pub local: bool,
}

/// A conversion within each warp. In order: apply [`before`](Self::before) to the source registers, run the
/// rounds from those to received registers, apply [`after`](Self::after) to the received registers; then
/// destination register `d` is received register `result[d]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShufflePlan {
    /// Exchanges among the source registers.
    pub before: SmallVec<[SelectStage; 4]>,
    /// The rounds; together they receive each of `1 << received_bits` registers once.
    pub rounds: Vec<ShuffleRound>,
    /// Exchanges among the received registers.
    pub after: SmallVec<[SelectStage; 4]>,
    /// Destination register → received register.
    pub result: Vec<u32>,
    /// Column `i`: what lane bit `i` adds to the source lane.
    pub lane_columns: SmallVec<[u32; 5]>,
    /// Column `i`: what warp bit `i` adds to the source lane.
    pub warp_columns: SmallVec<[u32; 5]>,
    /// Logarithm of the number of source registers.
    pub source_bits: u32,
    /// Logarithm of the number of received registers.
    pub received_bits: u32,
    elem_bits: u32,
}

impl ShufflePlan {
    /// The lane that `lane` of `warp` reads in `round`.
    #[must_use]
    pub fn source_lane(&self, round: &ShuffleRound, lane: u32, warp: u32) -> u32 {
        let sum = |columns: &[u32], index: u32| {
            let selected = columns.iter().enumerate().filter(|&(i, _)| index >> i & 1 != 0);
            selected.fold(0, |sum, (_, &c)| sum ^ c)
        };
        round.lane_xor ^ sum(&self.lane_columns, lane) ^ sum(&self.warp_columns, warp)
    }

    /// The `shfl` instructions of one thread.
    #[must_use]
    pub fn shuffles(&self) -> u32 {
        let instructions = |r: &ShuffleRound| (r.moves.len() as u32 * self.elem_bits).div_ceil(32);
        self.rounds.iter().filter(|r| !r.local).map(instructions).sum()
    }

    /// The conditional moves of one thread.
    #[must_use]
    pub fn selects(&self) -> u32 {
        let words = self.elem_bits.div_ceil(32);
        let before = (self.before.len() as u32) << self.source_bits;
        words * (before + ((self.after.len() as u32) << self.received_bits))
    }

    /// The cost in the unit of shared-memory plans (instructions and wavefronts of a warp): a shuffle is issued
    /// and takes one wavefront of the same pipe; selects run at twice that rate.
    #[must_use]
    pub fn cost(&self) -> u32 {
        2 * self.shuffles() + self.selects() / 2
    }

    /// Plans a correspondence that stays within warps. `None` if some lane would have to offer two different
    /// registers in one round, which happens only when warps hold copies of each other in the source and
    /// not in the destination.
    pub(super) fn new(map: &Correspondence, elem_bits: u32) -> Option<Self> {
        // Destination registers that repeat others are not received but renamed.
        let redundant = map.dst.free_variables(Space::Register);
        let registers: SmallVec<[u32; 10]> =
            (0..map.dst.bits(Space::Register)).filter(|i| redundant >> i & 1 == 0).collect();
        let slots = |space: Space| (0..map.dst.bits(space)).map(move |i| map.slot(space, i));
        let of_registers = registers.iter().map(|&i| map.slot(Space::Register, i));
        let (ar, al): (Map, Map) = of_registers.map(|(r, l, _)| (u64::from(r), u64::from(l))).unzip();
        let (mut br, mut bl): (Map, Map) =
            slots(Space::Lane).map(|(r, l, _)| (u64::from(r), u64::from(l))).unzip();
        let (cr, cl): (Map, Map) = slots(Space::Warp).map(|(r, l, _)| (u64::from(r), u64::from(l))).unzip();

        // Choose K, and among copies of a lane, so that N becomes regular: keep the lane bits whose columns
        // are independent, and give each of the others a new direction.
        let lanes = bl.len();
        let mut k: Map = SmallVec::from_elem(0, lanes);
        let mut image = Echelon::new();
        let dependent: SmallVec<[usize; 5]> = (0..lanes).filter(|&b| !image.add(bl[b])).collect();
        for b in dependent {
            if let Some(c) = (0..al.len()).find(|&c| image.add(al[c])) {
                k[b] = 1 << c;
            } else if let Some((r, l)) = map.lane_copies().find(|&(_, l)| image.add(l.into())) {
                br[b] ^= u64::from(r);
                bl[b] ^= u64::from(l);
            }
        }
        // n: lane → lane read; g: lane → register read there. Both for t = 0, warp 0.
        let n: Map = (0..lanes).map(|b| apply_columns(&al, k[b]) ^ bl[b]).collect();
        let g: Map = (0..lanes).map(|b| apply_columns(&ar, k[b]) ^ br[b]).collect();
        let mut inverse = Echelon::new();
        for b in 0..lanes {
            match inverse.solve(n[b]) {
                // Lanes that read the same lane must want the same register of it.
                Some(same) if apply_columns(&g, same ^ 1 << b) != 0 => return None,
                Some(_) => {}
                None => _ = inverse.insert(n[b], 1 << b),
            }
        }
        // Lanes that nobody reads may offer anything.
        (0..lanes).for_each(|b| _ = inverse.add(1 << b));
        let reader = |lane: u64| inverse.solve(lane).expect("completed to all lanes");
        let offered = |lane: u64| apply_columns(&g, reader(lane));

        let p: Map = ar.iter().zip(&al).map(|(&r, &l)| r ^ offered(l)).collect();
        let q: Map = (0..lanes).map(|b| offered(1 << b)).collect();
        let r: Map = cr.iter().zip(&cl).map(|(&r, &l)| r ^ offered(l)).collect();

        let identity = n.iter().enumerate().all(|(b, &c)| c == 1 << b) && cl.iter().all(|&c| c == 0);
        let source = map.dst.columns(Space::Register);
        let basis = Echelon::of(source);
        let squeeze = |register: u64| {
            let bit = |(j, &i): (usize, &u32)| (register >> i & 1) << j;
            registers.iter().enumerate().map(bit).sum::<u64>()
        };
        let result: Map =
            source.iter().map(|&c| squeeze(basis.solve(c).expect("a column is in its span"))).collect();
        Some(Self {
            before: select_stages(&q, &r),
            rounds: rounds(&p, &al, identity, elem_bits),
            after: select_stages(&k, &[]),
            result: (0..1u64 << source.len()).map(|d| apply_columns(&result, d) as u32).collect(),
            lane_columns: n.iter().map(|&c| c as u32).collect(),
            warp_columns: cl.iter().map(|&c| c as u32).collect(),
            source_bits: map.src.bits(Space::Register),
            received_bits: registers.len() as u32,
            elem_bits,
        })
    }
}

/// The rounds for all received registers `t`: those with the same `al·t` read the same lanes and share a
/// shuffle, as far as 32 bits hold them.
fn rounds(p: &[u64], al: &[u64], identity: bool, elem_bits: u32) -> Vec<ShuffleRound> {
    let mut order: Vec<(u32, u32)> =
        (0..1u64 << p.len()).map(|t| (apply_columns(al, t) as u32, t as u32)).collect();
    order.sort_unstable();
    let packed = (32 / elem_bits.max(1)).max(1) as usize;
    let mut rounds = Vec::with_capacity(order.len().div_ceil(packed));
    for same_lane in order.chunk_by(|a, b| a.0 == b.0) {
        let lane_xor = same_lane[0].0;
        for chunk in same_lane.chunks(packed) {
            let moves = chunk.iter().map(|&(_, t)| (apply_columns(p, t.into()) as u32, t)).collect();
            rounds.push(ShuffleRound { lane_xor, moves, local: identity && lane_xor == 0 });
        }
    }
    rounds
}

/// The exchanges that together replace register `i` by `i ⊕ by_lane·lane ⊕ by_warp·warp`: one for each
/// dimension of the image.
fn select_stages(by_lane: &[u64], by_warp: &[u64]) -> SmallVec<[SelectStage; 4]> {
    let mut stages: SmallVec<[SelectStage; 4]> = SmallVec::new();
    let mut basis = Echelon::new();
    for (i, &xor) in by_lane.iter().chain(by_warp).enumerate() {
        if basis.insert(xor, 1 << stages.len()) {
            stages.push(SelectStage { lane_mask: 0, warp_mask: 0, register_xor: xor as u32 });
        }
        let parts = basis.solve(xor).expect("just inserted");
        for (j, stage) in stages.iter_mut().enumerate().filter(|&(j, _)| parts >> j & 1 != 0) {
            debug_assert!(j < 64);
            match i.checked_sub(by_lane.len()) {
                None => stage.lane_mask |= 1 << i,
                Some(warp_bit) => stage.warp_mask |= 1 << warp_bit,
            }
        }
    }
    stages
}
