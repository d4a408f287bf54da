//! Weights by name, from whichever file format: [`WeightSource`].

use std::io::Read;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::bytes::{self, Bytes};
use crate::error::{Error, Fault, quoted};
use crate::format::Format;
use crate::gguf::GgufFile;

/// The largest JSON file beside the weights that is read; real ones have a few MB (`tokenizer.json`).
const LARGEST_JSON: u64 = 256 << 20;

/// A tensor of a file: its bytes have the length that shape and format ask for.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    /// How elements are stored.
    pub format: Format,
    /// Row-major extents.
    pub shape: &'a [usize],
    /// The elements.
    pub bytes: &'a [u8],
}

/// Where weights come from.
pub trait WeightSource {
    /// The file that a tensor is in, or would be: for messages.
    fn file(&self, name: &str) -> &Path;

    /// The tensor of this name, if there is one.
    ///
    /// # Errors
    /// If its elements are of a type that we do not know, or the file was changed since it was opened.
    fn find(&self, name: &str) -> Result<Option<Weight<'_>>, Error>;

    /// The names of all tensors.
    fn names(&self) -> Vec<&str>;
}

impl WeightSource for GgufFile {
    fn file(&self, _: &str) -> &Path {
        self.path()
    }

    fn find(&self, name: &str) -> Result<Option<Weight<'_>>, Error> {
        self.tensor(name).map_err(|fault| fault.in_file(self.path()))
    }

    fn names(&self) -> Vec<&str> {
        self.tensors().map(|(name, _)| name).collect()
    }
}

/// One safetensors file.
pub struct SafetensorsFile {
    path: PathBuf,
    bytes: Bytes,
    metadata: Metadata,
    names: Vec<String>,
    /// Where the data begins.
    data: usize,
}

impl SafetensorsFile {
    /// Maps a file and checks it. The file must not change as long as it is open: see [`Bytes::map`].
    ///
    /// # Errors
    /// For a file that cannot be read, is no safetensors file, or is damaged.
    pub fn open(path: &Path) -> Result<SafetensorsFile, Error> {
        SafetensorsFile::new(path, Bytes::map(path)?)
    }

    /// Checks a file's content.
    ///
    /// # Errors
    /// See [`SafetensorsFile::open`].
    pub fn new(path: &Path, bytes: Bytes) -> Result<SafetensorsFile, Error> {
        let fault = |field: &str, problem: String| Fault::new(field, problem).in_file(path);
        let Some(length) = bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b)) else {
            return Err(fault(
                "the header's length",
                "the file is shorter than that: it is truncated".into(),
            ));
        };
        let left = bytes.len() as u64 - 8;
        if length > left {
            return Err(fault(
                "the header's length",
                format!(
                    "is {length}, but only {left} bytes follow: no safetensors file, or damaged or truncated"
                ),
            ));
        }
        let (header, metadata) = read_metadata(&bytes).map_err(|error| match error {
            SafeTensorError::MetadataIncompleteBuffer => fault(
                "the data",
                format!("{left} bytes after the header's length do not fit the header: the file is truncated, fetch it again"),
            ),
            SafeTensorError::InvalidOffset(name) => {
                fault(&format!("tensor {}", quoted(&name)), "its place is wrong: the file is damaged".into())
            }
            SafeTensorError::TensorInvalidInfo
            | SafeTensorError::ValidationOverflow
            | SafeTensorError::MisalignedSlice => match misfit(&bytes[8..8 + length as usize]) {
                Some((name, problem)) => fault(&format!("tensor {}", quoted(&name)), problem),
                None => fault("the header", "a tensor has not the bytes that its shape and type ask for".into()),
            },
            other => fault("the header", crate::error::one_line(&other.to_string(), 300)),
        })?;
        let names = metadata.offset_keys();
        Ok(SafetensorsFile { path: path.into(), bytes, metadata, names, data: 8 + header })
    }
}

/// The longest header that the format allows.
const LONGEST_HEADER: u64 = 100_000_000;

/// The header of a safetensors file.
#[derive(Deserialize)]
struct Header {
    /// Texts about the file.
    #[serde(rename = "__metadata__")]
    _about: Option<IgnoredAny>,
    #[serde(flatten)]
    tensors: std::collections::HashMap<String, TensorInfo>,
}

/// The header's length, and what it says. As `SafeTensors::read_metadata`, but for sizes whose sum with the header's overflows: those make
/// that one panic, where overflow is checked.
fn read_metadata(file: &[u8]) -> Result<(usize, Metadata), SafeTensorError> {
    let (length, rest) = file.split_first_chunk::<8>().ok_or(SafeTensorError::HeaderTooSmall)?;
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER {
        return Err(SafeTensorError::HeaderTooLarge);
    }
    let (header, data) =
        rest.split_at_checked(length as usize).ok_or(SafeTensorError::InvalidHeaderLength)?;
    let parsed: Header =
        serde_json::from_slice(header).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    let mut tensors: Vec<_> = parsed.tensors.into_iter().collect();
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    // Checks that each begins where the one before ends, and has as many bytes as its shape asks for.
    let metadata = Metadata::new(None, tensors)?;
    if metadata.data_len() != data.len() {
        return Err(SafeTensorError::MetadataIncompleteBuffer);
    }
    Ok((header.len(), metadata))
}

/// The first tensor of a header whose place has not the bytes that its shape and type ask for, and how that is. The crate does not say which it is.
fn misfit(header: &[u8]) -> Option<(String, String)> {
    let Header { tensors, .. } = serde_json::from_slice(header).ok()?;
    let mut tensors: Vec<_> = tensors.into_iter().collect();
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    tensors.into_iter().find_map(|(name, TensorInfo { dtype, shape, data_offsets: (start, end) })| {
        let bits = shape.iter().try_fold(dtype.bitsize(), |bits, &extent| bits.checked_mul(extent));
        let bytes = end.checked_sub(start)?;
        if bits.is_some() && bits == bytes.checked_mul(8) {
            return None;
        }
        Some((
            name,
            format!("{dtype} of shape {shape:?} does not fit its {bytes} bytes: the file is damaged"),
        ))
    })
}

impl WeightSource for SafetensorsFile {
    fn file(&self, _: &str) -> &Path {
        &self.path
    }

    fn find(&self, name: &str) -> Result<Option<Weight<'_>>, Error> {
        let Some(info) = self.metadata.info(name) else { return Ok(None) };
        let format = match info.dtype {
            Dtype::F32 => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::BF16,
            other => {
                return Err(Fault::new(
                    format!("tensor {}", quoted(name)),
                    format!("unknown quant type {other:?}; known in safetensors are F32, F16, BF16"),
                )
                .in_file(&self.path));
            }
        };
        self.bytes.check_unchanged().map_err(|fault| fault.in_file(&self.path))?;
        let (start, end) = info.data_offsets;
        // `read_metadata` has checked that the data has all the bytes, and each tensor as many as its shape asks for.
        let bytes = &self.bytes[self.data + start..self.data + end];
        Ok(Some(Weight { format, shape: &info.shape, bytes }))
    }

    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }
}

/// The weights of a folder in Hugging Face's layout: `model.safetensors`, or the files that `model.safetensors.index.json` lists.
pub struct Shards {
    index: PathBuf,
    files: Vec<SafetensorsFile>,
}

/// The part of `model.safetensors.index.json` that we read.
#[derive(Deserialize)]
struct Index {
    weight_map: std::collections::BTreeMap<String, String>,
}

impl Shards {
    /// Opens one file, which must not change as long as it is open: see [`Bytes::map`].
    ///
    /// # Errors
    /// See [`SafetensorsFile::open`].
    pub fn single(path: &Path) -> Result<Shards, Error> {
        Ok(Shards { index: path.into(), files: vec![SafetensorsFile::open(path)?] })
    }

    /// Opens all weights of a folder. Its files must not change as long as they are open: see [`Bytes::map`].
    ///
    /// # Errors
    /// If there are none, the index names a file outside of the folder, or a file is damaged.
    pub fn of_folder(folder: &Path) -> Result<Shards, Error> {
        let single = folder.join("model.safetensors");
        if single.exists() {
            return Shards::single(&single);
        }
        let index = folder.join("model.safetensors.index.json");
        if !index.exists() {
            return Err(Fault::new(
                "the folder",
                "has neither model.safetensors nor model.safetensors.index.json",
            )
            .in_file(folder));
        }
        let Index { weight_map } = read_json(&index)?;
        let names: std::collections::BTreeSet<_> = weight_map.into_values().collect();
        let open = |name: &String| {
            // A plain name: the index must not reach out of its folder.
            if Path::new(name).components().count() != 1 || name.starts_with('.') {
                return Err(Fault::new(
                    "`weight_map`",
                    format!("names {}, which is no file's name", quoted(name)),
                )
                .in_file(&index));
            }
            SafetensorsFile::open(&folder.join(name))
        };
        let files = names.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        Ok(Shards { index, files })
    }
}

impl WeightSource for Shards {
    fn file(&self, name: &str) -> &Path {
        let holder = self.files.iter().find(|file| file.metadata.info(name).is_some());
        holder.map_or(&self.index, |file| &file.path)
    }

    fn find(&self, name: &str) -> Result<Option<Weight<'_>>, Error> {
        for file in &self.files {
            if let Some(weight) = file.find(name)? {
                return Ok(Some(weight));
            }
        }
        Ok(None)
    }

    fn names(&self) -> Vec<&str> {
        self.files.iter().flat_map(SafetensorsFile::names).collect()
    }
}

/// A JSON file beside the weights.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let bytes = read_limited(path)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Fault::new("the JSON", crate::error::one_line(&error.to_string(), 300)).in_file(path)
    })
}

/// A file of limited size.
pub(crate) fn read_limited(path: &Path) -> Result<Vec<u8>, Error> {
    let file = bytes::open(path)?;
    let mut bytes = Vec::new();
    file.take(LARGEST_JSON + 1).read_to_end(&mut bytes).map_err(|error| Error::io(path, &error))?;
    if bytes.len() as u64 > LARGEST_JSON {
        return Err(
            Fault::new("the file", format!("is larger than {} MiB", LARGEST_JSON >> 20)).in_file(path)
        );
    }
    Ok(bytes)
}
