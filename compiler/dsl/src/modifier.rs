//! Words that say more of the operation just written: `x.load(..).evict_first()`, `dot(a, b).tf32()`.
//!
//! Loads and dots give plain tiles, not builders: a builder would have to be finished before it could stand in an expression (operators are not
//! found through `Deref`), and most loads and dots need no more words. Instead a modifier changes the operation that made its tile, and only
//! directly after it, so that the words stand where the operation stands.

use std::panic::Location;

use tegula_ir::element::Element;
use tegula_ir::op::{CacheHint, DotPrecision};
use tegula_ir::{Elem, Op, Opcode};

use crate::diagnostic::Diagnostic;
use crate::session;
use crate::tile::Tile;

#[track_caller]
fn amend(op: Option<Op>, word: &str, of: &str, change: impl FnOnce(&mut Opcode) -> bool) -> bool {
    let done = op.is_some_and(|op| session::amend_last(op, change));
    if !done {
        let fault = Diagnostic::at(format!("`{word}` must directly follow {of}"), Location::caller())
            .label("this changes the operation written just before it");
        session::report(&[], fault);
    }
    done
}

fn set_cache(hint: CacheHint) -> impl FnOnce(&mut Opcode) -> bool {
    move |opcode| match opcode {
        Opcode::ViewLoad { cache, .. }
        | Opcode::ViewStore { cache }
        | Opcode::Load { cache }
        | Opcode::Store { cache }
        | Opcode::SlotCopy { cache } => {
            *cache = hint;
            true
        }
        _ => false,
    }
}

impl<T: Element> Tile<T> {
    #[track_caller]
    fn amend(self, word: &str, of: &str, change: impl FnOnce(&mut Opcode) -> bool) -> Tile<T> {
        if !session::is_poison(self.value()) {
            amend(session::inspect(|k| k.def_op(self.value())), word, of, change);
        }
        self
    }

    /// After a load: what was read will not be read again soon, and may leave the L2 cache first.
    #[track_caller]
    pub fn evict_first(self) -> Tile<T> {
        self.amend("evict_first", "a load", set_cache(CacheHint::EvictFirst))
    }

    /// After a load: what was read will be read again, and should stay in the L2 cache.
    #[track_caller]
    pub fn evict_last(self) -> Tile<T> {
        self.amend("evict_last", "a load", set_cache(CacheHint::EvictLast))
    }
}

impl Tile<f32> {
    /// After a dot of f32 tiles: rounds the operands to TF32 (10 mantissa bits) for the tensor core. Without it the
    /// products are those of IEEE f32.
    #[track_caller]
    pub fn tf32(self) -> Tile<f32> {
        let f32_operands = session::inspect(|k| {
            k.def_op(self.value()).is_some_and(|op| {
                k.ops[op].operands.first().is_some_and(|&a| k.ty(a).value_elem() == Some(Elem::F32))
            })
        });
        self.amend("tf32", "a dot of f32 tiles", |opcode| match opcode {
            Opcode::Dot(precision) if f32_operands => {
                *precision = DotPrecision::Tf32;
                true
            }
            _ => false,
        })
    }
}

/// A store, or a copy into a slot, just made, to say more of it. May be ignored.
#[derive(Clone, Copy, Debug)]
pub struct Stored(pub(crate) Option<Op>);

impl Stored {
    /// What was written will not be read soon, and may leave the L2 cache first.
    #[track_caller]
    pub fn evict_first(self) {
        self.amend("evict_first", CacheHint::EvictFirst);
    }

    /// What was written will be read again, and should stay in the L2 cache.
    #[track_caller]
    pub fn evict_last(self) {
        self.amend("evict_last", CacheHint::EvictLast);
    }

    #[track_caller]
    fn amend(self, word: &str, hint: CacheHint) {
        // Nothing was stored if the store itself was at fault; that is reported already.
        if self.0.is_some() {
            amend(self.0, word, "a store", set_cache(hint));
        }
    }
}
