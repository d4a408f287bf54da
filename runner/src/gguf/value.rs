//! Metadata values. Strings and arrays stay in the file and are decoded when asked for: a file cannot make us allocate.

use std::ops::Range;

use super::reader::Reader;
use crate::error::Fault;

/// Arrays of arrays deeper than this are refused; real files have one level.
const DEEPEST_NESTING: usize = 4;

/// The type of a value, with GGUF's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// 0
    U8,
    /// 1
    I8,
    /// 2
    U16,
    /// 3
    I16,
    /// 4
    U32,
    /// 5
    I32,
    /// 6
    F32,
    /// 7
    Bool,
    /// 8
    String,
    /// 9
    Array,
    /// 10
    U64,
    /// 11
    I64,
    /// 12
    F64,
}

impl ValueType {
    fn from_number(number: u32) -> Option<ValueType> {
        use ValueType::*;
        let all = [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64];
        all.get(number as usize).copied()
    }

    /// Bytes of a value of fixed size.
    fn bytes(self) -> Option<usize> {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            String | Array => None,
        }
    }
}

/// A metadata value. Ranges are places in the file.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned, of any width.
    Unsigned(u64),
    /// Signed, of any width.
    Signed(i64),
    /// Of either width.
    Float(f64),
    /// A byte, 0 or 1.
    Bool(bool),
    /// Not yet known to be UTF-8.
    String(Range<usize>),
    /// All elements have been walked over, so decoding them does not run out of the file.
    Array {
        /// Of each element.
        element: ValueType,
        /// How many.
        len: usize,
        /// Where.
        range: Range<usize>,
    },
}

impl Value {
    /// Reads type and value.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Value, Fault> {
        let ty = value_type(reader)?;
        match ty {
            ValueType::String => Ok(Value::String(reader.string()?)),
            ValueType::Array => read_array(reader, 1),
            _ => {
                let bytes = reader.take(ty.bytes().unwrap_or(0) as u64)?;
                if ty == ValueType::Bool && bytes[0] > 1 {
                    return Err(reader.fault(format!("a truth value of {}: the file is damaged", bytes[0])));
                }
                Ok(scalar(ty, bytes))
            }
        }
    }
}

fn value_type(reader: &mut Reader<'_>) -> Result<ValueType, Fault> {
    let number = reader.u32()?;
    ValueType::from_number(number)
        .ok_or_else(|| reader.fault(format!("unknown value type {number}: the file is damaged")))
}

fn read_array(reader: &mut Reader<'_>, depth: usize) -> Result<Value, Fault> {
    if depth > DEEPEST_NESTING {
        return Err(reader.fault(format!("arrays nested deeper than {DEEPEST_NESTING}: the file is damaged")));
    }
    let element = value_type(reader)?;
    // An array begins with type and length, a string with its length.
    let least = element.bytes().unwrap_or(if element == ValueType::Array { 12 } else { 8 });
    let len = reader.count("elements", least as u64)?;
    let start = reader.position();
    match (element, element.bytes()) {
        (_, Some(bytes)) => {
            reader.skip((len * bytes) as u64)?;
        }
        (ValueType::String, None) => {
            for _ in 0..len {
                reader.string()?;
            }
        }
        (_, None) => {
            for _ in 0..len {
                read_array(reader, depth + 1)?;
            }
        }
    }
    Ok(Value::Array { element, len, range: start..reader.position() })
}

/// A value of fixed size, from exactly as many bytes.
fn scalar(ty: ValueType, b: &[u8]) -> Value {
    use ValueType::*;
    // Little endian: the missing upper bytes are zero, or copies of the sign.
    let unsigned = b.iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
    let unused = 64 - 8 * b.len() as u32;
    match ty {
        U8 | U16 | U32 | U64 => Value::Unsigned(unsigned),
        I8 | I16 | I32 | I64 => Value::Signed((unsigned << unused) as i64 >> unused),
        F32 => Value::Float(f64::from(f32::from_bits(unsigned as u32))),
        F64 => Value::Float(f64::from_bits(unsigned)),
        Bool => Value::Bool(unsigned != 0),
        String | Array => unreachable!("of no fixed size"),
    }
}

/// The elements of an array of fixed-size values.
pub(super) fn scalars(element: ValueType, bytes: &[u8]) -> impl Iterator<Item = Value> {
    // Strings and arrays have no elements here; callers ask for a type first.
    let size = element.bytes();
    let bytes = if size.is_some() { bytes } else { &[] };
    bytes.chunks_exact(size.unwrap_or(1)).map(move |b| scalar(element, b))
}

/// The elements of an array of strings, at its place in the file.
pub(super) fn strings(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (len, tail) = rest.split_first_chunk::<8>()?;
        let (string, tail) = tail.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        rest = tail;
        Some(string)
    })
}
