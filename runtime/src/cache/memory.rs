//! The kernels that are ready to run on a device, by key.
//!
//! A lookup is a read lock of one of a few shards, so launches from several threads do not wait for each other. A kernel
//! that is not there is prepared by one thread; others that want the same one wait for it. A failure is not kept: the next launch tries again
//! (the compiler may have been registered, the disk freed).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::backend::Executable;
use crate::device::lock;
use crate::error::LaunchError;

const SHARDS: usize = 16;

type Prepared = Result<Arc<dyn Executable>, LaunchError>;
type Map<V> = HashMap<u128, V, BuildHasherDefault<KeyIsHash>>;

/// Takes a key's own bits as its hash: keys are hashes already.
#[derive(Default)]
struct KeyIsHash(u64);

impl Hasher for KeyIsHash {
    fn write(&mut self, bytes: &[u8]) {
        // Only u128 keys are hashed here; other input would still be hashed, if badly.
        for &b in bytes {
            self.0 = self.0.rotate_left(8) ^ b as u64;
        }
    }
    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Default)]
pub(crate) struct KernelCache {
    ready: [RwLock<Map<Arc<dyn Executable>>>; SHARDS],
    /// What is being prepared.
    pending: Mutex<Map<Arc<OnceLock<Prepared>>>>,
}

impl KernelCache {
    fn shard(&self, key: u128) -> &RwLock<Map<Arc<dyn Executable>>> {
        // High bits: the maps use the low ones.
        &self.ready[(key >> 124) as usize % SHARDS]
    }

    /// The kernel with this key, if it is ready.
    #[inline]
    pub(crate) fn get(&self, key: u128) -> Option<Arc<dyn Executable>> {
        self.shard(key).read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    /// The kernel with this key; made by `prepare` unless it is there or another thread is making it.
    pub(crate) fn get_or_prepare(&self, key: u128, prepare: impl FnOnce() -> Prepared) -> Prepared {
        let cell = {
            let mut pending = lock(&self.pending);
            // Looked up under the lock: whoever finishes first publishes, then leaves `pending`.
            if let Some(ready) = self.get(key) {
                return Ok(ready);
            }
            pending.entry(key).or_default().clone()
        };
        /// Leaves `pending`, also if `prepare` panics: waiting threads then prepare by themselves.
        struct Leave<'a>(&'a KernelCache, u128);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                lock(&self.0.pending).remove(&self.1);
            }
        }
        cell.get_or_init(|| {
            let _leave = Leave(self, key);
            let result = prepare();
            if let Ok(ready) = &result {
                let mut shard = self.shard(key).write().unwrap_or_else(PoisonError::into_inner);
                shard.insert(key, ready.clone());
            }
            result
        })
        .clone()
    }
}
