//! The key that finds a compiled kernel in memory, computed without allocation at every launch.
//!
//! The key has everything that the generated code may depend on: which kernel, its type and meta-parameters, the hints and the facts of its
//! arguments. (The target is the device's, and so is the cache.) Hints and facts are compared as they are; kernel and parameters, which may be of any size, as a 128-bit
//! hash: with so many bits a collision is no practical concern. Keys mean something inside one process only (a `TypeId` is part of them); what is stored on disk is addressed
//! by the content of the staged kernel instead, see `cache/disk.rs`.

use std::any::TypeId;
use std::hash::{Hash, Hasher};

use xxhash_rust::const_xxh3;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// What `#[kernel]` knows of a kernel at compile time; one `static` a kernel.
#[derive(Debug)]
pub struct KernelInfo {
    /// The path, `module_path!()::name`.
    pub path: &'static str,
    /// The name, as the programmer wrote it.
    pub name: &'static str,
    /// The names of the run-time parameters, in order.
    pub params: &'static [&'static str],
    /// The file of the definition.
    pub file: &'static str,
    /// Its line.
    pub line: u32,
    id: u128,
}

impl KernelInfo {
    /// Describes a kernel. Path, file and line tell it from every other kernel of the process.
    pub const fn new(
        path: &'static str,
        name: &'static str,
        params: &'static [&'static str],
        file: &'static str,
        line: u32,
    ) -> KernelInfo {
        let place = const_xxh3::xxh3_64_with_seed(file.as_bytes(), line as u64);
        let id = const_xxh3::xxh3_128_with_seed(path.as_bytes(), place);
        KernelInfo { path, name, params, file, line, id }
    }

    /// The name of parameter `index` as messages show it.
    pub(crate) fn param(&self, index: usize) -> &'static str {
        self.params.get(index).copied().unwrap_or("?")
    }
}

/// The key of a kernel's code for one launch; `F`: its arguments' facts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key<F> {
    /// The kernel with its type and meta-parameters: [`KernelKey::finish`].
    pub(crate) kernel: u128,
    pub(crate) facts: F,
    /// 0: not set.
    pub(crate) hints: [u32; 4],
}

impl Key<&[u64]> {
    /// A cheap hash whose high bits tell keys apart.
    #[inline]
    pub(crate) fn spread(self) -> u64 {
        // As FxHash: 2⁶⁴ divided by the golden ratio, odd.
        let mix = |h: u64, word: u64| (h.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let [a, b, c, d] = self.hints.map(u64::from);
        let hints = mix(a << 32 | b, c << 32 | d);
        self.facts.iter().fold(self.kernel as u64 ^ hints, |h, &word| mix(h, word))
    }

    pub(crate) fn to_owned(self) -> Key<Box<[u64]>> {
        Key { kernel: self.kernel, facts: self.facts.into(), hints: self.hints }
    }
}

impl Key<Box<[u64]>> {
    #[inline]
    pub(crate) fn is(&self, key: Key<&[u64]>) -> bool {
        self.kernel == key.kernel && self.hints == key.hints && *self.facts == *key.facts
    }
}

/// The part of a key that is known where the kernel is named, in the making.
#[derive(Clone, Debug)]
pub struct KernelKey(KeyHasher);

impl KernelKey {
    /// Starts with the kernel itself.
    #[inline]
    pub fn new(info: &KernelInfo) -> KernelKey {
        let mut hasher = KeyHasher::new();
        hasher.write(&info.id.to_le_bytes());
        // One macro call can write two kernels of one path and line: the statics still differ.
        hasher.write(&std::ptr::from_ref(info).addr().to_le_bytes());
        KernelKey(hasher)
    }

    /// Adds a type parameter.
    #[inline]
    pub fn type_param<T: 'static>(self) -> KernelKey {
        self.meta(&TypeId::of::<T>())
    }

    /// Adds a meta-parameter of a kernel: [`KernelKey::meta`] with the bound that speaks of meta-parameters in rustc's messages.
    #[inline]
    pub fn meta_param<M: tegula_dsl::MetaParam>(self, value: &M) -> KernelKey {
        self.meta(value)
    }

    /// Adds anything that can be hashed.
    #[inline]
    pub fn meta<M: Hash + ?Sized>(mut self, value: &M) -> KernelKey {
        value.hash(&mut self.0);
        // A separator, so that ("ab", "c") and ("a", "bc") differ whatever the values' `Hash` does.
        self.0.write_u8(0xa5);
        self
    }

    /// The hash of it all.
    #[inline]
    pub(crate) fn finish(&self) -> u128 {
        self.0.finish128()
    }
}

const BUFFER: usize = 128;

/// A [`Hasher`] with 128 bits of output. It gathers short inputs and hashes them in one go: at the 40 to 100 bytes of a usual key
/// that takes a quarter of the time of xxh3's streaming state, which initialises more than that. When the buffer is full, its hash takes
/// its place.
#[derive(Clone)]
pub(crate) struct KeyHasher {
    buffer: [u8; BUFFER],
    len: usize,
}

impl KeyHasher {
    #[inline]
    pub(crate) fn new() -> KeyHasher {
        KeyHasher { buffer: [0; BUFFER], len: 0 }
    }

    pub(crate) fn finish128(&self) -> u128 {
        xxh3_128(&self.buffer[..self.len])
    }
}

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        match self.buffer.get_mut(self.len..self.len + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.write_over_the_end(bytes),
        }
    }

    fn finish(&self) -> u64 {
        xxh3_64(&self.buffer[..self.len])
    }
}

impl KeyHasher {
    #[cold]
    fn write_over_the_end(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.len == BUFFER {
                let folded = xxh3_128(&self.buffer);
                self.buffer[..16].copy_from_slice(&folded.to_le_bytes());
                self.len = 16;
            }
            let n = bytes.len().min(BUFFER - self.len);
            self.buffer[self.len..self.len + n].copy_from_slice(&bytes[..n]);
            self.len += n;
            bytes = &bytes[n..];
        }
    }
}

impl std::fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.finish128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static A: KernelInfo = KernelInfo::new("m::a", "a", &["x"], "m.rs", 3);
    static B: KernelInfo = KernelInfo::new("m::a", "a", &["x"], "m.rs", 4);
    /// As a macro makes it that writes a kernel `a` into the bodies of two functions.
    static TWIN: KernelInfo = KernelInfo::new("m::a", "a", &["x"], "m.rs", 3);

    #[test]
    fn everything_in_a_key_changes_it() {
        let keys = [
            KernelKey::new(&A),
            KernelKey::new(&B),
            KernelKey::new(&TWIN),
            KernelKey::new(&A).type_param::<f32>(),
            KernelKey::new(&A).type_param::<f64>(),
            KernelKey::new(&A).meta(&128usize),
            KernelKey::new(&A).meta(&64usize),
            KernelKey::new(&A).meta("ab").meta("c"),
            KernelKey::new(&A).meta("a").meta("bc"),
            KernelKey::new(&A).meta(&[0u8; 300][..]),
            KernelKey::new(&A).meta(&[0u8; 301][..]),
        ]
        .map(|k| k.finish());
        let distinct: std::collections::HashSet<u128> = keys.iter().copied().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn equal_inputs_give_equal_keys_in_any_portions() {
        let once = |parts: &[&[u8]]| {
            let mut h = KeyHasher::new();
            parts.iter().for_each(|p| h.write(p));
            h.finish128()
        };
        let long: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
        for cut in [1, 16, 127, 128, 129, 255, 256, 257, 511, 999] {
            assert_eq!(once(&[&long]), once(&[&long[..cut], &long[cut..]]));
        }
    }
}
