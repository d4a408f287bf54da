//! Buffers: their bytes before a run, and where they go afterwards.

use std::path::Path;

use tegula_emulator::Rng;

use crate::element::Element;
use crate::npy;
use crate::spec::{self, Init};

/// The most bytes of a buffer; the emulator keeps what has been written of each byte, and all of it is this machine's memory.
const MOST: u64 = 1 << 34;

/// A buffer with its contents.
#[derive(Debug)]
pub struct Buffer {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub element: Element,
    /// Its extents, the outermost first.
    pub shape: Vec<u64>,
    /// What it holds; `None`: nobody has written it.
    pub contents: Option<Vec<u8>>,
}

impl Buffer {
    /// Makes what a specification describes; files are relative to `folder`.
    pub fn make(spec: &spec::Buffer, folder: &Path) -> Result<Buffer, String> {
        let wrong = |why: String| format!("buffer `{}`: {why}", spec.name);
        if let Init::File(file) = &spec.init {
            return Buffer::of_file(spec, &folder.join(file))
                .map_err(|e| wrong(format!("{}: {e}", file.display())));
        }
        let Some((element, shape)) = spec.ty.clone() else { return Err(wrong("it has no type".to_owned())) };
        let count = count(&shape, element).map_err(wrong)?;
        // Buffers of one seed differ by their names.
        let stream = spec.name.bytes().fold(0, |hash: u64, byte| hash.wrapping_mul(31) + u64::from(byte));
        let contents = match spec.init {
            Init::Unwritten => None,
            Init::Value(value) => Some(element.encode(value).repeat(count)),
            Init::Iota => Some((0..count).flat_map(|i| element.encode(i as f64)).collect()),
            Init::Random { seed, range } => {
                let mut rng = Rng::new(seed, stream);
                Some((0..count).flat_map(|_| element.random(&mut rng, range)).collect())
            }
            Init::File(_) => None,
        };
        Ok(Buffer { name: spec.name.clone(), element, shape, contents })
    }

    fn of_file(spec: &spec::Buffer, file: &Path) -> Result<Buffer, String> {
        let bytes = std::fs::read(file).map_err(|e| e.to_string())?;
        let (found, data) = if file.extension().is_some_and(|extension| extension == "npy") {
            let array = npy::read(&bytes)?;
            (Some((array.descr, array.shape)), array.data)
        } else {
            (None, &bytes[..])
        };
        let (element, shape) = match (&spec.ty, found) {
            (Some(ty), None) => ty.clone(),
            (None, None) => return Err("a raw file needs type and shape, as in x=f32:1024:@x.bin".to_owned()),
            (None, Some((descr, shape))) => {
                let element = Element::from_numpy(descr)
                    .ok_or_else(|| format!("elements of type `{descr}` are not known"))?;
                (element, shape)
            }
            (Some((element, shape)), Some((descr, found))) => {
                let same = Element::from_numpy(descr).is_some_and(|e| e.bytes() == element.bytes());
                if !same || *shape != found {
                    return Err(format!(
                        "it has shape {found:?} and elements `{descr}`, not {shape:?} and {element}"
                    ));
                }
                (*element, found)
            }
        };
        let wanted = count(&shape, element)? * element.bytes();
        if data.len() != wanted {
            return Err(format!(
                "it has {} bytes of data; {element} of shape {shape:?} has {wanted}",
                data.len()
            ));
        }
        Ok(Buffer { name: spec.name.clone(), element, shape, contents: Some(data.to_vec()) })
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.element.bytes() as u64
    }

    /// Writes what it holds now to a file: an array of NumPy's if it is named so, else the bytes.
    pub fn write(&self, data: &[u8], file: &Path) -> Result<(), String> {
        let numpy = file.extension().is_some_and(|extension| extension == "npy");
        let array = npy::Array { descr: self.element.numpy(), shape: self.shape.clone(), data };
        let written =
            if numpy { std::fs::write(file, npy::write(&array)) } else { std::fs::write(file, data) };
        written.map_err(|e| format!("cannot write {}: {e}", file.display()))
    }
}

fn count(shape: &[u64], element: Element) -> Result<usize, String> {
    let count = shape.iter().try_fold(1u64, |n, &extent| n.checked_mul(extent));
    match count.and_then(|n| n.checked_mul(element.bytes() as u64)) {
        Some(bytes) if bytes <= MOST => Ok(count.unwrap_or_default() as usize),
        _ => Err(format!("shape {shape:?} is more than {} GiB", MOST >> 30)),
    }
}
