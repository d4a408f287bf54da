//! Counts of what kernels do on an emulated device.

pub use tegula_emulator::InstructionCount as Counts;

use crate::device::{Device, lock};

impl Device {
    /// Runs `work`, and counts what all kernels do that are launched on this device meanwhile, whoever launches them; `None` if it does not emulate. Launches take longer
    /// while they are counted.
    pub fn counted<R>(&self, work: impl FnOnce() -> R) -> (R, Option<Counts>) {
        let Some(place) = self.0.backend.counts() else { return (work(), None) };
        *lock(place) = Some(Counts::default());
        let result = work();
        (result, lock(place).take())
    }
}
