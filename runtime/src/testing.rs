//! A device that computes nothing, for tests and for measuring the host side of launches. Not part of the API.
//!
//! It goes the whole way of a device that needs machine code (compiler, caches, packing), but where a driver would submit the kernel it
//! hands the packed arguments to a function.

use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::backend::{Backend, Code, Executable, LaunchConfig, RawEvent, RawGraph, RawMemory, RawStream};
use crate::device::{Device, Properties, lock};
use crate::error::Error;
use crate::launch::{Arg, ArgValue};
use crate::memory::Access;
use crate::pack::Packing;
use crate::tensor_map::{EncodeTensorMap, Place, Scratch, TensorMap, TiledTensor};

/// Called with the grid and the packed arguments of each launch.
pub type Submit = Arc<dyn Fn([u32; 3], &[u8]) + Send + Sync>;

/// What streams were told.
pub type Log = Arc<Mutex<Vec<String>>>;

/// A piece of work that uses memory: what it does to which addresses.
type Uses = Vec<(Access, Range<u64>)>;

impl Device {
    /// A device that runs nothing.
    pub fn testing() -> Device {
        Device::testing_with(Arc::new(|_, _| ()))
    }

    /// A device that hands its launches to a function.
    pub fn testing_with(submit: Submit) -> Device {
        Device::testing_device(submit, None)
    }

    /// A device that also says what its streams were told, in order: `wait 2 0` (stream 2 waits for the work of stream 0), `free 2` (memory is
    /// freed behind the work of stream 2), `graph 0`, `use 2 r1000+64 w2000+64` (work of stream 2 reads and writes these bytes; of a replayed graph
    /// there is one for each piece of work). Stream 0 is the main stream, 1 frees memory, others count up.
    pub fn testing_logged(submit: Submit) -> (Device, Log) {
        let log = Log::default();
        (Device::testing_device(submit, Some(log.clone())), log)
    }

    fn testing_device(submit: Submit, log: Option<Log>) -> Device {
        let properties = Properties {
            name: "testing".to_owned(),
            target: Some("sm_90a".to_owned()),
            multiprocessors: 132, // an H200's
            ..Properties::default()
        };
        let (next_stream, next_address) = (AtomicU64::new(0), AtomicU64::new(ALIGNMENT));
        let backend = Testing { properties, submit, log, next_stream, next_address };
        Device::from_backend(Box::new(backend)).expect("nothing here can fail")
    }
}

/// Addresses that are given out are multiples of this, as a driver's are.
const ALIGNMENT: u64 = 256;

struct Testing {
    properties: Properties,
    submit: Submit,
    log: Option<Log>,
    next_stream: AtomicU64,
    /// No address is given out twice, so that the log is unambiguous.
    next_address: AtomicU64,
}

struct TestStream {
    number: u64,
    log: Option<Log>,
    /// What has been recorded, while recording.
    tape: Mutex<Option<Vec<Uses>>>,
}

struct TestMemory {
    address: u64,
    bytes: Mutex<Vec<u8>>,
}

struct TestEvent;
struct TestGraph(Vec<Uses>);

struct TestKernel {
    packing: Packing,
    submit: Submit,
}

fn of(stream: &dyn RawStream) -> &TestStream {
    stream.as_any().downcast_ref().expect("a stream of this device")
}

impl TestStream {
    fn tell(&self, what: std::fmt::Arguments<'_>) {
        if let Some(log) = &self.log {
            lock(log).push(what.to_string());
        }
    }

    /// Does work, as far as the log is concerned. Nothing without one: launches are measured.
    fn work(&self, uses: impl FnOnce() -> Uses) {
        if self.log.is_none() {
            return;
        }
        // Between ordering and submitting: a chance for other threads to do what they must not.
        std::thread::yield_now();
        match &mut *lock(&self.tape) {
            Some(tape) => tape.push(uses()),
            None => self.tell(format_args!("use {}{}", self.number, words(&uses()))),
        }
    }
}

fn words(uses: &Uses) -> String {
    let word = |(access, at): &(Access, Range<u64>)| {
        let letter = if *access == Access::Read { 'r' } else { 'w' };
        format!(" {letter}{}+{}", at.start, at.end - at.start)
    };
    uses.iter().map(word).collect()
}

/// The addresses of a piece of memory.
fn range(memory: &dyn RawMemory, at: usize, bytes: usize) -> Range<u64> {
    let start = memory.address() + at as u64;
    start..start + bytes as u64
}

fn bytes(memory: &dyn RawMemory) -> &Mutex<Vec<u8>> {
    &memory.as_any().downcast_ref::<TestMemory>().expect("memory of this device").bytes
}

impl RawStream for TestStream {
    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }
    fn wait_for(&self, other: &dyn RawStream) -> Result<(), Error> {
        self.tell(format_args!("wait {} {}", self.number, of(other).number));
        Ok(())
    }
    fn record(&self) -> Result<Box<dyn RawEvent>, Error> {
        Ok(Box::new(TestEvent))
    }
    fn begin_capture(&self) -> Result<(), Error> {
        *lock(&self.tape) = Some(Vec::new());
        Ok(())
    }
    fn end_capture(&self) -> Result<Box<dyn RawGraph>, Error> {
        Ok(Box::new(TestGraph(lock(&self.tape).take().unwrap_or_default())))
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
        let stream = of(stream);
        stream.tell(format_args!("graph {}", stream.number));
        self.0.iter().for_each(|uses| stream.work(|| uses.clone()));
        Ok(())
    }
}

impl RawMemory for TestMemory {
    fn address(&self) -> u64 {
        self.address
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
        stream: &dyn RawStream,
    ) -> Result<(), String> {
        of(stream).work(|| {
            let memory = args.iter().filter_map(|arg| match &arg.0 {
                Arg::View(v) => Some((v.memory.access, v.memory.address..v.memory.address + v.span_bytes())),
                _ => None,
            });
            memory.collect()
        });
        self.packing.with_packed(args, &Plain, |block| {
            (self.submit)(config.grid, block);
            Ok(())
        })
    }
}

/// Writes tensor maps as words: the address, then extents and strides (in bytes) of five axes.
pub(crate) struct Plain;

impl EncodeTensorMap for Plain {
    fn encode(&self, tensor: &TiledTensor) -> Result<TensorMap, String> {
        let Place { address, dims, strides } = tensor.place;
        let mut map = TensorMap::EMPTY;
        for (to, word) in
            map.0.as_chunks_mut().0.iter_mut().zip([address].iter().chain(&dims).chain(&strides))
        {
            *to = word.to_le_bytes();
        }
        Ok(map)
    }

    fn scratch(&self) -> Scratch {
        Scratch::at(ALIGNMENT / 2)
    }
}

impl Backend for Testing {
    fn properties(&self) -> &Properties {
        &self.properties
    }
    fn new_stream(&self) -> Result<Box<dyn RawStream>, Error> {
        let number = self.next_stream.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(TestStream { number, log: self.log.clone(), tape: Mutex::new(None) }))
    }
    fn alloc(&self, bytes: usize, _stream: &dyn RawStream) -> Result<Box<dyn RawMemory>, Error> {
        if bytes > 1 << 32 {
            let device = self.properties.name.clone();
            return Err(Error::OutOfMemory { device, requested: bytes, free: Some(1 << 32) });
        }
        let taken = (bytes as u64).next_multiple_of(ALIGNMENT);
        let address = self.next_address.fetch_add(taken, Ordering::Relaxed);
        Ok(Box::new(TestMemory { address, bytes: Mutex::new(vec![0xcd; bytes]) }))
    }
    fn free(&self, _memory: Box<dyn RawMemory>, stream: &dyn RawStream) {
        let stream = of(stream);
        stream.tell(format_args!("free {}", stream.number));
    }
    fn write(&self, to: &dyn RawMemory, at: usize, from: &[u8], stream: &dyn RawStream) -> Result<(), Error> {
        of(stream).work(|| vec![(Access::Write, range(to, at, from.len()))]);
        lock(bytes(to))[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
    fn read(
        &self,
        from: &dyn RawMemory,
        at: usize,
        to: &mut [u8],
        stream: &dyn RawStream,
    ) -> Result<(), Error> {
        of(stream).work(|| vec![(Access::Read, range(from, at, to.len()))]);
        to.copy_from_slice(&lock(bytes(from))[at..at + to.len()]);
        Ok(())
    }
    fn copy(
        &self,
        (from, from_at): (&dyn RawMemory, usize),
        (to, to_at): (&dyn RawMemory, usize),
        n: usize,
        stream: &dyn RawStream,
    ) -> Result<(), Error> {
        of(stream)
            .work(|| vec![(Access::Read, range(from, from_at, n)), (Access::Write, range(to, to_at, n))]);
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
        stream: &dyn RawStream,
    ) -> Result<(), Error> {
        of(stream).work(|| vec![(Access::Write, range(to, at, n))]);
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
