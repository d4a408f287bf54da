//! The small language of buffers and arguments, on the command line and in launch files alike (`tegula-emu run --help` shows it).

use std::path::PathBuf;
use std::str::FromStr;

use crate::element::Element;

/// Extents of a grid, a block or a cluster: `4`, `4,2`, `4x2x1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents(pub [u32; 3]);

impl FromStr for Extents {
    type Err = String;

    fn from_str(text: &str) -> Result<Extents, String> {
        let bad = || format!("`{text}` is not one to three extents, such as 4 or 4,2,1");
        let parts: Vec<u32> = text
            .split([',', 'x'])
            .map(|part| part.trim().parse().map_err(|_| bad()))
            .collect::<Result<_, _>>()?;
        if parts.len() > 3 || parts.contains(&0) {
            return Err(bad());
        }
        Ok(Extents(std::array::from_fn(|i| parts.get(i).copied().unwrap_or(1))))
    }
}

/// A buffer: `a=bf16:256x256:random:7`.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Its name.
    pub name: String,
    /// Type and extents, the outermost first; a `.npy` file may say them instead.
    pub ty: Option<(Element, Vec<u64>)>,
    /// What it holds.
    pub init: Init,
}

/// What a buffer holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Nobody has written it.
    Unwritten,
    /// One value.
    Value(f64),
    /// 0, 1, 2, …
    Iota,
    /// Random elements.
    Random {
        /// The seed.
        seed: u64,
        /// Of these to below these; else the type's own.
        range: Option<(f64, f64)>,
    },
    /// A file's contents.
    File(PathBuf),
}

impl FromStr for Buffer {
    type Err = String;

    fn from_str(text: &str) -> Result<Buffer, String> {
        let (name, spec) = text.split_once('=').ok_or_else(|| {
            format!("`{text}` has no name: a buffer is NAME=TYPE:SHAPE, such as x=f32:1024:random")
        })?;
        Buffer::named(name, spec)
    }
}

impl Buffer {
    /// Reads what stands behind the name.
    pub fn named(name: &str, spec: &str) -> Result<Buffer, String> {
        let wrong = |why: String| format!("buffer `{name}`: {why}");
        if name.is_empty() || name.contains([':', '+', '=']) {
            return Err(format!("`{name}` is no name of a buffer"));
        }
        let name = name.to_owned();
        if let Some(file) = spec.strip_prefix('@') {
            return Ok(Buffer { name, ty: None, init: Init::File(file.into()) });
        }
        let (element, rest) =
            spec.split_once(':').ok_or_else(|| wrong(format!("`{spec}` has no shape, as in f32:1024")))?;
        let (shape, init) = rest.split_once(':').map_or((rest, None), |(shape, init)| (shape, Some(init)));
        let ty = (element.parse().map_err(wrong)?, shape_of(shape).map_err(wrong)?);
        let init = init.map_or(Ok(Init::Unwritten), init_of).map_err(wrong)?;
        Ok(Buffer { name, ty: Some(ty), init })
    }
}

/// `256x256`
fn shape_of(text: &str) -> Result<Vec<u64>, String> {
    list(text)
        .filter(|shape: &Vec<u64>| !shape.contains(&0))
        .ok_or_else(|| format!("`{text}` is no shape, such as 64x32"))
}

fn list<T: FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(['x', ',']).map(|part| part.trim().parse().ok()).collect()
}

fn init_of(text: &str) -> Result<Init, String> {
    if let Some(file) = text.strip_prefix('@') {
        return Ok(Init::File(file.into()));
    }
    let mut parts = text.split(':');
    let init = match parts.next().unwrap_or_default() {
        "unwritten" => Init::Unwritten,
        "zeros" => Init::Value(0.0),
        "ones" => Init::Value(1.0),
        "iota" => Init::Iota,
        "random" => {
            let seed = parts.next().unwrap_or("0");
            let seed = seed.parse().map_err(|_| format!("`{seed}` is no seed"))?;
            let range = parts.next().map(|range| {
                let ends = range
                    .split_once("..")
                    .and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
                ends.filter(|(low, high): &(f64, f64)| low < high)
                    .ok_or_else(|| format!("`{range}` is no range, such as 0..32"))
            });
            Init::Random { seed, range: range.transpose()? }
        }
        other => {
            return Err(format!(
                "`{other}` is nothing to fill it with; there are unwritten, zeros, ones, iota, random[:SEED[:LOW..HIGH]] and @FILE"
            ));
        }
    };
    parts.next().map_or(Ok(init), |rest| Err(format!("`{rest}` means nothing here")))
}

/// An argument of the kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// Bytes, as they are.
    Bytes(Vec<u8>),
    /// The address of a buffer, plus bytes.
    Address(String, u64),
    /// A tensor map.
    Map(Box<Map>),
}

/// A tensor map of a buffer. Everything has the outermost extent first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map {
    /// Of which buffer.
    pub buffer: String,
    /// Bytes behind its beginning.
    pub offset: u64,
    /// The tensor's extents; the buffer's if absent.
    pub dims: Option<Vec<u64>>,
    /// Bytes from one index to the next, of all dimensions but the innermost; dense if absent.
    pub strides: Option<Vec<u64>>,
    /// The box's extents.
    pub boxes: Vec<u32>,
    /// Element strides; 1 if absent.
    pub steps: Option<Vec<u32>>,
    /// Bytes of the swizzle's span: 0, 32, 64, 128.
    pub swizzle: u32,
    /// NaN outside of the tensor, not zeros.
    pub fill_nan: bool,
    /// TF32, where the buffer is f32.
    pub tf32: bool,
}

impl FromStr for Argument {
    type Err = String;

    fn from_str(text: &str) -> Result<Argument, String> {
        let wrong = |why: String| format!("argument `{text}`: {why}");
        let Some((kind, rest)) = text.split_once(':') else {
            let (name, offset) =
                text.split_once('+').map_or((text, Ok(0)), |(name, offset)| (name, offset.parse()));
            let offset = offset.map_err(|_| wrong("behind `+` stands a number of bytes".to_owned()))?;
            if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
                return Err(wrong("a number needs its type, as in u32:256".to_owned()));
            }
            return Ok(Argument::Address(name.to_owned(), offset));
        };
        match kind {
            "map" => map_of(rest).map(|map| Argument::Map(Box::new(map))),
            "bytes" => bytes_of(rest).map(Argument::Bytes),
            _ => kind.parse().and_then(|element: Element| element.parse_value(rest)).map(Argument::Bytes),
        }
        .map_err(wrong)
    }
}

fn bytes_of(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = text
        .chars()
        .map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect::<Option<_>>()
        .ok_or("behind `bytes:` stand hexadecimal digits")?;
    let (pairs, []) = digits.as_chunks::<2>() else {
        return Err("a byte has two hexadecimal digits".to_owned());
    };
    Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

fn map_of(text: &str) -> Result<Map, String> {
    let mut parts = text.split(':');
    let mut map = Map { buffer: parts.next().unwrap_or_default().to_owned(), ..Map::default() };
    for part in parts {
        let (key, value) =
            part.split_once('=').ok_or_else(|| format!("`{part}` is no KEY=VALUE, such as box=64x64"))?;
        let bad = || format!("`{value}` is no value of `{key}`");
        match key {
            "box" => map.boxes = list(value).ok_or_else(bad)?,
            "dims" => map.dims = Some(list(value).ok_or_else(bad)?),
            "strides" => map.strides = Some(list(value).ok_or_else(bad)?),
            "steps" => map.steps = Some(list(value).ok_or_else(bad)?),
            "offset" => map.offset = value.parse().map_err(|_| bad())?,
            "swizzle" => {
                map.swizzle = match value {
                    "none" | "0" => 0,
                    "32" => 32,
                    "64" => 64,
                    "128" => 128,
                    _ => return Err("a swizzle is 0, 32, 64 or 128 (bytes)".to_owned()),
                }
            }
            "fill" if value == "nan" || value == "zero" => map.fill_nan = value == "nan",
            "type" if value == "tf32" => map.tf32 = true,
            "fill" | "type" => return Err(bad()),
            _ => {
                return Err(format!(
                    "a tensor map has no `{key}`; there are box, swizzle, dims, strides, offset, steps, fill, type"
                ));
            }
        }
    }
    if map.boxes.is_empty() {
        return Err("a tensor map needs its box, as in map:a:box=64x64".to_owned());
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_and_arguments_as_the_help_shows_them() {
        let buffer = |text: &str| text.parse::<Buffer>().unwrap();
        let f32 = |n| Some((Element::F32, vec![n]));
        assert_eq!(
            buffer("c=f32:1024:zeros"),
            Buffer { name: "c".into(), ty: f32(1024), init: Init::Value(0.0) }
        );
        assert_eq!(buffer("c=bf16:2x3").ty, Some((Element::Bf16, vec![2, 3])));
        assert_eq!(buffer("i=s32:9:random:7:0..32").init, Init::Random { seed: 7, range: Some((0.0, 32.0)) });
        assert_eq!(buffer("a=f32:9:@a.bin").init, Init::File("a.bin".into()));
        assert_eq!(
            buffer("a=@a.npy"),
            Buffer { name: "a".into(), ty: None, init: Init::File("a.npy".into()) }
        );

        let argument = |text: &str| text.parse::<Argument>().unwrap();
        assert_eq!(argument("c+1024"), Argument::Address("c".into(), 1024));
        assert_eq!(argument("u32:256"), Argument::Bytes(vec![0, 1, 0, 0]));
        assert_eq!(argument("bytes:00ff"), Argument::Bytes(vec![0, 255]));
        let map = Map { buffer: "a".into(), boxes: vec![128, 64], swizzle: 128, ..Map::default() };
        assert_eq!(argument("map:a:box=128x64:swizzle=128"), Argument::Map(Box::new(map)));
        assert_eq!("4,2".parse(), Ok(Extents([4, 2, 1])));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, words) in [
            ("f32:4", "NAME=TYPE:SHAPE"),
            ("a=f32", "no shape"),
            ("a=f33:4", "no element type"),
            ("a=f32:0", "no shape"),
            ("a=f32:4:noise", "random"),
            ("a=f32:4:random:x", "no seed"),
            ("a=f32:4:random:1:3..2", "no range"),
            ("a=f32:4:zeros:1", "means nothing"),
        ] {
            let message = text.parse::<Buffer>().unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        }
        for (text, words) in [
            ("256", "needs its type"),
            ("a+x", "number of bytes"),
            ("u8:300", "0 to 255"),
            ("q:1", "no element type"),
            ("bytes:f", "two hexadecimal digits"),
            ("map:a", "needs its box"),
            ("map:a:box=64:swizzle=7", "0, 32, 64 or 128"),
            ("map:a:boxes=64", "no `boxes`"),
        ] {
            let message = text.parse::<Argument>().unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        }
        assert!("4,0".parse::<Extents>().is_err() && "1,2,3,4".parse::<Extents>().is_err());
    }
}
