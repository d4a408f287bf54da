//! Element types of buffers and arguments: their names, sizes, and how numbers become bytes.

use std::fmt;
use std::str::FromStr;

use tegula_emulator::Rng;
use tegula_emulator::asynchronous::TensorDataType;
use tegula_emulator::numerics::{Format, Overflow, Rounding, decode, round};

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    Bf16,
    F32,
    F64,
    E4m3,
    E5m2,
}

/// All of them: name, bytes, NumPy's name. NumPy has no bf16 and no FP8: it sees their bits.
const ALL: [(Element, &str, usize, &str); 14] = [
    (Element::U8, "u8", 1, "|u1"),
    (Element::U16, "u16", 2, "<u2"),
    (Element::U32, "u32", 4, "<u4"),
    (Element::U64, "u64", 8, "<u8"),
    (Element::S8, "s8", 1, "|i1"),
    (Element::S16, "s16", 2, "<i2"),
    (Element::S32, "s32", 4, "<i4"),
    (Element::S64, "s64", 8, "<i8"),
    (Element::F16, "f16", 2, "<f2"),
    (Element::Bf16, "bf16", 2, "<u2"),
    (Element::F32, "f32", 4, "<f4"),
    (Element::F64, "f64", 8, "<f8"),
    (Element::E4m3, "e4m3", 1, "|u1"),
    (Element::E5m2, "e5m2", 1, "|u1"),
];

impl Element {
    fn row(self) -> &'static (Element, &'static str, usize, &'static str) {
        ALL.iter().find(|row| row.0 == self).expect("the table has all of them")
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        self.row().2
    }

    /// What NumPy calls it (a `descr`).
    pub fn numpy(self) -> &'static str {
        self.row().3
    }

    /// The type of a NumPy array.
    pub fn from_numpy(descr: &str) -> Option<Element> {
        match descr {
            // What `ml_dtypes` writes.
            "<V2" | "|V2" | "bfloat16" => Some(Element::Bf16),
            "|b1" => Some(Element::U8),
            _ => {
                let native = descr.replace(['|', '='], "<");
                ALL.iter().find(|row| row.3.replace('|', "<") == native).map(|row| row.0)
            }
        }
    }

    fn format(self) -> Option<Format> {
        Some(match self {
            Element::F16 => Format::F16,
            Element::Bf16 => Format::Bf16,
            Element::F32 => Format::F32,
            Element::E4m3 => Format::E4m3,
            Element::E5m2 => Format::E5m2,
            _ => return None,
        })
    }

    /// A type of floating-point numbers?
    pub fn is_float(self) -> bool {
        self == Element::F64 || self.format().is_some()
    }

    /// The smallest and the greatest value of an integer type.
    fn range(self) -> (i128, i128) {
        let bits = 8 * self.bytes() as u32;
        match self {
            Element::S8 | Element::S16 | Element::S32 | Element::S64 => {
                (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
            }
            _ => (0, (1 << bits) - 1),
        }
    }

    /// The bytes of a float, rounded to nearest; of an integer type, of its nearest value.
    pub fn encode(self, value: f64) -> Vec<u8> {
        let bits = match self.format() {
            Some(format) => u64::from(round(value, format, Rounding::NearestEven, Overflow::Infinity)),
            None if self == Element::F64 => value.to_bits(),
            None => return self.encode_integer(value as i128),
        };
        bits.to_le_bytes()[..self.bytes()].to_vec()
    }

    fn encode_integer(self, value: i128) -> Vec<u8> {
        let (low, high) = self.range();
        value.clamp(low, high).to_le_bytes()[..self.bytes()].to_vec()
    }

    /// Reads a number as it is written on a command line: decimal, hexadecimal (bits), or a float.
    pub fn parse_value(self, text: &str) -> Result<Vec<u8>, String> {
        let bad = |why: &str| Err(format!("`{text}` is not a value of {self}: {why}"));
        if let Some(hex) = text.strip_prefix("0x") {
            return match u64::from_str_radix(hex, 16) {
                Ok(bits) if self.bytes() == 8 || bits >> (8 * self.bytes()) == 0 => {
                    Ok(bits.to_le_bytes()[..self.bytes()].to_vec())
                }
                _ => bad(&format!("it has at most {} hexadecimal digits", 2 * self.bytes())),
            };
        }
        if self.is_float() {
            return match text.parse::<f64>() {
                Ok(value) => Ok(self.encode(value)),
                Err(_) => bad("it is no number"),
            };
        }
        let (low, high) = self.range();
        match text.parse::<i128>() {
            Ok(value) if (low..=high).contains(&value) => Ok(self.encode_integer(value)),
            Ok(_) => bad(&format!("they go from {low} to {high}")),
            Err(_) => bad("it is no integer"),
        }
    }

    /// A random element: of `low` to below `high`, else floats in [-1, 1) and integers of all values.
    pub fn random(self, rng: &mut Rng, range: Option<(f64, f64)>) -> Vec<u8> {
        if !self.is_float() && range.is_none() {
            return rng.bits().to_le_bytes()[..self.bytes()].to_vec();
        }
        let (low, high) = range.unwrap_or((-1.0, 1.0));
        let unit = (rng.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let value = low + unit * (high - low);
        self.encode(if self.is_float() { value } else { value.floor() })
    }

    /// The element in these bytes.
    pub fn decode(self, bytes: &[u8]) -> f64 {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(word);
        let unused = 64 - 8 * self.bytes() as u32;
        match self.format() {
            Some(format) => decode(bits as u32, format),
            None if self == Element::F64 => f64::from_bits(bits),
            None if self.range().0 < 0 => (((bits << unused) as i64) >> unused) as f64,
            None => bits as f64,
        }
    }

    /// What a tensor map calls it. FP8 travels as bytes.
    pub fn of_tensor_map(self) -> Option<TensorDataType> {
        Some(match self {
            Element::U8 | Element::E4m3 | Element::E5m2 => TensorDataType::U8,
            Element::U16 => TensorDataType::U16,
            Element::U32 => TensorDataType::U32,
            Element::U64 => TensorDataType::U64,
            Element::S32 => TensorDataType::S32,
            Element::S64 => TensorDataType::S64,
            Element::F16 => TensorDataType::F16,
            Element::Bf16 => TensorDataType::Bf16,
            Element::F32 => TensorDataType::F32,
            Element::F64 => TensorDataType::F64,
            Element::S8 => TensorDataType::U8,
            Element::S16 => TensorDataType::U16,
        })
    }
}

impl FromStr for Element {
    type Err = String;

    fn from_str(name: &str) -> Result<Element, String> {
        // Rust's names of signed integers are as good as PTX's.
        let ptx = name.strip_prefix('i').map(|bits| format!("s{bits}")).unwrap_or_else(|| name.to_owned());
        ALL.iter().find(|row| row.1 == ptx).map(|row| row.0).ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|row| row.1).collect();
            format!("there is no element type `{name}`; there are {}", names.join(" "))
        })
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_bits_of_their_type() {
        let hex = |element: Element, text: &str| {
            element
                .parse_value(text)
                .map(|bytes| bytes.iter().rev().map(|b| format!("{b:02x}")).collect::<String>())
        };
        assert_eq!(hex(Element::F32, "1.5").unwrap(), "3fc00000");
        assert_eq!(hex(Element::Bf16, "-2").unwrap(), "c000");
        assert_eq!(hex(Element::F16, "inf").unwrap(), "7c00");
        assert_eq!(hex(Element::E4m3, "448").unwrap(), "7e");
        assert_eq!(hex(Element::S16, "-1").unwrap(), "ffff");
        assert_eq!(hex(Element::U64, "0xffffffffffffffff").unwrap(), "ffffffffffffffff");
        for (element, text) in
            [(Element::U8, "256"), (Element::U8, "-1"), (Element::U8, "0x100"), (Element::F32, "one")]
        {
            let message = hex(element, text).unwrap_err();
            assert!(message.contains(text) && message.contains(&element.to_string()), "{message}");
        }
    }

    #[test]
    fn bytes_are_read_as_they_were_written() {
        for &(element, name, bytes, _) in &ALL {
            assert_eq!(name.parse::<Element>(), Ok(element));
            for value in [0.0, 1.0, 7.0] {
                let encoded = element.encode(value);
                assert_eq!((encoded.len(), element.decode(&encoded)), (bytes, value), "{element}");
            }
            let mut rng = Rng::new(1, 0);
            for _ in 0..100 {
                let value = element.decode(&element.random(&mut rng, Some((2.0, 5.0))));
                // Rounding may reach the upper end of floats.
                assert!(
                    value >= 2.0 && value <= if element.is_float() { 5.0 } else { 4.0 },
                    "{element}: {value}"
                );
            }
        }
        assert_eq!(Element::S32.decode(&(-5i32).to_le_bytes()), -5.0);
        assert!("f31".parse::<Element>().unwrap_err().contains("f32"));
        assert_eq!("i32".parse(), Ok(Element::S32));
    }
}
