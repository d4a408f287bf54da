//! The explicit level: channels, whose slots a producer fills and a consumer empties.
//!
//! [`channel`] makes one, and `warp_groups!` divides a kernel into the two that share it:
//!
//! ```text
//! let ch = channel::<(bf16, bf16)>(4, ([128, 64], [64, 128]));
//! warp_groups! {
//!     producer(regs = 24) => {
//!         for k in range(0, depth).step_by(64) {
//!             let slot = ch.acquire();
//!             slot.0.copy_from(x, [row, k]);
//!             slot.1.copy_from(w, [k, column]);
//!             slot.commit();
//!         }
//!     },
//!     consumer(regs = 240) => {
//!         let mut acc = zeros::<f32>([128, 128]);
//!         for k in range(0, depth).step_by(64) {
//!             let slot = ch.wait();
//!             acc = dot_acc(slot.0.read(), slot.1.read(), acc);
//!             slot.release();
//!         }
//!         y.store([row, column], acc.cast::<bf16>());
//!     },
//! }
//! ```
//!
//! Which slot comes next, and in which phase its barriers are, is generated: a slot is a value that Rust lets be committed or released once, and what rustc
//! cannot see (a slot that is never released, loops that run unequally often, a circle of waits) is an error when the kernel is staged.

use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::Location;

use tegula_ir::element::Element;
use tegula_ir::op::CacheHint;
use tegula_ir::types::{ChannelType, RingType};
use tegula_ir::{Opcode, Type, Value};

use crate::diagnostic::Diagnostic;
use crate::modifier::Stored;
use crate::offset::Offsets;
use crate::session::{self, Values};
use crate::shape::{IntoShape, check_shape};
use crate::tile::Tile;
use crate::view::View;

/// The element types of a slot's tiles: a tuple, one type a tile.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what a slot holds",
    note = "a slot's tiles are a tuple of 1 to 4 element types, as in `channel::<(bf16, bf16)>(…)`, or `channel::<(bf16,)>(…)`"
)]
pub trait SlotTiles {
    /// The tiles of a slot that is being filled.
    type Filling;
    /// The tiles of a slot that is full.
    type Full;
    #[doc(hidden)]
    fn filling(slot: Value, rings: &[Value]) -> Self::Filling;
    #[doc(hidden)]
    fn full(slot: Value, rings: &[Value]) -> Self::Full;
}

/// The shapes of a slot's tiles: as many as it has.
#[diagnostic::on_unimplemented(
    message = "`{Self}` are not the shapes of the tiles of `{T}`",
    note = "one shape a tile: `channel::<(bf16, bf16)>(4, ([128, 64], [64, 128]))`"
)]
pub trait SlotShapes<T> {
    #[doc(hidden)]
    #[track_caller]
    fn rings(&self) -> Vec<RingType>;
}

macro_rules! slot_tiles {
    ($($($name:ident $shape:ident $index:tt),+;)+) => {$(
        impl<$($name: Element),+> SlotTiles for ($($name,)+) {
            type Filling = ($(FillTile<$name>,)+);
            type Full = ($(FullTile<$name>,)+);
            fn filling(slot: Value, rings: &[Value]) -> Self::Filling {
                ($(FillTile { slot, ring: rings[$index], elem: PhantomData::<$name> },)+)
            }
            fn full(slot: Value, rings: &[Value]) -> Self::Full {
                ($(FullTile { slot, ring: rings[$index], elem: PhantomData::<$name> },)+)
            }
        }

        impl<$($name: Element, $shape: IntoShape),+> SlotShapes<($($name,)+)> for ($($shape,)+) {
            #[track_caller]
            fn rings(&self) -> Vec<RingType> {
                vec![$({
                    let shape = match check_shape("`channel`", &self.$index) {
                        Ok(shape) | Err(shape) => shape,
                    };
                    RingType { elem: $name::ELEM, shape }
                }),+]
            }
        }
    )+};
}

slot_tiles! {
    A X 0;
    A X 0, B Y 1;
    A X 0, B Y 1, C Z 2;
    A X 0, B Y 1, C Z 2, D W 3;
}

/// A ring of slots between a producer and a consumer.
pub struct Channel<S: SlotTiles> {
    channel: Value,
    rings: Values,
    tiles: PhantomData<S>,
}

/// A channel of `stages` slots with a tile of each of these shapes. It stands in the kernel's own body, before `warp_groups!`.
///
/// More stages let the producer run further ahead; all slots together must fit into shared memory.
///
/// ```
/// # use tegula_dsl::prelude::*;
/// # let _ = tegula_dsl::stage("k", Default::default(), || {
/// let both = channel::<(bf16, bf16)>(4, ([128, 64], [64, 128]));
/// let rows = channel::<(f16,)>(2, ([64, 256],));
/// # });
/// ```
#[track_caller]
pub fn channel<S: SlotTiles>(stages: usize, shapes: impl SlotShapes<S>) -> Channel<S> {
    if stages == 0 {
        let fault = Diagnostic::at("a channel of 0 stages: it has at least one slot", Location::caller());
        session::report(&[], fault);
    }
    let slots = u32::try_from(stages).unwrap_or(u32::MAX).max(1);
    let mut types = vec![Type::Channel(ChannelType { slots, ctas: 1, groups: 1 })];
    types.extend(shapes.rings().into_iter().map(Type::Ring));
    let results = session::emit(Opcode::Channel, &[], &types);
    Channel { channel: results[0], rings: results[1..].into(), tiles: PhantomData }
}

impl<S: SlotTiles> Channel<S> {
    /// The producer takes the next slot, once it is empty.
    #[track_caller]
    pub fn acquire(&self) -> Filling<S> {
        let slot = session::emit_value(Opcode::SlotAcquire, &[self.channel], Type::Slot);
        Filling { tiles: S::filling(slot, &self.rings), slot }
    }

    /// The consumer takes the next slot, once it is full.
    #[track_caller]
    pub fn wait(&self) -> Full<S> {
        let slot = session::emit_value(Opcode::SlotWait, &[self.channel], Type::Slot);
        Full { tiles: S::full(slot, &self.rings), slot }
    }
}

/// A slot that the producer fills: its tiles are `.0`, `.1`, …
#[must_use = "a slot that is not committed never reaches the consumer"]
pub struct Filling<S: SlotTiles> {
    slot: Value,
    tiles: S::Filling,
}

impl<S: SlotTiles> Filling<S> {
    /// All copies into the slot have been started: the consumer gets it when they have arrived.
    #[track_caller]
    pub fn commit(self) {
        session::emit(Opcode::SlotCommit, &[self.slot], &[]);
    }
}

impl<S: SlotTiles> Deref for Filling<S> {
    type Target = S::Filling;
    fn deref(&self) -> &S::Filling {
        &self.tiles
    }
}

/// A slot that the consumer computes with: its tiles are `.0`, `.1`, …
#[must_use = "a slot that is not released never comes back to the producer"]
pub struct Full<S: SlotTiles> {
    slot: Value,
    tiles: S::Full,
}

impl<S: SlotTiles> Full<S> {
    /// The slot has been read: the producer may fill it again. (What was read stays as it was read.)
    #[track_caller]
    pub fn release(self) {
        session::emit(Opcode::SlotRelease, &[self.slot], &[]);
    }
}

impl<S: SlotTiles> Deref for Full<S> {
    type Target = S::Full;
    fn deref(&self) -> &S::Full {
        &self.tiles
    }
}

/// A tile of a slot that is being filled.
pub struct FillTile<T: Element> {
    slot: Value,
    ring: Value,
    elem: PhantomData<T>,
}

impl<T: Element> FillTile<T> {
    /// Starts a copy of the tile that starts at `offsets` (in elements). What lies outside of the view is 0.
    #[track_caller]
    pub fn copy_from<const R: usize>(&self, view: View<T, R>, offsets: impl Offsets<R>) -> Stored {
        let shape = session::inspect(|k| k.ty(self.ring).as_ring()).expect("made by `channel`").shape;
        if shape.rank() != R {
            let message = format!("a tile of shape {shape} is filled from a view of {R} dimensions");
            let fault = Diagnostic::at(message, Location::caller()).help(
                "give the channel's tile one extent a dimension of the view, 1 where it takes one element",
            );
            session::report(&[], fault);
            return Stored(None);
        }
        let mut operands = Values::from_slice(&[view.value()]);
        for (i, offset) in offsets.offsets().into_iter().enumerate() {
            operands.push(offset.stage("offsets of `copy_from`", i));
        }
        operands.extend([self.slot, self.ring]);
        let opcode = Opcode::SlotCopy { cache: CacheHint::Normal };
        Stored(Some(session::emit_op(opcode, &operands, &[], &[])))
    }
}

/// A tile of a full slot.
pub struct FullTile<T: Element> {
    slot: Value,
    ring: Value,
    elem: PhantomData<T>,
}

impl<T: Element> FullTile<T> {
    /// The tile. As an operand of a dot it stays where it is; for anything else it is read into registers.
    #[track_caller]
    pub fn read(&self) -> Tile<T> {
        let ring = session::inspect(|k| k.ty(self.ring).as_ring()).expect("made by `channel`");
        let ty = Type::tile(ring.elem, ring.shape);
        Tile::from_value(session::emit_value(Opcode::SlotRead, &[self.slot, self.ring], ty))
    }
}

/// Divides a kernel into a producer, which fills the slots of channels ([`channel`]), and a consumer, which computes with them; it stands last in a function with
/// `#[kernel]` or `#[tile_fn]`.
///
/// ```text
/// warp_groups! { producer(regs = 24) => { … }, consumer(regs = 240) => { … } }
/// ```
///
/// Where warps can be specialised (`sm_90a`), the producer is one warp and the consumer the kernel's `num_warps`; everywhere else the two are merged into one program, which gives
/// the same. `regs` are registers a thread, of the producer's and the consumer's warps; without them the compiler chooses.
#[macro_export]
macro_rules! warp_groups {
    ($($groups:tt)*) => {
        ::core::compile_error!(
            "`warp_groups!` divides a kernel: it stands in a function with `#[kernel]` or `#[tile_fn]`"
        )
    };
}
