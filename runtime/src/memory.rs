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
    bytes: usize,
    /// `None` if `bytes` is 0, and while dropping.
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
            bytes,
            raw,
            users: AtomicU64::new(stream.bit()),
            writer: AtomicU64::new(stream.bit()),
        }))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The device address; 0 for an empty buffer.
    pub(crate) fn address(&self) -> u64 {
        self.raw.as_ref().map_or(0, |r| r.address())
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
