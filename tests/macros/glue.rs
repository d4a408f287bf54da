//! What surrounds a kernel's body: names, hints, generic parameters, launches.

use tegula::KernelDef;
use tegula::prelude::*;
use tegula::runtime::Device;

/// A config, as an autotuner has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    block: usize,
    warps: u32,
}

mod inner {
    use super::*;

    /// y = a · x, elementwise.
    #[kernel(num_warps = config.warps, max_registers = 128)]
    #[inline(never)]
    pub(super) fn scale<T, const ADD: i32>(
        x: View<T, 1>,
        mut y: ViewMut<T, 1>,
        a: Scalar<f32>,
        config: Config,
    ) where
        T: Float,
    {
        let Config { block, .. } = config;
        let at = program_id(0) * block;
        let scaled = x.load([at], [block]).cast::<f32>() * a + ADD;
        y = if block > 0 { y } else { return };
        y.store([at], scaled.cast());
    }
}

use inner::scale;

const CONFIG: Config = Config { block: 64, warps: 2 };

#[test]
fn names_and_hints() {
    let kernel = scale::<bf16, -1>::stage(CONFIG).unwrap();
    tegula::ir::verify::verify(&kernel).unwrap();
    assert_eq!(kernel.name, "scale_bf16__1");
    assert_eq!(kernel.hints.num_warps, 2);
    assert_eq!(kernel.hints.max_registers, Some(128));
    let names: Vec<&str> = kernel.params.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["x", "y", "a"]);
}

#[test]
fn generic_code_over_kernels() {
    fn stages<K: KernelDef>(configs: impl IntoIterator<Item = K::Meta>) -> usize {
        configs.into_iter().map(|c| K::stage(c).unwrap()).filter(|k| k.name.starts_with(K::NAME)).count()
    }
    let configs = [16, 32, 64].map(|block| (Config { block, warps: 4 },));
    assert_eq!(stages::<scale<f32, 0>>(configs), 3);
}

#[test]
fn a_launch_takes_tensors_and_numbers() {
    let device = Device::testing();
    let (x, mut y) = (device.zeros::<f32>(&[64]).unwrap(), device.zeros::<f32>(&[64]).unwrap());
    let launch = scale::<f32, 0>(&x, &mut y, 2.0, CONFIG).grid(1).num_warps(8);
    let kernel = launch.kernel().unwrap();
    assert_eq!(kernel.name, "scale_f32_0");
    assert_eq!(kernel.hints.num_warps, 8, "a launch overrides the kernel's hints");
}
