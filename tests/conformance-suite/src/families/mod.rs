//! Families of cases: each turns an entry of its data files into kernels, inputs and expected outputs.

mod atomic;
mod cast;
mod dot;
mod elementwise;
mod fold;
mod pointer;
mod program;
mod shape;
mod view;

use tegula_ir::types::Elem;

use crate::case::Rule;
use crate::inputs::{self, Rng};
use crate::sink::{Array, Sink};
use crate::spec::{Entry, Tolerance};

/// Expands an entry.
pub type Family = fn(&Entry, &mut Sink) -> Result<(), String>;

/// The family that a data file names.
pub fn find(kind: &str) -> Option<Family> {
    Some(match kind {
        "atomic" => atomic::expand,
        "cast" => cast::expand,
        "dot" => dot::expand,
        "elementwise" => elementwise::expand,
        "fold" => fold::expand,
        "pointer" => pointer::expand,
        "program" => program::expand,
        "shape" => shape::expand,
        "view" => view::expand,
        _ => return None,
    })
}

/// Extents as part of a name: `3x5`; `scalar` for none.
fn shape_name(dims: &[u32]) -> String {
    if dims.is_empty() {
        return "scalar".to_owned();
    }
    dims.iter().map(u32::to_string).collect::<Vec<_>>().join("x")
}

/// The smallest tile that holds these extents.
fn tile_of(dims: &[u32]) -> Vec<u32> {
    dims.iter().map(|d| d.next_power_of_two()).collect()
}

/// Input arrays of these types and extents.
fn inputs(pattern: &str, operands: &[(Elem, Vec<u32>)], rng: &mut Rng) -> Result<Vec<Array>, String> {
    let make = |(index, (elem, dims)): (usize, &(Elem, Vec<u32>))| {
        let bits = inputs::generate(pattern, *elem, Array::count(dims), (index, operands.len()), rng)?;
        Ok(Array { elem: *elem, dims: dims.clone(), bits })
    };
    operands.iter().enumerate().map(make).collect()
}

/// The rule of a tolerance, for results that do not depend on an order.
fn rule(tolerance: Option<Tolerance>, elem: Elem) -> Result<Rule, String> {
    match tolerance {
        Some(Tolerance::Ulp(n)) if elem.is_float() => Ok(Rule::Ulp(n)),
        None | Some(Tolerance::Exact | Tolerance::Ulp(_)) => Ok(Rule::Exact),
        Some(Tolerance::Relative(_)) => Err("a relative tolerance needs magnitudes".to_owned()),
    }
}
