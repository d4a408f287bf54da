//! What is left after the pass, and where.

use super::super::run;
use crate::builder::Builder;
use crate::kernel::Kernel;
use crate::op::{BinaryOp, Opcode, UnaryOp};
use crate::target::GpuFeatures;
use crate::types::{Elem, Shape, Type};
use crate::verify::verify;
use smallvec::smallvec;

const FUNCTIONS: [UnaryOp; 11] = [
    UnaryOp::Exp,
    UnaryOp::Exp2,
    UnaryOp::Exp2Ftz,
    UnaryOp::Log,
    UnaryOp::Log2,
    UnaryOp::Rsqrt,
    UnaryOp::Sin,
    UnaryOp::Cos,
    UnaryOp::Tanh,
    UnaryOp::Erf,
    UnaryOp::Sigmoid,
];

/// The functions left in a kernel, with the types they are on.
fn functions(kernel: &Kernel) -> Vec<(UnaryOp, Elem)> {
    let mut left = Vec::new();
    kernel.walk(kernel.body, &mut |op| {
        if let Opcode::Unary(f) = kernel.ops[op].opcode
            && FUNCTIONS.contains(&f)
        {
            left.push((f, kernel.ty(kernel.result(op)).value_elem().expect("a value")));
        }
    });
    left
}

#[test]
fn only_hardware_functions_on_f32_are_left_on_tiles_and_in_regions() {
    for elem in [Elem::F16, Elem::BF16, Elem::F32, Elem::F64] {
        let mut kernel = Kernel::new("shapes");
        let ty = Type::tile(elem, Shape::new(&[4, 8]));
        let body = kernel.body;
        let mut b = Builder::at_end(&mut kernel, body);
        let mut x = b.constant(crate::op::Literal::float(0.5), ty);
        for f in FUNCTIONS {
            x = b.unary(f, x);
        }
        let folded = b.reduce(1, &[x], |b, args| {
            let e = b.unary(UnaryOp::Exp, args[1]);
            let sum = b.binary(BinaryOp::Add, args[0], e);
            smallvec![b.unary(UnaryOp::Log, sum)]
        });
        b.effect(Opcode::Print { message: "x".into() }, &folded);
        assert!(verify(&kernel).is_ok());
        assert!(run(&mut kernel, &GpuFeatures::SM_80));
        verify(&kernel).unwrap_or_else(|e| panic!("{elem}: {}", e[0]));
        for (f, on) in functions(&kernel) {
            let hardware = matches!(f, UnaryOp::Exp2 | UnaryOp::Exp2Ftz | UnaryOp::Rsqrt);
            assert!(hardware && on == Elem::F32, "{f:?} on {on} is left of {elem}");
        }
        assert!(!run(&mut kernel, &GpuFeatures::SM_80), "a second run finds nothing to do");
    }
}
