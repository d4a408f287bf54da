//! GGUF, the file format of llama.cpp, versions 2 and 3, little endian: metadata, then a table of tensors, then their data.
//!
//! Contract: [`GgufFile::new`] accepts a file only if everything that it will ever read lies inside; later look-ups fail for what is absent
//! or of another type, never for what is damaged. Time and memory are bounded by the size of the file. A tensor of a type that
//! we do not know is an error when it is asked for, so that `info` can describe files that cannot be run.
//!
//! Source: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod reader;
mod value;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use value::{Value, ValueType};

use crate::bytes::Bytes;
use crate::error::{Error, Fault, quoted};
use crate::format::Format;
use crate::weights::Weight;
use reader::Reader;

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
/// ggml's limit on the rank of tensors.
const MOST_DIMS: u32 = 4;

/// A GGUF file: checked, its data still in the file.
pub struct GgufFile {
    path: PathBuf,
    bytes: Bytes,
    version: u32,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Tensor>,
}

/// A row of the table of tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Row-major: the last extent is that of consecutive elements (GGUF itself has the reverse order).
    pub shape: Vec<usize>,
    /// ggml's number of the element type.
    pub type_number: u32,
    /// Where the data is; `None` for a type that we do not know, whose size is not known either.
    data: Option<(Format, Range<usize>)>,
}

impl Tensor {
    /// The name of the element type.
    pub fn type_name(&self) -> String {
        match type_name(self.type_number) {
            Some(name) => name.to_owned(),
            None => format!("number {}", self.type_number),
        }
    }
}

/// The formats that we know, by ggml's numbers.
fn format(number: u32) -> Option<Format> {
    match number {
        0 => Some(Format::F32),
        1 => Some(Format::F16),
        2 => Some(Format::Q4_0),
        3 => Some(Format::Q4_1),
        8 => Some(Format::Q8_0),
        30 => Some(Format::BF16),
        _ => None,
    }
}

/// ggml's names, for messages.
fn type_name(number: u32) -> Option<&'static str> {
    const NAMES: [&str; 24] = [
        "F32", "F16", "Q4_0", "Q4_1", "", "", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
        "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    ];
    let name = if number == 30 { "BF16" } else { NAMES.get(number as usize).copied()? };
    (!name.is_empty()).then_some(name)
}

impl GgufFile {
    /// Maps a file and checks it. The file must not change as long as it is open: see [`Bytes::map`].
    ///
    /// # Errors
    /// For a file that cannot be read, is no GGUF file, or is damaged.
    pub fn open(path: &Path) -> Result<GgufFile, Error> {
        GgufFile::new(path, Bytes::map(path)?)
    }

    /// Checks a file's content.
    ///
    /// # Errors
    /// See [`GgufFile::open`].
    pub fn new(path: &Path, bytes: Bytes) -> Result<GgufFile, Error> {
        let header = Header::read(&bytes).map_err(|fault| fault.in_file(path))?;
        let Header { version, metadata, tensors } = header;
        Ok(GgufFile { path: path.into(), bytes, version, metadata, tensors })
    }

    /// Where it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The format's version.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Bytes of the file.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// All metadata, by key.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// A tensor's shape, format and data, if there is one of this name.
    ///
    /// # Errors
    /// If its type is one that we do not know, or the file was changed since it was opened.
    pub fn tensor(&self, name: &str) -> Result<Option<Weight<'_>>, Fault> {
        let Some(tensor) = self.tensors.get(name) else { return Ok(None) };
        self.bytes.check_unchanged()?;
        let Some((format, range)) = &tensor.data else {
            let known: Vec<_> = Format::ALL.iter().map(|format| format.name()).collect();
            return Err(Fault::new(
                format!("tensor {}", quoted(name)),
                format!(
                    "unknown quant type {}; known are {}: use a file quantised to one of these",
                    tensor.type_name(),
                    known.join(", ")
                ),
            ));
        };
        Ok(Some(Weight { format: *format, shape: &tensor.shape, bytes: &self.bytes[range.clone()] }))
    }

    /// An unsigned number, if there is one.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, Fault> {
        self.get(key, "an unsigned number", |value| match value {
            Value::Unsigned(n) => Some(*n),
            Value::Signed(n) => u64::try_from(*n).ok(),
            _ => None,
        })
    }

    /// A number, if there is one.
    pub fn float(&self, key: &str) -> Result<Option<f64>, Fault> {
        self.get(key, "a number", |value| match value {
            Value::Float(x) => Some(*x),
            Value::Unsigned(n) => Some(*n as f64),
            Value::Signed(n) => Some(*n as f64),
            _ => None,
        })
    }

    /// A truth value, if there is one.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, Fault> {
        self.get(key, "a truth value", |value| match value {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// A string, if there is one.
    pub fn string(&self, key: &str) -> Result<Option<&str>, Fault> {
        self.get(key, "a string of UTF-8", |value| match value {
            Value::String(range) => std::str::from_utf8(&self.bytes[range.clone()]).ok(),
            _ => None,
        })
    }

    /// The strings of an array, if there is one.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>, Fault> {
        self.get(key, "an array of strings of UTF-8", |value| match value {
            Value::Array { element: ValueType::String, range, .. } => {
                value::strings(&self.bytes[range.clone()]).map(|s| std::str::from_utf8(s).ok()).collect()
            }
            _ => None,
        })
    }

    /// The integers of an array, if there is one.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, Fault> {
        let integer = |value| match value {
            Value::Unsigned(n) => i64::try_from(n).ok(),
            Value::Signed(n) => Some(n),
            _ => None,
        };
        self.get(key, "an array of integers", |value| match value {
            Value::Array { element: ValueType::String | ValueType::Array, .. } => None,
            Value::Array { element, range, .. } => {
                value::scalars(*element, &self.bytes[range.clone()]).map(integer).collect()
            }
            _ => None,
        })
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        self.bytes.check_unchanged()?;
        let wrong = || Fault::new(format!("metadata {}", quoted(key)), format!("is not {wanted}"));
        read(value).map(Some).ok_or_else(wrong)
    }
}

/// What stands before the data.
struct Header {
    version: u32,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Tensor>,
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Header, Fault> {
        let mut reader = Reader::new(bytes);
        reader.field = "the first four bytes".into();
        if reader.left() < MAGIC.len() || reader.take(4)? != MAGIC {
            return Err(reader.fault("are not `GGUF`: this is no GGUF file"));
        }
        reader.field = "the version".into();
        let version = reader.u32()?;
        match version {
            2 | 3 => {}
            _ if matches!(version.swap_bytes(), 1..=3) => {
                return Err(
                    reader.fault("is big endian, which is not supported: convert the file to little endian")
                );
            }
            _ => return Err(reader.fault(format!("is {version}; known are 2 and 3"))),
        }
        reader.field = "the number of tensors".into();
        // A row of the table: length of the name, rank, type, offset. An entry of the metadata: length of the key, type, one byte.
        let tensors = reader.count("tensors", 24)?;
        reader.field = "the number of metadata entries".into();
        let entries = reader.count("entries", 13)?;

        let metadata = read_metadata(&mut reader, entries)?;
        let alignment = alignment(&metadata)?;
        let tensors = read_tensors(&mut reader, tensors, alignment)?;
        Ok(Header { version, metadata, tensors })
    }
}

fn read_metadata(reader: &mut Reader<'_>, entries: usize) -> Result<BTreeMap<String, Value>, Fault> {
    let mut metadata = BTreeMap::new();
    for i in 0..entries {
        reader.field = format!("metadata entry {i}");
        let key = reader.name()?;
        reader.field = format!("metadata {}", quoted(key));
        let value = Value::read(reader)?;
        if metadata.insert(key.to_owned(), value).is_some() {
            return Err(reader.fault("is there twice: the file is damaged"));
        }
    }
    Ok(metadata)
}

/// The alignment of tensors in the data.
fn alignment(metadata: &BTreeMap<String, Value>) -> Result<u64, Fault> {
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::Unsigned(n)) if n.is_power_of_two() && n <= 1 << 30 => Ok(n),
        Some(_) => Err(Fault::new("metadata `general.alignment`", "is not a power of two")),
    }
}

fn read_tensors(
    reader: &mut Reader<'_>,
    n: usize,
    alignment: u64,
) -> Result<BTreeMap<String, Tensor>, Fault> {
    struct Row<'a> {
        name: &'a str,
        shape: Vec<usize>,
        type_number: u32,
        offset: u64,
    }
    let mut rows = Vec::new();
    let mut names = HashSet::new();
    for i in 0..n {
        reader.field = format!("tensor {i} of {n}");
        let name = reader.name()?;
        reader.field = format!("tensor {}", quoted(name));
        if !names.insert(name) {
            return Err(reader.fault("is there twice: the file is damaged"));
        }
        let rank = reader.u32()?;
        if rank > MOST_DIMS {
            return Err(
                reader.fault(format!("has {rank} dimensions, more than {MOST_DIMS}: the file is damaged"))
            );
        }
        let mut shape = Vec::new();
        for _ in 0..rank {
            let dim = reader.u64()?;
            shape.push(usize::try_from(dim).map_err(|_| reader.fault(format!("has an extent of {dim}")))?);
        }
        shape.reverse();
        let (type_number, offset) = (reader.u32()?, reader.u64()?);
        if offset % alignment != 0 {
            return Err(reader.fault(format!(
                "begins at offset {offset}, which is no multiple of the alignment {alignment}: the file is damaged"
            )));
        }
        rows.push(Row { name, shape, type_number, offset });
    }

    // The data begins at the next multiple of the alignment; positions are below 2^63, so this does not overflow.
    let data = (reader.position() as u64).next_multiple_of(alignment);
    let size = (reader.position() + reader.left()) as u64;
    let mut tensors = BTreeMap::new();
    for Row { name, shape, type_number, offset } in rows {
        let place = |format: Format| {
            let fault = |problem| Fault::new(format!("tensor {}", quoted(name)), problem);
            let bytes = format.bytes(&shape).ok_or_else(|| {
                fault(format!("shape {shape:?} is impossible for {}: the file is damaged", format.name()))
            })?;
            let start = data.checked_add(offset);
            let end = start.and_then(|start| start.checked_add(bytes as u64)).filter(|&end| end <= size);
            let (Some(start), Some(end)) = (start, end) else {
                return Err(fault(format!(
                    "{} of shape {shape:?} takes {bytes} bytes at offset {offset} of the data, past the end of the file \
                     ({size} bytes): it is truncated, fetch it again",
                    format.name()
                )));
            };
            Ok((format, start as usize..end as usize))
        };
        let data = format(type_number).map(place).transpose()?;
        tensors.insert(name.to_owned(), Tensor { shape, type_number, data });
    }
    check_apart(&tensors)?;
    Ok(tensors)
}

/// Has each tensor bytes of its own? Else a small file could be a model of any size.
fn check_apart(tensors: &BTreeMap<String, Tensor>) -> Result<(), Fault> {
    let places = tensors.iter().filter_map(|(name, tensor)| Some((&tensor.data.as_ref()?.1, name)));
    let mut places: Vec<_> = places.filter(|(range, _)| !range.is_empty()).collect();
    places.sort_by_key(|(range, _)| range.start);
    for pair in places.windows(2) {
        let [(first, name), (second, other)] = [pair[0], pair[1]];
        if second.start < first.end {
            let problem = format!("shares bytes with tensor {}: the file is damaged", quoted(name));
            return Err(Fault::new(format!("tensor {}", quoted(other)), problem));
        }
    }
    Ok(())
}
