//! The kernels that are ready to run on a device, by key.
//!
//! A lookup takes no lock and writes nothing: kernels are added and never removed, so they stand in chains of cells that are each written once,
//! and are lent for as long as the device lives. A kernel that is not there is prepared by one thread; others that want the same one wait
//! for it. A failure is not kept: the next launch tries again (the compiler may have been registered, the disk freed).
//!
//! Rejected: a map behind a lock (two atomic writes a launch, and two more for a reference that outlives the lock).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use crate::backend::Executable;
use crate::device::lock;
use crate::error::LaunchError;
use crate::launch::Key;

/// A power of two. Programs have some hundred kernels, so most chains have one.
const CHAINS: usize = 1024;

type Prepared = Result<Arc<dyn Executable>, LaunchError>;
type OwnedKey = Key<Box<[u64]>>;
type Link = OnceLock<Box<Node>>;

struct Node {
    key: OwnedKey,
    executable: Arc<dyn Executable>,
    next: Link,
}

pub(crate) struct KernelCache {
    chains: Box<[Link]>,
    /// What is being prepared.
    pending: Mutex<HashMap<OwnedKey, Arc<OnceLock<Prepared>>>>,
}

impl Default for KernelCache {
    fn default() -> KernelCache {
        KernelCache { chains: (0..CHAINS).map(|_| Link::new()).collect(), pending: Mutex::default() }
    }
}

impl KernelCache {
    #[inline]
    fn chain(&self, key: Key<&[u64]>) -> &Link {
        // High bits: multiplication mixes upwards.
        &self.chains[(key.spread() >> (64 - CHAINS.trailing_zeros())) as usize]
    }

    /// The kernel with this key, if it is ready.
    #[inline]
    pub(crate) fn get(&self, key: Key<&[u64]>) -> Option<&dyn Executable> {
        let mut link = self.chain(key);
        loop {
            let node = link.get()?;
            if node.key.is(key) {
                return Some(&*node.executable);
            }
            link = &node.next;
        }
    }

    fn insert(&self, key: Key<&[u64]>, executable: Arc<dyn Executable>) {
        let mut node = Box::new(Node { key: key.to_owned(), executable, next: Link::new() });
        let mut link = self.chain(key);
        while let Err(back) = link.set(node) {
            node = back;
            // Set by another thread, if not before: nothing is ever taken out.
            link = link.get().map_or(link, |taken| &taken.next);
        }
    }

    /// The kernel with this key; made by `prepare` unless it is there or another thread is making it.
    pub(crate) fn get_or_prepare(
        &self,
        key: Key<&[u64]>,
        prepare: impl FnOnce() -> Prepared,
    ) -> Result<&dyn Executable, LaunchError> {
        let owned = key.to_owned();
        let cell = {
            let mut pending = lock(&self.pending);
            // Looked up under the lock: whoever finishes first publishes, then leaves `pending`.
            if let Some(ready) = self.get(key) {
                return Ok(ready);
            }
            pending.entry(owned.clone()).or_default().clone()
        };
        /// Leaves `pending`, also if `prepare` panics: waiting threads then prepare by themselves.
        struct Leave<'a>(&'a KernelCache, OwnedKey);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                lock(&self.0.pending).remove(&self.1);
            }
        }
        let prepared = cell.get_or_init(|| {
            let _leave = Leave(self, owned);
            let result = prepare();
            if let Ok(ready) = &result {
                self.insert(key, ready.clone());
            }
            result
        });
        match prepared {
            Ok(_) => Ok(self.get(key).expect("what was prepared has been published")),
            Err(e) => Err(e.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::ArgValue;

    struct Numbered(u64);

    impl Executable for Numbered {
        fn launch(
            &self,
            _: &[ArgValue<'_>],
            _: &crate::backend::LaunchConfig,
            _: &dyn crate::backend::RawStream,
        ) -> Result<(), String> {
            Err(self.0.to_string())
        }
    }

    /// Which one it is.
    fn number(found: &dyn Executable) -> u64 {
        let device = crate::Device::testing();
        let config = crate::backend::LaunchConfig { grid: [1; 3], max_ctas: None };
        found.launch(&[], &config, &*device.stream().0.raw).unwrap_err().parse().unwrap()
    }

    fn key(facts: &[u64]) -> Key<&[u64]> {
        Key { kernel: 7, facts, hints: [0; 4] }
    }

    #[test]
    fn many_kernels_share_chains_and_keep_apart() {
        let cache = KernelCache::default();
        let n = 3 * CHAINS as u64;
        std::thread::scope(|s| {
            for thread in 0..4 {
                let cache = &cache;
                s.spawn(move || {
                    for i in 0..n {
                        let i = (i + thread * n / 4) % n;
                        let found = cache.get_or_prepare(key(&[i, 0]), || Ok(Arc::new(Numbered(i)))).unwrap();
                        assert_eq!(number(found), i);
                    }
                });
            }
        });
        for i in 0..n {
            assert_eq!(number(cache.get(key(&[i, 0])).unwrap()), i);
        }
        assert!(cache.get(key(&[n, 0])).is_none() && cache.get(key(&[0])).is_none());
        assert!(cache.get(Key { kernel: 8, ..key(&[0, 0]) }).is_none());
        assert!(cache.get(Key { hints: [0, 0, 0, 1], ..key(&[0, 0]) }).is_none());
    }
}
