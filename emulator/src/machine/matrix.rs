//! Execution of `mma`, `wgmma`, `ldmatrix`, `stmatrix`, `movmatrix`.

use super::env::Env;
use super::step::Flow;
use super::warp::Warp;
use crate::decode::matrix::MatrixOp;
use crate::observe::Origin;

/// Executes one instruction for the lanes `exec` of the fragment `at`.
pub fn execute(
    op: &MatrixOp,
    _warp: &mut Warp,
    _at: usize,
    _exec: u32,
    _env: &mut Env<'_>,
    _origin: &Origin,
) -> Flow {
    match *op {}
}
