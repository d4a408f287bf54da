//! Streams: queues of work on a device, and the order between them.
//!
//! Work on one stream runs in order, work on two streams may overlap. Memory remembers which streams have used it, so
//! a kernel on one stream that reads what another stream writes waits for it by itself (see `memory.rs`): a missing wait cannot give a
//! wrong number.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::backend::RawStream;
use crate::device::{Device, lock};
use crate::error::Error;
use crate::event::Event;
use crate::graph::Graph;
use crate::memory::{Access, Buffer};

/// A queue of work. Cheap to clone; clones are the same stream.
#[derive(Clone)]
pub struct Stream(pub(crate) Arc<StreamInner>);

pub(crate) struct StreamInner {
    pub(crate) raw: Arc<dyn RawStream>,
    device: Device,
    /// The stream's number on its device, below [`MAX_STREAMS`]: its bit in memory's usage masks.
    slot: u32,
}

/// Streams that a device can have at one time: as many as fit a mask.
pub(crate) const MAX_STREAMS: usize = 64;

impl StreamInner {
    pub(crate) fn new(raw: Arc<dyn RawStream>, device: Device, slot: u32) -> StreamInner {
        StreamInner { raw, device, slot }
    }
}

/// A buffer that recorded work uses, and how.
pub(crate) type Use = (Arc<Buffer>, Access);

/// What a stream is recording; kept by the raw stream, since the main stream has many handles.
#[derive(Default)]
pub(crate) struct Recording {
    /// A copy of `uses.is_some()` that launches can read without a lock.
    active: AtomicBool,
    uses: Mutex<Option<Vec<Use>>>,
}

impl Recording {
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Notes that the recorded work uses a buffer; keeps it alive.
    pub(crate) fn note(&self, buffer: &Arc<Buffer>, access: Access) {
        if let Some(uses) = &mut *lock(&self.uses) {
            match uses.iter_mut().find(|(b, _)| Arc::ptr_eq(b, buffer)) {
                Some((_, a)) => *a = (*a).max(access),
                None => uses.push((buffer.clone(), access)),
            }
        }
    }

    fn start(&self) -> bool {
        let mut uses = lock(&self.uses);
        let fresh = uses.is_none();
        if fresh {
            *uses = Some(Vec::new());
            self.active.store(true, Ordering::Release);
        }
        fresh
    }

    fn stop(&self) -> Vec<Use> {
        let uses = lock(&self.uses).take();
        self.active.store(false, Ordering::Release);
        uses.unwrap_or_default()
    }
}

impl Stream {
    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits until all work submitted so far is done.
    ///
    /// # Errors
    /// If the device failed while it did that work, or while the stream is recording.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.expect_not_recording("waiting for the stream")?;
        self.0.raw.synchronize()
    }

    /// A marker of what has been submitted so far.
    pub fn record(&self) -> Result<Event, Error> {
        self.expect_not_recording("an event")?;
        Ok(Event { raw: self.0.raw.record()?, device: self.device().clone() })
    }

    /// Lets later work on this stream wait for an event.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        self.expect_not_recording("waiting for an event")?;
        self.device().expect_same(&event.device, "the event")?;
        event.raw.make_wait(&*self.0.raw)
    }

    /// Records what `work` launches on this stream instead of running it. The graph keeps the memory alive that it uses.
    ///
    /// Only launches and copies inside the device may be recorded; allocate before. Kernels met for the first time are compiled.
    /// Work submitted before is waited for.
    ///
    /// # Errors
    /// The first error of `work`; or if the stream is recording already, or the driver refuses.
    pub fn capture<E: From<Error>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        /// Ends the recording, whatever happens: a panic in `work` must leave a stream that can be used.
        struct End<'a>(&'a Stream);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                let _ = self.0.0.raw.end_capture();
                self.0.recording().stop();
            }
        }

        // Memory may carry this stream's bit for work before the recording; nobody can wait for a stream that records.
        self.synchronize()?;
        if !self.recording().start() {
            return Err(Error::Unsupported("the stream is recording already".to_owned()).into());
        }
        if let Err(e) = self.0.raw.begin_capture() {
            self.recording().stop();
            return Err(e.into());
        }
        let end = End(self);
        work()?;
        std::mem::forget(end);
        let raw = self.0.raw.end_capture();
        let uses = self.recording().stop();
        Ok(Graph { raw: raw?, uses, device: self.device().clone(), turn: Mutex::new(()) })
    }

    pub(crate) fn recording(&self) -> &Recording {
        self.0.raw.recording()
    }

    pub(crate) fn expect_not_recording(&self, what: &str) -> Result<(), Error> {
        if self.recording().is_active() {
            return Err(Error::Unsupported(format!(
                "the stream is recording a graph: {what} cannot be recorded, do it before or after"
            )));
        }
        Ok(())
    }

    pub(crate) fn bit(&self) -> u64 {
        1 << self.0.slot
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        // Slot 0 is the main stream, which lives as long as its device. The slot of another may be given to a new stream: memory that still
        // carries this stream's bit must have nothing left to wait for. An error here means a dead context, which has nothing to wait for.
        if self.slot != 0 {
            let _ = self.raw.synchronize();
            self.device.release_stream_slot(self.slot);
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({} #{})", self.device().name(), self.0.slot)
    }
}
