//! Device memory and the order of its uses.
//!
//! A buffer remembers, as two masks with a bit a stream, who has read it since it was last written and who wrote it last. Work that uses it
//! on another stream first waits for those, so results never depend on luck, and memory is freed only behind its last use. The wait is for everything the other stream has
//! been given until then, which is more than needed but never less.
//!
//! # Threads
//!
//! Between looking at the masks and submitting the work, another thread must not do the same for a use that conflicts. Of tensors and whole views the borrow checker
//! sees to that: who writes holds the only reference until the work is submitted, and readers do not conflict. So launches on one stream cost an atomic load an argument, and no lock.
//! Two kinds of use are not covered by a borrow of the whole buffer: parts of a split view ([`Use::part`]), of which several threads may hold one each, and graphs,
//! which use memory that nobody lends them. A split view knows that it is one; a buffer that a graph has recorded carries a mark
//! ([`CONTENDED`]). For these, looking and submitting happen under the device's lock ([`order`] returns it), one after the other.
//! The mark cannot come too late for work that is on its way: recording borrows the buffer, too, so what conflicts is over or has not begun.
//!
//! Rejected: an event after each launch (about a microsecond each); leaving the order to the caller as CUDA does (a missing wait
//! would be a data race in safe code); a lock that all launches share (two atomic writes a launch, to one place for all threads).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use crate::backend::{RawMemory, RawStream};
use crate::device::Device;
use crate::error::Error;
use crate::stream::{Recorded, Stream};

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
    /// Streams whose work since the last write is ordered behind that write, the writer among them; and [`CONTENDED`].
    users: AtomicU64,
    /// The stream that wrote last (or allocated).
    writer: AtomicU64,
}

/// In `users`: a graph uses the buffer, too. Set for good.
const CONTENDED: u64 = 1 << 63;

/// A use of a buffer by work that is about to be submitted.
#[derive(Clone, Copy)]
pub(crate) struct Use<'a> {
    pub(crate) buffer: &'a Arc<Buffer>,
    pub(crate) access: Access,
    /// Through a part of a view that was split, whose other part may be somebody else's.
    pub(crate) part: bool,
}

impl Use<'_> {
    /// Has such work on this stream nothing to wait for, and nobody to look out for?
    #[inline]
    fn is_ordered(self, me: u64) -> bool {
        let users = self.buffer.users.load(Ordering::Acquire);
        let ordered = match self.access {
            Access::Read => users & (CONTENDED | me) == me,
            // The writer is one of the users.
            Access::Write => users == me,
        };
        ordered && !self.part
    }

    fn is_contended(self) -> bool {
        self.part || self.buffer.users.load(Ordering::Acquire) & CONTENDED != 0
    }
}

/// The right to submit what [`order`] has ordered: held until that is done.
#[must_use = "work must be submitted while this lives"]
pub(crate) enum Turn<'a> {
    /// Nobody can come in between.
    Free,
    /// The device's: see [`Device::take_turn`].
    Device { _lock: MutexGuard<'a, ()> },
    /// A recording's, which cannot end meanwhile.
    Recording { _lock: MutexGuard<'a, Option<Vec<Recorded>>> },
}

/// Called before work is submitted to a stream: orders it behind what the memory it uses must wait for. A stream that records notes the uses
/// instead; the graph orders itself at each replay.
#[inline]
pub(crate) fn order<'a>(
    stream: &'a Stream,
    uses: impl Iterator<Item = Use<'a>> + Clone,
) -> Result<Turn<'a>, Error> {
    let me = stream.bit();
    if stream.recording().is_none() && uses.clone().all(|u| u.is_ordered(me)) {
        return Ok(Turn::Free);
    }
    order_others(stream, uses)
}

#[cold]
fn order_others<'a>(
    stream: &'a Stream,
    uses: impl Iterator<Item = Use<'a>> + Clone,
) -> Result<Turn<'a>, Error> {
    if let Some(recording) = stream.recording() {
        return Ok(Turn::Recording { _lock: recording.note(uses)? });
    }
    let turn = match uses.clone().any(Use::is_contended) {
        true => Turn::Device { _lock: stream.device().take_turn() },
        false => Turn::Free,
    };
    for u in uses {
        u.buffer.order(u.access, stream)?;
    }
    Ok(turn)
}

/// As [`order`], for work that the caller waits for: what it must wait for is waited for before, so that a turn is not held all the while.
pub(crate) fn order_and_wait<'a>(stream: &'a Stream, u: Use<'a>) -> Result<Turn<'a>, Error> {
    if u.is_contended() {
        drop(order(stream, std::iter::once(u))?);
        stream.0.raw.synchronize()?;
    }
    order(stream, std::iter::once(u))
}

impl Buffer {
    /// Memory with unspecified content, usable by any stream.
    pub(crate) fn alloc(device: &Device, bytes: usize, stream: &Stream) -> Result<Arc<Buffer>, Error> {
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

    /// Marks the buffer as used by a graph. The caller has the device's turn.
    pub(crate) fn contend(&self) {
        self.users.fetch_or(CONTENDED, Ordering::AcqRel);
    }

    /// Orders a use on a stream that does not record. If the use is contended, the caller has the device's turn.
    pub(crate) fn order(&self, access: Access, stream: &Stream) -> Result<(), Error> {
        let me = stream.bit();
        let users = self.users.load(Ordering::Acquire);
        match access {
            Access::Read => {
                // Set after the wait has been submitted: another thread that sees the bit submits behind the wait.
                if users & me == 0 {
                    self.wait_for(self.writer.load(Ordering::Acquire) & !me, stream)?;
                    self.users.fetch_or(me, Ordering::AcqRel);
                }
            }
            Access::Write => {
                self.wait_for(users & !(CONTENDED | me), stream)?;
                // No other thread is here: a writer holds the only reference, or the turn.
                self.users.store(users & CONTENDED | me, Ordering::Release);
                self.writer.store(me, Ordering::Release);
            }
        }
        Ok(())
    }

    fn wait_for(&self, streams: u64, stream: &Stream) -> Result<(), Error> {
        self.each_stream(streams, |other| stream.0.raw.wait_for(other))
    }

    /// Calls `f` on the streams of a mask that still exist.
    fn each_stream(
        &self,
        mut streams: u64,
        mut f: impl FnMut(&dyn RawStream) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while streams != 0 {
            let slot = streams.trailing_zeros();
            streams &= streams - 1;
            if let Some(other) = self.device.stream_in_slot(slot) {
                f(&*other)?;
            }
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        let users = (*self.users.get_mut() & !CONTENDED) | *self.writer.get_mut();
        let backend = &self.device.0.backend;
        // Used by one stream alone: free it there. Otherwise on a stream of its own, behind them all.
        if users.is_power_of_two()
            && let Some(only) = self.device.stream_in_slot(users.trailing_zeros())
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

    /// What was logged since the last call, but for the work itself.
    fn said(log: &Log) -> Vec<String> {
        let all = std::mem::take(&mut *log.lock().unwrap());
        all.into_iter().filter(|line| !line.starts_with("use ")).collect()
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
        let t = device.new_stream().unwrap();
        let a = device.zeros::<f32>(&[8]).unwrap();
        let mut b = device.zeros::<f32>(&[8]).unwrap();
        let graph = device.capture(|s| b.copy_from(&a.view(), s)).unwrap();
        assert_eq!(said(&log), Vec::<String>::new(), "nothing has run, so nothing waits");
        drop(a);
        assert_eq!(said(&log), Vec::<String>::new(), "the graph keeps it");
        graph.launch(&t).unwrap();
        assert_eq!(said(&log), ["wait 2 0", "wait 2 0", "graph 2"]);
        b.fill_zero(&device.stream()).unwrap();
        assert_eq!(said(&log), ["wait 0 2"]);
        drop(graph);
        assert_eq!(said(&log), ["wait 1 0", "wait 1 2", "free 1"]);
    }

    #[test]
    fn what_cannot_be_recorded_is_refused_or_done_at_once() {
        let (device, log) = device();
        let refused = |work: fn(&Stream) -> Result<(), Error>, what: &str| {
            let result = device.capture(work);
            assert!(result.is_err_and(|e| e.to_string().contains(what)), "{what}");
        };
        refused(|s| s.synchronize(), "waiting for the stream cannot be recorded");
        refused(|s| s.record().map(drop), "an event cannot be recorded");
        let graph = device.capture(|_| Ok::<_, Error>(())).unwrap();
        assert!(device.capture(|s| graph.launch(s)).is_err());

        said(&log);
        let graph = device.capture(|_| device.zeros::<f32>(&[8])?.to_vec().map(drop)).unwrap();
        assert_eq!(said(&log), ["free 0"]);
        graph.launch(&device.stream()).unwrap();
        assert_eq!(said(&log), ["graph 0"]);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = device.capture(|_| -> Result<(), Error> { panic!("in the middle") });
        }));
        assert!(panicked.is_err() && device.capture(|_| Ok::<_, Error>(())).is_ok());
    }

    #[test]
    fn a_stream_that_has_recorded_takes_no_more_work() {
        let (device, _) = device();
        let mut a = device.zeros::<f32>(&[8]).unwrap();
        let mut kept = None;
        let graph = device.capture(|s| {
            kept = Some(s.clone());
            a.fill_zero(s)
        });
        let mut kept = kept.unwrap();
        assert!(a.fill_zero(&kept).is_err_and(|e| e.to_string().contains("is a graph already")));
        assert!(graph.unwrap().launch(&device.stream()).is_ok());
        let failed = device.capture(|s| {
            kept.clone_from(s);
            Err::<(), _>(Error::Unsupported("no".to_owned()))
        });
        assert!(failed.is_err() && a.fill_zero(&kept).is_err());
    }

    #[test]
    fn streams_run_out_politely() {
        let (device, _) = device();
        let streams: Vec<_> = (0..62).map(|_| device.new_stream().unwrap()).collect();
        assert!(device.new_stream().is_err_and(|e| e.to_string().contains("at most 63 streams")));
        drop(streams);
        assert!(device.new_stream().is_ok());
    }
}
