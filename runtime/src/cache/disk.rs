//! Compiled kernels on disk, shared by all processes of a user.
//!
//! **Contract.** An entry's name is the hash of all that its content depends on ([`address`]), so entries are never updated or invalidated. [`DiskCache::load`] gives
//! back exactly what was stored, or nothing; [`DiskCache::store`] is all or nothing, whatever happens to the process or the machine. The cache never makes a launch
//! fail: what cannot be read is compiled, what cannot be written is said once and forgotten.
//!
//! **How.** An entry is written to a temporary file in the cache's folder and renamed, which is atomic; two processes that store one entry store the same bytes.
//! A checksum over address and content finds files that were cut, damaged, renamed or written by another version; they are deleted and compiled again.
//! There is no index and no lock, so nothing can be left behind but temporary files, which are deleted when an hour old.
//!
//! Rejected: a database (redb, SQLite): one writer at a time, and a damaged file takes all entries with it. Locking so that two processes never compile
//! the same: a crashed or suspended holder would block the others, to save seconds, once.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Once;
use std::time::{Duration, SystemTime};

use tegula_bundle::codec;
use tegula_ir::artifact::CompiledKernel;
use tegula_ir::kernel::Kernel;
use tegula_ir::text::{PrintOptions, print_with};

const MAGIC: &[u8; 8] = b"TEGULA\0K";
/// Magic, format, length, checksum.
const HEADER: usize = 8 + 4 + 8 + 32;
const EXTENSION: &str = "kernel";
const TEMPORARY: &str = ".tmp-";
/// Nobody takes this long from creating a temporary file to renaming it.
const STALE: Duration = Duration::from_secs(3600);

/// Where an entry is: the hash of the kernel (with its facts, hints and source locations, which end up in the code's line table), the target, the compiler
/// and the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address([u8; 32]);

/// The address of a kernel.
pub(crate) fn address(kernel: &Kernel, target: &str, compiler: &str) -> Address {
    let text = print_with(kernel, PrintOptions { locs: true });
    let mut hasher = blake3::Hasher::new();
    hasher.update(&codec::FORMAT.to_le_bytes());
    for part in [compiler, target, &text] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    Address(*hasher.finalize().as_bytes())
}

/// A folder of compiled kernels.
#[derive(Debug)]
pub(crate) struct DiskCache {
    folder: PathBuf,
    warned: Once,
}

impl DiskCache {
    /// The cache that the environment names: `TEGULA_CACHE=off` is none, `TEGULA_CACHE_DIR` a folder; otherwise the user's cache folder
    /// (`~/.cache/tegula` on Linux), if there is one.
    pub(crate) fn from_environment() -> Option<DiskCache> {
        let off = std::env::var_os("TEGULA_CACHE").is_some_and(|v| v == "off" || v == "0");
        if off {
            return None;
        }
        let folder = match std::env::var_os("TEGULA_CACHE_DIR") {
            Some(folder) if !folder.is_empty() => PathBuf::from(folder),
            _ => directories::ProjectDirs::from("", "", "tegula")?.cache_dir().to_owned(),
        };
        Some(DiskCache::at(folder))
    }

    /// The cache in a folder, which is created when first written to.
    pub(crate) fn at(folder: impl Into<PathBuf>) -> DiskCache {
        let cache = DiskCache { folder: folder.into(), warned: Once::new() };
        cache.remove_stale(SystemTime::now());
        cache
    }

    fn path(&self, address: Address) -> PathBuf {
        let name = blake3::Hash::from_bytes(address.0).to_hex();
        self.folder.join(format!("{name}.{EXTENSION}"))
    }

    /// The kernel at an address, if it is there and whole.
    pub(crate) fn load(&self, address: Address) -> Option<CompiledKernel> {
        let path = self.path(address);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                self.warn("read", &e);
                return None;
            }
        };
        let kernel = open(address, &bytes);
        if kernel.is_none() {
            // Another process may have replaced it by a whole one just now; deleting that one costs a compilation, no more.
            let _ = fs::remove_file(&path);
        }
        kernel
    }

    /// Stores a kernel, if possible.
    pub(crate) fn store(&self, address: Address, kernel: &CompiledKernel) {
        if let Err(e) = self.try_store(address, kernel) {
            self.warn("written", &e);
        }
    }

    fn try_store(&self, address: Address, kernel: &CompiledKernel) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        // In the same folder: a rename is atomic only inside a file system. Dropping it without renaming deletes it.
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.folder)?;
        file.write_all(&seal(address, &codec::encode(kernel)))?;
        file.persist(self.path(address)).map_err(|e| e.error)?;
        Ok(())
    }

    /// Deletes what killed processes left behind.
    fn remove_stale(&self, now: SystemTime) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let ours = entry.file_name().to_str().is_some_and(|n| n.starts_with(TEMPORARY));
            let modified = entry.metadata().and_then(|m| m.modified());
            if ours && modified.is_ok_and(|t| now.duration_since(t).is_ok_and(|age| age > STALE)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn warn(&self, what: &str, error: &io::Error) {
        self.warned.call_once(|| {
            eprintln!(
                "tegula: the kernel cache in {} cannot be {what} ({error}): kernels are compiled again in each process. \
                 TEGULA_CACHE_DIR names another folder, TEGULA_CACHE=off turns the cache off",
                self.folder.display()
            );
        });
    }
}

fn checksum(address: Address, payload: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new().update(&address.0).update(payload).finalize().as_bytes()
}

/// An entry's file.
fn seal(address: Address, payload: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER + payload.len());
    file.extend(MAGIC);
    file.extend(codec::FORMAT.to_le_bytes());
    file.extend((payload.len() as u64).to_le_bytes());
    file.extend(checksum(address, payload));
    file.extend(payload);
    file
}

/// The kernel in an entry's file, if all of it is as it was stored.
fn open(address: Address, file: &[u8]) -> Option<CompiledKernel> {
    let (header, payload) = file.split_at_checked(HEADER)?;
    let expected = seal(address, payload);
    // The header follows from the payload, so comparing whole headers checks magic, format, length and checksum at once.
    if header != &expected[..HEADER] {
        return None;
    }
    codec::decode(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> CompiledKernel {
        CompiledKernel {
            entry: "k".to_owned(),
            target: "sm_90a".to_owned(),
            ptx: ".version 8.6".to_owned(),
            cubin: Some((0..=255).collect()),
            threads: 128,
            shared_bytes: 49152,
            cluster: 2,
            dependent_launch: false,
            abi: vec![tegula_ir::artifact::AbiSlot::Address { param: 0 }],
            report: None,
        }
    }

    const HERE: Address = Address([7; 32]);

    fn cache() -> (tempfile::TempDir, DiskCache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = DiskCache::at(folder.path().join("new"));
        (folder, cache)
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let (_folder, cache) = cache();
        assert_eq!(cache.load(HERE), None);
        cache.store(HERE, &sample());
        assert_eq!(cache.load(HERE), Some(sample()));
        assert_eq!(cache.load(Address([8; 32])), None);
        assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn damaged_entries_are_dropped_and_stored_again() {
        let (_folder, cache) = cache();
        cache.store(HERE, &sample());
        let path = cache.path(HERE);
        let whole = fs::read(&path).unwrap();
        let mut damaged: Vec<Vec<u8>> =
            (0..whole.len()).step_by(3).map(|end| whole[..end].to_vec()).collect();
        damaged.push([&whole[..], b"x"].concat());
        for bit in (0..whole.len() * 8).step_by(5) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            damaged.push(bytes);
        }
        let mut version = whole.clone();
        version[8] += 1;
        damaged.push(version);
        for bytes in damaged {
            fs::write(&path, &bytes).unwrap();
            assert_eq!(cache.load(HERE), None);
            assert!(!path.exists(), "a damaged entry is deleted");
        }
        cache.store(HERE, &sample());
        assert_eq!(cache.load(HERE), Some(sample()));
    }

    #[test]
    fn an_entry_under_another_name_is_not_taken() {
        let (_folder, cache) = cache();
        cache.store(HERE, &sample());
        let other = Address([9; 32]);
        fs::rename(cache.path(HERE), cache.path(other)).unwrap();
        assert_eq!(cache.load(other), None);
    }

    #[test]
    fn stale_temporary_files_are_deleted_fresh_ones_are_not() {
        let (_folder, cache) = cache();
        cache.store(HERE, &sample());
        let left = cache.folder.join(format!("{TEMPORARY}abc"));
        fs::write(&left, b"half").unwrap();
        cache.remove_stale(SystemTime::now());
        assert!(left.exists());
        cache.remove_stale(SystemTime::now() + 2 * STALE);
        assert!(!left.exists());
        assert_eq!(cache.load(HERE), Some(sample()), "entries are not temporary");
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        let cache = DiskCache::at(file.join("below"));
        cache.store(HERE, &sample());
        assert_eq!(cache.load(HERE), None);
    }

    #[test]
    fn everything_that_code_depends_on_is_in_the_address() {
        let base = || {
            let mut k = Kernel::new("k");
            k.add_param("x", tegula_ir::Type::view(tegula_ir::Elem::F32, 1, false));
            k
        };
        let at = |k: &Kernel| address(k, "sm_90a", "1");
        let mut other = vec![address(&base(), "sm_80", "1"), address(&base(), "sm_90a", "2")];
        let mut change = |f: &dyn Fn(&mut Kernel)| {
            let mut k = base();
            f(&mut k);
            other.push(at(&k));
        };
        change(&|k| k.name = "l".to_owned());
        change(&|k| k.hints.num_warps = 8);
        change(&|k| k.hints.num_stages = 5);
        change(&|k| k.hints.max_registers = Some(128));
        change(&|k| k.hints.min_ctas = Some(2));
        change(&|k| k.params[0].facts.align = 16);
        change(&|k| k.params[0].facts.small = true);
        change(&|k| k.params[0].facts.unit_stride = Some(0));
        change(&|k| k.params[0].facts.stride_divisible = [16].into_iter().collect());
        change(&|k| k.params[0].facts.dim_divisible = [16].into_iter().collect());
        change(&|k| k.params[0].facts.value = Some(1));
        change(&|k| k.params[0].facts.divisible = 16);
        let here = at(&base());
        assert_eq!(here, at(&base()));
        for (i, a) in other.iter().enumerate() {
            assert_ne!(*a, here, "change {i}");
            assert!(other[..i].iter().all(|b| b != a), "change {i}");
        }
    }
}
