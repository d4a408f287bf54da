//! Decoding of `mma`, `wgmma`, `ldmatrix`, `stmatrix`, `movmatrix`.

use super::function::Decoder;
use super::modifiers::Modifiers;
use super::op::{Addr, Op, PredIn, Slot, Slots};
use super::types::{Space, Type};
use crate::error::PtxError;
use crate::matrix::{Accumulator, BitOperation, Element, Major, MatrixCount, Mma, Wgmma};
use crate::ptx::ast::{Instruction, Operand};

/// A decoded matrix instruction. All are executed by whole warps, wgmma's by whole warpgroups.
#[derive(Clone, Debug)]
pub enum MatrixOp {
    /// `mma.sync`
    Mma {
        /// What it computes.
        mma: Mma,
        /// The fragments.
        a: Slots,
        /// B.
        b: Slots,
        /// C.
        c: Slots,
        /// D.
        d: Slots,
    },
    /// `ldmatrix`
    Load {
        /// How many matrices, and the destinations, one each.
        count: MatrixCount,
        /// One each.
        d: Slots,
        /// `.trans`
        transposed: bool,
        /// The row's address in each lane.
        addr: Addr,
        /// Shared, or generic.
        space: Space,
    },
    /// `stmatrix`
    Store {
        /// How many matrices.
        count: MatrixCount,
        /// The sources, one each.
        a: Slots,
        /// `.trans`
        transposed: bool,
        /// The row's address in each lane.
        addr: Addr,
        /// Shared, or generic.
        space: Space,
    },
    /// `movmatrix`
    Move {
        /// The destination.
        d: Slot,
        /// The source.
        a: Slot,
    },
    /// `wgmma.mma_async`
    Wgmma {
        /// What it computes.
        wgmma: Wgmma,
        /// The accumulators.
        d: Slots,
        /// Where A is.
        a: WgmmaSource,
        /// The descriptor of B.
        b: Slot,
        /// Adds to D rather than overwriting it.
        scale_d: PredIn,
    },
    /// `wgmma.fence`
    WgmmaFence,
    /// `wgmma.commit_group`
    WgmmaCommit,
    /// `wgmma.wait_group`
    WgmmaWait {
        /// So many of the latest groups may be pending.
        pending: u32,
    },
}

/// Where wgmma's A comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WgmmaSource {
    /// Shared memory: the slot of the descriptor.
    Descriptor(Slot),
    /// Registers.
    Registers(Slots),
}

const ELEMENTS: [(&str, Element); 11] = [
    ("f16", Element::F16),
    ("bf16", Element::Bf16),
    ("tf32", Element::Tf32),
    ("f64", Element::F64),
    ("e4m3", Element::E4m3),
    ("e5m2", Element::E5m2),
    ("s8", Element::S8),
    ("u8", Element::U8),
    ("s4", Element::S4),
    ("u4", Element::U4),
    ("b1", Element::B1),
];

const BIT_OPERATIONS: [(&str, BitOperation); 2] = [("and", BitOperation::And), ("xor", BitOperation::Xor)];

/// Decodes the instruction if it is one of this family.
pub(super) fn decode<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<Option<Op>, PtxError> {
    let op = match inst.opcode {
        "mma" => mma(decoder, inst, mods)?,
        "wgmma" => wgmma(decoder, inst, mods)?,
        "ldmatrix" => exchange(decoder, inst, mods, true)?,
        "stmatrix" => exchange(decoder, inst, mods, false)?,
        "movmatrix" => {
            words(decoder, mods, &["sync", "aligned", "m8n8", "trans", "b16"])?;
            let [d, a] = decoder.operands(inst)?;
            MatrixOp::Move { d: decoder.dest(d, Type::B32)?, a: decoder.source(a, Type::B32)? }
        }
        _ => return Ok(None),
    };
    Ok(Some(Op::Matrix(Box::new(op))))
}

/// Takes these modifiers, all of them.
pub(super) fn words(
    decoder: &Decoder<'_, '_>,
    mods: &mut Modifiers<'_, '_>,
    expected: &[&str],
) -> Result<(), PtxError> {
    expected.iter().try_for_each(|&word| decoder.at(mods.expect(&[(word, ())])))
}

/// The numbers of a shape modifier: `m16n8k16`.
fn shape(decoder: &Decoder<'_, '_>, mods: &mut Modifiers<'_, '_>) -> Result<(u32, u32, u32), PtxError> {
    let word = mods.take_any().unwrap_or("");
    let parse = || {
        let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
    };
    match parse() {
        Some(shape) => Ok(shape),
        None => decoder.error(format!("`.{word}` instead of a shape")),
    }
}

fn accumulator(
    decoder: &Decoder<'_, '_>,
    mods: &mut Modifiers<'_, '_>,
    satfinite: bool,
) -> Result<Accumulator, PtxError> {
    let table = [
        ("f32", Accumulator::F32),
        ("f16", Accumulator::F16),
        ("f64", Accumulator::F64),
        ("s32", Accumulator::S32 { satfinite }),
    ];
    let accumulator = decoder.at(mods.expect(&table))?;
    if satfinite && !matches!(accumulator, Accumulator::S32 { .. }) {
        return decoder.error("`.satfinite` is for integers");
    }
    Ok(accumulator)
}

fn bit_operation(
    decoder: &Decoder<'_, '_>,
    mods: &mut Modifiers<'_, '_>,
    element: Element,
) -> Result<BitOperation, PtxError> {
    if element != Element::B1 {
        return Ok(BitOperation::And);
    }
    let operation = decoder.at(mods.expect(&BIT_OPERATIONS))?;
    words(decoder, mods, &["popc"])?;
    Ok(operation)
}

/// The type of a fragment's registers.
fn register(element: Element) -> Type {
    if element == Element::F64 { Type::B64 } else { Type::B32 }
}

fn accumulator_register(accumulator: Accumulator) -> Type {
    if accumulator == Accumulator::F64 { Type::B64 } else { Type::B32 }
}

fn sources<'a>(
    decoder: &mut Decoder<'a, '_>,
    operand: &Operand<'a>,
    ty: Type,
    count: u32,
) -> Result<Slots, PtxError> {
    let elements = Decoder::elements(operand);
    check_count(decoder, elements.len(), count)?;
    let slots = elements.iter().map(|e| decoder.source(e, ty)).collect::<Result<Vec<_>, _>>()?;
    Ok(decoder.list(&slots))
}

fn destinations<'a>(
    decoder: &mut Decoder<'a, '_>,
    operand: &Operand<'a>,
    ty: Type,
    count: u32,
) -> Result<Slots, PtxError> {
    let elements = Decoder::elements(operand);
    check_count(decoder, elements.len(), count)?;
    let slots = elements.iter().map(|e| decoder.dest(e, ty)).collect::<Result<Vec<_>, _>>()?;
    Ok(decoder.list(&slots))
}

fn check_count(decoder: &Decoder<'_, '_>, found: usize, count: u32) -> Result<(), PtxError> {
    if found == count as usize {
        return Ok(());
    }
    decoder.error(format!("{found} registers where the fragment has {count}"))
}

fn mma<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<MatrixOp, PtxError> {
    words(decoder, mods, &["sync", "aligned"])?;
    let shape = shape(decoder, mods)?;
    words(decoder, mods, &["row", "col"])?;
    let satfinite = mods.take("satfinite");
    let result = accumulator(decoder, mods, satfinite)?;
    let [a_element, b_element] = [decoder.at(mods.expect(&ELEMENTS))?, decoder.at(mods.expect(&ELEMENTS))?];
    if accumulator(decoder, mods, satfinite)? != result {
        return decoder.error("C and D have different types");
    }
    let bits = bit_operation(decoder, mods, a_element)?;
    let mma = decoder.at(Mma::new(shape, a_element, b_element, result, bits).map_err(|e| e.0))?;
    let [d, a, b, c] = decoder.operands(inst)?;
    let [a_count, b_count, c_count] = mma.registers();
    let wide = accumulator_register(result);
    Ok(MatrixOp::Mma {
        mma,
        a: sources(decoder, a, register(a_element), a_count)?,
        b: sources(decoder, b, register(b_element), b_count)?,
        c: sources(decoder, c, wide, c_count)?,
        d: destinations(decoder, d, wide, c_count)?,
    })
}

fn wgmma<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
) -> Result<MatrixOp, PtxError> {
    match mods.take_any() {
        Some("mma_async") => {}
        Some("fence") => {
            words(decoder, mods, &["sync", "aligned"])?;
            let [] = decoder.operands(inst)?;
            return Ok(MatrixOp::WgmmaFence);
        }
        Some("commit_group") => {
            words(decoder, mods, &["sync", "aligned"])?;
            let [] = decoder.operands(inst)?;
            return Ok(MatrixOp::WgmmaCommit);
        }
        Some("wait_group") => {
            words(decoder, mods, &["sync", "aligned"])?;
            let [pending] = decoder.operands(inst)?;
            return Ok(MatrixOp::WgmmaWait { pending: immediate(decoder, pending, 0..=7)? as u32 });
        }
        other => return decoder.error(format!("unknown modifier `.{}` of wgmma", other.unwrap_or(""))),
    }
    words(decoder, mods, &["sync", "aligned"])?;
    let (m, n, k) = shape(decoder, mods)?;
    let satfinite = mods.take("satfinite");
    let result = accumulator(decoder, mods, satfinite)?;
    let [a_element, b_element] = [decoder.at(mods.expect(&ELEMENTS))?, decoder.at(mods.expect(&ELEMENTS))?];
    if bit_operation(decoder, mods, a_element)? == BitOperation::Xor || m != 64 {
        return decoder.error("there is no such wgmma");
    }
    let [d, a, b, scale_d, rest @ ..] = inst.operands.as_slice() else {
        return decoder.error("wgmma takes at least 4 operands");
    };
    let in_registers = matches!(a, Operand::Vector(_));
    // imm-scale-a and -b for floats, then imm-trans of each operand in shared memory for 16-bit elements.
    let scales = if a_element.is_integer() { 0 } else { 2 };
    let transposes = if a_element.bits() == 16 { 2 - in_registers as usize } else { 0 };
    if rest.len() != scales + transposes {
        return decoder.error(format!("{} immediates where wgmma has {}", rest.len(), scales + transposes));
    }
    let mut negate = [false; 2];
    for (negate, operand) in negate.iter_mut().zip(&rest[..scales]) {
        *negate = match immediate(decoder, operand, -1..=1)? {
            0 => return decoder.error("imm-scale is 1 or -1"),
            sign => sign < 0,
        };
    }
    let mut major = [Major::K; 2];
    for (major, operand) in major[2 - transposes.max(1)..].iter_mut().zip(&rest[scales..]) {
        *major = if immediate(decoder, operand, 0..=1)? == 1 { Major::Mn } else { Major::K };
    }
    let wgmma =
        decoder.at(Wgmma::new((n, k), a_element, b_element, result, negate, major).map_err(|e| e.0))?;
    let a = if in_registers {
        WgmmaSource::Registers(sources(decoder, a, Type::B32, wgmma.a_registers())?)
    } else {
        WgmmaSource::Descriptor(decoder.source(a, Type::B64)?)
    };
    Ok(MatrixOp::Wgmma {
        wgmma,
        d: destinations(decoder, d, Type::B32, wgmma.accumulator_registers())?,
        a,
        b: decoder.source(b, Type::B64)?,
        scale_d: decoder.pred_source(scale_d)?,
    })
}

/// An immediate in a range.
pub(super) fn immediate(
    decoder: &Decoder<'_, '_>,
    operand: &Operand<'_>,
    range: std::ops::RangeInclusive<i64>,
) -> Result<i64, PtxError> {
    match operand {
        // Immediates may be written as 32-bit or as 64-bit two's complement.
        Operand::Int(value) if range.contains(&(*value as i64)) => Ok(*value as i64),
        Operand::Int(value) if range.contains(&(*value as u32 as i32 as i64)) && *value >> 32 == 0 => {
            Ok(*value as u32 as i32 as i64)
        }
        _ => decoder.error(format!("an immediate from {} to {} is needed", range.start(), range.end())),
    }
}

fn exchange<'a>(
    decoder: &mut Decoder<'a, '_>,
    inst: &Instruction<'a>,
    mods: &mut Modifiers<'_, 'a>,
    load: bool,
) -> Result<MatrixOp, PtxError> {
    words(decoder, mods, &["sync", "aligned", "m8n8"])?;
    let count = decoder.at(mods.expect(&[
        ("x1", MatrixCount::X1),
        ("x2", MatrixCount::X2),
        ("x4", MatrixCount::X4),
    ]))?;
    let transposed = mods.take("trans");
    let space = mods.space();
    words(decoder, mods, &["b16"])?;
    if !matches!(space, Space::Shared | Space::Generic) {
        return decoder.error("matrices are in shared memory");
    }
    let [first, second] = decoder.operands(inst)?;
    Ok(if load {
        let d = destinations(decoder, first, Type::B32, count as u32)?;
        MatrixOp::Load { count, d, transposed, addr: decoder.address(second)?, space }
    } else {
        let a = sources(decoder, second, Type::B32, count as u32)?;
        MatrixOp::Store { count, a, transposed, addr: decoder.address(first)?, space }
    })
}
