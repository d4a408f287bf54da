//! Jumps. Before a `break` stands a call of [`may_break`] for every staged region that it leaves; it is implemented for host regions only, so
//! leaving a device region is a type error at the `break`.

use super::branch::HostBranch;
use super::for_loop::HostLoop;
use super::while_loop::While;

macro_rules! jumps {
    ($($trait:ident $jump:literal $message:literal $note:literal;)+) => {$(
        #[doc = concat!("A region that ", $jump, " may leave.")]
        #[diagnostic::on_unimplemented(message = $message, label = "inside a device loop or branch", note = $note)]
        pub trait $trait {}
        impl $trait for HostBranch {}
        impl<I> $trait for HostLoop<I> {}
        impl $trait for While<bool> {}
    )+};
}

jumps! {
    MayBreak "`break`" "`break` cannot leave a device loop or branch"
        "the loop is not unrolled while staging, so there is nothing to break out of: write `while` with the condition, or mask what the remaining rounds do";
    MayContinue "`continue`" "`continue` cannot leave a device branch"
        "both branches are staged: put the rest of the body into the other branch, or mask it with `select`";
    MayReturn "`return`" "`return` cannot leave a device loop or branch"
        "both branches are staged: put the rest of the function into the other branch";
    MayTry "`?`" "`?` cannot leave a device loop or branch"
        "staging goes on after the loop or branch: handle the error before it";
}

/// Allows `break`.
pub fn may_break<R: MayBreak>(_: &R) {}

/// Allows `continue` of an outer loop, or out of a branch.
pub fn may_continue<R: MayContinue>(_: &R) {}

/// Allows `return`.
pub fn may_return<R: MayReturn>(_: &R) {}

/// Allows `?` on what is passed through.
pub fn may_try<R: MayTry, T>(_: &R, fallible: T) -> T {
    fallible
}
