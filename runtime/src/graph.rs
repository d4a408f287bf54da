//! Graphs: recorded launches that replay at a fraction of their host-side cost.

use crate::backend::RawGraph;
use crate::device::Device;
use crate::error::Error;
use crate::stream::{Recorded, Stream};

/// Recorded work; made by [`Device::capture`]. Keeps alive the memory that it uses.
pub struct Graph {
    pub(crate) raw: Box<dyn RawGraph>,
    pub(crate) uses: Vec<Recorded>,
    pub(crate) device: Device,
}

impl Graph {
    /// Runs the recorded work on a stream, after all that the memory it uses must wait for.
    pub fn launch(&self, stream: &Stream) -> Result<(), Error> {
        stream.device().expect_same(&self.device, "the graph")?;
        stream.expect_not_recording("another graph")?;
        // Held until the replay is submitted: see `memory.rs`. It also keeps the driver's graph calls one after another, as the driver wants.
        let _turn = self.device.take_turn();
        for (buffer, access) in &self.uses {
            buffer.order(*access, stream)?;
        }
        self.raw.launch(&*stream.0.raw)
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({}, {} buffers)", self.device.name(), self.uses.len())
    }
}
