//! What `#[kernel]` and `#[tile_fn]` dispatch to: the same text means host control flow or device control flow, by type.
//!
//! The macros rewrite `if`, `for`, `while`, comparisons, `&&` and `||` to calls of the functions here; nobody writes them by hand. Each is generic over
//! a trait that is implemented twice: for host types (`bool`, iterators), where it does what Rust does, and for tiles and device
//! ranges, where it builds IR. The module documentation of the macro crate says what the expansion looks like and why.
//!
//! # The protocol of a region
//! A region's state is made by [`branch()`], [`for_loop()`] or [`while_loop()`]. Every variable that the region changes is handed to it with [`carry()`]
//! before and after each part of it, always all of them and in the same order; the state counts these passes, and at each one reads or
//! replaces the handles in the variable:
//!
//! | | 1st pass | part | 2nd | part | 3rd | end | 4th |
//! |---|---|---|---|---|---|---|---|
//! | `if` | keep | then | yield, restore | else | yield | [`close`] | take results |
//! | `for` | make arguments | body | yield | – | – | [`next`] | take results |
//! | `while` | make arguments | condition | forward, make arguments | body | yield | [`again`] | take results |
//!
//! A loop also looks at variables that may change out of the macro's sight, at the same places, with [`watch()`]: a change that is not carried is a fault.
//!
//! # Inference
//! The host implementations are blanket ones (`impl<L: PartialEq<R>, R> … for L`, `impl<I: IntoIterator> … for I`). They give way to those for tiles because
//! [`Tile`](crate::Tile) and [`DeviceRange`](crate::DeviceRange) implement none of `PartialEq`, `PartialOrd` and `Iterator`; it must stay so. That there is
//! one implementation that fits is what lets rustc find the types of literals: `x > 0.0`, `n == 3`, `0..n`.

mod branch;
mod carry;
mod compare;
mod for_loop;
mod kernel;
mod leave;
mod logic;
mod range;
mod warp_groups;
mod while_loop;

pub use branch::{
    Branch, DeviceBranch, Gives, HostBranch, Region, branch, close, enter_else, enter_then, give, merge,
};
pub use carry::{Carries, Carry, Handles, NoHandles, Watched, Watches, carry, watch};
pub use compare::{Equal, Ordered, eq, ge, gt, le, lt, ne};
pub use for_loop::{DeviceLoop, HostLoop, IntoLoop, StagedLoop, for_loop, next};
pub use kernel::{KernelDef, MetaParam, kernel_name};
pub use leave::{
    MayBreak, MayCall, MayContinue, MayReturn, MayTry, may_break, may_call, may_continue, may_return, may_try,
};
pub use logic::{Logic, and, or};
pub use range::{Lower, Upper, range, range_from};
pub use warp_groups::{WarpGroups, close_groups, enter_group, warp_groups};
pub use while_loop::{Condition, DeviceWhile, While, again, condition, enter_body, while_loop};
