//! The kernel library's kernels, as the tuner sees them: bf16, which f16 shares its records with.
//!
//! Inputs are views into pools of random numbers, at other places from call to call, so that the cache holds nothing of what is read next. References are f64, at sampled
//! elements whose inputs are known without keeping them: a pool is a short sequence, repeated.

mod attention;
mod gemm;
mod pool;
mod rms_norm;

use tegula::prelude::*;

use crate::{Fault, Shape, Tunable};

/// What a kernel's records say of it already: its name, extents, source and space, and which configs are legal.
macro_rules! as_in_records {
    ($records:ty) => {
        fn name(&self) -> &str {
            <$records>::NAME
        }

        fn dims(&self) -> &[tegula_records::Dim] {
            <$records>::DIMS
        }

        fn source(&self) -> String {
            <$records>::source()
        }

        fn space_version(&self) -> u32 {
            <$records>::SPACE
        }

        fn check(&self, shape: &Shape, config: &Config, device: &DeviceInfo) -> Result<(), String> {
            super::expect_half(shape)?;
            <$records>::check(&<$records>::from_config(config, shape)?, shape, device.class())
        }
    };
}
use as_in_records;

/// Inputs are bf16, so a record of wider elements would be of something else.
fn expect_half(shape: &Shape) -> Result<(), String> {
    match shape.extent("bits") {
        16 => Ok(()),
        bits => Err(format!("elements of {bits} bits, but those of 16 are tuned")),
    }
}

/// Those that can be tuned.
pub fn kernels() -> Vec<Box<dyn Tunable>> {
    vec![
        Box::new(gemm::Gemm),
        Box::new(attention::Forward),
        Box::new(attention::Decode),
        Box::new(rms_norm::RmsNorm),
    ]
}

/// Half of a unit in the last place of bf16, relative.
const BF16: f64 = 1.0 / 256.0;
/// The same of f32.
const F32: f64 = 1.0 / 16_777_216.0;

/// What an element must be.
struct Expected {
    /// Its place in its row.
    at: usize,
    exact: f64,
    /// How far off it may be.
    bound: f64,
}

impl Expected {
    /// Compares with what was found in the row: NaN is never right.
    fn compare(&self, what: impl Fn() -> String, row: &[bf16]) -> Result<(), Fault> {
        let &Expected { at, exact, bound } = self;
        let found = row[at].to_f64();
        match (found - exact).abs() <= bound {
            true => Ok(()),
            false => Err(Fault::Wrong(format!("{} is {found} instead of {exact} ± {bound:.2e}", what()))),
        }
    }
}

/// Up to `count` numbers below `len`: the first, the last, and others at even distances.
fn spread(len: usize, count: usize) -> Vec<usize> {
    let mut at: Vec<usize> = (0..count).map(|i| i * (len - 1) / (count - 1).max(1)).collect();
    at.dedup();
    at
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;
    use crate::device::DeviceInfo;
    use crate::search::Candidates;
    use crate::shapes::{Model, Workload};

    fn h200() -> DeviceInfo {
        DeviceInfo {
            name: "cuda:0".into(),
            model: "NVIDIA H200".into(),
            target: Some("sm_90a".into()),
            multiprocessors: 132,
            shared_memory: 227 << 10,
            l2_cache: 60 << 20,
        }
    }

    /// What a run on a GPU would try, without the GPU: for each shape of real models several configs, of which the default is one, and all that the space offers are legal.
    #[test]
    fn every_shape_of_every_model_has_candidates() {
        for model in ["llama3-8b", "qwen2.5-7b", "smollm2-135m", "gpt-oss-120b"] {
            let workload = Workload::new(Model::load(model).unwrap());
            for kernel in kernels() {
                let demand = kernel.shapes(&workload).unwrap();
                assert!(demand.len() > 3, "{model}: {} {}", kernel.name(), demand.len());
                for (shape, _) in demand.mapped(|s| crate::kernel::representative(&*kernel, s)).iter() {
                    let candidates = Candidates::of(&*kernel, shape, &h200());
                    let default = kernel.default_config(shape, &h200());
                    assert_eq!(candidates.legal.first(), Some(&default), "{} {shape}", kernel.name());
                    assert!(candidates.legal.len() > 1, "{} {shape}", kernel.name());
                    assert_eq!(candidates.illegal, [], "{} {shape}", kernel.name());
                }
            }
        }
    }

    /// On the host, whose kernels are the same: every instance launches and verifies, and a wrong result would be seen.
    #[test]
    fn instances_verify_on_the_host() {
        let device = tegula::device("host").unwrap();
        let info = DeviceInfo::of(&device);
        for (kernel, shape) in kernels().iter().zip([
            "m=7,n=40,k=64,bits=16",
            "queries=33,keys=33,sequences=4,group=2,head_dim=32,bits=16",
            "queries=1,keys=100,sequences=4,group=3,head_dim=64,bits=16",
            "rows=5,cols=576,bits=16",
        ]) {
            let shape = crate::shapes::trace::parse_shape(shape).unwrap();
            let mut instance = kernel.instance(&shape, &device, Purpose::Run { rotate: 100_000 }).unwrap();
            for config in Candidates::of(&**kernel, &shape, &info).legal {
                instance
                    .verify(&config, &device.stream())
                    .unwrap_or_else(|e| panic!("{} {shape} [{config}]: {e:?}", kernel.name()));
                (0..3).for_each(|call| instance.launch(&config, call, &device.stream()).unwrap());
            }
        }
        let found = |found, exact, bound| {
            let row = [bf16::from_f64(7.0), bf16::from_f64(found)];
            Expected { at: 1, exact, bound }.compare(|| "y".into(), &row)
        };
        assert!(found(f64::NAN, 1.0, 1.0).is_err() && found(1.0, 1.1, 0.05).is_err());
        assert_eq!(found(1.0, 1.1, 0.2), Ok(()));
    }
}
