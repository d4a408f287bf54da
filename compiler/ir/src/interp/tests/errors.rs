//! The words of every error.

use expect_test::{Expect, expect};

use super::*;
use crate::op::{Assumption, AtomicOp, BinaryOp, CmpOp, MemOrder, MemScope, Padding};

/// Runs over a grid with one buffer of `bytes` as argument 0; gives the error's text.
fn fails(
    param: Type,
    bytes: usize,
    grid: u32,
    arg: impl Fn(u64) -> Arg,
    build: impl FnOnce(&mut Builder<'_>, Value),
    expected: Expect,
) {
    let memory = Memory::new();
    let a = memory.allocate(bytes).unwrap();
    let mut kernel = Kernel::new("scale");
    let p = kernel.add_param("x", param);
    let body = kernel.body;
    let mut b = Builder::at_end(&mut kernel, body);
    at_line(&mut b, 7);
    build(&mut b, p);
    let options = Options { check_races: true, ..Options::default() };
    let serial =
        run(&kernel, &Launch { grid: [grid, 1, 1] }, &[arg(a.address())], &memory, &options).unwrap_err();
    expected.assert_eq(&serial.to_string());
    if !serial.to_string().contains("race") {
        let options = Options::default();
        let parallel =
            run(&kernel, &Launch { grid: [grid, 1, 1] }, &[arg(a.address())], &memory, &options).unwrap_err();
        assert_eq!(serial.to_string(), parallel.to_string());
    }
}

fn ptr(address: u64) -> Arg {
    Arg::Ptr { address }
}

/// Pointers to `n` elements for each program, one program's after another's.
fn block(b: &mut Builder<'_>, p: Value, n: u32) -> Value {
    let id = b.value(Opcode::ProgramId(0), &[], Type::scalar(Elem::I32));
    let n_value = b.int(n as i64, Elem::I32);
    let start = b.binary(BinaryOp::Mul, id, n_value);
    let p = b.ptr_add(p, start);
    pointers(b, p, Shape::new(&[n]))
}

#[test]
fn out_of_bounds_load() {
    fails(
        Type::ptr(Elem::F32),
        4096,
        64,
        ptr,
        |b, p| {
            let at = block(b, p, 256);
            at_line(b, 12);
            load(b, at, Elem::F32);
        },
        expect![[r#"
        kernel `scale`: out of bounds: reads 4 bytes at element 1024 of a buffer of 1024 elements
          at kernel.rs:12:9, in program (4, 0, 0), tile element [0]"#]],
    );
}

#[test]
fn out_of_bounds_store_in_the_middle_of_a_tile() {
    fails(
        Type::ptr(Elem::F16),
        200,
        1,
        ptr,
        |b, p| {
            let at = pointers(b, p, Shape::new(&[16, 8]));
            let zero =
                b.constant(crate::op::Literal::float(0.0), Type::tile(Elem::F16, Shape::new(&[16, 8])));
            store(b, at, zero);
        },
        expect![[r#"
        kernel `scale`: out of bounds: writes 2 bytes at element 100 of a buffer of 100 elements
          at kernel.rs:7:9, in program (0, 0, 0), tile element [12, 4]"#]],
    );
}

#[test]
fn before_the_buffer_and_nowhere() {
    fails(
        Type::ptr(Elem::I32),
        64,
        1,
        ptr,
        |b, p| {
            let back = b.int(-3, Elem::I32);
            let p = b.ptr_add(p, back);
            load(b, p, Elem::I32);
        },
        expect![[r#"
        kernel `scale`: out of bounds: reads 4 bytes at element -3 of a buffer of 16 elements
          at kernel.rs:7:9, in program (0, 0, 0)"#]],
    );
    fails(
        Type::ptr(Elem::I32),
        64,
        1,
        |_| ptr(16),
        |b, p| {
            load(b, p, Elem::I32);
        },
        expect![[r#"
        kernel `scale`: out of bounds: reads 4 bytes at address 0x10, which is in no buffer
          at kernel.rs:7:9, in program (0, 0, 0)"#]],
    );
}

#[test]
fn misaligned_access() {
    fails(
        Type::ptr(Elem::I32),
        64,
        1,
        |a| ptr(a + 6),
        |b, p| {
            let order =
                Opcode::AtomicRmw { op: AtomicOp::Add, order: MemOrder::Relaxed, scope: MemScope::Gpu };
            let one = b.int(1, Elem::I32);
            b.value(order, &[p, one], Type::scalar(Elem::I32));
        },
        expect![[r#"
        kernel `scale`: misaligned: atomically updates 4 bytes at byte 6 of a buffer of 64 bytes
          at kernel.rs:7:9, in program (0, 0, 0)"#]],
    );
}

#[test]
fn a_view_larger_than_its_buffer() {
    let view = |address| Arg::row_major(address, &[4, 8]);
    fails(
        Type::view(Elem::F32, 2, false),
        100,
        1,
        view,
        |b, v| {
            let zero = b.int(0, Elem::I32);
            let ty = Type::tile(Elem::F32, Shape::new(&[8, 8]));
            b.value(
                Opcode::ViewLoad { padding: Padding::Zero, cache: CacheHint::Normal },
                &[v, zero, zero],
                ty,
            );
        },
        expect![[r#"
        kernel `scale`: out of bounds: reads 4 bytes at element 25 of a buffer of 25 elements
          at kernel.rs:7:9, in program (0, 0, 0), tile element [3, 1]"#]],
    );
}

#[test]
fn assertions_and_promises() {
    fails(
        Type::ptr(Elem::I32),
        64,
        8,
        ptr,
        |b, _| {
            let id = b.value(Opcode::ProgramId(0), &[], Type::scalar(Elem::I32));
            let limit = b.int(5, Elem::I32);
            let ok = b.cmp(CmpOp::Lt, id, limit);
            b.effect(Opcode::Assert { message: "too many programs".into() }, &[ok]);
        },
        expect![[r#"
        kernel `scale`: assertion failed: too many programs
          at kernel.rs:7:9, in program (5, 0, 0)"#]],
    );
    fails(
        Type::ptr(Elem::I32),
        64,
        2,
        ptr,
        |b, _| {
            let x = b.iota(6, 4);
            let ty = b.kernel.ty(x);
            b.value(Opcode::Assume(Assumption::MultipleOf(3)), &[x], ty);
        },
        expect![[r#"
        kernel `scale`: broken promise: 7 is not a multiple of 3
          at kernel.rs:7:9, in program (0, 0, 0), tile element [1]"#]],
    );
    fails(
        Type::ptr(Elem::I32),
        64,
        2,
        |a| ptr(a + 8),
        |b, p| {
            let ty = b.kernel.ty(p);
            b.value(Opcode::Assume(Assumption::MultipleOf(4)), &[p], ty);
        },
        expect![[r#"
        kernel `scale`: broken promise: an address is 8 bytes past a multiple of 16
          at kernel.rs:7:9, in program (0, 0, 0)"#]],
    );
    fails(
        Type::ptr(Elem::I32),
        64,
        2,
        ptr,
        |b, _| {
            let x = b.iota(0, 8);
            let two = b.constant(crate::op::Literal::Int(2), b.kernel.ty(x));
            let half = b.binary(BinaryOp::Div, x, two);
            let ty = b.kernel.ty(x);
            b.value(Opcode::Assume(Assumption::Contiguous(4)), &[half], ty);
        },
        expect![[r#"
        kernel `scale`: broken promise: elements are not consecutive in runs of 4
          at kernel.rs:7:9, in program (0, 0, 0), tile element [1]"#]],
    );
}

#[test]
fn two_programs_that_store_to_one_element() {
    fails(
        Type::ptr(Elem::F32),
        64,
        4,
        ptr,
        |b, p| {
            let id = b.value(Opcode::ProgramId(0), &[], Type::scalar(Elem::I32));
            let three = b.int(3, Elem::I32);
            let start = b.binary(BinaryOp::Mul, id, three);
            let p = b.ptr_add(p, start);
            let at = pointers(b, p, Shape::new(&[4]));
            let x = b.constant(crate::op::Literal::float(1.0), Type::tile(Elem::F32, Shape::new(&[4])));
            store(b, at, x);
        },
        expect![[r#"
        kernel `scale`: race: writes element 3 of a buffer of 16 elements, which program (0, 0, 0) has written too
          at kernel.rs:7:9, in program (1, 0, 0), tile element [0]"#]],
    );
}

#[test]
fn a_gather_from_outside_the_tile() {
    let gather = |first: i64| {
        move |b: &mut Builder<'_>, p: Value| {
            let ty = Type::tile(Elem::I32, Shape::new(&[2, 4]));
            let line =
                b.value(Opcode::Iota { start: first as i32 }, &[], Type::tile(Elem::I32, Shape::new(&[4])));
            let index = b.value(Opcode::Reshape, &[line], Type::tile(Elem::I32, Shape::new(&[1, 4])));
            let index = b.broadcast(index, Shape::new(&[2, 4]));
            let source = b.constant(crate::op::Literal::Int(5), ty);
            at_line(b, 9);
            let gathered = b.value(Opcode::Gather { axis: 1 }, &[source, index], ty);
            at_line(b, 10);
            let at = pointers(b, p, Shape::new(&[2, 4]));
            store(b, at, gathered);
        }
    };
    fails(
        Type::ptr(Elem::I32),
        64,
        1,
        ptr,
        gather(2),
        expect![[r#"
            kernel `scale`: out of bounds: gathers element 4 of 4
              at kernel.rs:9:9, in program (0, 0, 0), tile element [0, 2]"#]],
    );
    fails(
        Type::ptr(Elem::I32),
        64,
        1,
        ptr,
        gather(-1),
        expect![[r#"
            kernel `scale`: out of bounds: gathers element -1 of 4
              at kernel.rs:9:9, in program (0, 0, 0), tile element [0, 0]"#]],
    );
}

#[test]
fn arguments_that_do_not_fit() {
    fails(
        Type::ptr(Elem::F32),
        64,
        1,
        |_| Arg::scalar(1.0f32),
        |_, _| {},
        expect![[r#"kernel `scale`: parameter `x` is ptr<f32>, but the argument is f32"#]],
    );
    let one_dimension = |a| Arg::row_major(a, &[4]);
    fails(
        Type::view(Elem::F32, 2, true),
        64,
        1,
        one_dimension,
        |_, _| {},
        expect![[
            r#"kernel `scale`: parameter `x` is view_mut<?x?xf32>, but the argument is a view of 1 dimensions"#
        ]],
    );
}

#[test]
fn what_is_made_for_the_gpu_is_refused() {
    let mut kernel = Kernel::new("k");
    let body = kernel.body;
    let mut b = Builder::at_end(&mut kernel, body);
    at_line(&mut b, 3);
    b.effect(Opcode::Barrier, &[]);
    let message = Prepared::new(&kernel).err().unwrap().to_string();
    expect![[r#"
        kernel `k`: `Barrier` is made by the GPU's scheduling passes; the interpreter runs kernels as written
          at kernel.rs:3:9"#]]
    .assert_eq(&message);
}
