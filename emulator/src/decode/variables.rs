//! Variables of a module: sizes, places and initial values.

use std::collections::HashMap;

use super::scope::Symbol;
use super::types::Type;
use crate::error::PtxError;
use crate::memory::window;
use crate::ptx::ast::{Init, Variable};

/// A variable in global memory.
#[derive(Clone, Debug)]
pub struct GlobalVar {
    /// Its name.
    pub name: String,
    /// Its alignment.
    pub align: u64,
    /// Its initial bytes; zeros where the PTX gives none.
    pub bytes: Vec<u8>,
    /// Addresses to be written into it.
    pub relocations: Vec<Relocation>,
}

/// The constant bank: all `.const` variables behind one another.
#[derive(Clone, Debug, Default)]
pub struct ConstBank {
    /// Its initial bytes.
    pub bytes: Vec<u8>,
    /// Addresses to be written into it.
    pub relocations: Vec<Relocation>,
}

/// An address that an initial value has: known once global variables have theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Where it goes.
    pub at: u32,
    /// How many bytes of it.
    pub bytes: u32,
    /// Which global variable.
    pub global: u32,
    /// Added to its address.
    pub offset: i64,
}

/// A variable in shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedVar {
    /// Its name.
    pub name: String,
    /// Its alignment.
    pub align: u32,
    /// Its size; 0 for what the launch sizes (`.extern`).
    pub size: u32,
    /// Does it begin where the launch's dynamic shared memory does?
    pub dynamic: bool,
}

/// More than any variable has.
const MAX_BYTES: u64 = 1 << 30;

/// A variable's size in bytes (0 if a dimension is open and nothing initialises it) and alignment.
pub(super) fn layout(source: &str, v: &Variable<'_>) -> Result<(u64, u64), PtxError> {
    let fail = |message: &str| Err(v.span.error(source, message));
    let Some(ty) = element(v) else { return fail("a variable of an unknown type") };
    let element = u64::from(ty.bytes()) * u64::from(v.vector);
    let mut count = 1u64;
    for (i, dim) in v.dims.iter().enumerate() {
        count = match dim {
            Some(n) => count.saturating_mul(*n),
            None if i > 0 => return fail("only the first dimension may be open"),
            None => (v.init.len() as u64).div_ceil(u64::from(v.vector)),
        };
    }
    let size = element.saturating_mul(count);
    if size > MAX_BYTES {
        return fail("a variable of more than 1 GiB");
    }
    Ok((size, v.align.unwrap_or(element.next_power_of_two())))
}

fn element(v: &Variable<'_>) -> Option<Type> {
    Type::parse(v.ty.trim_start_matches('.')).filter(|&t| t != Type::Pred)
}

/// A variable's bytes and the addresses in them. `symbols` has all variables of the module.
pub(super) fn initial(
    source: &str,
    v: &Variable<'_>,
    symbols: &HashMap<&str, Symbol>,
) -> Result<(Vec<u8>, Vec<Relocation>), PtxError> {
    let fail = |message: String| Err(v.span.error(source, message));
    let (size, _) = layout(source, v)?;
    let (mut bytes, mut relocations) = (vec![0u8; size as usize], vec![]);
    let ty = element(v).expect("checked by `layout`");
    let width = ty.bytes() as usize;
    for (i, init) in v.init.iter().enumerate() {
        let Some(place) = bytes.get_mut(i * width..(i + 1) * width) else {
            return fail("more initial values than elements".into());
        };
        let bits = match *init {
            Init::Int(x) if ty == Type::F32 => u64::from((x as i64 as f32).to_bits()),
            Init::Int(x) if ty == Type::F64 => (x as i64 as f64).to_bits(),
            Init::Int(x) => x,
            Init::F32(x) if ty == Type::F64 => f64::from(f32::from_bits(x)).to_bits(),
            Init::F32(x) => u64::from(x),
            Init::F64(x) if ty == Type::F32 => u64::from((f64::from_bits(x) as f32).to_bits()),
            Init::F64(x) => x,
            Init::Symbol { name, offset, generic } => match symbols.get(name) {
                // Global addresses are generic addresses.
                Some(&Symbol::Global(global)) => {
                    relocations.push(Relocation {
                        at: (i * width) as u32,
                        bytes: width as u32,
                        global,
                        offset,
                    });
                    0
                }
                Some(&Symbol::Const(at)) => {
                    let base = if generic { window::CONST } else { 0 };
                    (base + u64::from(at)).wrapping_add_signed(offset)
                }
                _ => return fail(format!("`{name}` has no address that an initial value could take")),
            },
        };
        place.copy_from_slice(&bits.to_le_bytes()[..width.min(8)]);
    }
    Ok((bytes, relocations))
}
