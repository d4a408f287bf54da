//! Faults that no text can express; the others are in `tests/filetests/verify`.

use super::verify;
use crate::builder::Builder;
use crate::kernel::{Kernel, Op};
use crate::op::{LoopHints, Opcode, UnaryOp};
use crate::text::parse_kernel;
use crate::types::{Elem, Type};

const NESTED: &str = "kernel @k(%x: f32, %c: i1) {
  %0 = if %c : f32 {
    %1 = neg %x : f32
    yield %1
  } else {
    %2 = abs %x : f32
    yield %2
  }
  %3 = exp %0 : f32
}";

fn nested() -> Kernel {
    parse_kernel(NESTED).unwrap()
}

/// The operation with this mnemonic.
fn find(kernel: &Kernel, mnemonic: &str) -> Op {
    let mut found = None;
    kernel.walk(kernel.body, &mut |op| {
        if kernel.ops[op].opcode.mnemonic() == mnemonic {
            found = Some(op);
        }
    });
    found.unwrap()
}

fn messages(kernel: &Kernel) -> Vec<String> {
    verify(kernel).expect_err("a fault").into_iter().map(|e| e.message).collect()
}

#[test]
fn values_are_visible_from_definition_to_end_of_block() {
    assert_eq!(verify(&nested()), Ok(()));
    let from_sibling = {
        let mut k = nested();
        let (neg, abs) = (find(&k, "neg"), find(&k, "abs"));
        k.ops[abs].operands[0] = k.result(neg);
        k
    };
    assert_eq!(messages(&from_sibling), ["`abs`: operand 0 is not visible here"]);
    let before_definition = {
        let mut k = nested();
        let (neg, exp) = (find(&k, "neg"), find(&k, "exp"));
        k.ops[neg].operands[0] = k.result(exp);
        k
    };
    assert_eq!(messages(&before_definition), ["`neg`: operand 0 is not visible here"]);
    let own_result = {
        let mut k = nested();
        let exp = find(&k, "exp");
        k.ops[exp].operands[0] = k.result(exp);
        k
    };
    assert_eq!(messages(&own_result), ["`exp`: operand 0 is not visible here"]);
}

#[test]
fn the_tree_has_everything_once() {
    let mut twice = nested();
    let exp = find(&twice, "exp");
    let body = twice.body;
    twice.append_op(body, exp);
    assert_eq!(messages(&twice), ["`exp`: stands in two places"]);

    let mut shared_region = nested();
    let branch = find(&shared_region, "if");
    shared_region.ops[branch].regions[1] = shared_region.ops[branch].regions[0];
    assert_eq!(messages(&shared_region), ["block1 is a region twice"]);

    let mut cycle = nested();
    let branch = find(&cycle, "if");
    cycle.ops[branch].regions[1] = cycle.body;
    assert!(messages(&cycle).contains(&"block0 is a region twice".to_owned()));
}

#[test]
fn results_belong_to_their_operations() {
    let mut k = nested();
    let (neg, abs) = (find(&k, "neg"), find(&k, "abs"));
    k.ops[abs].results[0] = k.result(neg);
    assert!(messages(&k).contains(&"`abs`: result 0 is defined elsewhere".to_owned()));
}

#[test]
fn regions_take_what_the_operation_gives() {
    let mut k = Kernel::new("k");
    let n = k.add_param("n", Type::scalar(Elem::I32));
    let body = k.body;
    let mut b = Builder::at_end(&mut k, body);
    let region = b.region([Type::scalar(Elem::I64)], Opcode::Yield, |_, _| Default::default());
    let op = b.effect(Opcode::For(LoopHints::default()), &[n, n, n]);
    k.ops[op].regions.push(region);
    assert_eq!(messages(&k), ["`for`: a region takes `i64`, but should take `i32`"]);
    k.ops[op].regions.clear();
    assert_eq!(messages(&k), ["`for`: has 0 regions instead of 1"]);
}

#[test]
fn the_body_takes_the_parameters() {
    let mut k = Kernel::new("k");
    k.add_param("n", Type::scalar(Elem::I32));
    k.params.clear();
    assert_eq!(messages(&k), ["the arguments of the body are not the parameters"]);
}

#[test]
fn nesting_has_a_limit() {
    let mut k = Kernel::new("k");
    let c = k.add_param("c", Type::scalar(Elem::I1));
    let mut block = k.body;
    for _ in 0..1000 {
        let loc = k.unknown_loc();
        let op = k.make_op(Opcode::If, [c], [], loc);
        k.append_op(block, op);
        let regions = [k.add_block(), k.add_block()];
        k.ops[op].regions.extend(regions);
        block = regions[0];
    }
    assert!(messages(&k).contains(&"regions are nested more than 64 deep".to_owned()));
}

#[test]
fn one_operation_can_be_asked_about_before_it_is_built() {
    let f32 = Type::scalar(Elem::F32);
    assert_eq!(super::check_types(&Opcode::Unary(UnaryOp::Exp), &[f32], &[f32]), Ok(()));
    assert!(super::check_types(&Opcode::Unary(UnaryOp::Exp), &[], &[f32]).is_err());
}
