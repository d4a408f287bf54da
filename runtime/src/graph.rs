//! Graphs: recorded launches that replay at a fraction of their host-side cost.

use std::sync::Mutex;

use crate::backend::RawGraph;
use crate::device::{Device, lock};
use crate::error::Error;
use crate::stream::{Stream, Use};

/// Recorded work; made by [`Stream::capture`]. Keeps alive the memory that it uses.
pub struct Graph {
    pub(crate) raw: Box<dyn RawGraph>,
    pub(crate) uses: Vec<Use>,
    pub(crate) device: Device,
    /// Held while a replay is submitted: the driver wants its graph calls one after another, and a replay from another thread must be ordered
    /// behind all of this one.
    pub(crate) turn: Mutex<()>,
}

impl Graph {
    /// Runs the recorded work on a stream, after all that the memory it uses must wait for.
    pub fn launch(&self, stream: &Stream) -> Result<(), Error> {
        stream.device().expect_same(&self.device, "the graph")?;
        stream.expect_not_recording("another graph")?;
        let _turn = lock(&self.turn);
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
