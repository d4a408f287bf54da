//! The format, byte by byte (the book's page "Bundles" has it as tables). Little-endian; lengths before contents.
//!
//! ```text
//! 0    magic "TEGULA\0B"           8 bytes
//! 8    version of the format       u32
//! 12   encoding of kernels         u32      codec::FORMAT
//! 16   length of the file          u64
//! 24   length of the manifest      u64
//! 32   checksum                    32 bytes BLAKE3 of bytes 0 to 32 and the manifest
//! 64   manifest
//!      parts, without gaps, to the end of the file
//! ```
//!
//! Every byte is of the header, the manifest or a part. Any change of the header and the manifest is noticed when the bundle is opened, and one of a part that changes its code when that is
//! loaded (two bytes of zstd's can mean the same: what counts is the code). A manifest is a list of tools, the table of parts, the index of kernels (sorted by source hash), and a record for each.
//! The index is searched, and a record read, where it is: opening does not depend on what the records say, but for the checksum of them all.
//!
//! Rejected: ELF fat binaries (no place for argument layouts, one compression); a serde format (postcard, bincode): the bytes of a file that outlives
//! programs should be written down, not derived from the order of fields; an archive (zip, tar): a second index to check.

use tegula_ir::artifact::{AbiSlot, CompiledKernel};
use tegula_ir::kernel::ParamFacts;
use tegula_ir::types::{Elem, Type};

use crate::codec::{self, Reader, Writer};
use crate::error::Fault;
use crate::facts;
use crate::identity::SourceHash;

/// The first bytes of a bundle.
pub const MAGIC: &[u8; 8] = b"TEGULA\0B";
/// The version of the format that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// Bytes of the header.
pub const HEADER: usize = 64;
/// Where in the header the checksum begins.
pub(crate) const CHECKSUM: usize = 32;
/// Bytes of a row in the table of parts.
pub(crate) const PART_ROW: usize = 8 + 8 + 8 + 32;
/// Bytes of a row in the index.
pub(crate) const INDEX_ROW: usize = 32 + 8 + 8;
/// The largest part, uncompressed. (The largest cubins that we have seen have 1 MB.)
pub const LARGEST_PART: u64 = 64 << 20;

/// A piece of code in a bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where its compressed bytes begin in the file.
    pub offset: u64,
    /// Compressed bytes.
    pub stored: u64,
    /// Bytes.
    pub raw: u64,
    /// BLAKE3 of the bytes, uncompressed: what is launched is what was compiled.
    pub blake3: [u8; 32],
}

impl Part {
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u64(self.offset);
        w.u64(self.stored);
        w.u64(self.raw);
        w.0.extend(self.blake3);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Option<Part> {
        let (offset, stored, raw) = (r.u64()?, r.u64()?, r.u64()?);
        Some(Part { offset, stored, raw, blake3: r.take(32)?.try_into().ok()? })
    }
}

/// How people, and programs in other languages, call a kernel.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Label {
    /// The kernel's name: `rms_norm`.
    pub name: String,
    /// Its element types: `bf16, f32`.
    pub types: String,
    /// Its meta-parameters or config, as Rust's `Debug` writes them.
    pub config: String,
}

/// As `tegula bundle list` prints it: `rms_norm (bf16, f32) Config { … }`.
impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Label { name, types, config } = self;
        write!(f, "{name} ({types}) {config}")
    }
}

/// What a parameter takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParamKind {
    /// A view: address, extents and strides.
    View {
        /// Type of the elements.
        elem: Elem,
        /// Number of dimensions.
        rank: u8,
        /// Is it stored to?
        mutable: bool,
    },
    /// A pointer.
    Pointer {
        /// What is pointed to.
        elem: Elem,
    },
    /// A scalar.
    Scalar {
        /// Its type.
        elem: Elem,
    },
}

impl ParamKind {
    /// Of a parameter in tile IR.
    pub fn of(ty: Type) -> Option<ParamKind> {
        match ty {
            Type::View(v) => Some(ParamKind::View { elem: v.elem, rank: v.rank, mutable: v.mutable }),
            Type::Tile(t) if t.shape.rank() == 0 => Some(match (t.elem.pointee(), t.elem.value()) {
                (Some(elem), _) => ParamKind::Pointer { elem },
                (None, Some(elem)) => ParamKind::Scalar { elem },
                (None, None) => return None,
            }),
            _ => None,
        }
    }

    fn encode(self, w: &mut Writer) {
        let (kind, elem, rank, mutable) = match self {
            ParamKind::View { elem, rank, mutable } => (0, elem, rank, mutable),
            ParamKind::Pointer { elem } => (1, elem, 0, false),
            ParamKind::Scalar { elem } => (2, elem, 0, false),
        };
        w.u8(kind);
        w.str(elem.name());
        w.u8(rank);
        w.u8(mutable as u8);
    }

    fn decode(r: &mut Reader<'_>) -> Option<ParamKind> {
        let (kind, elem, rank, mutable) = (r.u8()?, r.str()?.parse::<Elem>().ok()?, r.u8()?, r.bool()?);
        match (kind, rank, mutable) {
            (0, ..) => Some(ParamKind::View { elem, rank, mutable }),
            (1, 0, false) => Some(ParamKind::Pointer { elem }),
            (2, 0, false) => Some(ParamKind::Scalar { elem }),
            _ => None,
        }
    }
}

impl std::fmt::Display for ParamKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ParamKind::View { elem, rank, mutable } => {
                write!(f, "{}view<{elem}, {rank}>", if *mutable { "mut " } else { "" })
            }
            ParamKind::Pointer { elem } => write!(f, "ptr<{elem}>"),
            ParamKind::Scalar { elem } => write!(f, "{elem}"),
        }
    }
}

/// A parameter of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParamRecord {
    /// Its name.
    pub name: String,
    /// What it takes.
    pub kind: ParamKind,
}

/// The code of a variant for one target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// The target that it was compiled for: `sm_90a`.
    pub target: String,
    /// The compiler's version, as it says it: the same source, facts, target and version give the same code.
    pub compiler: String,
    /// The part with the cubin.
    pub cubin: Option<u32>,
    /// The part with the PTX.
    pub ptx: Option<u32>,
    /// Everything else: entry, threads, shared memory, cluster, argument layout, ptxas's report. Code is absent.
    pub kernel: CompiledKernel,
}

/// A kernel compiled under some facts of its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// What must hold of the arguments, one for each parameter.
    pub facts: Vec<ParamFacts>,
    /// Its code, sorted by target.
    pub images: Vec<Image>,
}

/// A kernel with all that it was compiled for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Which kernel it is.
    pub source: SourceHash,
    /// What it is called, sorted; several configs can give one kernel.
    pub labels: Vec<Label>,
    /// Its parameters.
    pub params: Vec<ParamRecord>,
    /// From the one that knows most of its arguments to the one that knows least.
    pub variants: Vec<Variant>,
}

impl Record {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.list(&self.labels, |w, label| {
            w.str(&label.name);
            w.str(&label.types);
            w.str(&label.config);
        });
        w.list(&self.params, |w, param| {
            w.str(&param.name);
            param.kind.encode(w);
        });
        w.list(&self.variants, |w, variant| {
            w.list(&variant.facts, facts::encode);
            w.list(&variant.images, |w, image| {
                w.str(&image.target);
                w.str(&image.compiler);
                w.option(image.cubin, Writer::u32);
                w.option(image.ptx, Writer::u32);
                w.bytes(&codec::encode(&image.kernel));
            });
        });
        w.0
    }

    /// The record in these bytes, if they are exactly one and it makes sense. `parts`: how many there are.
    pub(crate) fn decode(source: SourceHash, bytes: &[u8], parts: u32) -> Result<Record, Fault> {
        let invalid = |what: &str| Fault::Invalid(format!("the record of kernel {} {what}", source.short()));
        let mut r = Reader(bytes);
        let record = Record::read(source, &mut r).ok_or_else(|| invalid("cannot be read"))?;
        if !r.0.is_empty() {
            return Err(invalid("is followed by other bytes"));
        }
        if record.labels.is_empty() {
            return Err(invalid("has no name"));
        }
        for variant in &record.variants {
            if variant.facts.len() != record.params.len() {
                return Err(invalid("has facts of another number of parameters"));
            }
            for image in &variant.images {
                let used = [image.cubin, image.ptx];
                if used == [None, None] {
                    return Err(invalid(&format!("has no code for {}", image.target)));
                }
                if let Some(missing) = used.into_iter().flatten().find(|&part| part >= parts) {
                    return Err(invalid(&format!("names part {missing}, but there are {parts}")));
                }
                if !image.kernel.ptx.is_empty()
                    || image.kernel.cubin.is_some()
                    || image.kernel.target != image.target
                {
                    return Err(invalid("describes other code than it has"));
                }
                let fits = |slot: &AbiSlot| record.passes(slot, &variant.facts);
                if !image.kernel.abi.iter().all(fits) {
                    return Err(invalid("passes what the kernel's parameters do not have"));
                }
            }
        }
        Ok(record)
    }

    /// Can the argument be passed, of parameters like ours under such facts? What compiles kernels never asks for others; whoever writes a file may.
    fn passes(&self, slot: &AbiSlot, facts: &[ParamFacts]) -> bool {
        let index = usize::from(slot.param());
        let (Some(param), Some(facts)) = (self.params.get(index), facts.get(index)) else { return false };
        match (*slot, param.kind) {
            (AbiSlot::Address { .. }, ParamKind::View { .. } | ParamKind::Pointer { .. }) => true,
            (
                AbiSlot::Dim { axis, bits, .. } | AbiSlot::Stride { axis, bits, .. },
                ParamKind::View { rank, .. },
            ) => axis < rank && (bits == 64 || bits == 32 && facts.small),
            (AbiSlot::Scalar { elem, .. }, ParamKind::Scalar { elem: passed }) => elem == passed,
            (AbiSlot::TensorMap { map, .. }, ParamKind::View { elem, rank, .. }) => {
                map.rank == rank && map.is_valid_for(elem) && facts.tensor_map
            }
            _ => false,
        }
    }

    fn read(source: SourceHash, r: &mut Reader<'_>) -> Option<Record> {
        Some(Record {
            source,
            labels: r.list(|r| Some(Label { name: r.str()?, types: r.str()?, config: r.str()? }))?,
            params: r.list(|r| Some(ParamRecord { name: r.str()?, kind: ParamKind::decode(r)? }))?,
            variants: r.list(|r| {
                Some(Variant {
                    facts: r.list(facts::decode)?,
                    images: r.list(|r| {
                        Some(Image {
                            target: r.str()?,
                            compiler: r.str()?,
                            cubin: r.option(Reader::u32)?,
                            ptx: r.option(Reader::u32)?,
                            kernel: codec::decode(r.bytes()?)?,
                        })
                    })?,
                })
            })?,
        })
    }
}
