//! Jumps. Before a `break` stands a call of [`may_break`] for every staged region that it leaves; it is implemented for host regions only, so
//! leaving a device region is a type error at the `break`.

use super::branch::HostBranch;
use super::for_loop::HostLoop;
use super::while_loop::While;

/// A region that `break` may leave.
#[diagnostic::on_unimplemented(
    message = "`break` cannot leave a device loop or branch",
    label = "inside a device loop or branch",
    note = "every round runs to its end on the device: write `while` with the condition, or mask what the remaining rounds do"
)]
pub trait MayBreak {}

/// A region that `continue` may leave.
#[diagnostic::on_unimplemented(
    message = "`continue` cannot leave a device branch",
    label = "inside a device branch",
    note = "both branches are staged: put the rest of the body into the other branch, or mask it with `select`"
)]
pub trait MayContinue {}

/// A region that `return` may leave.
#[diagnostic::on_unimplemented(
    message = "`return` cannot leave a device loop or branch",
    label = "inside a device loop or branch",
    note = "all of it is staged: put the rest of the function into the other branch"
)]
pub trait MayReturn {}

/// A region that `?` may leave.
#[diagnostic::on_unimplemented(
    message = "`?` cannot leave a device loop or branch",
    label = "inside a device loop or branch",
    note = "all of it is staged: handle the error before the loop or branch"
)]
pub trait MayTry {}

/// A loop in which a closure may change what it captured outside of it.
#[diagnostic::on_unimplemented(
    message = "a closure that changes what it captures cannot be called inside a device loop",
    label = "a `mut` closure made outside of a device loop that it is called in",
    note = "what it changes would not be carried to the next round: make it a function that takes `&mut` of that, or make the closure inside the loop"
)]
pub trait MayCall {}

/// Host control flow, which anything may leave: a region, or pairs of them.
trait HostRegion {}

impl HostRegion for HostBranch {}
impl<I> HostRegion for HostLoop<I> {}
impl HostRegion for While<bool> {}

impl<R: HostRegion> HostRegion for &R {}
impl<A: HostRegion, B: HostRegion> HostRegion for (A, B) {}

#[diagnostic::do_not_recommend]
impl<R: HostRegion> MayBreak for R {}
#[diagnostic::do_not_recommend]
impl<R: HostRegion> MayContinue for R {}
#[diagnostic::do_not_recommend]
impl<R: HostRegion> MayReturn for R {}
#[diagnostic::do_not_recommend]
impl<R: HostRegion> MayTry for R {}

#[diagnostic::do_not_recommend]
impl<R: HostRegion> MayCall for R {}

/// Allows a call of a closure that may change what it captures.
pub fn may_call<R: MayCall>(_: R) {}

/// Allows `break`.
pub fn may_break<R: MayBreak>(_: R) {}

/// Allows `continue` of an outer loop, or out of a branch.
pub fn may_continue<R: MayContinue>(_: R) {}

/// Allows `return`.
pub fn may_return<R: MayReturn>(_: R) {}

/// Allows `?` on what is passed through.
pub fn may_try<R: MayTry, T>(_: R, fallible: T) -> T {
    fallible
}
