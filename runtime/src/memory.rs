//! Device memory and the order of its uses.
//!
//! A buffer remembers, as two masks with a bit a stream, who has read it since it was last written and who wrote it last. Work that uses it
//! on another stream first waits for those, so results never depend on luck, and memory is freed only behind its last use. On one stream this costs an atomic load an
//! argument. The wait is for everything the other stream has been given until then, which is more than needed but never less.
//!
//! Rejected: an event after each launch (about a microsecond each), and leaving the order to the caller as CUDA does (a missing wait
//! would be a data race in safe code).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::{RawMemory, RawStream};
use crate::device::Device;
use crate::error::Error;
use crate::stream::Stream;

/// What work does to a buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Access {
    /// Reads only.
    Read,
    /// Writes, or both.
    Write,
}

/// A piece of device memory.
pub(crate) struct Buffer {
    device: Device,
    /// The device address; 0 for an empty buffer.
    address: u64,
    /// `None` for an empty buffer, and while dropping.
    raw: Option<Box<dyn RawMemory>>,
    /// Streams whose work since the last write is ordered behind that write, the writer among them.
    users: AtomicU64,
    /// The stream that wrote last (or allocated).
    writer: AtomicU64,
}

impl Buffer {
    /// Memory with unspecified content, usable by any stream.
    pub(crate) fn alloc(device: &Device, bytes: usize, stream: &Stream) -> Result<Arc<Buffer>, Error> {
        stream.device().expect_same(device, "the stream")?;
        stream.expect_not_recording("an allocation")?;
        let raw = match bytes {
            0 => None,
            _ => Some(device.0.backend.alloc(bytes, &*stream.0.raw)?),
        };
        Ok(Arc::new(Buffer {
            device: device.clone(),
            address: raw.as_ref().map_or(0, |r| r.address()),
            raw,
            users: AtomicU64::new(stream.bit()),
            writer: AtomicU64::new(stream.bit()),
        }))
    }

    #[inline]
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The device address; 0 for an empty buffer.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The backend's memory; `None` for an empty buffer.
    pub(crate) fn raw(&self) -> Option<&dyn RawMemory> {
        self.raw.as_deref()
    }

    /// Called before work that uses the buffer is submitted to `stream`: orders it behind what it must wait for. A stream that records notes the use instead; the graph
    /// orders itself at each replay.
    pub(crate) fn before(self: &Arc<Buffer>, access: Access, stream: &Stream) -> Result<(), Error> {
        if stream.recording().is_active() {
            stream.recording().note(self, access);
            return Ok(());
        }
        self.order(access, stream)
    }

    /// Is such work on the stream, which does not record, ordered already?
    #[inline]
    pub(crate) fn is_ordered(&self, access: Access, stream: &Stream) -> bool {
        let (me, users) = (stream.bit(), self.users.load(Ordering::Acquire));
        match access {
            Access::Read => users & me != 0,
            // The writer is one of the users.
            Access::Write => users == me,
        }
    }

    /// As [`Buffer::before`] for a stream that does not record.
    #[inline]
    pub(crate) fn order(&self, access: Access, stream: &Stream) -> Result<(), Error> {
        let me = stream.bit();
        match access {
            Access::Read => {
                // Set after the wait has been submitted: another thread that sees the bit submits behind the wait.
                if self.users.load(Ordering::Acquire) & me == 0 {
                    self.wait_for(self.writer.load(Ordering::Acquire) & !me, stream)?;
                    self.users.fetch_or(me, Ordering::AcqRel);
                }
            }
            Access::Write => {
                let others = self.users.load(Ordering::Acquire) & !me;
                if others != 0 {
                    self.wait_for(others, stream)?;
                }
                // A writer holds the only reference to the tensor: no other thread is here.
                self.users.store(me, Ordering::Release);
                self.writer.store(me, Ordering::Release);
            }
        }
        Ok(())
    }

    #[cold]
    fn wait_for(&self, streams: u64, stream: &Stream) -> Result<(), Error> {
        self.each_stream(streams, |other| stream.0.raw.wait_for(other))
    }

    /// Calls `f` on the streams of a mask that still exist. One that records is left out: it was waited for when it began.
    fn each_stream(
        &self,
        mut streams: u64,
        mut f: impl FnMut(&dyn RawStream) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while streams != 0 {
            let slot = streams.trailing_zeros();
            streams &= streams - 1;
            if let Some(other) = self.device.stream_in_slot(slot)
                && !other.recording().is_active()
            {
                f(&*other)?;
            }
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        let users = *self.users.get_mut() | *self.writer.get_mut();
        let backend = &self.device.0.backend;
        // Used by one stream alone: free it there. Otherwise on a stream of its own, behind them all.
        if users.is_power_of_two()
            && let Some(only) = self.device.stream_in_slot(users.trailing_zeros())
            && !only.recording().is_active()
        {
            backend.free(raw, &*only);
            return;
        }
        let reclaim = self.device.0.reclaim.clone();
        // An error here means a dead context, whose memory is gone with it.
        let _ = self.each_stream(users, |other| reclaim.wait_for(other));
        backend.free(raw, &*reclaim);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Log;
    use crate::{Device, Error, Stream, Tensor};
    use std::sync::Arc;

    fn device() -> (Device, Log) {
        Device::testing_logged(Arc::new(|_, _| ()))
    }

    /// What was logged since the last call.
    fn said(log: &Log) -> Vec<String> {
        std::mem::take(&mut *log.lock().unwrap())
    }

    fn read(t: &Tensor<f32>, to: &mut Tensor<f32>, stream: &Stream) {
        to.copy_from(&t.view(), stream).unwrap();
    }

    #[test]
    fn one_stream_never_waits() {
        let (device, log) = device();
        let main = device.stream();
        let (a, mut b) = (device.zeros::<f32>(&[8]).unwrap(), device.alloc::<f32>(&[8]).unwrap());
        read(&a, &mut b, &main);
        b.fill_zero(&main).unwrap();
        assert_eq!(b.to_vec().unwrap(), [0.0; 8]);
        drop((a, b));
        assert_eq!(said(&log), ["free 0", "free 0"]);
    }

    #[test]
    fn a_reader_waits_for_the_writer_once_and_a_writer_for_all_readers() {
        let (device, log) = device();
        let (s, t) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut a = device.zeros::<f32>(&[8]).unwrap();
        let mut on_s = device.alloc::<f32>(&[8]).unwrap();
        let mut on_t = device.alloc::<f32>(&[8]).unwrap();
        on_s.fill_zero(&s).unwrap();
        on_t.fill_zero(&t).unwrap();
        assert_eq!(said(&log), ["wait 2 0", "wait 3 0"], "allocation is work of the main stream");

        read(&a, &mut on_s, &s);
        read(&a, &mut on_s, &s);
        read(&a, &mut on_t, &t);
        assert_eq!(said(&log), ["wait 2 0", "wait 3 0"]);

        a.fill_zero(&s).unwrap();
        assert_eq!(
            said(&log),
            ["wait 2 0", "wait 2 3"],
            "behind the writer and the reader on the other stream"
        );
        a.fill_zero(&s).unwrap();
        assert_eq!(said(&log), Vec::<String>::new());
        read(&a, &mut on_t, &t);
        assert_eq!(said(&log), ["wait 3 2"]);

        drop(on_s);
        assert_eq!(said(&log), ["free 2"], "used by one stream alone since it was written there");
        drop(a);
        assert_eq!(said(&log), ["wait 1 2", "wait 1 3", "free 1"]);
    }

    #[test]
    fn a_dropped_stream_is_not_waited_for() {
        let (device, log) = device();
        let s = device.new_stream().unwrap();
        let mut a = device.zeros::<f32>(&[8]).unwrap();
        a.fill_zero(&s).unwrap();
        said(&log);
        drop(s);
        let t = device.new_stream().unwrap();
        a.fill_zero(&t).unwrap();
        assert_eq!(
            said(&log),
            Vec::<String>::new(),
            "it was synchronised when dropped; its slot is the new stream's"
        );
    }

    #[test]
    fn a_graph_keeps_memory_and_orders_its_replays() {
        let (device, log) = device();
        let (s, t) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let a = device.zeros::<f32>(&[8]).unwrap();
        let mut b = device.zeros::<f32>(&[8]).unwrap();
        let graph = s.capture(|| b.copy_from(&a.view(), &s)).unwrap();
        assert_eq!(said(&log), Vec::<String>::new(), "nothing has run, so nothing waits");
        drop(a);
        assert_eq!(said(&log), Vec::<String>::new(), "the graph keeps it");
        graph.launch(&t).unwrap();
        assert_eq!(said(&log), ["wait 3 0", "wait 3 0", "graph 3"]);
        b.fill_zero(&device.stream()).unwrap();
        assert_eq!(said(&log), ["wait 0 3"]);
        drop(graph);
        assert_eq!(said(&log), ["wait 1 0", "wait 1 3", "free 1"]);
    }

    #[test]
    fn what_cannot_be_recorded_is_refused_and_the_stream_recovers() {
        let (device, _) = device();
        let main = device.stream();
        let result = main.capture(|| device.alloc::<f32>(&[8]).map(drop));
        assert!(result.is_err_and(|e| e.to_string().contains("an allocation cannot be recorded")));
        let a = device.zeros::<f32>(&[8]).unwrap();
        let result = main.capture(|| a.to_vec().map(drop));
        assert!(result.is_err_and(|e| e.to_string().contains("a copy to the host")));
        let result = main.capture(|| main.capture(|| Ok::<_, Error>(())).map(drop));
        assert!(result.is_err(), "recording twice");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = main.capture(|| -> Result<(), Error> { panic!("in the middle") });
        }));
        assert!(panicked.is_err());
        assert!(main.capture(|| Ok::<_, Error>(())).is_ok());
        assert_eq!(a.to_vec().unwrap().len(), 8);
    }

    #[test]
    fn streams_run_out_politely() {
        let (device, _) = device();
        let streams: Vec<_> = (0..63).map(|_| device.new_stream().unwrap()).collect();
        assert!(device.new_stream().is_err_and(|e| e.to_string().contains("at most 64 streams")));
        drop(streams);
        assert!(device.new_stream().is_ok());
    }
}
