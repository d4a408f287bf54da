//! The remainder of floats: exact, by long division.
//!
//! LLVM's expansion of `frem` for GPUs, a − trunc(a/b)·b, is wrong as soon as the quotient is rounded, and for zeros and infinities. Here
//! |b| is doubled up to |a|, and subtracted wherever it still fits on the way back. Every step is exact: doubling and halving, and the
//! difference of two numbers of which neither is above twice the other (Sterbenz). It takes twice as many steps as the quotient has
//! bits, which is few for the arguments one reduces in practice.

use melior::ir::ValueLike;

use super::Lowering;
use super::emitter::V;

// MLIR's numbers of ordered comparisons.
const GREATER: i64 = 2;
const GREATER_EQUAL: i64 = 3;
const LESS: i64 = 4;

impl<'c> Lowering<'c, '_> {
    /// `fmod(a, b)`: with the sign of `a`; NaN where `a` is infinite or `b` is 0.
    pub fn float_remainder(&mut self, a: V<'c>, b: V<'c>) -> V<'c> {
        let (narrow, f32) = (a.r#type(), self.e.t.f32);
        if self.bits_of(narrow) < 32 {
            // The remainder of two 16-bit floats is one.
            let (a, b) = (self.e.one("arith.extf", &[a], f32), self.e.one("arith.extf", &[b], f32));
            let rest = self.float_remainder(a, b);
            return self.e.one("arith.truncf", &[rest], narrow);
        }
        let ty = narrow;
        let zero = self.e.float(ty, 0.0);
        let infinity = self.e.float(ty, f64::INFINITY);
        let (abs_a, abs_b) = (self.e.one("math.absf", &[a], ty), self.e.one("math.absf", &[b], ty));
        // Both false for NaN.
        let (a_finite, b_finite) =
            (self.compare_floats(LESS, abs_a, infinity), self.compare_floats(LESS, abs_b, infinity));
        // With 0 in place of what is not finite both loops end at once.
        let start = self.e.select(a_finite, abs_a, zero);
        let divisor = self.e.select(b_finite, abs_b, zero);

        let fits_twice = |s: &Self, v: &[V<'c>]| {
            let left = s.e.one("arith.subf", &[start, v[0]], ty);
            s.e.and(s.compare_floats(GREATER_EQUAL, left, v[0]), s.compare_floats(GREATER, v[0], zero))
        };
        let double = |s: &Self, v: &[V<'c>]| vec![s.e.one("arith.addf", &[v[0], v[0]], ty)];
        let doubled = self.repeat_floats(&[divisor], fits_twice, double)[0];

        let not_below = |s: &Self, v: &[V<'c>]| {
            s.e.and(s.compare_floats(GREATER_EQUAL, v[1], divisor), s.compare_floats(GREATER, v[1], zero))
        };
        let reduce = |s: &Self, v: &[V<'c>]| {
            let less = s.e.one("arith.subf", &[v[0], v[1]], ty);
            let reduced = s.e.select(s.compare_floats(GREATER_EQUAL, v[0], v[1]), less, v[0]);
            vec![reduced, s.e.one("arith.mulf", &[v[1], s.e.float(ty, 0.5)], ty)]
        };
        let rest = self.repeat_floats(&[start, doubled], not_below, reduce)[0];

        let signed = self.e.one("math.copysign", &[rest, a], ty);
        let defined = self.e.and(a_finite, self.compare_floats(GREATER, abs_b, zero));
        self.e.select(defined, signed, self.e.float(ty, f64::NAN))
    }

    fn compare_floats(&self, predicate: i64, a: V<'c>, b: V<'c>) -> V<'c> {
        self.e.one_with("arith.cmpf", &[a, b], self.e.t.i1, &[("predicate", self.e.i64_attr(predicate))])
    }

    /// `while more(state) { state = step(state) }` over floats of one type.
    fn repeat_floats(
        &mut self,
        start: &[V<'c>],
        more: impl FnOnce(&Self, &[V<'c>]) -> V<'c>,
        step: impl FnOnce(&Self, &[V<'c>]) -> Vec<V<'c>>,
    ) -> Vec<V<'c>> {
        let types = vec![start[0].r#type(); start.len()];
        let before = self.e.open(&types);
        let go_on = more(self, &before.args);
        self.e.op("scf.condition", &[&[go_on][..], &before.args].concat(), &[], &[]);
        let before = self.e.close(before);
        let after = self.e.open(&types);
        let next = step(self, &after.args);
        self.e.op("scf.yield", &next, &[], &[]);
        let after = self.e.close(after);
        self.e.op_with_regions("scf.while", start, &types, &[], vec![before, after])
    }
}
