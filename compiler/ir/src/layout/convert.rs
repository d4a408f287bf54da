//! Layout conversion: moving a tile's elements from where one layout has them to where another wants them.
//!
//! Everything follows from one matrix, the *correspondence* M = src⁻¹ ∘ dst: for each destination slot
//! (register, lane, warp, block) a source slot with the same element. Among all of them (copies give a
//! choice) it is picked bit by bit to stay as near as possible: same thread, else same warp, else same block.
//! Then the blocks of M decide:
//!
//! | M | plan |
//! |---|---|
//! | the identity | [`Conversion::None`] |
//! | moves registers only, alike in all threads | [`Conversion::Registers`] |
//! | stays in the warp | [`Conversion::Shuffle`], unless shared memory is cheaper |
//! | stays in the block | [`Conversion::Shared`] |

use super::LayoutError;
use super::f2::{Columns, Echelon};
use super::linear::{LayoutBuilder, LinearLayout, Space};
use super::shared::storage_bytes;
use super::shuffle::ShufflePlan;
use super::swizzle::best_exchange;
use super::vector::{ReplicationMask, VectorAccess, vector_access};

/// What two barriers and the latency of a store and a load are worth, in the unit of
/// [`SharedPlan::cost`]: instructions and wavefronts of one warp.
const SHARED_LATENCY: u32 = 32;

/// How to convert a tile between two layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conversion {
    /// Destination register `r` is source register `r`.
    None,
    /// Destination register `r` is source register `registers[r]`, in every thread.
    Registers(Vec<u32>),
    /// Exchange within each warp.
    Shuffle(Box<ShufflePlan>),
    /// Exchange through shared memory.
    Shared(Box<SharedPlan>),
}

/// An exchange through shared memory: each thread stores, the block synchronises, each thread loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPlan {
    /// Offset (in elements) → tile coordinates, of the part of the tile that one block holds. If blocks hold
    /// different parts, coordinates are relative to the block's first element.
    pub layout: LinearLayout,
    /// Source (register, lane, warp, block) → offset. Copies map to offset bits of 0 and must not be stored:
    /// see [`owners`](Self::owners).
    pub store: LinearLayout,
    /// Destination (register, lane, warp, block) → offset.
    pub load: LinearLayout,
    /// The threads that store.
    pub owners: ReplicationMask,
    /// Elements of one store.
    pub store_vec: u32,
    /// Elements of one load.
    pub load_vec: u32,
    /// Size of the buffer in bytes; its alignment is 16, or the size if that is smaller.
    pub bytes: u32,
    /// Instructions plus wavefronts that one warp spends, stores and loads together.
    pub cost: u32,
}

impl SharedPlan {
    /// The source registers of each store. The offset of a vector is [`store`](Self::store) of its first
    /// register; it is linear, so the thread's part and the register's part may be computed apart and XORed.
    #[must_use]
    pub fn stores(&self) -> VectorAccess {
        vector_access(&self.store, 0, self.store_vec)
    }

    /// The destination registers of each load. Those not named repeat others of the thread: see
    /// [`register_representatives`](LinearLayout::register_representatives) of [`load`](Self::load).
    #[must_use]
    pub fn loads(&self) -> VectorAccess {
        vector_access(&self.load, 0, self.load_vec)
    }
}

/// Plans the conversion of a tile of `elem_bits`-bit elements from `src` to `dst`.
///
/// # Errors
/// If the layouts are of different tiles or over different threads, or a block lacks an element it should
/// have afterwards (that needs distributed shared memory, which a layout conversion does not use).
pub fn plan_conversion(
    src: &LinearLayout,
    dst: &LinearLayout,
    elem_bits: u32,
) -> Result<Conversion, LayoutError> {
    if src == dst {
        return Ok(Conversion::None);
    }
    let map = Correspondence::new(src, dst)?;
    if map.is_identity() {
        return Ok(Conversion::None);
    }
    if map.same_thread() {
        return Ok(Conversion::Registers(map.register_permutation()));
    }
    let shuffle = map.same_warp().then(|| ShufflePlan::new(&map, elem_bits)).flatten();
    Ok(match shuffle {
        // Cheaper than any trip through shared memory.
        Some(plan) if plan.cost() <= SHARED_LATENCY => Conversion::Shuffle(Box::new(plan)),
        Some(plan) => {
            let shared = plan_shared(src, dst, elem_bits)?;
            if plan.cost() <= shared.cost + SHARED_LATENCY {
                Conversion::Shuffle(Box::new(plan))
            } else {
                Conversion::Shared(Box::new(shared))
            }
        }
        None => Conversion::Shared(Box::new(plan_shared(src, dst, elem_bits)?)),
    })
}

/// Plans the conversion by warp shuffles, whatever else would do. `None` if some element has to leave its warp, or
/// a lane would have to offer two registers in one round (see [`ShufflePlan`]).
///
/// # Errors
/// As [`plan_conversion`].
pub fn plan_shuffle(
    src: &LinearLayout,
    dst: &LinearLayout,
    elem_bits: u32,
) -> Result<Option<ShufflePlan>, LayoutError> {
    let map = Correspondence::new(src, dst)?;
    Ok(map.same_warp().then(|| ShufflePlan::new(&map, elem_bits)).flatten())
}

/// Plans the conversion through shared memory, whatever else would do.
///
/// # Errors
/// As [`plan_conversion`].
pub fn plan_shared(
    src: &LinearLayout,
    dst: &LinearLayout,
    elem_bits: u32,
) -> Result<SharedPlan, LayoutError> {
    check_comparable(src, dst)?;
    // Each block stores what it holds, relative to its own origin, and loads relative to that too.
    // Copies do not store; their columns are dropped so that they cannot spoil vectors or banks.
    let free = src.free_inputs();
    let mut stored = LayoutBuilder::new(src.dims());
    let mut loaded = LayoutBuilder::new(src.dims());
    for space in [Space::Register, Space::Lane, Space::Warp, Space::Block] {
        let block = space == Space::Block;
        for (i, &column) in src.columns(space).iter().enumerate() {
            let drop = block || free >> (src.input_shift(space) + i as u32) & 1 != 0;
            stored.push(space, if drop { 0 } else { column });
        }
        for (i, &column) in dst.columns(space).iter().enumerate() {
            loaded.push(space, if block { column ^ src.columns(space)[i] } else { column });
        }
    }
    let exchange = best_exchange(&stored.build(), &loaded.build(), elem_bits)
        .ok_or_else(|| LayoutError::CrossBlock { src: Box::new(src.clone()), dst: Box::new(dst.clone()) })?;
    // Blocks that hold copies of each other each have their own buffer, so each of them stores.
    let owners = ReplicationMask { block: 0, ..src.replication() };
    Ok(SharedPlan {
        bytes: storage_bytes(elem_bits) << exchange.layout.bits(Space::Offset),
        layout: exchange.layout,
        store: exchange.store,
        load: exchange.load,
        owners,
        store_vec: exchange.store_vec,
        load_vec: exchange.load_vec,
        cost: exchange.cost,
    })
}

fn check_comparable(src: &LinearLayout, dst: &LinearLayout) -> Result<(), LayoutError> {
    if src.dims() != dst.dims() {
        return Err(LayoutError::ShapeMismatch(src.dims(), dst.dims()));
    }
    if [Space::Lane, Space::Warp, Space::Block, Space::Offset].iter().any(|&s| src.bits(s) != dst.bits(s)) {
        return Err(LayoutError::ThreadMismatch(Box::new(src.clone()), Box::new(dst.clone())));
    }
    Ok(())
}

/// M = src⁻¹ ∘ dst: for each input bit of `dst`, a flat input index of `src`.
pub(super) struct Correspondence<'a> {
    pub src: &'a LinearLayout,
    pub dst: &'a LinearLayout,
    columns: Columns,
    /// Source basis, its first `ranks[0]` vectors from registers, `ranks[1]` with lanes, `ranks[2]` warps.
    basis: Echelon,
    ranks: [usize; 3],
}

impl<'a> Correspondence<'a> {
    fn new(src: &'a LinearLayout, dst: &'a LinearLayout) -> Result<Self, LayoutError> {
        check_comparable(src, dst)?;
        let mut basis = Echelon::new();
        let ranks = [Space::Register, Space::Lane, Space::Warp].map(|space| {
            for (i, &column) in src.columns(space).iter().enumerate() {
                basis.insert(column, 1 << (src.input_shift(space) + i as u32));
            }
            basis.rank()
        });
        let mut columns = Columns::new();
        for space in [Space::Register, Space::Lane, Space::Warp, Space::Block] {
            for (i, &column) in dst.columns(space).iter().enumerate() {
                // The same bit in the source, corrected by as little as possible.
                let same = 1 << (src.input_shift(space) + i as u32);
                let nearest = |levels: &[usize]| {
                    let missing = column ^ src.flat(same);
                    levels.iter().find_map(|&rank| basis.solve_within(missing, rank)).map(|c| c ^ same)
                };
                let anywhere = || ranks.iter().find_map(|&rank| basis.solve_within(column, rank));
                let slot = match space {
                    Space::Register if src.columns(space).get(i) == Some(&column) => Some(same),
                    Space::Register => anywhere(),
                    Space::Lane => nearest(&ranks[..1]).or_else(anywhere),
                    Space::Warp => nearest(&ranks[..2]).or_else(anywhere),
                    Space::Block | Space::Offset => nearest(&ranks),
                };
                columns.push(slot.ok_or_else(|| LayoutError::CrossBlock {
                    src: Box::new(src.clone()),
                    dst: Box::new(dst.clone()),
                })?);
            }
        }
        Ok(Self { src, dst, columns, basis, ranks })
    }

    /// The source slot of bit `i` of the destination's `space`, as (register, lane, warp and above).
    pub(super) fn slot(&self, space: Space, i: u32) -> (u32, u32, u64) {
        let slot = self.columns[(self.dst.input_shift(space) + i) as usize];
        let above = slot >> self.src.input_shift(Space::Warp);
        (self.src.index(slot, Space::Register), self.src.index(slot, Space::Lane), above)
    }

    /// For source lane bits that hold copies: the lane and register change that leaves elements alone.
    pub(super) fn lane_copies(&self) -> impl Iterator<Item = (u32, u32)> {
        let free = self.src.free_variables(Space::Lane);
        (0..self.src.bits(Space::Lane)).filter(move |bit| free >> bit & 1 != 0).map(|bit| {
            let column = self.src.columns(Space::Lane)[bit as usize];
            let same = self.basis.solve_within(column, self.ranks[1]).expect("a free bit is in the span");
            let lane = self.src.index(same, Space::Lane) | 1 << bit;
            (self.src.index(same, Space::Register), lane)
        })
    }

    fn all(&self, space: Space, test: impl Fn(u32, (u32, u32, u64)) -> bool) -> bool {
        (0..self.dst.bits(space)).all(|i| test(i, self.slot(space, i)))
    }

    /// Whether every thread finds its elements in the same registers of its own, alike in all threads.
    fn same_thread(&self) -> bool {
        let warps = self.src.bits(Space::Warp);
        self.all(Space::Register, |_, (_, lane, above)| lane == 0 && above == 0)
            && self.all(Space::Lane, |i, slot| slot == (0, 1 << i, 0))
            && self.all(Space::Warp, |i, slot| slot == (0, 0, 1 << i))
            && self.all(Space::Block, |i, slot| slot == (0, 0, 1 << (warps + i)))
    }

    fn is_identity(&self) -> bool {
        self.src.bits(Space::Register) == self.dst.bits(Space::Register)
            && self.same_thread()
            && self.all(Space::Register, |i, (register, ..)| register == 1 << i)
    }

    /// Whether every thread finds its elements in its own warp, in all blocks alike.
    fn same_warp(&self) -> bool {
        let warps = self.src.bits(Space::Warp);
        self.all(Space::Register, |_, (.., above)| above == 0)
            && self.all(Space::Lane, |_, (.., above)| above == 0)
            && self.all(Space::Warp, |i, (.., above)| above == 1 << i)
            && self.all(Space::Block, |i, slot| slot == (0, 0, 1 << (warps + i)))
    }

    fn register_permutation(&self) -> Vec<u32> {
        let bits = self.dst.bits(Space::Register);
        let columns: Columns = (0..bits).map(|i| self.slot(Space::Register, i).0.into()).collect();
        (0..1u64 << bits).map(|r| super::f2::apply_columns(&columns, r) as u32).collect()
    }
}
