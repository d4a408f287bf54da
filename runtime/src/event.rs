//! Events: markers in streams, for waiting and for timing.

use crate::backend::RawEvent;
use crate::device::Device;
use crate::error::Error;

/// A marker in a stream; made by [`Stream::record`](crate::Stream::record).
pub struct Event {
    pub(crate) raw: Box<dyn RawEvent>,
    pub(crate) device: Device,
}

impl Event {
    /// Waits until the marker is reached.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.raw.synchronize()
    }

    /// Has the marker been reached?
    pub fn is_done(&self) -> Result<bool, Error> {
        self.raw.is_done()
    }

    /// Milliseconds from `earlier` to this marker, by the device's clock. Waits for this marker.
    pub fn elapsed_ms(&self, earlier: &Event) -> Result<f32, Error> {
        self.device.expect_same(&earlier.device, "the earlier event")?;
        self.raw.synchronize()?;
        self.raw.elapsed_ms(&*earlier.raw)
    }
}
