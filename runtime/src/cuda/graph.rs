//! Graphs of the driver.

use std::sync::Arc;

use cudarc::driver::result::graph;
use cudarc::driver::sys;

use super::driver::Context;
use super::stream::CudaStream;
use crate::backend::{RawGraph, RawStream};
use crate::error::Error;

/// An instantiated graph.
pub(super) struct CudaGraph {
    executable: sys::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: the driver's graph calls may come from any thread.
unsafe impl Send for CudaGraph {}
// SAFETY: as above; `launch` is the only call on a shared graph, and `Graph`, which owns it, makes it in the device's turn only (CUDA Driver API, "Graph object
// thread safety").
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    /// Instantiates and destroys a recorded graph.
    pub(super) fn new(recorded: sys::CUgraph, context: Arc<Context>) -> Result<CudaGraph, Error> {
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is from a capture that has ended; it is not needed once instantiated.
        let code = unsafe {
            let code = sys::cuGraphInstantiateWithFlags(&raw mut executable, recorded, 0);
            let _ = graph::destroy(recorded);
            code
        };
        context.check("cuGraphInstantiate", code)?;
        Ok(CudaGraph { executable, context })
    }
}

impl RawGraph for CudaGraph {
    fn launch(&self, stream: &dyn RawStream) -> Result<(), Error> {
        let stream = CudaStream::of(stream)?;
        self.context.bind()?;
        // SAFETY: graph and stream are alive; `Graph` keeps the memory alive that the kernels use.
        let code = unsafe { sys::cuGraphLaunch(self.executable, stream.raw) };
        stream.check("cuGraphLaunch", code)
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: instantiated by `new`; the driver lets running launches finish.
            let _ = unsafe { graph::exec_destroy(self.executable) };
        }
    }
}
