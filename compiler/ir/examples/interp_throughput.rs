//! How fast the interpreter is: prints one line a kernel, best of several runs. Run with `--release`.

use std::time::{Duration, Instant};

use tegula_ir::interp::{Arg, Launch, Memory, Options, Prepared};
use tegula_ir::text::parse;
use tegula_ir::verify::verify;

/// A kernel to time.
struct Case {
    name: &'static str,
    text: &'static str,
    grid: u32,
    /// Bytes of each buffer; one is passed for each parameter, with the extents of the view.
    views: &'static [(usize, &'static [i64])],
    /// Bytes moved, or operations done, by the whole grid, and their unit.
    work: f64,
    unit: &'static str,
}

const ADD: &str = "
kernel @add(%x: view<?xf32>, %y: view<?xf32>, %z: view_mut<?xf32>) {
  %id = program_id 0 : i32
  %n = const 4096 : i32
  %at = mul %id, %n : i32
  %a = view_load %x[%at] : tile<4096xf32>
  %b = view_load %y[%at] : tile<4096xf32>
  %c = add %a, %b : tile<4096xf32>
  view_store %z[%at], %c
}";

const ADD_POINTERS: &str = "
kernel @add_pointers(%xv: view<?xf32>, %yv: view<?xf32>, %zv: view_mut<?xf32>) {
  %x = view_base %xv : ptr<f32>
  %y = view_base %yv : ptr<f32>
  %z = view_base %zv : ptr<f32>
  %len = view_dim 0 %xv : i64
  %id = program_id 0 : i32
  %n = const 1024 : i32
  %at = mul %id, %n : i32
  %i = iota 0 : tile<1024xi32>
  %start = broadcast %at : tile<1024xi32>
  %offset = add %start, %i : tile<1024xi32>
  %wide = cast %offset : tile<1024xi64>
  %end = broadcast %len : tile<1024xi64>
  %in = cmp lt %wide, %end : tile<1024xi1>
  %xs = broadcast %x : tile<1024xptr<f32>>
  %xp = ptr_add %xs, %offset : tile<1024xptr<f32>>
  %ys = broadcast %y : tile<1024xptr<f32>>
  %yp = ptr_add %ys, %offset : tile<1024xptr<f32>>
  %zs = broadcast %z : tile<1024xptr<f32>>
  %zp = ptr_add %zs, %offset : tile<1024xptr<f32>>
  %a = load %xp, %in : tile<1024xf32>
  %b = load %yp, %in : tile<1024xf32>
  %c = add %a, %b : tile<1024xf32>
  store %zp, %c, %in
}";

const SOFTMAX: &str = "
kernel @softmax(%x: view<?x?xbf16>, %y: view_mut<?x?xbf16>) {
  %row = program_id 0 : i32
  %zero = const 0 : i32
  %in = view_load {padding = neg_inf} %x[%row, %zero] : tile<1x4096xbf16>
  %xs = cast %in : tile<1x4096xf32>
  %max = reduce {axis = 1} %xs : tile<1xf32> {
  ^(%a: f32, %b: f32):
    %m = max %a, %b : f32
    yield %m
  }
  %mc = expand {axis = 1} %max : tile<1x1xf32>
  %mb = broadcast %mc : tile<1x4096xf32>
  %d = sub %xs, %mb : tile<1x4096xf32>
  %e = exp %d : tile<1x4096xf32>
  %sum = reduce {axis = 1} %e : tile<1xf32> {
  ^(%a: f32, %b: f32):
    %s = add %a, %b : f32
    yield %s
  }
  %sc = expand {axis = 1} %sum : tile<1x1xf32>
  %sb = broadcast %sc : tile<1x4096xf32>
  %p = div %e, %sb : tile<1x4096xf32>
  %out = cast %p : tile<1x4096xbf16>
  view_store %y[%row, %zero], %out
}";

const DOT: &str = "
kernel @dot(%a: view<?x?xf32>, %b: view<?x?xf32>, %c: view_mut<?x?xf32>) {
  %zero = const 0 : i32
  %x = view_load %a[%zero, %zero] : tile<256x256xf32>
  %y = view_load %b[%zero, %zero] : tile<256x256xf32>
  %acc = const 0.0 : tile<256x256xf32>
  %lo = const 0 : i32
  %hi = const 16 : i32
  %one = const 1 : i32
  %sum = for %i = %lo to %hi step %one carry(%s = %acc) : tile<256x256xf32> {
    %d = dot %x, %y, %s : tile<256x256xf32>
    yield %d
  }
  view_store %c[%zero, %zero], %sum
}";

/// One row of activations times a bf16 weight matrix, `[n, k]`, as in decoding.
const MATVEC: &str = "
kernel @matvec(%x: view<?x?xbf16>, %w: view<?x?xbf16>, %y: view_mut<?x?xbf16>) {
  %id = program_id 0 : i32
  %zero = const 0 : i32
  %bn = const 64 : i32
  %n = mul %id, %bn : i32
  %k = const 4096 : i32
  %bk = const 128 : i32
  %acc = const 0.0 : tile<1x64xf32>
  %sum = for %i = %zero to %k step %bk carry(%s = %acc) : tile<1x64xf32> {
    %a = view_load %x[%zero, %i] : tile<1x128xbf16>
    %b = view_load %w[%n, %i] : tile<64x128xbf16>
    %bt = permute {perm = [1, 0]} %b : tile<128x64xbf16>
    %d = dot %a, %bt, %s : tile<1x64xf32>
    yield %d
  }
  %out = cast %sum : tile<1x64xbf16>
  view_store %y[%zero, %n], %out
}";

const ARGMAX: &str = "
kernel @argmax(%x: view<?x?xf32>, %y: view_mut<?xi32>) {
  %row = program_id 0 : i32
  %zero = const 0 : i32
  %in = view_load %x[%row, %zero] : tile<1x4096xf32>
  %v = reshape %in : tile<4096xf32>
  %i = iota 0 : tile<4096xi32>
  %mx, %ix = reduce {axis = 0} %v, %i : f32, i32 {
  ^(%a: f32, %ai: i32, %b: f32, %bi: i32):
    %gt = cmp gt %a, %b : i1
    %eq = cmp eq %a, %b : i1
    %lt = cmp lt %ai, %bi : i1
    %tie = and %eq, %lt : i1
    %first = or %gt, %tie : i1
    %s = select %first, %a, %b : f32
    %si = select %first, %ai, %bi : i32
    yield %s, %si
  }
  %out = broadcast %ix : tile<1xi32>
  view_store %y[%row], %out
}";

const CASES: &[Case] = &[
    Case {
        name: "vector add f32, views",
        text: ADD,
        grid: 4096,
        views: &[(1 << 26, &[1 << 24]), (1 << 26, &[1 << 24]), (1 << 26, &[1 << 24])],
        work: 3.0 * (1 << 26) as f64,
        unit: "GB/s",
    },
    Case {
        name: "vector add f32, pointers",
        text: ADD_POINTERS,
        grid: 16384,
        views: &[(1 << 26, &[1 << 24]), (1 << 26, &[1 << 24]), (1 << 26, &[1 << 24])],
        work: 3.0 * (1 << 26) as f64,
        unit: "GB/s",
    },
    Case {
        name: "softmax bf16, rows of 4096",
        text: SOFTMAX,
        grid: 1024,
        views: &[(1 << 23, &[1024, 4096]), (1 << 23, &[1024, 4096])],
        work: 2.0 * (1 << 23) as f64,
        unit: "GB/s",
    },
    Case {
        name: "dot f32, 256 × 256 × 256",
        text: DOT,
        grid: 2,
        views: &[(1 << 18, &[256, 256]), (1 << 18, &[256, 256]), (1 << 18, &[256, 256])],
        work: 2.0 * 16.0 * 2.0 * 256f64 * 256.0 * 256.0,
        unit: "GFLOP/s",
    },
    Case {
        name: "matrix-vector bf16, 4096 × 4096",
        text: MATVEC,
        grid: 64,
        views: &[(8192, &[1, 4096]), (1 << 25, &[4096, 4096]), (8192, &[1, 4096])],
        work: (1 << 25) as f64,
        unit: "GB/s",
    },
    Case {
        name: "argmax f32, rows of 4096",
        text: ARGMAX,
        grid: 1024,
        views: &[(1 << 24, &[1024, 4096]), (4096, &[1024])],
        work: (1 << 24) as f64,
        unit: "GB/s",
    },
];

fn main() {
    for case in CASES {
        let kernels = parse(case.text).expect("the kernel parses");
        let kernel = &kernels[0];
        verify(kernel).expect("the kernel is right");
        let memory = Memory::new();
        let buffers: Vec<_> = case.views.iter().map(|v| memory.allocate(v.0).expect("memory")).collect();
        // Small positive numbers in any type: the bytes 0x3c..0x3f.
        for b in &buffers {
            b.fill(0, b.len(), 0x3d);
        }
        let args: Vec<Arg> =
            buffers.iter().zip(case.views).map(|(b, v)| Arg::row_major(b.address(), v.1)).collect();
        let prepared = Prepared::new(kernel).expect("the kernel runs on the host");
        let launch = Launch { grid: [case.grid, 1, 1] };
        let mut best = Duration::MAX;
        for _ in 0..7 {
            let start = Instant::now();
            prepared.run(&launch, &args, &memory, &Options::default()).expect("the run succeeds");
            best = best.min(start.elapsed());
        }
        let rate = case.work / best.as_secs_f64() / 1e9;
        println!("{:34} {:9.3} ms {rate:8.1} {}", case.name, best.as_secs_f64() * 1e3, case.unit);
    }
}
