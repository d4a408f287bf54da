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

/// Names that the expansion has variables or items of its own for.
#[kernel(num_warps = hints)]
#[allow(clippy::too_many_arguments)]
fn common_names(
    name: View<f32, 1>,
    stage: ViewMut<f32, 1>,
    key: Scalar<f32>,
    hints: u32,
    body: usize,
    info: usize,
    args: bool,
    r#type: usize,
) {
    assert_eq!((body, info, args, r#type), (hints as usize, 4, true, 4));
    stage.store([0], name.load([0], [info]) * key);
}

#[test]
fn parameters_with_names_of_the_expansion() {
    assert_eq!(common_names::stage(4, 4, 4, true, 4).unwrap().hints.num_warps, 4);
    let device = tegula::device("host").unwrap();
    let x = device.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4]).unwrap();
    let mut y = device.alloc::<f32>(&[4]).unwrap();
    common_names(&x, &mut y, 2.0, 2, 2, 4, true, 4).grid(1).launch(&device.stream()).unwrap();
    assert_eq!(y.to_vec().unwrap(), [2.0, 4.0, 6.0, 8.0]);
}

/// Rustc sees calls in place of the operators, and parentheses around their arguments; without these, `&&` would take its left side from `||`.
#[kernel]
#[deny(unused_parens, unused_braces)]
fn parentheses(x: View<f32, 1>, y: ViewMut<f32, 1>) {
    let xs = x.load([0], [4]);
    let chosen = (xs < 0.0 || xs > 4.0) && xs != 5.0;
    y.store([0], select(chosen, xs, 0.0));
}

#[test]
fn parentheses_are_the_users() {
    parentheses::stage().unwrap();
}
