//! The expansions against references, on the stated error bounds, special values and structure.

mod accuracy;
mod angles;
mod casts;
mod double;
mod eval;
mod interpreter;
mod structure;

use super::run;
use crate::builder::Builder;
use crate::kernel::{Kernel, Value};
use crate::op::Opcode;
use crate::target::GpuFeatures;
use crate::types::{Elem, Type};

/// A kernel of one scalar parameter (of bytes for 4-bit types, which are no parameters), whose last operation takes what `f` makes of it; legalized and verified.
fn legalized(elem: Elem, gpu: &GpuFeatures, f: impl FnOnce(&mut Builder<'_>, Value) -> Value) -> Kernel {
    let mut kernel = Kernel::new("test");
    let narrow = elem.bits() == 4;
    let param = kernel.add_param("x", Type::scalar(if narrow { Elem::U8 } else { elem }));
    let body = kernel.body;
    let mut b = Builder::at_end(&mut kernel, body);
    let x = if narrow {
        let bits = b.cast(param, Elem::U4);
        b.value(Opcode::Bitcast, &[bits], Type::scalar(elem))
    } else {
        param
    };
    let y = f(&mut b, x);
    b.effect(Opcode::Print { message: String::new() }, &[y]);
    run(&mut kernel, gpu);
    if let Err(errors) = crate::verify::verify(&kernel) {
        panic!("{}", errors[0]);
    }
    kernel
}
