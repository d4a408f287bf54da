//! Tests of the interpreter: kernels made by hand, run, and compared with plain scalar code.

mod chains;
mod control;
mod differential;
mod elementwise;
mod errors;
mod memory;
mod tiles;

use smallvec::SmallVec;

use super::elementwise::{by_width, size_in_buffer};
use super::*;
use crate::builder::Builder;
use crate::kernel::{SourceLoc, Value};
use crate::op::{CacheHint, Opcode};
use crate::types::Shape;

/// A tile of bit patterns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Data {
    pub(super) elem: Elem,
    pub(super) shape: Shape,
    pub(super) bits: Vec<u64>,
}

pub(super) fn data<T: Element>(shape: &[u32], values: &[T]) -> Data {
    let shape = Shape::new(shape);
    assert_eq!(shape.num_elements() as usize, values.len());
    Data { elem: T::ELEM, shape, bits: values.iter().map(|x| x.to_bits64()).collect() }
}

impl Data {
    pub(super) fn values<T: Element>(&self) -> Vec<T> {
        assert_eq!(self.elem, T::ELEM);
        self.bits.iter().map(|&b| T::from_bits64(b)).collect()
    }
}

/// A pseudo-random sequence.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d049bb133111eb);
        x ^ x >> 31
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub(super) fn at_line(b: &mut Builder<'_>, line: u32) {
    b.loc = b.kernel.locs.push(SourceLoc { file: "kernel.rs".into(), line, column: 9 });
}

/// Pointers to consecutive elements.
pub(super) fn pointers(b: &mut Builder<'_>, ptr: Value, shape: Shape) -> Value {
    let n = shape.num_elements() as u32;
    if shape.rank() == 0 {
        return ptr;
    }
    let iota = b.iota(0, n);
    let offsets = b.reshape(iota, shape);
    let base = b.broadcast(ptr, shape);
    b.ptr_add(base, offsets)
}

pub(super) fn load(b: &mut Builder<'_>, pointers: Value, elem: Elem) -> Value {
    let ty = b.kernel.ty(pointers).with_elem(elem);
    b.value(Opcode::Load { cache: CacheHint::Normal }, &[pointers], ty)
}

pub(super) fn store(b: &mut Builder<'_>, pointers: Value, value: Value) {
    b.effect(Opcode::Store { cache: CacheHint::Normal }, &[pointers, value]);
}

pub(super) fn write(allocation: &Allocation, d: &Data) {
    by_width!(d.elem, W => {
        let words: Vec<W> = d.bits.iter().map(|&b| b as W).collect();
        allocation.store_run(0, &words);
    });
}

pub(super) fn read(allocation: &Allocation, elem: Elem, n: usize) -> Vec<u64> {
    by_width!(elem, W => {
        let mut words = vec![0 as W; n];
        allocation.load_run(0, &mut words);
        words.into_iter().map(|w| w as u64).collect()
    })
}

/// Runs a kernel of one program that loads the inputs, computes, and stores the results.
pub(super) fn eval(
    inputs: &[Data],
    build: impl FnOnce(&mut Builder<'_>, &[Value]) -> SmallVec<[Value; 4]>,
) -> Vec<Data> {
    let memory = Memory::new();
    let mut kernel = Kernel::new("test");
    let mut args = Vec::new();
    let mut params = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        let a = memory.allocate(input.bits.len() * size_in_buffer(input.elem)).unwrap();
        write(&a, input);
        args.push(Arg::Ptr { address: a.address() });
        params.push(kernel.add_param(format!("in{i}"), Type::ptr(input.elem)));
    }
    let body = kernel.body;
    let mut b = Builder::at_end(&mut kernel, body);
    let mut values = Vec::new();
    for (input, &param) in inputs.iter().zip(&params) {
        let at = pointers(&mut b, param, input.shape);
        values.push(load(&mut b, at, input.elem));
    }
    let results = build(&mut b, &values);
    let mut outputs = Vec::new();
    for (i, &r) in results.iter().enumerate() {
        let (elem, shape) = (b.kernel.ty(r).value_elem().unwrap(), b.kernel.ty(r).shape().unwrap());
        let a = memory.allocate(shape.num_elements() as usize * size_in_buffer(elem)).unwrap();
        a.fill(0, a.len(), 0xa5); // poison
        args.push(Arg::Ptr { address: a.address() });
        let param = b.kernel.add_param(format!("out{i}"), Type::ptr(elem));
        let at = pointers(&mut b, param, shape);
        store(&mut b, at, r);
        outputs.push((a, elem, shape));
    }
    run(&kernel, &Launch { grid: [1; 3] }, &args, &memory, &Options::default()).unwrap();
    let result = |(a, elem, shape): (std::sync::Arc<Allocation>, Elem, Shape)| Data {
        elem,
        shape,
        bits: read(&a, elem, shape.num_elements() as usize),
    };
    outputs.into_iter().map(result).collect()
}

/// [`eval`] of one result.
pub(super) fn eval1(inputs: &[Data], build: impl FnOnce(&mut Builder<'_>, &[Value]) -> Value) -> Data {
    eval(inputs, |b, v| smallvec::smallvec![build(b, v)]).remove(0)
}

/// Runs a kernel given as text.
pub(super) fn run_text(text: &str, grid: [u32; 3], args: &[Arg], memory: &Memory) {
    let kernel = crate::text::parse(text).unwrap().remove(0);
    if let Err(errors) = crate::verify::verify(&kernel) {
        panic!("{errors:?}");
    }
    run(&kernel, &Launch { grid }, args, memory, &Options::default()).unwrap();
}

/// A buffer that holds these elements.
pub(super) fn buffer<T: Element>(memory: &Memory, values: &[T]) -> std::sync::Arc<Allocation> {
    let a = memory.allocate(size_of_val(values)).unwrap();
    write(
        &a,
        &Data { elem: T::ELEM, shape: Shape::SCALAR, bits: values.iter().map(|x| x.to_bits64()).collect() },
    );
    a
}

/// The elements of a buffer.
pub(super) fn contents<T: Element>(a: &Allocation) -> Vec<T> {
    let n = a.len() / size_of::<T::Storage>();
    read(a, T::ELEM, n).into_iter().map(T::from_bits64).collect()
}

#[test]
fn short_launches_stay_on_the_callers_thread_and_compute_the_same() {
    let text = "
kernel @k(%y: view_mut<?xi32>) {
  %id = program_id 0 : i32
  %t = reshape %id : tile<1xi32>
  view_store %y[%id], %t
}";
    let kernel = crate::text::parse(text).unwrap().remove(0);
    let prepared = Prepared::new(&kernel).unwrap();
    // First without a known pace, so in parallel; then as the pace before says.
    for n in [3, 200, 1, 70000, 5] {
        let memory = Memory::new();
        let y = buffer(&memory, &vec![-1i32; n]);
        let launch = Launch { grid: [n as u32, 1, 1] };
        let args = [Arg::row_major(y.address(), &[n as i64])];
        prepared.run(&launch, &args, &memory, &Options::default()).unwrap();
        assert_eq!(contents::<i32>(&y), (0..n as i32).collect::<Vec<_>>());
    }
}
