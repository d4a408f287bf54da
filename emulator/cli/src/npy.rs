//! NumPy's file format, versions 1 to 3 (`numpy.lib.format`): C-ordered arrays of one element type.

/// An array of a file.
#[derive(Debug, PartialEq)]
pub struct Array<'a> {
    /// The element type's `descr`.
    pub descr: &'a str,
    /// Extents, the outermost first.
    pub shape: Vec<u64>,
    /// The elements' bytes, in C order.
    pub data: &'a [u8],
}

const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads a file.
pub fn read(file: &[u8]) -> Result<Array<'_>, String> {
    let rest = file.strip_prefix(MAGIC).ok_or("it does not begin as a .npy file does")?;
    let (version, rest) = rest.split_at_checked(2).ok_or("it is cut off")?;
    let field = if version[0] == 1 { 2 } else { 4 };
    let (length, rest) = rest.split_at_checked(field).ok_or("it is cut off")?;
    let length = length.iter().rev().fold(0usize, |n, &byte| n << 8 | usize::from(byte));
    let (header, data) = rest.split_at_checked(length).ok_or("its header is cut off")?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is no text")?;
    let descr = value(header, "descr")?;
    let descr = descr.split(['\'', '"']).nth(1).ok_or("it is an array of records, not of numbers")?;
    if value(header, "fortran_order")?.trim_start().starts_with("True") {
        return Err("it is in Fortran order: save `numpy.ascontiguousarray(x)`".to_owned());
    }
    if descr.starts_with('>') {
        return Err(format!("its elements, `{descr}`, are big-endian"));
    }
    let shape = value(header, "shape")?;
    let (_, shape) = shape.split_once('(').ok_or("its header has no shape")?;
    let (shape, _) = shape.split_once(')').ok_or("its header has no shape")?;
    let extents = shape.split(',').map(str::trim).filter(|extent| !extent.is_empty());
    let shape =
        extents.map(str::parse).collect::<Result<Vec<u64>, _>>().map_err(|_| "its shape is no shape")?;
    Ok(Array { descr, shape, data })
}

/// What stands behind a key of the header, which is a Python dictionary.
fn value<'a>(header: &'a str, key: &str) -> Result<&'a str, String> {
    let missing = || format!("its header has no `{key}`");
    let at = header.find(&format!("'{key}'")).ok_or_else(missing)?;
    header[at..].split_once(':').map(|(_, value)| value).ok_or_else(missing)
}

/// Writes a file.
pub fn write(array: &Array<'_>) -> Vec<u8> {
    let mut shape: String = array.shape.iter().map(|extent| format!("{extent}, ")).collect();
    shape.truncate(shape.trim_end().len());
    // One extent keeps its comma, as a tuple of Python does.
    if array.shape.len() > 1 {
        shape.truncate(shape.len() - 1);
    }
    let mut header = format!("{{'descr': '{}', 'fortran_order': False, 'shape': ({shape}), }}", array.descr);
    // The data begins at a multiple of 64, behind a newline.
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
    header.push('\n');
    let length = (header.len() as u16).to_le_bytes();
    [MAGIC, &[1, 0], &length, header.as_bytes(), array.data].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for shape in [vec![], vec![6], vec![2, 3]] {
            let data: Vec<u8> = (0..24).collect();
            let array = Array { descr: "<f4", shape, data: &data };
            let file = write(&array);
            assert_eq!(read(&file), Ok(array));
            assert_eq!((file.len() - data.len()) % 64, 0);
        }
    }

    #[test]
    fn what_is_no_array_is_refused() {
        let file = write(&Array { descr: "<f4", shape: vec![2], data: &[0; 8] });
        for end in 0..64 {
            assert!(read(&file[..end]).is_err(), "{end}");
        }
        let edit = |from: &str, to: &str| {
            let at = file.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
            [&file[..at], to.as_bytes(), &file[at + from.len()..]].concat()
        };
        assert!(read(&edit("False", "True ")).unwrap_err().contains("Fortran"));
        assert!(read(&edit("<f4", ">f4")).unwrap_err().contains("big-endian"));
        assert!(read(&edit("(2,)", "(x,)")).is_err());
    }
}
