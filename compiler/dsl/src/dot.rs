//! Matrix products of tiles.
//!
//! The accumulator's type is in the source: [`DotElem::Acc`] by default, or that of `acc`. The products of f32 tiles are IEEE
//! f32 unless `.tf32()` follows the dot.

use std::panic::Location;

use tegula_ir::element::{Element, bf16, f8e4m3, f8e5m2, f16};
use tegula_ir::op::{DotPrecision, Literal};
use tegula_ir::{Opcode, Shape, Type};

use crate::broadcast::with_origins;
use crate::diagnostic::Diagnostic;
use crate::session::{self, emit_value};
use crate::tile::Tile;

/// Element types whose tiles can be multiplied.
#[diagnostic::on_unimplemented(
    message = "tiles of `{Self}` have no dot",
    note = "dots take f64, f32, f16, bf16, f8e4m3, f8e5m2, i8 and u8; `.cast()` to one of them"
)]
pub trait DotElem: DotInto<Self::Acc> {
    /// The accumulator's element type.
    type Acc: Element;
}

/// Element types whose products can be summed in `C`.
#[diagnostic::on_unimplemented(message = "a dot of `{Self}` tiles cannot be accumulated in `{C}`")]
pub trait DotInto<C: Element>: Element {}

macro_rules! dot_types {
    ($($operand:ty => $acc:ty),+) => {$(
        impl DotElem for $operand {
            type Acc = $acc;
        }
        impl DotInto<$acc> for $operand {}
    )+};
}

dot_types!(f64 => f64, f32 => f32, f16 => f32, bf16 => f32, i8 => i32, u8 => i32, f8e4m3 => f32, f8e5m2 => f32);
impl DotInto<f16> for f16 {}

/// a · b, accumulated from zero in [`DotElem::Acc`]: `[m, k]` by `[k, n]` gives `[m, n]`, and with a leading batch dimension `[b, m, k]` by `[b, k, n]` gives `[b, m, n]`.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let (a, b) = (zeros::<bf16>([16, 32]), zeros::<bf16>([32, 64]));
/// let c = dot(a, b); // of bf16: in f32
/// let d = dot(a.cast::<f32>(), b.cast::<f32>()).tf32();
/// # }).unwrap();
/// ```
#[track_caller]
pub fn dot<A: DotElem>(a: Tile<A>, b: Tile<A>) -> Tile<A::Acc> {
    product(a, b, None)
}

/// a · b + acc, in the type of `acc`.
///
/// ```
/// # use tegula_dsl::{Argument, prelude::*};
/// # tegula_dsl::stage("k", Default::default(), || {
/// # let (a, b) = (zeros::<f16>([16, 32]), zeros::<f16>([32, 64]));
/// let c: Tile<f16> = dot_acc(a, b, zeros([16, 64]));
/// # }).unwrap();
/// ```
#[track_caller]
pub fn dot_acc<A: DotInto<C>, C: Element>(a: Tile<A>, b: Tile<A>, acc: Tile<C>) -> Tile<C> {
    product(a, b, Some(acc))
}

#[track_caller]
fn product<A: DotInto<C>, C: Element>(a: Tile<A>, b: Tile<A>, acc: Option<Tile<C>>) -> Tile<C> {
    let (sa, sb) = (a.shape(), b.shape());
    let about = [a.value(), b.value()];
    let Some(shape) = product_shape(sa, sb) else {
        session::report(&about, with_origins(operand_fault(sa, sb, Location::caller()), &about));
        let like = acc.map_or(sa, Tile::shape);
        return Tile::from_value(session::poison(Type::tile(C::ELEM, like)));
    };
    let ty = Type::tile(C::ELEM, shape);
    let acc = match acc {
        Some(acc) if acc.shape() == shape => acc.value(),
        Some(acc) => {
            let found = acc.shape();
            let fault = Diagnostic::at(
                format!("a dot of shapes {sa} and {sb} gives {shape}, but its accumulator has shape {found}"),
                Location::caller(),
            );
            session::report(
                &[a.value(), b.value(), acc.value()],
                with_origins(fault, &[a.value(), b.value(), acc.value()]),
            );
            return Tile::from_value(session::poison(ty));
        }
        None => {
            let zero = if C::ELEM.is_float() { Literal::float(0.0) } else { Literal::Int(0) };
            emit_value(Opcode::Const(zero), &[], ty)
        }
    };
    Tile::from_value(emit_value(Opcode::Dot(DotPrecision::Ieee), &[a.value(), b.value(), acc], ty))
}

/// The shape of a product, if there is one.
fn product_shape(a: Shape, b: Shape) -> Option<Shape> {
    match (a.dims(), b.dims()) {
        (&[m, k], &[l, n]) if k == l => Some(Shape::new(&[m, n])),
        (&[batch, m, k], &[other, l, n]) if batch == other && k == l => Some(Shape::new(&[batch, m, n])),
        _ => None,
    }
}

fn operand_fault(a: Shape, b: Shape, caller: &Location<'_>) -> Diagnostic {
    let fault = Diagnostic::at(format!("shapes {a} and {b} have no dot"), caller)
        .note("a dot is of [m, k] and [k, n], or of [b, m, k] and [b, k, n]");
    if b.rank() >= 2 {
        let rank = b.rank() as u32;
        let mut perm: Vec<u32> = (0..rank).collect();
        perm.swap(b.rank() - 2, b.rank() - 1);
        if product_shape(a, b.permute(&perm)).is_some() {
            return fault.help("insert `.trans()` after the right operand");
        }
    }
    match (a.rank(), b.rank()) {
        (1, 2) => fault.help("insert `.expand(0)` after the left operand to make it a row"),
        (2, 1) => fault.help("insert `.expand(1)` after the right operand to make it a column"),
        _ => fault,
    }
}
