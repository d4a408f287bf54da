//! The data files: what an entry says, and who expands it.

use serde::Deserialize;
use tegula_ir::types::Elem;

use crate::families;
use crate::sink::Sink;

/// A data file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Who expands its entries.
    kind: String,
    case: Vec<Entry>,
}

/// One or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Words {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Default for Words {
    fn default() -> Words {
        Words::Many(Vec::new())
    }
}

impl Words {
    /// As a list.
    pub fn list(&self) -> Vec<&str> {
        match self {
            Words::One(word) => vec![word],
            Words::Many(words) => words.iter().map(String::as_str).collect(),
        }
    }

    /// The element types named, groups spelled out.
    pub fn elems(&self) -> Result<Vec<Elem>, String> {
        let mut out = Vec::new();
        for word in self.list() {
            let in_group: fn(Elem) -> bool = match word {
                "ints" => Elem::is_arith_int,
                "signed" => |e| e.is_arith_int() && e.is_signed(),
                "unsigned" => |e| e.is_arith_int() && !e.is_signed(),
                "words" => |e| e.is_int() && e.bits() >= 32,
                "floats" => Elem::is_arith_float,
                "memory" => |e| e.size_of().is_some(),
                _ => {
                    out.push(word.parse().map_err(|e: tegula_ir::types::UnknownElem| e.to_string())?);
                    continue;
                }
            };
            out.extend(Elem::ALL.into_iter().filter(|&e| in_group(e)));
        }
        Ok(out)
    }
}

/// How far results may be off.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Tolerance {
    /// Not at all.
    Exact,
    /// So many representable values.
    Ulp(u32),
    /// So much of the sum of the magnitudes that went into the result (for reductions and dots, whose order is open).
    Relative(f64),
}

/// An entry: which operations on which types, sizes and inputs. Each family reads the fields it has a use for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The operations.
    pub op: Words,
    /// Element types of the operands; `ints`, `signed`, `unsigned`, `words`, `floats` and `memory` stand for groups.
    #[serde(default)]
    pub dtypes: Words,
    /// Element types converted to, or of the accumulator.
    #[serde(default)]
    pub to: Words,
    /// An element type to pass through on the way.
    #[serde(default)]
    pub via: Words,
    /// Extents of the data; tiles are the next powers of two unless `tile` says so.
    #[serde(default)]
    pub shapes: Vec<Vec<u32>>,
    /// The tile of one program.
    #[serde(default)]
    pub tile: Vec<u32>,
    /// Input patterns (see `inputs.rs`).
    #[serde(default)]
    pub inputs: Words,
    /// How far results may be off; exact unless said.
    pub tolerance: Option<Tolerance>,
    /// Dimensions to work along.
    #[serde(default)]
    pub axes: Vec<usize>,
    /// Permutations, or shapes to bring the data to.
    #[serde(default)]
    pub to_shapes: Vec<Vec<u32>>,
    /// Warps of a CTA.
    #[serde(default)]
    pub warps: Vec<u32>,
    /// How arrays lie in memory (see `place.rs`).
    #[serde(default)]
    pub places: Words,
    /// Where tiles are loaded or stored, one number a dimension.
    #[serde(default)]
    pub offsets: Vec<Vec<i64>>,
    /// Values of a scalar argument, such as trip counts.
    #[serde(default)]
    pub counts: Vec<i32>,
    /// Choices of the family, by name.
    #[serde(default)]
    pub variants: Words,
    /// The oldest GPU that has the instructions.
    pub min_sm: Option<u32>,
    /// Why no GPU runs it.
    pub host_only: Option<String>,
}

impl Entry {
    /// The oldest GPU it runs on.
    pub fn min_sm(&self) -> Option<u32> {
        if self.host_only.is_some() { None } else { Some(self.min_sm.unwrap_or(80)) }
    }

    /// Warps of a CTA; 4 unless said.
    pub fn warps(&self) -> Vec<u32> {
        if self.warps.is_empty() { vec![4] } else { self.warps.clone() }
    }

    /// The variants; one without a name unless said.
    pub fn variants(&self) -> Vec<&str> {
        let list = self.variants.list();
        if list.is_empty() { vec![""] } else { list }
    }
}

/// Expands a data file.
///
/// # Errors
/// What is wrong with it.
pub fn expand(name: &str, text: &str, sink: &mut Sink) -> Result<(), String> {
    let file: File = toml::from_str(text).map_err(|e| e.to_string())?;
    let family = families::find(&file.kind).ok_or_else(|| format!("there is no family `{}`", file.kind))?;
    sink.family = name.to_owned();
    for (index, entry) in file.case.iter().enumerate() {
        family(entry, sink).map_err(|e| format!("entry {} ({:?}): {e}", index + 1, entry.op.list()))?;
    }
    Ok(())
}
