//! Atomic read-modify-write through pointers.

use tegula_ir::element::{Element, bf16, f16};
use tegula_ir::op::{AtomicOp, MemOrder, MemScope};
use tegula_ir::{Opcode, Value};

use crate::pointer::{PtrMut, unify_with_pointers};
use crate::session::{self, emit_value};
use crate::tile::{Operand, Tile};

macro_rules! atomic_elements {
    ($($(#[$attr:meta])* $name:ident: $($ty:ty)+;)+) => {$(
        $(#[$attr])*
        pub trait $name: Element {}
        $(impl $name for $ty {})+
    )+};
}

atomic_elements! {
    /// Element types that are added atomically.
    #[diagnostic::on_unimplemented(
        message = "there is no atomic addition of `{Self}`",
        note = "GPUs add 32- and 64-bit integers, f16, bf16, f32 and f64 atomically"
    )]
    AtomicAdd: i32 u32 i64 u64 f16 bf16 f32 f64;
    /// Element types that have the other atomic operations: minimum, maximum, bitwise ones.
    #[diagnostic::on_unimplemented(
        message = "there is no such atomic operation on `{Self}`",
        note = "GPUs have it on 32- and 64-bit integers"
    )]
    AtomicInt: i32 u32 i64 u64;
    /// Element types that are exchanged atomically.
    #[diagnostic::on_unimplemented(
        message = "there is no atomic exchange of `{Self}`",
        note = "GPUs exchange values of 32 and 64 bits"
    )]
    AtomicExchange: i32 u32 i64 u64 f32 f64;
    /// Element types that are compared and swapped atomically (by their bits).
    #[diagnostic::on_unimplemented(
        message = "there is no atomic compare-and-swap of `{Self}`",
        note = "GPUs compare and swap values of 16, 32 and 64 bits"
    )]
    AtomicSwap: i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64;
}

/// How an atomic orders and masks: acquire-release at GPU scope, everywhere, unless said otherwise.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let counter = PtrMut::<i32>::declare("counter");
/// atomic_add_with(counter, 1, AtomicOptions::new().relaxed());
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AtomicOptions {
    order: MemOrder,
    scope: MemScope,
    mask: Option<Tile<bool>>,
}

impl AtomicOptions {
    /// Acquire-release, GPU scope, no mask.
    pub fn new() -> AtomicOptions {
        AtomicOptions::default()
    }

    /// With this memory order.
    pub fn order(mut self, order: MemOrder) -> AtomicOptions {
        self.order = order;
        self
    }

    /// [`order`](Self::order) relaxed: enough for counters and sums that a later kernel reads.
    pub fn relaxed(self) -> AtomicOptions {
        self.order(MemOrder::Relaxed)
    }

    /// Synchronises with the threads of this scope.
    pub fn scope(mut self, scope: MemScope) -> AtomicOptions {
        self.scope = scope;
        self
    }

    /// Only where `mask` holds; the result is unspecified elsewhere.
    pub fn mask(mut self, mask: Tile<bool>) -> AtomicOptions {
        self.mask = Some(mask);
        self
    }
}

#[track_caller]
fn atomic<T: Element>(
    op: AtomicOp,
    name: &str,
    ptr: PtrMut<T>,
    value: impl Operand<T>,
    options: AtomicOptions,
) -> Tile<T> {
    let ty = session::ty(ptr.value()).with_elem(T::ELEM);
    let mut operands: Vec<Value> = vec![ptr.value(), value.stage_like(ptr.shape())];
    operands.extend(options.mask.map(Tile::value));
    let Some(operands) = unify_with_pointers(name, &operands) else {
        return Tile::from_value(session::poison(ty));
    };
    let opcode = Opcode::AtomicRmw { op, order: options.order, scope: options.scope };
    Tile::from_value(emit_value(opcode, &operands, ty))
}

macro_rules! atomics {
    ($($bound:ident: $name:ident $with:ident $op:ident $what:literal;)+) => {$(
        #[doc = concat!("Atomically ", $what, ", with acquire-release order at GPU scope. Gives the old values.")]
        #[track_caller]
        pub fn $name<T: $bound>(ptr: PtrMut<T>, value: impl Operand<T>) -> Tile<T> {
            atomic(AtomicOp::$op, concat!("`", stringify!($name), "`"), ptr, value, AtomicOptions::new())
        }

        #[doc = concat!("Atomically ", $what, ". Gives the old values.")]
        #[track_caller]
        pub fn $with<T: $bound>(ptr: PtrMut<T>, value: impl Operand<T>, options: AtomicOptions) -> Tile<T> {
            atomic(AtomicOp::$op, concat!("`", stringify!($name), "`"), ptr, value, options)
        }
    )+};
}

atomics! {
    AtomicAdd: atomic_add atomic_add_with Add "adds";
    AtomicInt: atomic_min atomic_min_with Min "takes the smaller";
    AtomicInt: atomic_max atomic_max_with Max "takes the larger";
    AtomicInt: atomic_and atomic_and_with And "takes the bitwise and";
    AtomicInt: atomic_or atomic_or_with Or "takes the bitwise or";
    AtomicInt: atomic_xor atomic_xor_with Xor "takes the bitwise exclusive or";
    AtomicExchange: atomic_xchg atomic_xchg_with Xchg "exchanges";
}

/// Atomically writes `desired` where the memory holds `expected`, with acquire-release order at GPU scope. Gives the old values.
#[track_caller]
pub fn atomic_cas<T: AtomicSwap>(
    ptr: PtrMut<T>,
    expected: impl Operand<T>,
    desired: impl Operand<T>,
) -> Tile<T> {
    atomic_cas_with(ptr, expected, desired, AtomicOptions::new())
}

/// [`atomic_cas`] with an order and a scope.
///
/// # Faults
/// A mask: compare-and-swap takes none (where nothing should change, let `desired` be `expected`).
#[track_caller]
pub fn atomic_cas_with<T: AtomicSwap>(
    ptr: PtrMut<T>,
    expected: impl Operand<T>,
    desired: impl Operand<T>,
    options: AtomicOptions,
) -> Tile<T> {
    let ty = session::ty(ptr.value()).with_elem(T::ELEM);
    let shape = ptr.shape();
    if options.mask.is_some() {
        let fault = crate::Diagnostic::at("`atomic_cas` takes no mask", std::panic::Location::caller())
            .help("where nothing should change, let `desired` be `expected`");
        session::report(&[], fault);
    }
    let operands = [ptr.value(), expected.stage_like(shape), desired.stage_like(shape)];
    let Some(operands) = unify_with_pointers("`atomic_cas`", &operands) else {
        return Tile::from_value(session::poison(ty));
    };
    let opcode = Opcode::AtomicCas { order: options.order, scope: options.scope };
    Tile::from_value(emit_value(opcode, &operands, ty))
}
