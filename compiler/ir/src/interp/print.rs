//! The text of `print`: one line an element, with the program and the element's coordinates.

use std::fmt::Write;

use super::buffer::Buffer;
use super::elementwise::{by_width, word_of};
use super::exec::coordinates;
use super::program::{Print, Slot};
use crate::numerics::{bits_to_f64, convert::bits_to_int};
use crate::types::{Elem, ElemType};

/// `program (0, 0, 0) [1, 2]: message: 1.5 7`: the values of a tile's element side by side where the shapes agree.
pub(super) fn render<'a>(p: &Print, id: [u32; 3], slot: impl Fn(Slot) -> &'a Buffer) -> String {
    let [x, y, z] = id;
    let mut out = String::new();
    let start = |out: &mut String, at: &str| {
        let _ = write!(out, "program ({x}, {y}, {z}){at}: {}", p.message);
    };
    if p.values.is_empty() {
        start(&mut out, "");
        out.push('\n');
    }
    let mut rest = &p.values[..];
    while let Some(&(_, _, shape)) = rest.first() {
        let group = rest.iter().take_while(|(_, _, s)| *s == shape).count();
        for i in 0..shape.num_elements() as usize {
            let at = coordinates(shape, i);
            start(&mut out, &if at.is_empty() { String::new() } else { format!(" {at:?}") });
            for &(s, ty, _) in &rest[..group] {
                let _ = write!(out, " {}", element(slot(s), ty, i));
            }
            out.push('\n');
        }
        rest = &rest[group..];
    }
    out
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
