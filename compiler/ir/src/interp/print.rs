//! The text of `print`: one line an element, with the program and the element's coordinates.

use std::fmt::Write;

use super::buffer::Buffer;
use super::elementwise::{by_width, word_of};
use super::exec::coordinates;
use super::program::{Print, Slot};
use crate::numerics::{bits_to_f64, convert::bits_to_int};
use crate::types::{Elem, ElemType};

/// `program (0, 0, 0) [1, 2]: message 1.5 7`: the values of a tile's element side by side where the shapes agree, each in its place `{}` of
/// the message or after it.
pub(super) fn render<'a>(p: &Print, id: [u32; 3], slot: impl Fn(Slot) -> &'a Buffer) -> String {
    let [x, y, z] = id;
    let mut out = String::new();
    let mut line = |at: &str, values: &[String]| {
        let _ = writeln!(out, "program ({x}, {y}, {z}){at}: {}", fill(&p.message, values));
    };
    if p.values.is_empty() {
        line("", &[]);
    }
    let mut rest = &p.values[..];
    while let Some(&(_, _, shape)) = rest.first() {
        let group = rest.iter().take_while(|(_, _, s)| *s == shape).count();
        for i in 0..shape.num_elements() as usize {
            let at = coordinates(shape, i);
            let at = if at.is_empty() { String::new() } else { format!(" {at:?}") };
            let values: Vec<String> =
                rest[..group].iter().map(|&(s, ty, _)| element(slot(s), ty, i)).collect();
            line(&at, &values);
        }
        rest = &rest[group..];
    }
    out
}

/// The message with values in its places, and those without a place after it.
fn fill(message: &str, values: &[String]) -> String {
    let mut values = values.iter();
    let mut pieces = message.split("{}");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        text.push_str(values.next().map_or("{}", String::as_str));
        text.push_str(piece);
    }
    for value in values {
        text.push(' ');
        text.push_str(value);
    }
    text
}

fn element(buffer: &Buffer, ty: ElemType, i: usize) -> String {
    let elem = match ty {
        ElemType::Value(e) => e,
        ElemType::Ptr(_) => return format!("{:#x}", buffer.get::<u64>()[i]),
    };
    let bits = by_width!(word_of(elem), W => buffer.get::<W>()[i] as u64);
    match elem {
        Elem::I1 => (bits != 0).to_string(),
        // The shortest text that reads back as the same f32.
        Elem::F32 => f32::from_bits(bits as u32).to_string(),
        _ if elem.is_float() => bits_to_f64(elem, bits).to_string(),
        _ => bits_to_int(elem, bits).to_string(),
    }
}
