//! Streams: queues of work on a device, and the order between them.
//!
//! Work on one stream runs in order, work on two streams may overlap. Memory remembers which streams have used it, so
//! a kernel on one stream that reads what another stream writes waits for it by itself (see `memory.rs`): a missing wait cannot give a
//! wrong number.
//!
//! A graph is recorded on a stream of its own, which does nothing else. So a stream's launches need not ask whether it records, and no work
//! of another thread can slip into a graph, or out of it, unnoticed.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::backend::{RawGraph, RawStream};
use crate::device::{Device, lock};
use crate::error::Error;
use crate::event::Event;
use crate::graph::Graph;
use crate::memory::{Access, Buffer, Use};

/// A queue of work. Cheap to clone; clones are the same stream.
#[derive(Clone)]
pub struct Stream(pub(crate) Arc<StreamInner>);

pub(crate) struct StreamInner {
    pub(crate) raw: Arc<dyn RawStream>,
    device: Device,
    /// The stream's number on its device, below [`MAX_STREAMS`]: its bit in memory's usage masks. Means nothing while recording.
    slot: u32,
    /// What it records, if it is there for that.
    recording: Option<Recording>,
}

/// Streams that a device can have at one time: as many as fit a mask, beside a mark.
pub(crate) const MAX_STREAMS: usize = 63;

impl StreamInner {
    pub(crate) fn new(raw: Arc<dyn RawStream>, device: Device, slot: u32) -> StreamInner {
        StreamInner { raw, device, slot, recording: None }
    }
}

/// A buffer that recorded work uses, and how.
pub(crate) type Recorded = (Arc<Buffer>, Access);

/// What a stream records: `None` once that has ended. Locked while something is noted and submitted, so that it does not end in between.
pub(crate) struct Recording(Mutex<Option<Vec<Recorded>>>);

impl Recording {
    /// Notes that the work about to be submitted uses these buffers; keeps them alive.
    pub(crate) fn note<'a>(
        &self,
        uses: impl Iterator<Item = Use<'a>>,
    ) -> Result<MutexGuard<'_, Option<Vec<Recorded>>>, Error> {
        let mut recorded = lock(&self.0);
        let Some(noted) = &mut *recorded else {
            return Err(Error::Unsupported("what this stream recorded is a graph already".to_owned()));
        };
        for Use { buffer, access, .. } in uses {
            match noted.iter_mut().find(|(b, _)| Arc::ptr_eq(b, buffer)) {
                Some((_, a)) => *a = (*a).max(access),
                None => {
                    let _turn = buffer.device().take_turn();
                    buffer.contend();
                    noted.push((buffer.clone(), access));
                }
            }
        }
        Ok(recorded)
    }
}

impl Device {
    /// Records what `work` launches on the stream it is given instead of running it. The graph keeps the memory alive that it uses.
    ///
    /// Only launches and copies inside the device can be recorded. What `work` does elsewhere (allocations, copies to and from the host, launches on other streams)
    /// happens at once, once. Kernels met for the first time are compiled.
    ///
    /// # Errors
    /// The first error of `work`; or if the driver refuses.
    pub fn capture<E: From<Error>>(&self, work: impl FnOnce(&Stream) -> Result<(), E>) -> Result<Graph, E> {
        /// Ends the recording, whatever happens, so that no clone of the stream outlives it as a recording one.
        struct End<'a>(&'a Stream);
        type Ended = Result<(Box<dyn RawGraph>, Vec<Recorded>), Error>;
        impl End<'_> {
            fn end(&self) -> Option<Ended> {
                let mut recording = lock(&self.0.recording()?.0);
                let uses = recording.take()?;
                Some(self.0.0.raw.end_capture().map(|raw| (raw, uses)))
            }
        }
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.end();
            }
        }

        let raw: Arc<dyn RawStream> = self.0.backend.new_stream()?.into();
        raw.begin_capture()?;
        let recording = Some(Recording(Mutex::new(Some(Vec::new()))));
        let stream = Stream(Arc::new(StreamInner { raw, device: self.clone(), slot: 0, recording }));
        let end = End(&stream);
        work(&stream)?;
        let (raw, uses) = end.end().expect("it has not ended before")?;
        Ok(Graph { raw, uses, device: self.clone() })
    }

    /// The right to order and submit work whose memory is contended (see `memory.rs`): nobody else has it meanwhile.
    pub(crate) fn take_turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.turn)
    }
}

impl Stream {
    /// The device.
    #[inline]
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

    #[inline]
    pub(crate) fn recording(&self) -> Option<&Recording> {
        self.0.recording.as_ref()
    }

    pub(crate) fn expect_not_recording(&self, what: &str) -> Result<(), Error> {
        if self.recording().is_some() {
            return Err(Error::Unsupported(format!(
                "the stream records a graph: {what} cannot be recorded, do it before or after"
            )));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn bit(&self) -> u64 {
        1 << self.0.slot
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        // Slot 0 is the main stream, which lives as long as its device. The slot of another may be given to a new stream: memory that still
        // carries this stream's bit must have nothing left to wait for. An error here means a dead context, which has nothing to wait for.
        if self.slot != 0 && self.recording.is_none() {
            let _ = self.raw.synchronize();
            self.device.release_stream_slot(self.slot);
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.recording() {
            None => write!(f, "Stream({} #{})", self.device().name(), self.0.slot),
            Some(_) => write!(f, "Stream({} recording)", self.device().name()),
        }
    }
}
