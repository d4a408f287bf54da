//! Writing a bundle.
//!
//! **Contract.** The bytes depend on what was added, not on the order it was added in, nor on the machine, the time or the file's name: kernels are sorted by
//! hash, variants by strength, images by target, and parts come in the order of their first use. (They do depend on the version of zstd.) The same holds of merging: of equal code by two
//! compilers the first by name is said, and all tools are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Write};
use std::path::Path;

use tegula_ir::artifact::CompiledKernel;
use tegula_ir::kernel::{Kernel, ParamFacts};

use crate::codec::{self, Writer};
use crate::error::{Error, Fault};
use crate::facts;
use crate::format::{
    HEADER, INDEX_ROW, Image, LARGEST_PART, Label, MAGIC, PART_ROW, ParamKind, ParamRecord, Part, Record,
    VERSION, Variant,
};
use crate::identity::SourceHash;
use crate::read::{Bundle, checksum};

/// How hard zstd tries. Bundles are written once and read often; decompression takes the same time at every level.
const LEVEL: i32 = 19;

/// Collects kernels for a bundle.
#[derive(Default)]
pub struct Builder {
    tools: BTreeSet<(String, String)>,
    kernels: BTreeMap<SourceHash, Entry>,
}

struct Entry {
    labels: BTreeSet<Label>,
    params: Vec<ParamRecord>,
    /// By the key of their facts.
    variants: BTreeMap<FactsKey, VariantEntry>,
}

/// Sorts the strongest first. The bytes tell equally strong ones apart.
type FactsKey = (std::cmp::Reverse<u32>, Vec<u8>);

struct VariantEntry {
    facts: Vec<ParamFacts>,
    /// By target: the compiler's version and the code.
    images: BTreeMap<String, (String, CompiledKernel)>,
}

impl Builder {
    /// Nothing yet.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Says what the bundle is made with.
    pub fn tool(&mut self, name: &str, version: &str) {
        self.tools.insert((name.to_owned(), version.to_owned()));
    }

    /// The number of kernels.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Is there no kernel?
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// Adds a kernel that was staged and compiled. Its facts are those of `kernel`'s parameters; `compiler` is the compiler's version.
    ///
    /// # Errors
    /// If there is other code for the same kernel, facts and target; and for parameters that no launch could pass.
    pub fn add(
        &mut self,
        label: Label,
        kernel: &Kernel,
        compiler: &str,
        code: CompiledKernel,
    ) -> Result<(), Error> {
        let mut params = Vec::new();
        for param in &kernel.params {
            let kind = ParamKind::of(kernel.ty(param.value)).ok_or_else(|| {
                unsuitable(format!(
                    "kernel `{}`: no launch passes its parameter `{}`",
                    label.name, param.name
                ))
            })?;
            params.push(ParamRecord { name: param.name.clone(), kind });
        }
        let facts = kernel.params.iter().map(|param| param.facts.clone()).collect();
        self.insert(SourceHash::of(kernel), vec![label], params, facts, compiler.to_owned(), code)
    }

    /// Adds all that another bundle has.
    ///
    /// # Errors
    /// If it is damaged, or has other code for what is there already.
    pub fn merge(&mut self, bundle: &Bundle) -> Result<(), Error> {
        self.tools.extend(bundle.tools().iter().cloned());
        for record in bundle.records() {
            let record = record?;
            for variant in record.variants {
                for image in variant.images {
                    let code = bundle.complete(&image)?;
                    let (labels, params) = (record.labels.clone(), record.params.clone());
                    self.insert(record.source, labels, params, variant.facts.clone(), image.compiler, code)
                        .map_err(|error| error.fault.of(bundle.name()))?;
                }
            }
        }
        Ok(())
    }

    fn insert(
        &mut self,
        source: SourceHash,
        labels: Vec<Label>,
        params: Vec<ParamRecord>,
        facts: Vec<ParamFacts>,
        compiler: String,
        code: CompiledKernel,
    ) -> Result<(), Error> {
        let name = labels.first().map(|label| label.name.clone()).unwrap_or_default();
        let largest = code.ptx.len().max(code.cubin.as_ref().map_or(0, Vec::len)) as u64;
        if largest > LARGEST_PART {
            return Err(unsuitable(format!(
                "kernel `{name}` has {largest} bytes of code, more than {LARGEST_PART}"
            )));
        }
        if code.ptx.is_empty() && code.cubin.is_none() {
            return Err(unsuitable(format!("kernel `{name}` has no code for {}", code.target)));
        }
        let mut w = Writer::default();
        w.list(&facts, facts::encode);
        let entry = self.kernels.entry(source).or_insert_with(|| Entry {
            labels: Default::default(),
            params: params.clone(),
            variants: BTreeMap::new(),
        });
        if entry.params != params {
            return Err(unsuitable(format!(
                "kernel `{name}` is there with parameters of other names or types"
            )));
        }
        entry.labels.extend(labels);
        let key = (std::cmp::Reverse(facts::strength(&facts)), w.0);
        let variant =
            entry.variants.entry(key).or_insert_with(|| VariantEntry { facts, images: BTreeMap::new() });
        match variant.images.get_mut(&code.target) {
            None => {
                variant.images.insert(code.target.clone(), (compiler, code));
                Ok(())
            }
            Some((by, there)) if agree(there, &code) => {
                // One of them may have PTX only, the other the cubin.
                if there.ptx.is_empty() {
                    there.ptx = code.ptx;
                }
                there.cubin = there.cubin.take().or(code.cubin);
                there.report = there.report.take().or(code.report);
                *by = compiler.min(by.clone());
                Ok(())
            }
            Some((by, _)) => {
                let what = if *by == compiler {
                    format!("both are of compiler {by}")
                } else {
                    format!("one is of compiler {by}, the other of {compiler}")
                };
                let fault = Fault::Conflict { kernel: name, target: code.target, what };
                Err(fault.of("being written"))
            }
        }
    }

    /// The bundle.
    pub fn finish(&self) -> Vec<u8> {
        let mut parts = Parts::default();
        let records: Vec<(SourceHash, Vec<u8>)> = self
            .kernels
            .iter()
            .map(|(&source, entry)| (source, entry.record(source, &mut parts).encode()))
            .collect();
        let tools: Vec<&(String, String)> = self.tools.iter().collect();
        parts.compress();

        let mut w = Writer::default();
        w.list(&tools, |w, (name, version)| {
            w.str(name);
            w.str(version);
        });
        let sizes = [4 + parts.rows.len() * PART_ROW, 4 + records.len() * INDEX_ROW];
        let all_records: usize = records.iter().map(|(_, bytes)| bytes.len()).sum();
        let manifest_length = w.0.len() + sizes.iter().sum::<usize>() + all_records;
        let start = (HEADER + manifest_length) as u64;
        w.list(&parts.rows, |w, part| Part { offset: start + part.offset, ..*part }.encode(w));
        let mut offset = 0;
        w.list(&records, |w, (source, bytes)| {
            w.0.extend(source.0);
            w.u64(offset);
            w.u64(bytes.len() as u64);
            offset += bytes.len() as u64;
        });
        records.iter().for_each(|(_, bytes)| w.0.extend(bytes));
        let manifest = w.0;
        debug_assert_eq!(manifest.len(), manifest_length);

        let mut file = Writer(Vec::with_capacity(HEADER + manifest.len() + parts.bytes.len()));
        file.0.extend(MAGIC);
        file.u32(VERSION);
        file.u32(codec::FORMAT);
        file.u64((HEADER + manifest.len() + parts.bytes.len()) as u64);
        file.u64(manifest.len() as u64);
        let sum = checksum(&file.0, &manifest);
        file.0.extend(sum);
        file.0.extend(manifest);
        file.0.extend(parts.bytes);
        file.0
    }

    /// Writes the bundle to a file, all or nothing: programs that have the old one open keep it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write_file(path, &self.finish())
    }
}

/// Writes a file that is there as a whole or not at all. A link is followed: what it names is replaced.
///
/// # Errors
/// If it cannot be written, or if there is something that is no file.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || -> std::io::Result<()> {
        let path = replaced(path)?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        // A library is there for everybody to read, as far as the umask allows; temporary files are for their owner.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let mut file = builder.prefix(".tmp-").tempfile_in(folder)?;
        file.write_all(bytes)?;
        // Else a power failure can leave the name, and nothing behind it.
        file.as_file().sync_all()?;
        file.persist(&path).map_err(|e| e.error)?;
        Ok(())
    };
    write().map_err(|e| Fault::Io(e.to_string()).of(&path.display().to_string()))
}

/// May a bundle be written there? Somebody's sources that are named by mistake are not to be lost.
///
/// # Errors
/// If there is a folder, a device, or a file with contents that is no bundle.
pub fn replaceable(path: &Path) -> Result<(), Error> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    let look = || -> std::io::Result<()> {
        let path = replaced(path)?;
        let file = match std::fs::File::open(path) {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(()),
            file => file?,
        };
        let mut start = Vec::new();
        file.take(MAGIC.len() as u64).read_to_end(&mut start)?;
        if start.is_empty() || start == *MAGIC {
            return Ok(());
        }
        Err(std::io::Error::other("it is there and is no bundle: remove it, or write to another place"))
    };
    look().map_err(|e| Fault::Io(e.to_string()).of(&path.display().to_string()))
}

/// The file that is replaced when this path is written to.
fn replaced(path: &Path) -> std::io::Result<std::path::PathBuf> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    match std::fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(path.to_owned()),
        Err(error) => Err(error),
        Ok(found) => {
            let path = if found.is_symlink() { std::fs::canonicalize(path)? } else { path.to_owned() };
            let kind = std::fs::metadata(&path)?;
            match kind.is_file() {
                true => Ok(path),
                false if kind.is_dir() => Err(std::io::Error::other("it is a folder")),
                false => Err(std::io::Error::other("it is there and is no file")),
            }
        }
    }
}

/// Is this the same code, as far as both have some?
fn agree(a: &CompiledKernel, b: &CompiledKernel) -> bool {
    let rest = |code: &CompiledKernel| CompiledKernel {
        ptx: String::new(),
        cubin: None,
        report: None,
        ..code.clone()
    };
    let both = |x: bool, y: bool, same: bool| !(x && y) || same;
    rest(a) == rest(b)
        && both(!a.ptx.is_empty(), !b.ptx.is_empty(), a.ptx == b.ptx)
        && both(a.cubin.is_some(), b.cubin.is_some(), a.cubin == b.cubin)
        && both(a.report.is_some(), b.report.is_some(), a.report == b.report)
}

fn unsuitable(message: String) -> Error {
    Fault::Unsuitable(message).of("being written")
}

impl Entry {
    fn record<'a>(&'a self, source: SourceHash, parts: &mut Parts<'a>) -> Record {
        let variants = self.variants.values().map(|variant| Variant {
            facts: variant.facts.clone(),
            images: variant
                .images
                .values()
                .map(|(compiler, code)| Image {
                    target: code.target.clone(),
                    compiler: compiler.clone(),
                    cubin: code.cubin.as_ref().map(|cubin| parts.add(cubin)),
                    ptx: (!code.ptx.is_empty()).then(|| parts.add(code.ptx.as_bytes())),
                    kernel: CompiledKernel { ptx: String::new(), cubin: None, ..code.clone() },
                })
                .collect(),
        });
        let variants = variants.collect();
        Record {
            source,
            labels: self.labels.iter().cloned().collect(),
            params: self.params.clone(),
            variants,
        }
    }
}

/// Code, each piece once.
#[derive(Default)]
struct Parts<'a> {
    raw: Vec<&'a [u8]>,
    /// Offsets are from the first part.
    rows: Vec<Part>,
    bytes: Vec<u8>,
    by_content: HashMap<[u8; 32], u32>,
}

impl<'a> Parts<'a> {
    fn add(&mut self, raw: &'a [u8]) -> u32 {
        let blake3 = *blake3::hash(raw).as_bytes();
        let Parts { raw: all, rows, by_content, .. } = self;
        *by_content.entry(blake3).or_insert_with(|| {
            all.push(raw);
            rows.push(Part { offset: 0, stored: 0, raw: raw.len() as u64, blake3 });
            rows.len() as u32 - 1
        })
    }

    /// Compresses all of them, on all processors: it is the slowest part of writing a library that was compiled before.
    fn compress(&mut self) {
        let compressed = |raw: &&[u8]| {
            zstd::bulk::compress(raw, LEVEL).expect("compressing memory to memory does not fail")
        };
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let each = self.raw.len().div_ceil(threads).max(1);
        let stored: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let running: Vec<_> = (self.raw.chunks(each))
                .map(|some| scope.spawn(move || some.iter().map(compressed).collect::<Vec<_>>()))
                .collect();
            running.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        for (row, stored) in self.rows.iter_mut().zip(stored) {
            (row.offset, row.stored) = (self.bytes.len() as u64, stored.len() as u64);
            self.bytes.extend(stored);
        }
    }
}

impl Bundle {
    /// An image with all of its code.
    ///
    /// # Errors
    /// If a part is damaged.
    pub fn complete(&self, image: &Image) -> Result<CompiledKernel, Error> {
        let mut code = image.kernel.clone();
        code.cubin = image.cubin.map(|part| self.part(part)).transpose()?;
        if let Some(part) = image.ptx {
            code.ptx = String::from_utf8(self.part(part)?)
                .map_err(|_| Fault::Invalid(format!("part {part} is no PTX text")).of(self.name()))?;
        }
        Ok(code)
    }
}
