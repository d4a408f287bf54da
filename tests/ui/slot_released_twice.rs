//! A slot is a value: it is released (or committed) once, and not read after that.
use tegula::prelude::*;

#[kernel]
fn k(x: View<bf16, 2>, y: ViewMut<bf16, 2>) {
    let ch = channel::<(bf16,)>(2, ([64, 64],));
    warp_groups! {
        producer => {
            let slot = ch.acquire();
            slot.0.copy_from(x, [0, 0]);
            slot.commit();
            slot.commit();
        },
        consumer => {
            let slot = ch.wait();
            let tile = slot.0.read();
            slot.release();
            y.store([0, 0], tile + slot.0.read());
        },
    }
}

fn main() {}
