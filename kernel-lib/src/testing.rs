//! What tests of kernels share: fresh random numbers, rows with gaps between them, bounds of errors.

use tegula::ir::types::Elem;
use tegula::prelude::*;
use tegula::runtime::{Device, Tensor, TensorView, TensorViewMut};

use crate::Error;

/// The device under test: the host that reports two programs storing to one element, or what `TEGULA_TEST_DEVICE` names; `cuda` and `emulated` take
/// a build with the feature `jit`.
pub fn device() -> Device {
    open("host:races")
}

/// As [`device`], for larger cases: on the host without the bookkeeping of who stored where.
pub fn fast_device() -> Device {
    open("host")
}

fn named() -> Option<String> {
    std::env::var("TEGULA_TEST_DEVICE").ok().filter(|name| !name.is_empty())
}

fn open(default: &str) -> Device {
    let named = named();
    let name = named.as_deref().unwrap_or(default);
    tegula::device(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The size of a test: `whole`, or `small` where the device under test is emulated. That takes some thousand times as long, and finds in few
/// tiles what it finds in many; only what takes seconds there needs this.
pub fn sized<T>(whole: T, small: T) -> T {
    if named().is_some_and(|name| name.starts_with("emulated")) { small } else { whole }
}

/// A reproducible stream of numbers (SplitMix64).
pub struct Rng(u64);

impl Rng {
    /// The stream with this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1).
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Standard normal.
    pub fn normal(&mut self) -> f64 {
        let (u, v) = (self.uniform(), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// `n` standard normal numbers, rounded to `T`.
    pub fn normals<T: Element>(&mut self, n: usize) -> Vec<T> {
        (0..n).map(|_| T::from_f64(self.normal())).collect()
    }
}

/// The values, exactly.
pub fn to_f64<T: Element>(values: &[T]) -> Vec<f64> {
    values.iter().map(|v| v.to_f64()).collect()
}

/// What no result should be: NaN, or the integer farthest from 0.
fn poison<T: Element>() -> T {
    T::from_f64(if T::ELEM.is_float() { f64::NAN } else { f64::NEG_INFINITY })
}

/// A matrix whose rows are `pad` elements apart from each other, in a larger tensor; what lies between is poison, and must stay so.
pub struct Padded<T: Element> {
    whole: Tensor<T>,
    shape: [usize; 2],
}

impl<T: Element> Padded<T> {
    /// With standard normal numbers.
    pub fn random(device: &Device, shape: [usize; 2], pad: usize, rng: &mut Rng) -> Padded<T> {
        Padded::of(device, &rng.normals::<T>(shape[0] * shape[1]), shape, pad)
    }

    /// With poison everywhere: for outputs.
    pub fn poisoned(device: &Device, shape: [usize; 2], pad: usize) -> Padded<T> {
        Padded::of(device, &vec![poison(); shape[0] * shape[1]], shape, pad)
    }

    /// With these values.
    pub fn of(device: &Device, values: &[T], shape: [usize; 2], pad: usize) -> Padded<T> {
        let [rows, cols] = shape;
        let mut all = vec![poison::<T>(); rows * (cols + pad)];
        for (to, from) in all.chunks_exact_mut((cols + pad).max(1)).zip(values.chunks_exact(cols.max(1))) {
            to[..cols].copy_from_slice(from);
        }
        let whole = device.from_slice(&all, &[rows, cols + pad]).expect("memory");
        Padded { whole, shape }
    }

    /// The matrix.
    pub fn view(&self) -> TensorView<'_, T> {
        self.whole.view().slice(1, ..self.shape[1]).expect("inside")
    }

    /// The matrix.
    pub fn view_mut(&mut self) -> TensorViewMut<'_, T> {
        self.whole.view_mut().slice(1, ..self.shape[1]).expect("inside")
    }

    /// Its values.
    pub fn values(&self) -> Vec<T> {
        self.view().to_vec().expect("a copy")
    }

    /// Its values, exactly.
    pub fn values_f64(&self) -> Vec<f64> {
        to_f64(&self.values())
    }

    /// Nothing was written between the rows.
    pub fn assert_padding_untouched(&self) {
        let gaps = self.whole.view().slice(1, self.shape[1]..).expect("inside").to_vec().expect("a copy");
        let untouched = |x: &T| x.to_bits64() == poison::<T>().to_bits64();
        assert!(gaps.iter().all(untouched), "a store went between the rows");
    }
}

/// Bounds of absolute errors.
pub struct Bound;

impl Bound {
    /// The largest error of `exact` computed with the absolute error `computed` and then rounded to `T`: half a unit in the last place of what was rounded,
    /// but for subnormal numbers half of the smallest one, and for integers half.
    pub fn rounded_to<T: Element>(exact: f64, computed: f64) -> f64 {
        let (digits, least) = match T::ELEM {
            Elem::F32 => (24, -149),
            Elem::F16 => (11, -24),
            Elem::BF16 => (8, -133),
            Elem::F8E4M3 => (4, -9),
            Elem::F8E5M2 => (3, -16),
            elem => {
                assert!(elem.is_int(), "{elem} is rounded to");
                return computed + 0.5;
            }
        };
        let rounding = ((exact.abs() + computed) * 2f64.powi(-digits)).max(2f64.powi(least - 1));
        computed + rounding
    }
}

/// Every value is within its bound of the exact one; NaN never is.
pub fn assert_close(found: &[f64], exact: &[f64], bounds: impl IntoIterator<Item = f64>) {
    assert_eq!(found.len(), exact.len());
    let mut compared = 0;
    for (i, ((&found, &exact), bound)) in found.iter().zip(exact).zip(bounds).enumerate() {
        let error = (found - exact).abs();
        assert!(error <= bound, "element {i}: {found} for {exact}, an error of {error:e} above {bound:e}");
        compared += 1;
    }
    assert_eq!(compared, exact.len(), "a bound for each element");
}

/// The messages of failures, one a line, for goldens.
pub fn shown<T>(results: impl IntoIterator<Item = Result<T, Error>>) -> String {
    let message = |r: Result<T, Error>| r.err().map_or("no error".to_owned(), |e| e.to_string());
    results.into_iter().map(|r| message(r) + "\n").collect()
}
