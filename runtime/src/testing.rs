//! A device that computes nothing, for tests and for measuring the host side of launches. Not part of the API.
//!
//! It goes the whole way of a device that needs machine code (compiler, caches, packing), but where a driver would submit the kernel it
//! hands the packed arguments to a function.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::backend::{Backend, Code, Executable, LaunchConfig, RawEvent, RawGraph, RawMemory, RawStream};
use crate::device::{Device, Properties, lock};
use crate::error::Error;
use crate::launch::ArgValue;
use crate::pack::Packing;
use crate::stream::Recording;

/// Called with the grid and the packed arguments of each launch.
pub type Submit = Arc<dyn Fn([u32; 3], &[u8]) + Send + Sync>;

/// What streams were told.
pub type Log = Arc<Mutex<Vec<String>>>;

impl Device {
    /// A device that runs nothing.
    pub fn testing() -> Device {
        Device::testing_with(Arc::new(|_, _| ()))
    }

    /// A device that hands its launches to a function.
    pub fn testing_with(submit: Submit) -> Device {
        Device::testing_logged(submit).0
    }

    /// A device that also says what its streams were told, in order: `wait 2 0` (stream 2 waits for the work of stream 0), `free 2` (memory is
    /// freed behind the work of stream 2), `graph 0`. Stream 0 is the main stream, 1 frees memory, others count up.
    pub fn testing_logged(submit: Submit) -> (Device, Log) {
        let properties = Properties {
            name: "testing".to_owned(),
            target: Some("sm_90a".to_owned()),
            ..Properties::default()
        };
        let log = Log::default();
        let backend = Testing { properties, submit, log: log.clone(), next_stream: AtomicU64::new(0) };
        (Device::from_backend(Box::new(backend)).expect("nothing here can fail"), log)
    }
}

struct Testing {
    properties: Properties,
    submit: Submit,
    log: Log,
    next_stream: AtomicU64,
}

struct TestStream {
    number: u64,
    log: Log,
    recording: Recording,
}

struct TestMemory(Mutex<Vec<u8>>);
struct TestEvent;
struct TestGraph;

struct TestKernel {
    packing: Packing,
    submit: Submit,
}

fn number(stream: &dyn RawStream) -> u64 {
    stream.as_any().downcast_ref::<TestStream>().map_or(u64::MAX, |s| s.number)
}

/// Logs something that a stream was told. Launches are not logged: they are measured.
fn tell(stream: &dyn RawStream, what: &str) {
    if let Some(s) = stream.as_any().downcast_ref::<TestStream>() {
        lock(&s.log).push(format!("{what} {}", s.number));
    }
}

fn bytes(memory: &dyn RawMemory) -> &Mutex<Vec<u8>> {
    &memory.as_any().downcast_ref::<TestMemory>().expect("memory of this device").0
}

impl RawStream for TestStream {
    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }
    fn wait_for(&self, other: &dyn RawStream) -> Result<(), Error> {
        lock(&self.log).push(format!("wait {} {}", self.number, number(other)));
        Ok(())
    }
    fn record(&self) -> Result<Box<dyn RawEvent>, Error> {
        Ok(Box::new(TestEvent))
    }
    fn begin_capture(&self) -> Result<(), Error> {
        Ok(())
    }
    fn end_capture(&self) -> Result<Box<dyn RawGraph>, Error> {
        Ok(Box::new(TestGraph))
    }
    fn recording(&self) -> &Recording {
        &self.recording
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl RawEvent for TestEvent {
    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }
    fn is_done(&self) -> Result<bool, Error> {
        Ok(true)
    }
    fn elapsed_ms(&self, _earlier: &dyn RawEvent) -> Result<f32, Error> {
        Ok(0.0)
    }
    fn make_wait(&self, _stream: &dyn RawStream) -> Result<(), Error> {
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl RawGraph for TestGraph {
    fn launch(&self, stream: &dyn RawStream) -> Result<(), Error> {
        tell(stream, "graph");
        Ok(())
    }
}

impl RawMemory for TestMemory {
    fn address(&self) -> u64 {
        0x1000
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Executable for TestKernel {
    fn launch(
        &self,
        args: &[ArgValue<'_>],
        config: &LaunchConfig,
        _stream: &dyn RawStream,
    ) -> Result<(), String> {
        self.packing.with_packed(args, |block| {
            (self.submit)(config.grid, block);
            Ok(())
        })
    }
}

impl Backend for Testing {
    fn properties(&self) -> &Properties {
        &self.properties
    }
    fn new_stream(&self) -> Result<Box<dyn RawStream>, Error> {
        let number = self.next_stream.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(TestStream { number, log: self.log.clone(), recording: Recording::default() }))
    }
    fn alloc(&self, bytes: usize, _stream: &dyn RawStream) -> Result<Box<dyn RawMemory>, Error> {
        if bytes > 1 << 32 {
            let device = self.properties.name.clone();
            return Err(Error::OutOfMemory { device, requested: bytes, free: Some(1 << 32) });
        }
        Ok(Box::new(TestMemory(Mutex::new(vec![0xcd; bytes]))))
    }
    fn free(&self, _memory: Box<dyn RawMemory>, stream: &dyn RawStream) {
        tell(stream, "free");
    }
    fn write(&self, to: &dyn RawMemory, at: usize, from: &[u8], _: &dyn RawStream) -> Result<(), Error> {
        lock(bytes(to))[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
    fn read(&self, from: &dyn RawMemory, at: usize, to: &mut [u8], _: &dyn RawStream) -> Result<(), Error> {
        to.copy_from_slice(&lock(bytes(from))[at..at + to.len()]);
        Ok(())
    }
    fn copy(
        &self,
        (from, from_at): (&dyn RawMemory, usize),
        (to, to_at): (&dyn RawMemory, usize),
        n: usize,
        _stream: &dyn RawStream,
    ) -> Result<(), Error> {
        let piece = lock(bytes(from))[from_at..from_at + n].to_vec();
        lock(bytes(to))[to_at..to_at + n].copy_from_slice(&piece);
        Ok(())
    }
    fn fill(
        &self,
        to: &dyn RawMemory,
        at: usize,
        n: usize,
        value: u8,
        _: &dyn RawStream,
    ) -> Result<(), Error> {
        lock(bytes(to))[at..at + n].fill(value);
        Ok(())
    }
    fn target(&self) -> Option<&str> {
        self.properties.target.as_deref()
    }
    fn prepare(&self, code: Code) -> Result<Arc<dyn Executable>, String> {
        match code {
            Code::Ir(_) => Err("this device takes machine code".to_owned()),
            Code::Compiled(kernel) => {
                Ok(Arc::new(TestKernel { packing: Packing::new(&kernel.abi)?, submit: self.submit.clone() }))
            }
        }
    }
}
