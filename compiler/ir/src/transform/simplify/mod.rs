//! `simplify`: makes the kernel smaller without changing what it computes, to the last bit.
//!
//! Four passes, in rounds until nothing changes: [`fold`] (constants, identities, control flow that is decided), [`cse`] (one
//! computation where there were several), [`licm`] (what does not change in a loop leaves it) and [`dce`] (what nobody uses goes).
//! Each can be run alone.
//!
//! Floats are treated as [`crate::op`] defines them: no operation is assumed to be free of NaN or infinity, so `x · 0` stays, and
//! `x + 0` stays too (−0 + 0 is +0). What op.rs leaves unspecified (division by zero) and what devices compute each in their own way
//! (`exp` and its like) is not folded, so that a kernel gives the same numbers with and without this pass.

pub mod cse;
pub mod dce;
mod eval;
pub mod fold;
mod identities;
pub mod licm;
mod memory;
mod shapes;

use crate::kernel::Kernel;

/// Rounds after which it stops even though there is more to do; kernels are done after two or three.
const MAX_ROUNDS: usize = 16;

/// Runs the four passes until nothing changes. Returns whether anything did.
pub fn run(kernel: &mut Kernel) -> bool {
    let mut changed = false;
    for _ in 0..MAX_ROUNDS {
        // No short cuts: each pass runs in each round.
        let round = [fold::run(kernel), cse::run(kernel), licm::run(kernel), dce::run(kernel)];
        if round == [false; 4] {
            break;
        }
        changed = true;
    }
    changed
}
