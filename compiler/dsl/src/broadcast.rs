//! Implicit broadcasting: NumPy's rule, aligned at the last dimension.

use std::panic::Location;

use smallvec::SmallVec;
use tegula_ir::{Opcode, Shape, Value};

use crate::diagnostic::Diagnostic;
use crate::session::{self, emit_value};

/// The shape of a tile value.
#[track_caller]
pub(crate) fn shape_of(value: Value) -> Shape {
    session::ty(value).shape().expect("only tiles are broadcast")
}

/// Stretches a value to `shape`, which it must broadcast to.
#[track_caller]
pub(crate) fn stretch(value: Value, shape: Shape) -> Value {
    let ty = session::ty(value);
    let mut from = shape_of(value);
    let mut value = value;
    // A scalar stretches to any shape at once; other ranks are made equal by leading dimensions of extent 1.
    while from.rank() != 0 && from.rank() < shape.rank() {
        from = from.insert(0, 1);
        value = emit_value(Opcode::Expand { axis: 0 }, &[value], ty.with_shape(from));
    }
    if from == shape { value } else { emit_value(Opcode::Broadcast, &[value], ty.with_shape(shape)) }
}

/// Stretches all values to their common shape. Without one, reports that and gives poison of the largest.
#[track_caller]
pub(crate) fn unify(operation: &str, values: &[Value]) -> SmallVec<[Value; 4]> {
    let shapes: SmallVec<[Shape; 4]> = values.iter().map(|&v| shape_of(v)).collect();
    let common = shapes.iter().try_fold(Shape::SCALAR, |all, s| all.broadcast(s));
    match common {
        Some(shape) => {
            // A loop, because closures do not pass the caller's place on.
            let mut stretched = SmallVec::new();
            for &v in values {
                stretched.push(stretch(v, shape));
            }
            stretched
        }
        None => {
            session::report(values, mismatch(operation, values, &shapes, Location::caller()));
            let largest = *shapes.iter().max_by_key(|s| (s.rank(), s.num_elements())).expect("operands");
            values.iter().map(|&v| session::poison(session::ty(v).with_shape(largest))).collect()
        }
    }
}

#[track_caller]
fn mismatch(operation: &str, values: &[Value], shapes: &[Shape], caller: &Location<'_>) -> Diagnostic {
    let listed: Vec<String> = shapes.iter().filter(|s| s.rank() > 0).map(|s| s.to_string()).collect();
    let listed = listed.join(" and ");
    let mut fault = Diagnostic::at(format!("tiles of shapes {listed} do not broadcast together"), caller)
        .label(format!("{operation} of {listed}"))
        .note("shapes are aligned at their last dimension; extents must be equal, or one of them 1");
    fault = with_origins(fault, values);
    match expansion(shapes) {
        Some(help) => fault.help(help),
        None => fault,
    }
}

/// Shows where the values that have dimensions were made, and which.
#[track_caller]
pub(crate) fn with_origins(mut fault: Diagnostic, values: &[Value]) -> Diagnostic {
    let mut shown = vec![fault.primary.loc.clone()];
    for &value in values {
        let shape = shape_of(value);
        if let Some(made) = session::origin(value)
            && shape.rank() > 0
            && !shown.contains(&made)
        {
            fault = fault.also(made.clone(), format!("this has shape {shape}"));
            shown.push(made);
        }
    }
    fault
}

/// An `.expand(axis)` that would make two shapes agree.
fn expansion(shapes: &[Shape]) -> Option<String> {
    let [left, right] = shapes else { return None };
    let (narrow, wide, side) =
        if left.rank() < right.rank() { (left, right, "left") } else { (right, left, "right") };
    if narrow.rank() == 0 || narrow.rank() >= tegula_ir::types::MAX_RANK {
        return None;
    }
    (1..=narrow.rank()).map(|axis| (axis, narrow.insert(axis, 1))).find_map(|(axis, expanded)| {
        // Only where the result is the shape that the wide operand has: anything else would be a guess.
        (expanded.broadcast(wide) == Some(*wide))
            .then(|| format!("insert `.expand({axis})` after the {side} operand, which makes it {expanded}"))
    })
}
