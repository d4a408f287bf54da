//! What the tests of attention share: random problems, tensors in any order of dimensions, and bounds.
//!
//! # Bounds
//! With u = 2⁻²⁴, a score of f32 sums over d products is off by at most (d + 4) · u · S, where S = scale · Σ|q · k|: d for the sum, the rest for scale,
//! maximum and the fused product. What is added to a score counts as one more product, and a softcap as one of its size, which covers its 4 ulp of `tanh`. So each weight is off by a factor e^±2e with that e, and 9 u for `exp2` (4.5 ulp); sums over n keys add n · u each, rescaling
//! some u a step. To that comes what the type costs: twice the error of the reference that rounds where the kernel rounds.

use tegula::prelude::*;
use tegula::runtime::{Device, Tensor, TensorView, TensorViewMut};

use super::reference::{self, Attended, Problem};
use crate::testing::{Rng, to_f64};

/// How a `[batch, sequence, heads, dim]` tensor lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Row-major.
    Bshd,
    /// Heads outside: each head's rows follow each other.
    Bhsd,
    /// Sequence outside, and three elements of NaN behind each row.
    Sbhd,
}

/// A tensor in some order of memory. What is not its own is NaN.
pub struct Placed<T: Element> {
    whole: Tensor<T>,
    memory: Memory,
    dim: usize,
}

impl<T: Element> Placed<T> {
    /// With these values, which are in row-major order.
    pub fn new(device: &Device, values: &[T], shape: [usize; 4], memory: Memory) -> Placed<T> {
        let [b, s, h, d] = shape;
        let (outer, row) = match memory {
            Memory::Bshd => ([b, s, h], d),
            Memory::Bhsd => ([b, h, s], d),
            Memory::Sbhd => ([s, b, h], d + 3),
        };
        let mut all = vec![T::from_f64(f64::NAN); outer.iter().product::<usize>() * row];
        for (i, values) in values.chunks_exact(d).enumerate() {
            let (ib, is, ih) = (i / h / s, i / h % s, i % h);
            let at = match memory {
                Memory::Bshd => (ib * s + is) * h + ih,
                Memory::Bhsd => (ib * h + ih) * s + is,
                Memory::Sbhd => (is * b + ib) * h + ih,
            };
            all[at * row..][..d].copy_from_slice(values);
        }
        let whole = device.from_slice(&all, &[outer[0], outer[1], outer[2], row]).unwrap();
        Placed { whole, memory, dim: d }
    }

    /// NaN everywhere: for outputs.
    pub fn poisoned(device: &Device, shape: [usize; 4], memory: Memory) -> Placed<T> {
        let n = shape.iter().product();
        Placed::new(device, &vec![T::from_f64(f64::NAN); n], shape, memory)
    }

    fn order(&self) -> [usize; 4] {
        match self.memory {
            Memory::Bshd => [0, 1, 2, 3],
            Memory::Bhsd => [0, 2, 1, 3],
            Memory::Sbhd => [1, 0, 2, 3],
        }
    }

    /// As `[batch, sequence, heads, dim]`.
    pub fn view(&self) -> TensorView<'_, T> {
        self.whole.view().slice(3, ..self.dim).unwrap().permute(&self.order()).unwrap()
    }

    /// The same, to be written.
    pub fn view_mut(&mut self) -> TensorViewMut<'_, T> {
        let (order, dim) = (self.order(), self.dim);
        self.whole.view_mut().slice(3, ..dim).unwrap().permute(&order).unwrap()
    }

    /// Its values in row-major order.
    pub fn values(&self) -> Vec<f64> {
        to_f64(&self.view().to_vec().unwrap())
    }
}

/// Queries, keys and values of a problem.
pub struct Case<T: Element> {
    pub problem: Problem,
    pub q: Vec<T>,
    pub k: Vec<T>,
    pub v: Vec<T>,
}

impl<T: Element> Case<T> {
    /// Normally distributed; scores have about this standard deviation.
    pub fn random(problem: Problem, score: f64, seed: u64) -> Case<T> {
        let mut rng = Rng::new(seed);
        let p = &problem;
        let spread = score.sqrt();
        let mut normals = |n: usize, by: f64| (0..n).map(|_| T::from_f64(by * rng.normal())).collect();
        let q = normals(p.batch * p.queries * p.heads * p.head_dim, spread);
        let k = normals(p.batch * p.keys * p.kv_heads * p.head_dim, spread);
        let v = normals(p.batch * p.keys * p.kv_heads * p.value_dim, 1.0);
        Case { problem, q, k, v }
    }

    /// Makes the slots behind each sequence's end NaN, on the device only: the reference does not look there.
    pub fn poison_unused(&mut self) {
        let p = &self.problem;
        let Some(lengths) = &p.kv_len else { return };
        for (batch, &n) in lengths.iter().enumerate() {
            for key in (n.max(0) as usize).min(p.keys)..p.keys {
                let row = (batch * p.keys + key) * p.kv_heads;
                self.k[row * p.head_dim..][..p.kv_heads * p.head_dim].fill(T::from_f64(f64::NAN));
                self.v[row * p.value_dim..][..p.kv_heads * p.value_dim].fill(T::from_f64(f64::NAN));
            }
        }
    }

    /// The tensors of q, k and v.
    pub fn place(&self, device: &Device, memory: Memory) -> [Placed<T>; 3] {
        let p = &self.problem;
        [
            Placed::new(device, &self.q, [p.batch, p.queries, p.heads, p.head_dim], memory),
            Placed::new(device, &self.k, [p.batch, p.keys, p.kv_heads, p.head_dim], memory),
            Placed::new(device, &self.v, [p.batch, p.keys, p.kv_heads, p.value_dim], memory),
        ]
    }

    /// A result must be as near to the f64 one as the module's header says.
    pub fn check(&self, out: &[f64], lse: Option<&[f64]>, what: &str) {
        let inputs = [to_f64(&self.q), to_f64(&self.k), to_f64(&self.v)];
        check::<T>(&self.problem, [&inputs[0], &inputs[1], &inputs[2]], out, lse, what);
    }
}

/// A result of queries, keys and values must be as near to the f64 one as the module's header says.
pub fn check<T: Element>(p: &Problem, [q, k, v]: [&[f64]; 3], out: &[f64], lse: Option<&[f64]>, what: &str) {
    let rounded = reference::forward_rounded::<T>(p, q, k, v);
    check_against(p, [q, k, v], &rounded, 0.0, out, lse, what);
}

/// The same where the reference that rounds is another one, and 32 products added up lose `deep` of the sum of their sizes besides.
pub fn check_against(
    p: &Problem,
    [q, k, v]: [&[f64]; 3],
    rounded: &Attended,
    deep: f64,
    out: &[f64],
    lse: Option<&[f64]>,
    what: &str,
) {
    let exact = reference::forward(p, q, k, v);
    let of_type = exact.out.iter().zip(&rounded.out).map(|(e, r)| (e - r).abs()).fold(0.0, f64::max);
    let bounds = f32_bounds(p, &exact, [q, k, v], deep);
    assert_eq!((out.len(), exact.out.len()), (exact.out.len(), bounds.out.len()));
    for (i, ((&found, &exact), &f32_error)) in out.iter().zip(&exact.out).zip(&bounds.out).enumerate() {
        let (error, bound) = ((found - exact).abs(), 2.0 * of_type + f32_error);
        assert!(error <= bound, "{what}, element {i}: {found} for {exact}, {error:e} above {bound:e}");
    }
    let Some(lse) = lse else { return };
    for (i, ((&found, &exact), &bound)) in lse.iter().zip(&exact.lse).zip(&bounds.lse).enumerate() {
        let equal = found == exact; // −∞ is exact
        assert!(
            equal || (found - exact).abs() <= bound,
            "{what}, LSE {i}: {found} for {exact}, above {bound:e}"
        );
    }
}

/// The errors that arithmetic in f32 may make, whatever `T` is; and sums that lose `deep` with each 32 addends.
fn f32_bounds(p: &Problem, exact: &Attended, [q, k, v]: [&[f64]; 3], deep: f64) -> Attended {
    let u = 2f64.powi(-24);
    let (d, d_v) = (p.head_dim, p.value_dim);
    let mut bounds = exact.clone();
    for row in 0..p.batch * p.queries * p.heads {
        let (batch, query, head) = (row / p.heads / p.queries, row / p.heads % p.queries, row % p.heads);
        let at = (batch * p.heads + head) * p.queries + query;
        let kv = |key: usize| (batch * p.keys + key) * p.kv_heads + head / (p.heads / p.kv_heads);
        let seen = p.visible(batch, head, query);
        let size = |key: usize| -> f64 {
            let products = q[row * d..][..d].iter().zip(&k[kv(key) * d..][..d]);
            let added = p.changed(0.0, [batch, head, query, key]).abs() + p.softcap.unwrap_or(0.0);
            products.map(|(a, b)| (a * b).abs()).sum::<f64>() * p.scale()
                + if added.is_finite() { added } else { 0.0 }
        };
        let lost = (d + 4) as f64 * u + d.div_ceil(32) as f64 * deep;
        let e = lost * seen.iter().map(|&key| size(key)).fold(0.0, f64::max);
        let n = seen.len() as f64 + 1.0;
        // Numerator and denominator: weights, sums and rescaling, whose steps are fewer than keys.
        let relative =
            2.0 * ((2.0 * e).exp_m1() + (2.0 * n + 20.0) * u + seen.len().div_ceil(32) as f64 * deep);
        for i in 0..d_v {
            let largest = seen.iter().map(|&key| v[kv(key) * d_v + i].abs()).fold(0.0, f64::max);
            let raised = p.dropout.map_or(1.0, |dropout| dropout.kept_share().recip());
            bounds.out[row * d_v + i] = relative * largest * raised;
        }
        bounds.lse[at] = e + (n + 20.0) * u + 4.0 * u * exact.lse[at].abs();
    }
    bounds
}
