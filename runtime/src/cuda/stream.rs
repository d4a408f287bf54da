//! Streams and events of the driver.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::result::{event, stream};
use cudarc::driver::sys::{self, CUevent_flags_enum as Flags, CUresult, cudaError_enum as Code};

use super::driver::Context;
use super::graph::CudaGraph;
use crate::backend::{RawEvent, RawGraph, RawStream};
use crate::device::lock;
use crate::error::Error;

pub(super) struct CudaStream {
    pub(super) raw: sys::CUstream,
    pub(super) context: Arc<Context>,
    /// Is it ours to destroy?
    owned: bool,
    /// Marks, again and again, the end of this stream's work for others to wait for. A wait takes the mark as it is when the wait is submitted.
    fence: Mutex<CudaEvent>,
    /// The number of the kernel launched last, for messages.
    last: AtomicU32,
}

// SAFETY: a stream is a handle that the driver lets all threads use.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    pub(super) fn new(context: Arc<Context>) -> Result<CudaStream, Error> {
        context.bind()?;
        // Not ordered with the legacy default stream: what other libraries do there is theirs.
        let raw = stream::create(stream::StreamKind::NonBlocking)
            .map_err(|e| context.error("cuStreamCreate", e.0, None))?;
        let fence = match CudaEvent::new(context.clone(), Flags::CU_EVENT_DISABLE_TIMING) {
            Ok(fence) => fence,
            Err(e) => {
                // SAFETY: created above, used by nobody.
                let _ = unsafe { stream::destroy(raw) };
                return Err(e);
            }
        };
        let last = AtomicU32::new(u32::MAX);
        Ok(CudaStream { raw, context, owned: true, fence: Mutex::new(fence), last })
    }

    /// Somebody else's stream, of this context; 0 is the default stream.
    pub(super) fn over(context: Arc<Context>, handle: u64) -> Result<CudaStream, Error> {
        let fence = CudaEvent::new(context.clone(), Flags::CU_EVENT_DISABLE_TIMING)?;
        let (raw, last) = (handle as usize as sys::CUstream, AtomicU32::new(u32::MAX));
        Ok(CudaStream { raw, context, owned: false, fence: Mutex::new(fence), last })
    }

    #[inline]
    pub(super) fn of(stream: &dyn RawStream) -> Result<&CudaStream, Error> {
        stream
            .as_any()
            .downcast_ref()
            .ok_or_else(|| Error::Unsupported("a stream of another device".to_owned()))
    }

    /// Notes which kernel is launched.
    #[inline]
    pub(super) fn launching(&self, kernel: u32) {
        // Relaxed: it is for messages only. Not written where nothing changes, so that threads do not take the line from each other.
        if self.last.load(Ordering::Relaxed) != kernel {
            self.last.store(kernel, Ordering::Relaxed);
        }
    }

    #[cold]
    pub(super) fn error(&self, call: &'static str, code: CUresult) -> Error {
        let last = self.context.kernel_name(self.last.load(Ordering::Relaxed));
        self.context.error(call, code, last.as_deref())
    }

    #[inline]
    pub(super) fn check(&self, call: &'static str, code: CUresult) -> Result<(), Error> {
        if code == Code::CUDA_SUCCESS { Ok(()) } else { Err(self.error(call, code)) }
    }

    /// Waits for the stream whatever `code` says, since a failed call may have submitted something that uses the caller's memory.
    pub(super) fn finish(&self, call: &'static str, code: CUresult) -> Result<(), Error> {
        let waited = self.wait();
        self.check(call, code)?;
        waited
    }

    fn wait(&self) -> Result<(), Error> {
        self.context.bind()?;
        // SAFETY: the stream is alive.
        let code = unsafe { sys::cuStreamSynchronize(self.raw) };
        self.check("cuStreamSynchronize", code)
    }
}

impl RawStream for CudaStream {
    fn synchronize(&self) -> Result<(), Error> {
        self.wait()
    }

    fn wait_for(&self, other: &dyn RawStream) -> Result<(), Error> {
        let other = CudaStream::of(other)?;
        self.context.bind()?;
        // Held over both calls: another thread must not move the mark in between.
        let fence = lock(&other.fence);
        fence.record_on(other)?;
        fence.make_wait(self)
    }

    fn record(&self) -> Result<Box<dyn RawEvent>, Error> {
        let event = CudaEvent::new(self.context.clone(), Flags::CU_EVENT_DEFAULT)?;
        event.record_on(self)?;
        Ok(Box::new(event))
    }

    fn begin_capture(&self) -> Result<(), Error> {
        self.context.bind()?;
        // Relaxed: loading a kernel's module while recording is allowed. What must not be recorded is refused before it gets here.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive.
        let code = unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) };
        self.check("cuStreamBeginCapture", code)
    }

    fn end_capture(&self) -> Result<Box<dyn RawGraph>, Error> {
        self.context.bind()?;
        // SAFETY: the stream is alive; ending what never began is an error code.
        let graph =
            unsafe { stream::end_capture(self.raw) }.map_err(|e| self.error("cuStreamEndCapture", e.0))?;
        Ok(Box::new(CudaGraph::new(graph, self.context.clone())?))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.owned && self.context.bind().is_ok() {
            // SAFETY: created by `new`; nobody else has the handle. The driver lets submitted work finish.
            let _ = unsafe { stream::destroy(self.raw) };
        }
    }
}

pub(super) struct CudaEvent {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: an event is a handle that the driver lets all threads use.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// The context must be current.
    fn new(context: Arc<Context>, flags: Flags) -> Result<CudaEvent, Error> {
        context.bind()?;
        let raw = event::create(flags).map_err(|e| context.error("cuEventCreate", e.0, None))?;
        Ok(CudaEvent { raw, context })
    }

    fn record_on(&self, stream: &CudaStream) -> Result<(), Error> {
        // SAFETY: event and stream are alive and of one context, which the caller made current.
        let code = unsafe { sys::cuEventRecord(self.raw, stream.raw) };
        stream.check("cuEventRecord", code)
    }

    fn make_wait(&self, stream: &CudaStream) -> Result<(), Error> {
        // SAFETY: as above.
        let code = unsafe { sys::cuStreamWaitEvent(stream.raw, self.raw, 0) };
        stream.check("cuStreamWaitEvent", code)
    }
}

impl RawEvent for CudaEvent {
    fn synchronize(&self) -> Result<(), Error> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        let code = unsafe { sys::cuEventSynchronize(self.raw) };
        self.context.check("cuEventSynchronize", code)
    }

    fn is_done(&self) -> Result<bool, Error> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            Code::CUDA_ERROR_NOT_READY => Ok(false),
            code => self.context.check("cuEventQuery", code).map(|()| true),
        }
    }

    fn elapsed_ms(&self, earlier: &dyn RawEvent) -> Result<f32, Error> {
        let Some(earlier) = earlier.as_any().downcast_ref::<CudaEvent>() else {
            return Err(Error::Unsupported("an event of another device".to_owned()));
        };
        self.context.bind()?;
        // SAFETY: both events are alive.
        unsafe { event::elapsed(earlier.raw, self.raw) }
            .map_err(|e| self.context.error("cuEventElapsedTime", e.0, None))
    }

    fn make_wait(&self, stream: &dyn RawStream) -> Result<(), Error> {
        self.context.bind()?;
        self.make_wait(CudaStream::of(stream)?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created by `new`; the driver lets pending waits finish.
            let _ = unsafe { event::destroy(self.raw) };
        }
    }
}
