//! Random kernels that the verifier accepts and the interpreter runs without a fault.
//!
//! Operations are proposed at random and kept if [`check_types`] takes them, so the generator needs no rules of its own. Left out is what
//! may differ between two right compilations: gathers outside the tile, false promises, the bits of NaNs.

use smallvec::SmallVec;

use crate::builder::Builder;
use crate::kernel::{Kernel, Value};
use crate::numerics::{literal_bits, literal_from_bits};
use crate::op::*;
use crate::types::{Elem, Shape, Type};
use crate::verify::check_types;

/// Element types that results are stored of; the kernel's last parameters are one view for each.
pub(super) const STORED: [Elem; 11] = [
    Elem::I1,
    Elem::I8,
    Elem::U8,
    Elem::I16,
    Elem::I32,
    Elem::U32,
    Elem::I64,
    Elem::U64,
    Elem::F16,
    Elem::BF16,
    Elem::F32,
];

/// Elements that each of these views has.
pub(super) const CAPACITY: u32 = 1024;

/// A value that the kernel stores, and where.
pub(super) struct Stored {
    pub(super) value: Value,
    /// Index into [`STORED`].
    pub(super) view: usize,
    /// Element of the view where the tile's first one goes.
    pub(super) offset: u32,
}

/// A sequence of pseudo-random numbers (SplitMix64).
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// A random kernel, and what it stores.
pub(super) fn kernel(seed: u64) -> (Kernel, Vec<Stored>) {
    let mut kernel = Kernel::new("fuzz");
    let scalar = Type::scalar;
    // The values that `super::run` passes keep what is said of them here.
    let params = [
        ("n", scalar(Elem::I32)),
        ("one", scalar(Elem::I64)),
        ("f", scalar(Elem::F32)),
        ("c", scalar(Elem::I1)),
        ("s", scalar(Elem::I8)),
    ];
    let pool: Vec<Value> = params.iter().map(|&(name, ty)| kernel.add_param(name, ty)).collect();
    kernel.params[0].facts.divisible = 16;
    kernel.params[1].facts.value = Some(1);
    let views: Vec<Value> =
        STORED.iter().map(|e| kernel.add_param(format!("out_{e}"), Type::view(*e, 1, true))).collect();
    let body = kernel.body;
    let mut generator =
        Generator { rng: Rng(seed), pool, stored: Vec::new(), used: [0; STORED.len()], views, depth: 0 };
    let mut b = Builder::at_end(&mut kernel, body);
    generator.fill(&mut b, 40);
    for value in generator.pool.clone() {
        generator.store(&mut b, value);
    }
    (kernel, generator.stored)
}

struct Generator {
    rng: Rng,
    /// What is visible.
    pool: Vec<Value>,
    stored: Vec<Stored>,
    /// Elements taken of each view.
    used: [u32; STORED.len()],
    views: Vec<Value>,
    depth: usize,
}

impl Generator {
    fn shape(&mut self) -> Shape {
        const SHAPES: [&[u32]; 8] = [&[], &[], &[1], &[8], &[16], &[8, 2], &[1, 8], &[8, 1]];
        Shape::new(self.rng.pick(&SHAPES))
    }

    fn literal(&mut self, elem: Elem) -> Literal {
        if elem.is_float() {
            let x = self.rng.pick(&[0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 8192.0, f64::INFINITY, f64::NAN]);
            return Literal::float(x);
        }
        let x = self.rng.pick(&[0i64, 1, -1, 2, 3, 4, 8, 16, 48, i64::MIN, i64::MAX, 0x5a5a_5a5a_5a5a_5a5a]);
        // Wrapped to the type.
        let bits = x as u64 & if elem.bits() == 64 { u64::MAX } else { (1 << elem.bits()) - 1 };
        debug_assert_eq!(literal_bits(elem, literal_from_bits(elem, bits)), bits);
        literal_from_bits(elem, bits)
    }

    /// A visible value, rather a late one.
    fn any(&mut self) -> Value {
        let n = self.pool.len();
        let (a, b) = (self.rng.below(n), self.rng.below(n));
        self.pool[a.max(b)]
    }

    fn of_type(&mut self, b: &Builder<'_>, ty: Type) -> Option<Value> {
        let fitting: Vec<Value> = self.pool.iter().copied().filter(|&v| b.kernel.ty(v) == ty).collect();
        (!fitting.is_empty()).then(|| self.rng.pick(&fitting))
    }

    fn fill(&mut self, b: &mut Builder<'_>, attempts: usize) {
        for _ in 0..attempts {
            match self.rng.below(12) {
                0 if self.depth < 3 => self.for_op(b),
                1 if self.depth < 3 => self.if_op(b),
                2 => self.reduce(b),
                3 => {
                    let (elem, shape) = (self.rng.pick(&STORED), self.shape());
                    let literal = self.literal(elem);
                    let value = b.constant(literal, Type::tile(elem, shape));
                    self.pool.push(value);
                }
                _ => self.simple(b),
            }
        }
    }

    /// Proposes an operation without a region; keeps it if it is valid.
    fn simple(&mut self, b: &mut Builder<'_>) {
        let a = self.any();
        let ty = b.kernel.ty(a);
        let Some(shape) = ty.shape() else { return };
        let partner = |g: &mut Self, ty| g.of_type(b, ty).unwrap_or(a);
        let same = partner(self, ty);
        let elem = self.rng.pick(&STORED);
        let axis = self.rng.below(3) as u8;
        let (opcode, operands, result): (Opcode, SmallVec<[Value; 4]>, Type) = match self.rng.below(16) {
            0 => (Opcode::Unary(self.rng.pick(UnaryOp::ALL)), SmallVec::from_slice(&[a]), ty),
            1..=5 => (Opcode::Binary(self.rng.pick(BinaryOp::ALL)), SmallVec::from_slice(&[a, same]), ty),
            6 => (
                Opcode::Cmp(self.rng.pick(CmpOp::ALL)),
                SmallVec::from_slice(&[a, same]),
                ty.with_elem(Elem::I1),
            ),
            7 => {
                let condition = partner(self, ty.with_elem(Elem::I1));
                (Opcode::Select, SmallVec::from_slice(&[condition, a, same]), ty)
            }
            8 => (Opcode::Fma, SmallVec::from_slice(&[a, same, a]), ty),
            9 => (Opcode::Cast(self.rng.pick(Rounding::ALL)), SmallVec::from_slice(&[a]), ty.with_elem(elem)),
            10 if ty.value_elem().is_some_and(|e| !e.is_float()) => {
                (Opcode::Bitcast, SmallVec::from_slice(&[a]), ty.with_elem(elem))
            }
            11 => (Opcode::Broadcast, SmallVec::from_slice(&[a]), ty.with_shape(self.shape())),
            12 if axis as usize <= shape.rank() => (
                Opcode::Expand { axis },
                SmallVec::from_slice(&[a]),
                ty.with_shape(shape.insert(axis as usize, 1)),
            ),
            13 => (Opcode::Reshape, SmallVec::from_slice(&[a]), ty.with_shape(self.shape())),
            14 => {
                let perm: Dims = (0..shape.rank() as u32).rev().collect();
                let to = ty.with_shape(shape.permute(&perm));
                (Opcode::Permute { perm }, SmallVec::from_slice(&[a]), to)
            }
            15 => (
                Opcode::Iota { start: self.rng.pick(&[0, 1, 4, -3, 120]) },
                SmallVec::new(),
                Type::tile(Elem::I32, Shape::new(&[self.rng.pick(&[1, 8, 16])])),
            ),
            _ => {
                (Opcode::Join, SmallVec::from_slice(&[a, same]), ty.with_shape(shape.insert(shape.rank(), 2)))
            }
        };
        let types: SmallVec<[Type; 4]> = operands.iter().map(|&v| b.kernel.ty(v)).collect();
        let small = result.shape().is_some_and(|s| s.rank() <= 3 && s.num_elements() <= 64);
        if small && check_types(&opcode, &types, &[result]).is_ok() {
            let value = b.value(opcode, &operands, result);
            self.pool.push(value);
        }
    }

    /// Fills a region; what it defines is forgotten afterwards.
    fn region(
        &mut self,
        b: &mut Builder<'_>,
        args: Vec<Type>,
        yields: &[Type],
        fallback: &[Value],
    ) -> crate::kernel::Block {
        let visible = self.pool.len();
        self.depth += 1;
        let block = b.region(args, Opcode::Yield, |b, args| {
            self.pool.extend(args);
            self.fill(b, 6);
            yields.iter().zip(fallback).map(|(&ty, &other)| self.of_type(b, ty).unwrap_or(other)).collect()
        });
        self.depth -= 1;
        self.pool.truncate(visible);
        block
    }

    fn for_op(&mut self, b: &mut Builder<'_>) {
        let bound = |g: &mut Self, b: &mut Builder<'_>, list: &[i64]| b.int(g.rng.pick(list), Elem::I32);
        let (lo, hi, step) =
            (bound(self, b, &[0, 1]), bound(self, b, &[0, 1, 4, 5]), bound(self, b, &[1, 2, 4]));
        let inits: Vec<Value> = (0..self.rng.below(3)).map(|_| self.any()).collect();
        let types: Vec<Type> = inits.iter().map(|&v| b.kernel.ty(v)).collect();
        let operands: Vec<Value> = [lo, hi, step].into_iter().chain(inits.iter().copied()).collect();
        let args = std::iter::once(Type::scalar(Elem::I32)).chain(types.iter().copied()).collect();
        // The region is built first: its operations must not see the loop's results.
        let region = self.region(b, args, &types, &inits);
        let op = b.op(Opcode::For(LoopHints::default()), &operands, types);
        b.kernel.ops[op].regions.push(region);
        self.pool.extend(b.kernel.ops[op].results.iter().copied());
    }

    fn if_op(&mut self, b: &mut Builder<'_>) {
        let Some(condition) = self.of_type(b, Type::scalar(Elem::I1)) else { return };
        let fallback: Vec<Value> = (0..self.rng.below(3)).map(|_| self.any()).collect();
        let types: Vec<Type> = fallback.iter().map(|&v| b.kernel.ty(v)).collect();
        let regions = [(); 2].map(|()| self.region(b, Vec::new(), &types, &fallback));
        let op = b.op(Opcode::If, &[condition], types);
        b.kernel.ops[op].regions.extend(regions);
        self.pool.extend(b.kernel.ops[op].results.iter().copied());
    }

    fn reduce(&mut self, b: &mut Builder<'_>) {
        let a = self.any();
        let ty = b.kernel.ty(a);
        let rank = ty.shape().map_or(0, |s| s.rank());
        let function = self.rng.pick(&[BinaryOp::Add, BinaryOp::Max, BinaryOp::Xor]);
        let scalar = ty.with_shape(Shape::SCALAR);
        if rank == 0 || check_types(&Opcode::Binary(function), &[scalar, scalar], &[scalar]).is_err() {
            return;
        }
        let axis = self.rng.below(rank);
        let combine = |b: &mut Builder<'_>, args: &[Value]| {
            SmallVec::from_slice(&[b.binary(function, args[0], args[1])])
        };
        let results = if self.rng.below(2) == 0 {
            b.reduce(axis, &[a], combine)
        } else {
            b.scan(axis, self.rng.below(2) == 0, &[a], combine)
        };
        self.pool.extend(results);
    }

    /// Stores the value, with even odds and while there is room.
    fn store(&mut self, b: &mut Builder<'_>, value: Value) {
        let ty = b.kernel.ty(value);
        let (Some(elem), Some(shape)) = (ty.value_elem(), ty.shape()) else { return };
        let Some(view) = STORED.iter().position(|&e| e == elem) else { return };
        let n = shape.num_elements() as u32;
        if self.rng.below(2) == 0 || self.used[view] + n > CAPACITY {
            return;
        }
        let flat = b.reshape(value, Shape::new(&[n]));
        let offset = b.int(i64::from(self.used[view]), Elem::I32);
        b.effect(Opcode::ViewStore { cache: CacheHint::Normal }, &[self.views[view], offset, flat]);
        self.stored.push(Stored { value, view, offset: self.used[view] });
        self.used[view] += n;
    }
}
