//! Runs decoded programs, warp by warp.
//!
//! * [`Job`] is a launch, worked out; [`Cluster`] runs one cluster of its CTAs: a list of [`Warp`]s, and an [`Env`] that they share.
//! * A warp's lanes stand in [`Fragment`]s; a [`Frame`] has the registers of a function's activation, a row of 32 lanes each, with a bit a lane for
//!   "has been written".
//! * `step.rs` executes one instruction of one fragment. The families are in files of their own: `alu/` (registers only), `transfer.rs` (loads and
//!   stores), `atomic.rs`, `lanes.rs` (shuffles, votes), `barrier.rs`, `control.rs`, `copy.rs` (`cp.async`), [`matrix`], [`asynchronous`].
//! * Every access to memory is an [`crate::memory::Access`] that goes through [`Env::check`], which takes out what is wrong and tells
//!   [`crate::observe::Observer`]s; what passes is read and written with [`Env::load`] and [`Env::store`].
//!
//! # How an asynchronous unit works
//!
//! Executing its instruction, it makes a [`engine::Work`] that holds what it needs (addresses, slots, values of descriptors) and gives it to
//! [`Env::issue`] with a [`engine::Queue`] and, if it is waited for by group, the group's number. The engine calls [`engine::Work::complete`] later
//! ([`engine::Timing`]), with all warps and the `Env`: there it checks its accesses (with [`crate::memory::Proxy::Async`] and the issuer's
//! origin), moves the data, arrives at mbarriers. `complete` runs between two instructions, so it sees a consistent state.
//!
//! An instruction that waits returns [`step::Flow::Wait`]: [`Wait::Group`] for groups (the engine completes what is demanded), or
//! [`Wait::Unit`] with a condition of the unit's own (a phase of an mbarrier). The fragment stays where it is, and when the condition holds,
//! executes the instruction again with [`Fragment::resumed`] set; [`step::Flow::Next`] then goes on. An instruction that polls and fails
//! returns [`step::Flow::Yield`]. What lanes must do together asks [`step::together`] first.

pub mod alu;
pub mod asynchronous;
mod atomic;
mod barrier;
mod cluster;
mod control;
mod copy;
pub mod engine;
mod env;
mod frame;
mod job;
mod lanes;
pub mod matrix;
mod printf;
pub mod step;
mod transfer;
mod warp;

pub use barrier::Barriers;
pub use cluster::{Cluster, Status};
pub use env::{CtaState, Env};
pub use frame::{FULL, Frame, Lanes, lanes_of};
pub use job::{Job, volume};
pub use transfer::addresses;
pub use warp::{Fragment, Wait, Warp};
