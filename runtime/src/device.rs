//! Devices: what kernels run on.
//!
//! A device is opened by name and shared: opening one name twice gives the same device, so that memory, streams and compiled kernels of
//! independent parts of a program fit together.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

use tegula_bundle::Bundle;
use tegula_ir::artifact::Compiler;

use crate::backend::{Backend, RawStream};
use crate::bundles::Bundles;
use crate::cache::{DiskCache, KernelCache};
use crate::error::Error;
use crate::stream::{MAX_STREAMS, Stream, StreamInner};

/// What a device is. Quantities that make no sense for a device are 0.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Properties {
    /// The name that opens it: `host`, `emulated:sm_90a`, `cuda:0`.
    pub name: String,
    /// What the vendor calls it.
    pub model: String,
    /// What kernels are compiled for, such as `sm_90a`; `None`: the device runs tile IR.
    pub target: Option<String>,
    /// Streaming multiprocessors (worker threads, on the host).
    pub multiprocessors: u32,
    /// Bytes of shared memory that one CTA can have.
    pub shared_memory: usize,
    /// Bytes of L2 cache.
    pub l2_cache: usize,
    /// Bytes of memory.
    pub memory: usize,
}

/// A device. Cheap to clone; clones are the same device.
#[derive(Clone)]
pub struct Device(pub(crate) Arc<DeviceInner>);

pub(crate) struct DeviceInner {
    pub(crate) backend: Box<dyn Backend>,
    /// Stream 0: the one that operations without a stream use.
    main: Arc<dyn RawStream>,
    /// Frees memory; never captured.
    pub(crate) reclaim: Arc<dyn RawStream>,
    slots: Mutex<[Option<Weak<dyn RawStream>>; MAX_STREAMS]>,
    compiler: RwLock<Option<Arc<dyn Compiler>>>,
    disk: RwLock<Option<Arc<DiskCache>>>,
    pub(crate) bundles: Bundles,
    pub(crate) kernels: KernelCache,
    /// See [`Device::take_turn`].
    pub(crate) turn: Mutex<()>,
}

/// Locks, also after a panic elsewhere: every critical section of this crate leaves its data whole.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static OPEN: Mutex<Option<HashMap<String, Weak<DeviceInner>>>> = Mutex::new(None);
static COMPILER: RwLock<Option<Arc<dyn Compiler>>> = RwLock::new(None);

/// The cache on disk that the environment names; one a process, so that its warnings come once.
fn default_cache() -> Option<Arc<DiskCache>> {
    static CACHE: OnceLock<Option<Arc<DiskCache>>> = OnceLock::new();
    CACHE.get_or_init(|| DiskCache::from_environment().map(Arc::new)).clone()
}

/// Registers the compiler of this process, for devices that have none of their own. The facade crate does so with its feature `jit`.
pub fn register_compiler(compiler: Arc<dyn Compiler>) {
    *COMPILER.write().unwrap_or_else(PoisonError::into_inner) = Some(compiler);
}

impl Device {
    /// Opens a device by name:
    ///
    /// * `host`: the tile interpreter on this machine's processor, always there;
    /// * `host:races`: the same, one program after another, reporting two programs that store to one element;
    /// * `emulated`, `emulated:sm_90a`, `emulated:sm_80`: kernels compiled for that GPU, executed on the CPU warp by warp, with sanitizers; a compiler is needed as for
    ///   a GPU;
    /// * `cuda` or `cuda:0`, `cuda:1`, …: a GPU, numbered as the CUDA driver does.
    ///
    /// # Errors
    /// For an unknown name, without a driver, or without such a GPU; the message says what to do.
    pub fn open(name: &str) -> Result<Device, Error> {
        let name = match name {
            "cuda" => "cuda:0",
            "emulated" => "emulated:sm_90a",
            name => name,
        };
        // Held while opening, so that two threads do not both open one device.
        let mut open = lock(&OPEN);
        let open = open.get_or_insert_default();
        if let Some(device) = open.get(name).and_then(Weak::upgrade) {
            return Ok(Device(device));
        }
        let device = Device::with_default_cache(crate::backends::open(name)?)?;
        open.insert(name.to_owned(), Arc::downgrade(&device.0));
        Ok(device)
    }

    /// With the cache that the environment names.
    pub(crate) fn with_default_cache(backend: Box<dyn Backend>) -> Result<Device, Error> {
        let device = Device::from_backend(backend)?;
        *device.0.disk.write().unwrap_or_else(PoisonError::into_inner) = default_cache();
        Ok(device)
    }

    pub(crate) fn from_backend(backend: Box<dyn Backend>) -> Result<Device, Error> {
        let main: Arc<dyn RawStream> = backend.new_stream()?.into();
        let reclaim: Arc<dyn RawStream> = backend.new_stream()?.into();
        let mut slots = [const { None }; MAX_STREAMS];
        slots[0] = Some(Arc::downgrade(&main));
        Ok(Device(Arc::new(DeviceInner {
            backend,
            main,
            reclaim,
            slots: Mutex::new(slots),
            compiler: RwLock::new(None),
            disk: RwLock::new(None),
            bundles: Bundles::default(),
            kernels: KernelCache::default(),
            turn: Mutex::new(()),
        })))
    }

    /// What it is.
    pub fn properties(&self) -> &Properties {
        self.0.backend.properties()
    }

    /// Its name, as [`Device::open`] takes it.
    pub fn name(&self) -> &str {
        &self.properties().name
    }

    /// The main stream: the one that operations without a stream argument use.
    pub fn stream(&self) -> Stream {
        Stream(Arc::new(StreamInner::new(self.0.main.clone(), self.clone(), 0)))
    }

    /// A new stream, independent of the others.
    ///
    /// # Errors
    /// With more than 62 streams at one time, beside the main stream, or if the driver refuses.
    pub fn new_stream(&self) -> Result<Stream, Error> {
        self.stream_over(self.0.backend.new_stream()?.into())
    }

    /// Waits until all work submitted to all streams so far is done.
    pub fn synchronize(&self) -> Result<(), Error> {
        let streams: Vec<_> = lock(&self.0.slots).iter().flatten().filter_map(Weak::upgrade).collect();
        streams.iter().try_for_each(|s| s.synchronize())
    }

    /// Sets this device's compiler; see [`register_compiler`] for one that serves all devices.
    pub fn set_compiler(&self, compiler: Arc<dyn Compiler>) {
        *self.0.compiler.write().unwrap_or_else(PoisonError::into_inner) = Some(compiler);
    }

    /// The compiler that launches on this device use.
    pub fn compiler(&self) -> Option<Arc<dyn Compiler>> {
        let own = self.0.compiler.read().unwrap_or_else(PoisonError::into_inner).clone();
        own.or_else(|| COMPILER.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Lets launches on this device look in a bundle before all others; see [`register_bundle`](crate::register_bundle) for one that serves all devices.
    /// Kernels that have run before stay what they are.
    pub fn add_bundle(&self, bundle: Bundle) {
        self.0.bundles.add(bundle);
    }

    /// Keeps compiled kernels in this folder instead of the default one (see the crate's documentation), or nowhere.
    pub fn set_cache_dir(&self, folder: Option<&Path>) {
        let cache = folder.map(|f| Arc::new(DiskCache::at(f)));
        *self.0.disk.write().unwrap_or_else(PoisonError::into_inner) = cache;
    }

    pub(crate) fn disk_cache(&self) -> Option<Arc<DiskCache>> {
        self.0.disk.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A stream over a backend's, with a slot of its own.
    pub(crate) fn stream_over(&self, raw: Arc<dyn RawStream>) -> Result<Stream, Error> {
        let mut slots = lock(&self.0.slots);
        let Some(slot) = slots.iter().position(Option::is_none) else {
            return Err(Error::Unsupported(format!(
                "{}: a device has at most {MAX_STREAMS} streams at one time: drop some or share them",
                self.name()
            )));
        };
        slots[slot] = Some(Arc::downgrade(&raw));
        Ok(Stream(Arc::new(StreamInner::new(raw, self.clone(), slot as u32))))
    }

    pub(crate) fn expect_same(&self, other: &Device, what: &str) -> Result<(), Error> {
        if self == other {
            return Ok(());
        }
        Err(Error::WrongDevice {
            what: what.to_owned(),
            found: other.name().to_owned(),
            expected: self.name().to_owned(),
        })
    }

    /// The stream in a slot, if it still exists.
    pub(crate) fn stream_in_slot(&self, slot: u32) -> Option<Arc<dyn RawStream>> {
        lock(&self.0.slots)[slot as usize].as_ref().and_then(Weak::upgrade)
    }

    pub(crate) fn release_stream_slot(&self, slot: u32) {
        lock(&self.0.slots)[slot as usize] = None;
    }
}

impl PartialEq for Device {
    #[inline]
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.name())
    }
}
