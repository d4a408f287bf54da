//! The shared layout for an exchange between two distributed layouts, free of bank conflicts by construction.
//!
//! Writing the tile as one layout and reading it as another wants three things of the offset's bits:
//!
//! - the lowest bits are a *vector*: elements that a thread of both sides holds in registers;
//! - the next bits, up to 128 bytes, choose the *bank*;
//! - the highest bits choose the *row*, and lanes served together must not differ in the row alone.
//!
//! Let P be the span of what lanes served together reach on the writing side (with the vector), Q the same
//! on the reading side, both modulo the 4-byte word of a bank. No conflicts on either side means that the span
//! of the row columns meets neither P nor Q. With I = P ∩ Q, and E, F completing I to P and to Q, the sums
//! eᵢ ⊕ fᵢ together with any completion C of I + E + F to the whole space span a common complement of P and Q
//! (arXiv 2505.23819, §5.4). P and Q have at most as many dimensions as there are bank bits, so there are
//! always enough rows. The sums are the XOR of a swizzle; where C alone suffices, the layout is plain.
//!
//! What is left to choose is the vector: common registers only, or wider for one side. The few candidates
//! are built and costed exactly.

use smallvec::SmallVec;

use super::f2::{Columns, Echelon, intersection};
use super::linear::{LayoutBuilder, LinearLayout, Space};
use super::shared::{WAVEFRONT_BYTES, access_offsets, phase_lane_bits, storage_bytes, wavefronts};
use super::vector::vector_width;

/// The widest shared-memory access of a thread.
const MAX_VECTOR_BYTES: u32 = 16;

/// A tile's way through shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    pub layout: LinearLayout,
    pub store: LinearLayout,
    pub load: LinearLayout,
    pub store_vec: u32,
    pub load_vec: u32,
    /// Issued instructions plus wavefronts, of one warp, both ways.
    pub cost: u32,
}

/// The shared layout (offset → coordinates) through which a tile goes from `src` to `dst` with the fewest
/// instructions and wavefronts. Its offsets number exactly the elements that `src` holds in one block.
///
/// Returns `None` if `dst` needs elements that `src` does not hold.
#[must_use]
pub fn optimal_swizzle(src: &LinearLayout, dst: &LinearLayout, elem_bits: u32) -> Option<LinearLayout> {
    let local = |layout: &LinearLayout| layout.restricted(|s| s != Space::Block);
    best_exchange(&local(src), &local(dst), elem_bits).map(|exchange| exchange.layout)
}

/// The cheapest exchange. Blocks' columns, if any, are extra offsets that every candidate must reach.
pub(super) fn best_exchange(src: &LinearLayout, dst: &LinearLayout, elem_bits: u32) -> Option<Exchange> {
    let (store, load) = (Side::new(src), Side::new(dst));
    let held = src.basis();
    if !dst.all_columns().iter().all(|&column| held.contains(column)) {
        return None;
    }
    let max_bits = (MAX_VECTOR_BYTES / storage_bytes(elem_bits)).max(1).ilog2() as usize;
    let mut common = intersection(store.registers, load.registers);
    common.truncate(max_bits);
    let mut best: Option<Exchange> = None;
    let sides = [(&store, &load), (&load, &store)];
    // Wider for the store, wider for the load, or for neither.
    for (extended, (wide, narrow)) in [(true, sides[0]), (true, sides[1]), (false, sides[0])] {
        let mut vector = common.clone();
        if extended {
            let mut basis = Echelon::of(&vector);
            let more = wide.registers.iter().filter(|&&c| basis.add(c));
            let room = max_bits - vector.len();
            vector.extend(more.copied().take(room).collect::<Columns>());
        }
        if vector.len() == common.len() && best.is_some() {
            continue;
        }
        let columns = arrange(wide, narrow, &vector, common.len(), elem_bits);
        let mut builder = LayoutBuilder::new(src.dims());
        builder.extend(Space::Offset, columns);
        let candidate = evaluate(builder.build(), src, dst, elem_bits, 1 << max_bits);
        if best.as_ref().is_none_or(|b| candidate.cost < b.cost) {
            best = Some(candidate);
        }
    }
    best
}

/// Costs a shared layout that holds all elements of both sides.
fn evaluate(
    layout: LinearLayout,
    src: &LinearLayout,
    dst: &LinearLayout,
    elem_bits: u32,
    max_vec: u32,
) -> Exchange {
    let offsets = |side| access_offsets(&layout, side).expect("the shared layout spans both sides");
    let (store, load) = (offsets(src), offsets(dst));
    let side_cost = |access: &LinearLayout| {
        let vec = vector_width(access, 0, max_vec);
        let held = Echelon::of(access.columns(Space::Register)).rank();
        let instructions = (1u32 << held) / vec;
        (vec, instructions * (1 + wavefronts(access, elem_bits, vec).total()))
    };
    let ((store_vec, store_cost), (load_vec, load_cost)) = (side_cost(&store), side_cost(&load));
    Exchange { layout, store, load, store_vec, load_vec, cost: store_cost + load_cost }
}

/// One side of the exchange.
struct Side<'a> {
    registers: &'a [u64],
    lanes: &'a [u64],
    warps: &'a [u64],
    all: &'a [u64],
}

impl<'a> Side<'a> {
    fn new(layout: &'a LinearLayout) -> Self {
        Self {
            registers: layout.columns(Space::Register),
            lanes: layout.columns(Space::Lane),
            warps: layout.columns(Space::Warp),
            all: layout.all_columns(),
        }
    }

    /// What lanes served together reach when each moves the vector's first `vec_bits` bits: those bits past
    /// the word, then the lanes.
    fn reach(&self, vector: &[u64], vec_bits: usize, word_bits: usize, elem_bits: u32) -> Columns {
        let bytes = storage_bytes(elem_bits) << vec_bits;
        let lanes = phase_lane_bits(bytes, self.lanes.len() as u32) as usize;
        let wide = vector.get(word_bits..vec_bits).unwrap_or(&[]);
        wide.iter().chain(&self.lanes[..lanes]).copied().collect()
    }
}

/// The offset's columns: vector, banks, rows. `wide` moves all of `vector` at once, `narrow` its first
/// `narrow_bits`.
fn arrange(wide: &Side, narrow: &Side, vector: &[u64], narrow_bits: usize, elem_bits: u32) -> Columns {
    let word_bits = (2 - storage_bytes(elem_bits).ilog2().min(2)) as usize;
    // Any order completes a basis; threads first keeps neighbouring lanes in neighbouring banks.
    let pool = || {
        let threads = [wide.lanes, narrow.lanes, wide.warps, narrow.warps];
        threads.into_iter().flatten().chain(wide.all).chain(narrow.all).copied()
    };
    let mut chosen = Echelon::of(vector);
    let mut low: Columns = vector.into();
    for column in pool() {
        if low.len() >= word_bits {
            break;
        }
        if chosen.add(column) {
            low.push(column);
        }
    }
    let word = &low[..word_bits.min(low.len())];

    let p = wide.reach(&low, vector.len(), word_bits, elem_bits);
    let q = narrow.reach(&low, narrow_bits, word_bits, elem_bits);
    let with_word = |side: &[u64]| word.iter().chain(side).copied().collect::<Columns>();
    let mut both = Echelon::of(word);
    for common in intersection(&with_word(&p), &with_word(&q)) {
        both.add(common);
    }
    let beyond = |side: &[u64]| {
        let mut basis = both.clone();
        side.iter().copied().filter(|&c| basis.add(c)).collect::<Columns>()
    };
    let mut e = beyond(&p);
    let mut f = beyond(&q);
    let mut spanned = both.clone();
    for &column in e.iter().chain(&f) {
        spanned.add(column);
    }
    let free = |basis: &mut Echelon, columns: &mut dyn Iterator<Item = u64>| {
        columns.filter(|&c| basis.add(c)).collect::<Columns>()
    };
    // Registers complete the rows best: they vary within a thread, so they never break its vectors.
    let registers = wide.registers.iter().chain(narrow.registers).copied();
    let mut rest = free(&mut spanned, &mut registers.chain(pool()));

    // A sum of a vector's bit and f moves the vector's bit of whoever moves f. That breaks the wide side's
    // vectors if f is one of its threads' columns; so vector bits (first in e) take the other f first.
    let mut threads = Echelon::of(&low);
    for &column in wide.lanes.iter().chain(wide.warps) {
        threads.add(column);
    }
    f.sort_by_key(|&column| threads.contains(column));
    rest.sort_by_key(|&column| !threads.contains(column));
    while e.len() > f.len() && !rest.is_empty() {
        let column = rest.pop().expect("not empty");
        if threads.contains(column) { f.push(column) } else { f.insert(0, column) }
    }
    while f.len() > e.len() && !rest.is_empty() {
        e.push(rest.remove(0));
    }

    let total = spanned.rank();
    let in_row = (WAVEFRONT_BYTES / storage_bytes(elem_bits)).ilog2() as usize;
    let rows = total.saturating_sub(in_row);
    let sums: SmallVec<[u64; 8]> = e.iter().zip(&f).map(|(e, f)| e ^ f).collect();
    let rows: Columns = rest.into_iter().chain(sums.into_iter().rev()).take(rows).collect();

    let mut basis = Echelon::of(&low);
    rows.iter().for_each(|&row| _ = basis.add(row));
    let banks = free(&mut basis, &mut pool());
    low.into_iter().chain(banks).chain(rows).collect()
}
