//! The attention's backward pass uses what the other kernels do not: transposed operands of wgmma from one shared image, A from accumulators, linear bulk
//! copies, bulk reductions into global memory.

mod support;

use support::Attention;
use support::backward::check_backward;
use tegula_emulator::Timing;

#[test]
fn gradients_are_right_and_clean() {
    let one = Attention { b: 1, sq: 128, sk: 128, h: 1, hk: 1, causal: true };
    check_backward(one, 1, Timing::Late);
    check_backward(Attention { sq: 200, sk: 300, h: 2, ..one }, 2, Timing::Random);
    check_backward(Attention { sq: 190, sk: 72, b: 2, ..one }, 3, Timing::Early);
}
