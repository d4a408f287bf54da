//! Legalized kernels on the tile interpreter, beside the same kernels as written: tiles, loads, combine regions.

use super::super::run;
use crate::interp::{self, Arg, Launch, Memory, Options};
use crate::kernel::Kernel;
use crate::op::UnaryOp;
use crate::target::GpuFeatures;
use crate::text::parse_kernel;
use crate::verify::verify;

const FUNCTIONS: [(&str, UnaryOp); 10] = [
    ("exp", UnaryOp::Exp),
    ("exp2", UnaryOp::Exp2),
    ("log", UnaryOp::Log),
    ("log2", UnaryOp::Log2),
    ("rsqrt", UnaryOp::Rsqrt),
    ("sin", UnaryOp::Sin),
    ("cos", UnaryOp::Cos),
    ("tanh", UnaryOp::Tanh),
    ("erf", UnaryOp::Erf),
    ("sigmoid", UnaryOp::Sigmoid),
];

/// The f32 at the second pointer after a run on those at the first.
fn results(kernel: &Kernel, input: &[f32], outputs: usize) -> Vec<f32> {
    let memory = Memory::new();
    let x = memory.allocate(4 * input.len()).expect("a few KiB");
    let y = memory.allocate(4 * outputs).expect("a few KiB");
    x.write(0, bytemuck::cast_slice(input));
    let args = [Arg::Ptr { address: x.address() }, Arg::Ptr { address: y.address() }];
    interp::run(kernel, &Launch { grid: [1; 3] }, &args, &memory, &Options::default())
        .unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    let mut out = vec![0f32; outputs];
    y.read(0, bytemuck::cast_slice_mut(&mut out));
    out
}

/// As written and legalized.
fn both(text: &str, input: &[f32], outputs: usize) -> (Vec<f32>, Vec<f32>) {
    let mut kernel = parse_kernel(text).unwrap_or_else(|e| panic!("{}", e.render("kernel", text)));
    verify(&kernel).unwrap_or_else(|e| panic!("{}", e[0]));
    let written = results(&kernel, input, outputs);
    run(&mut kernel, &GpuFeatures::SM_80);
    verify(&kernel).unwrap_or_else(|e| panic!("{}", e[0]));
    (written, results(&kernel, input, outputs))
}

/// Within four units in the last place, or the same special value.
fn close(a: f32, b: f32) -> bool {
    let exact = a == b || a.is_nan() && b.is_nan();
    exact || (f64::from(a) - f64::from(b)).abs() <= f64::from(b.abs()).max(1e-38) * 4.8e-7
}

#[test]
fn tiles_compute_what_the_functions_mean() {
    let input: Vec<f32> = (0..1024u32)
        .map(|i| match i {
            0..8 => [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30, -1e-40, 1.0][i as usize],
            _ => (i as f32 - 512.0) * 0.17,
        })
        .collect();
    for (name, op) in FUNCTIONS {
        let text = format!(
            "kernel @f(%x: ptr<f32>, %y: ptr<f32>) {{
  %r = iota 0 : tile<1024xi32>
  %i = reshape %r : tile<32x32xi32>
  %xs = broadcast %x : tile<32x32xptr<f32>>
  %ys = broadcast %y : tile<32x32xptr<f32>>
  %xp = ptr_add %xs, %i : tile<32x32xptr<f32>>
  %yp = ptr_add %ys, %i : tile<32x32xptr<f32>>
  %v = load %xp : tile<32x32xf32>
  %w = {name} %v : tile<32x32xf32>
  store %yp, %w
}}"
        );
        let (written, legal) = both(&text, &input, 1024);
        for ((&x, &want), &got) in input.iter().zip(&written).zip(&legal) {
            assert!(close(got, want), "{op:?} of {x:e} is {got:e}, not {want:e}");
        }
    }
}

#[test]
fn combine_regions_are_legalized_too() {
    // The logarithm of a sum of exponentials, pair by pair.
    let text = "kernel @logsumexp(%x: ptr<f32>, %y: ptr<f32>) {
  %r = iota 0 : tile<256xi32>
  %xs = broadcast %x : tile<256xptr<f32>>
  %xp = ptr_add %xs, %r : tile<256xptr<f32>>
  %v = load %xp : tile<256xf32>
  %s = reduce {axis = 0} %v : f32 {
  ^(%a: f32, %b: f32):
    %m = max %a, %b : f32
    %c = sub %a, %m : f32
    %d = sub %b, %m : f32
    %e = exp %c : f32
    %f = exp %d : f32
    %g = add %e, %f : f32
    %h = log %g : f32
    %k = add %m, %h : f32
    yield %k
  }
  store %y, %s
}";
    let input: Vec<f32> = (0..256).map(|i| (i as f32 * 0.37).sin() * 20.0).collect();
    let (written, legal) = both(text, &input, 1);
    let exact = input.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
    assert!((f64::from(legal[0]) - exact).abs() < 1e-4, "{} is not {exact}", legal[0]);
    assert!(close(written[0], legal[0]), "{} and {}", written[0], legal[0]);
}
