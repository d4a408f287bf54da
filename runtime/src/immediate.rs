//! Streams, events and graphs of devices that do work when it is submitted, on the caller's thread: there is nothing to wait for.
//!
//! A stream that records keeps what it is given as a list of closures, which a graph runs again.

use std::any::Any;
use std::sync::Mutex;
use std::time::Instant;

use crate::backend::{RawEvent, RawGraph, RawStream};
use crate::device::lock;
use crate::error::Error;

/// A piece of work that can be done again.
type Work = Box<dyn Fn() -> Result<(), Error> + Send + Sync>;

#[derive(Default)]
pub(crate) struct ImmediateStream {
    /// What has been recorded, while recording.
    tape: Mutex<Option<Vec<Work>>>,
}

impl ImmediateStream {
    pub(crate) fn of(stream: &dyn RawStream) -> Result<&ImmediateStream, Error> {
        stream
            .as_any()
            .downcast_ref()
            .ok_or_else(|| Error::Unsupported("a stream of another device".to_owned()))
    }

    pub(crate) fn is_recording(&self) -> bool {
        lock(&self.tape).is_some()
    }

    /// Does the work, or records it.
    pub(crate) fn submit(
        &self,
        work: impl Fn() -> Result<(), Error> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        if let Some(tape) = &mut *lock(&self.tape) {
            tape.push(Box::new(work));
            return Ok(());
        }
        work()
    }
}

impl RawStream for ImmediateStream {
    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }

    fn wait_for(&self, _other: &dyn RawStream) -> Result<(), Error> {
        Ok(())
    }

    fn record(&self) -> Result<Box<dyn RawEvent>, Error> {
        Ok(Box::new(ImmediateEvent(Instant::now())))
    }

    fn begin_capture(&self) -> Result<(), Error> {
        *lock(&self.tape) = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self) -> Result<Box<dyn RawGraph>, Error> {
        Ok(Box::new(ImmediateGraph(lock(&self.tape).take().unwrap_or_default())))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct ImmediateEvent(Instant);

impl RawEvent for ImmediateEvent {
    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }

    fn is_done(&self) -> Result<bool, Error> {
        Ok(true)
    }

    fn elapsed_ms(&self, earlier: &dyn RawEvent) -> Result<f32, Error> {
        let Some(earlier) = earlier.as_any().downcast_ref::<ImmediateEvent>() else {
            return Err(Error::Unsupported("an event of another device".to_owned()));
        };
        // Negative if the caller swapped them, as a GPU would say.
        let ms = |a: Instant, b: Instant| a.saturating_duration_since(b).as_secs_f32() * 1e3;
        Ok(ms(self.0, earlier.0) - ms(earlier.0, self.0))
    }

    fn make_wait(&self, _stream: &dyn RawStream) -> Result<(), Error> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct ImmediateGraph(Vec<Work>);

impl RawGraph for ImmediateGraph {
    fn launch(&self, _stream: &dyn RawStream) -> Result<(), Error> {
        self.0.iter().try_for_each(|work| work())
    }
}
