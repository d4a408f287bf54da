//! Reading a bundle: opened at once, read lazily, kernel by kernel.
//!
//! **Contract.** Whatever the bytes are, the result is an error that names the bundle and what is wrong with it: no panic, no allocation that the file chose
//! without having the bytes for it (a part may decompress to [`LARGEST_PART`], no more). Code is handed out only if it has its checksum.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use tegula_ir::artifact::CompiledKernel;
use tegula_ir::kernel::ParamFacts;

use crate::codec::{self, Reader};
use crate::error::{Error, Fault};
use crate::facts;
use crate::format::{
    CHECKSUM, HEADER, INDEX_ROW, Image, LARGEST_PART, Label, MAGIC, PART_ROW, Part, Record, VERSION,
};
use crate::identity::SourceHash;
use crate::labels::Labels;
use crate::source::Source;
use crate::target;

/// A library of compiled kernels. Cheap to clone; clones share the file.
#[derive(Clone)]
pub struct Bundle(Arc<Inner>);

struct Inner {
    name: String,
    source: Source,
    tools: Vec<(String, String)>,
    parts: Vec<Part>,
    index: Vec<Row>,
    labels: OnceLock<Result<Labels, Fault>>,
}

/// A kernel in the index.
#[derive(Clone, Copy)]
struct Row {
    source: SourceHash,
    /// Its record, from the beginning of the file.
    at: usize,
    length: usize,
}

/// Which code a device takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// A cubin; PTX, which the driver compiles, if there is none for the GPU.
    Machine,
    /// PTX, which is executed as it is: an emulated device.
    Ptx,
}

/// What a bundle has for a launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// The code to run.
    Kernel(Box<CompiledKernel>),
    /// Not this kernel.
    Nothing,
    /// The kernel, but not for this device: for these targets.
    OtherTargets(Vec<String>),
    /// The kernel for this device, but only for arguments of which more is known.
    OtherFacts,
}

impl Bundle {
    /// Opens a file. It is mapped: its manifest is read now, code when it is asked for.
    ///
    /// # Errors
    /// If it cannot be read, is no bundle, of another version, not whole, or its header or manifest is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Bundle, Error> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match Source::map(path) {
            Ok(source) => Bundle::new(name, source),
            Err(e) => Err(Fault::Io(e.to_string()).of(&name)),
        }
    }

    /// A bundle that is part of the program: see `include_bundle!` of the crate `tegula`.
    ///
    /// # Errors
    /// As for [`Bundle::open`].
    pub fn embedded(name: &str, bytes: &'static [u8]) -> Result<Bundle, Error> {
        Bundle::new(name.to_owned(), Source::Static(bytes))
    }

    /// A bundle in memory.
    ///
    /// # Errors
    /// As for [`Bundle::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Bundle, Error> {
        Bundle::new(name.to_owned(), Source::Owned(bytes))
    }

    fn new(name: String, source: Source) -> Result<Bundle, Error> {
        match Inner::read(&name, source) {
            Ok(inner) => Ok(Bundle(Arc::new(inner))),
            Err(fault) => Err(fault.of(&name)),
        }
    }

    /// What it is called in messages: the file's path.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Is it part of the program?
    pub fn is_embedded(&self) -> bool {
        matches!(self.0.source, Source::Static(_))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.source.bytes()
    }

    /// The checksum in its header. It covers the manifest, which has the checksums of all code: equal ones mean equal bundles.
    pub fn checksum(&self) -> &[u8] {
        self.bytes().get(CHECKSUM..HEADER).unwrap_or_default()
    }

    /// What it was made with: names and versions, sorted.
    pub fn tools(&self) -> &[(String, String)] {
        &self.0.tools
    }

    /// The pieces of code.
    pub fn parts(&self) -> &[Part] {
        &self.0.parts
    }

    /// The number of kernels.
    pub fn len(&self) -> usize {
        self.0.index.len()
    }

    /// Is there no kernel?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every kernel, in the order of their hashes.
    pub fn records(&self) -> impl Iterator<Item = Result<Record, Error>> + '_ {
        self.0.index.iter().map(|&row| self.record(row))
    }

    /// The kernel with this hash.
    ///
    /// # Errors
    /// If its record makes no sense.
    pub fn find(&self, source: &SourceHash) -> Result<Option<Record>, Error> {
        let found = self.0.index.binary_search_by(|row| row.source.cmp(source));
        found.ok().map(|at| self.record(self.0.index[at])).transpose()
    }

    /// The kernel that is called so. The first call makes the index of labels; others decode one record.
    ///
    /// # Errors
    /// [`Fault::Ambiguous`] if several kernels are called so; and if the record, or any record's labels, make no sense.
    pub fn find_label(&self, label: &Label) -> Result<Option<Record>, Error> {
        let mut found: Vec<Record> = Vec::new();
        for row in self.labels()?.rows(label) {
            let record = self.record(self.0.index[row])?;
            if record.labels.contains(label) {
                found.push(record);
            }
        }
        if found.len() > 1 {
            let mut sources: Vec<SourceHash> = found.iter().map(|record| record.source).collect();
            sources.sort();
            return Err(Fault::Ambiguous { label: label.clone(), sources }.of(self.name()));
        }
        Ok(found.pop())
    }

    /// The number of labels: at least one for each kernel.
    ///
    /// # Errors
    /// If a record's labels make no sense.
    pub fn label_count(&self) -> Result<usize, Error> {
        Ok(self.labels()?.len())
    }

    /// A label and the kernel that is called so, by their number below [`Bundle::label_count`]: by the kernel's hash, then by the label. (A label that
    /// several kernels have comes once for each.)
    ///
    /// # Errors
    /// If the record, or any record's labels, make no sense.
    pub fn labelled(&self, number: usize) -> Result<Option<(Label, Record)>, Error> {
        let Some((row, nth)) = self.labels()?.at(number) else { return Ok(None) };
        let record = self.record(self.0.index[row])?;
        let label = record.labels.get(nth).cloned();
        Ok(label.map(|label| (label, record)))
    }

    /// Made when it is asked for first: launches that stage their kernels find them by hash.
    fn labels(&self) -> Result<&Labels, Error> {
        let records = || self.0.index.iter().map(|row| (row.source, self.record_bytes(row)));
        let labels = self.0.labels.get_or_init(|| Labels::read(records()));
        labels.as_ref().map_err(|fault| fault.clone().of(self.name()))
    }

    /// Where rows lead was checked when the bundle was opened; the file may have been shortened since.
    fn record_bytes(&self, row: &Row) -> &[u8] {
        self.bytes().get(row.at..row.at + row.length).unwrap_or_default()
    }

    fn record(&self, row: Row) -> Result<Record, Error> {
        Record::decode(row.source, self.record_bytes(&row), self.0.parts.len() as u32)
            .map_err(|fault| fault.of(self.name()))
    }

    /// The code for a launch of a kernel on a GPU: of the variants whose facts hold, the one with most of them; of its images, the one that fits the GPU best.
    ///
    /// # Errors
    /// If the record makes no sense or the code is damaged. It is never run, nor another in its place.
    pub fn code(
        &self,
        source: &SourceHash,
        facts: &[ParamFacts],
        gpu: &str,
        wanted: Wanted,
    ) -> Result<Found, Error> {
        let Some(record) = self.find(source)? else { return Ok(Found::Nothing) };
        self.choose(&record, facts, gpu, wanted)
    }

    /// As [`Bundle::code`], of a record of this bundle.
    ///
    /// # Errors
    /// As there.
    pub fn choose(
        &self,
        record: &Record,
        facts: &[ParamFacts],
        gpu: &str,
        wanted: Wanted,
    ) -> Result<Found, Error> {
        let mut for_gpu = false;
        // Sorted by strength, see `write.rs`; not relied on, since others may write bundles.
        let mut best: Option<(u32, &Image)> = None;
        for variant in &record.variants {
            let Some(image) = best_image(&variant.images, gpu, wanted) else { continue };
            for_gpu = true;
            let strength = facts::strength(&variant.facts);
            if facts::imply(facts, &variant.facts) && best.is_none_or(|(most, _)| strength > most) {
                best = Some((strength, image));
            }
        }
        match best {
            Some((_, image)) => Ok(Found::Kernel(Box::new(self.load(image, gpu, wanted)?))),
            None if for_gpu => Ok(Found::OtherFacts),
            None => {
                let mut targets: Vec<String> = record
                    .variants
                    .iter()
                    .flat_map(|v| &v.images)
                    .map(|image| image.target.clone())
                    .collect();
                targets.sort();
                targets.dedup();
                Ok(Found::OtherTargets(targets))
            }
        }
    }

    fn load(&self, image: &Image, gpu: &str, wanted: Wanted) -> Result<CompiledKernel, Error> {
        let cubin = image
            .cubin
            .filter(|_| wanted == Wanted::Machine && target::cubin_fits(&image.target, gpu).is_some());
        let mut kernel = image.kernel.clone();
        match (cubin, image.ptx) {
            (Some(part), _) => kernel.cubin = Some(self.part(part)?),
            (None, Some(part)) => {
                let text = self.part(part)?;
                kernel.ptx = String::from_utf8(text)
                    .map_err(|_| Fault::Invalid(format!("part {part} is no PTX text")).of(self.name()))?;
            }
            (None, None) => {}
        }
        Ok(kernel)
    }

    /// A part, uncompressed, if it is as it was written.
    ///
    /// # Errors
    /// If it is not, or there is none with this number.
    pub fn part(&self, number: u32) -> Result<Vec<u8>, Error> {
        let damaged = || Fault::Damaged(format!("part {number}")).of(self.name());
        let part = self.0.parts.get(number as usize);
        let part =
            part.ok_or_else(|| Fault::Invalid(format!("there is no part {number}")).of(self.name()))?;
        let end = part.offset + part.stored;
        let stored = self.bytes().get(part.offset as usize..end as usize).ok_or_else(damaged)?;
        let raw = decompress(stored, part.raw).ok_or_else(damaged)?;
        if *blake3::hash(&raw).as_bytes() != part.blake3 {
            return Err(damaged());
        }
        Ok(raw)
    }

    /// Reads everything and checks it all.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn verify(&self) -> Result<(), Vec<Error>> {
        let mut errors: Vec<Error> = self.records().filter_map(Result::err).collect();
        errors.extend((0..self.0.parts.len() as u32).filter_map(|part| self.part(part).err()));
        let mut used = vec![false; self.0.parts.len()];
        for image in self.records().flatten().flat_map(|r| r.variants).flat_map(|v| v.images) {
            for part in [image.cubin, image.ptx].into_iter().flatten() {
                used[part as usize] = true;
            }
        }
        let unused = used.iter().enumerate().filter(|(_, used)| !**used);
        errors.extend(
            unused.map(|(part, _)| Fault::Invalid(format!("nothing uses part {part}")).of(self.name())),
        );
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

/// The image that fits a GPU best: a cubin, if wanted, before any PTX.
fn best_image<'r>(images: &'r [Image], gpu: &str, wanted: Wanted) -> Option<&'r Image> {
    let fit = |image: &Image| {
        let cubin = (wanted == Wanted::Machine && image.cubin.is_some())
            .then(|| target::cubin_fits(&image.target, gpu).map(|fit| (1, fit)))
            .flatten();
        cubin.or_else(|| image.ptx.and_then(|_| target::ptx_fits(&image.target, gpu)).map(|fit| (0, fit)))
    };
    images
        .iter()
        .filter_map(|image| Some((fit(image)?, image)))
        .max_by_key(|(fit, _)| *fit)
        .map(|(_, image)| image)
}

/// Exactly `raw` bytes, or nothing. Memory grows with what comes out.
fn decompress(stored: &[u8], raw: u64) -> Option<Vec<u8>> {
    use std::io::Read;
    // One frame and nothing behind it.
    let frame = zstd::zstd_safe::find_frame_compressed_size(stored).ok()?;
    if frame != stored.len() {
        return None;
    }
    let mut decoder = zstd::stream::read::Decoder::with_buffer(stored).ok()?.single_frame();
    let mut out = Vec::new();
    decoder.by_ref().take(raw.checked_add(1)?).read_to_end(&mut out).ok()?;
    (out.len() as u64 == raw).then_some(out)
}

impl Inner {
    fn read(name: &str, source: Source) -> Result<Inner, Fault> {
        let file = source.bytes();
        let magic = file.get(..MAGIC.len());
        if magic.is_none_or(|magic| magic != MAGIC) {
            return Err(Fault::NotABundle);
        }
        let Some(header) = file.get(..HEADER) else {
            return Err(Fault::Length { expected: HEADER as u64, found: file.len() as u64 });
        };
        let mut r = Reader(&header[MAGIC.len()..]);
        let mut next = || r.u32().unwrap_or_default();
        let (version, encoding) = (next(), next());
        if version != VERSION {
            return Err(Fault::Version { found: version, known: VERSION });
        }
        let mut next = || r.u64().unwrap_or_default();
        let (length, manifest_length) = (next(), next());
        if length != file.len() as u64 {
            return Err(Fault::Length { expected: length, found: file.len() as u64 });
        }
        let damaged = || Fault::Damaged("its manifest".to_owned());
        let end = usize::try_from(manifest_length).ok().and_then(|n| HEADER.checked_add(n));
        let end = end.filter(|&end| end <= file.len()).ok_or_else(damaged)?;
        if checksum(&header[..CHECKSUM], &file[HEADER..end]) != header[CHECKSUM..] {
            return Err(damaged());
        }
        if encoding != codec::FORMAT {
            return Err(Fault::Encoding { found: encoding, known: codec::FORMAT });
        }
        // From here on, what is wrong was written so.
        let (tools, parts, index) = manifest(&file[HEADER..end], end, file.len())?;
        Ok(Inner { name: name.to_owned(), tools, parts, index, source, labels: OnceLock::new() })
    }
}

pub(crate) fn checksum(header: &[u8], manifest: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new().update(header).update(manifest).finalize().as_bytes()
}

type Manifest = (Vec<(String, String)>, Vec<Part>, Vec<Row>);

/// Tools, parts and index of a manifest that ends at byte `end` of a file of `length` bytes.
fn manifest(bytes: &[u8], end: usize, length: usize) -> Result<Manifest, Fault> {
    let mut r = Reader(bytes);
    let short = || Fault::Invalid("it ends too early".to_owned());
    let tools = r.list(|r| Some((r.str()?, r.str()?))).ok_or_else(short)?;
    let count = r.u32().ok_or_else(short)? as usize;
    let mut rows = Reader(r.take(count.saturating_mul(PART_ROW)).ok_or_else(short)?);
    let parts: Vec<Part> = (0..count).map_while(|_| Part::decode(&mut rows)).collect();
    let mut next = end as u64;
    for (number, part) in parts.iter().enumerate() {
        let part_end = part.offset.checked_add(part.stored);
        if part.offset != next || part_end.is_none_or(|end| end > length as u64) {
            return Err(Fault::Invalid(format!(
                "part {number} is missing: it would lie outside of the file"
            )));
        }
        if part.raw > LARGEST_PART {
            return Err(Fault::Invalid(format!(
                "part {number} has {} bytes, more than {LARGEST_PART}",
                part.raw
            )));
        }
        next = part.offset + part.stored;
    }
    if next != length as u64 {
        return Err(Fault::Invalid("there are bytes that belong to no part".to_owned()));
    }
    let count = r.u32().ok_or_else(short)? as usize;
    let mut rows = Reader(r.take(count.saturating_mul(INDEX_ROW)).ok_or_else(short)?);
    let start = end - r.0.len();
    let mut at = start;
    let mut index: Vec<Row> = Vec::with_capacity(count);
    while let Some(hash) = rows.take(32) {
        let source = SourceHash(hash.try_into().unwrap_or_default());
        let (offset, bytes) = (rows.u64().unwrap_or_default(), rows.u64().unwrap_or_default());
        let row_end = at.checked_add(usize::try_from(bytes).unwrap_or(usize::MAX)).filter(|&e| e <= end);
        let Some(row_end) = row_end.filter(|_| offset == (at - start) as u64) else {
            return Err(Fault::Invalid(format!("the record of kernel {} is missing", source.short())));
        };
        if index.last().is_some_and(|last| last.source >= source) {
            return Err(Fault::Invalid("its index is not sorted".to_owned()));
        }
        index.push(Row { source, at, length: row_end - at });
        at = row_end;
    }
    if at != end {
        return Err(Fault::Invalid("there are bytes that belong to no record".to_owned()));
    }
    Ok((tools, parts, index))
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bundle({}, {} kernels)", self.name(), self.len())
    }
}
