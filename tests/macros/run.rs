//! Device control flow runs as Rust does: kernels on the tile interpreter against the same text over host numbers.

// Written to cover the constructs, not as one would write.
#![allow(clippy::all)]

use tegula::ir::interp::{self, Arg, Launch, Memory, Options};
use tegula::ir::{Elem, Kernel};
use tegula::prelude::*;

/// Runs one program of a kernel that takes these integers and a pointer to `results` of them.
fn run(kernel: Result<Kernel, tegula::Diagnostics>, integers: &[i32], results: usize) -> Vec<i32> {
    let memory = Memory::new();
    let out = memory.allocate(4 * results).unwrap();
    let args = integers.iter().map(|&i| Arg::scalar(i)).chain([Arg::Ptr { address: out.address() }]);
    let args: Vec<Arg> = args.collect();
    interp::run(&kernel.unwrap(), &Launch { grid: [1; 3] }, &args, &memory, &Options::default()).unwrap();
    let mut bytes = vec![0; 4 * results];
    out.read(0, &mut bytes);
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The body of a function over three integers, over host numbers and over the device's.
macro_rules! host_and_device {
    ($name:ident($a:ident, $b:ident, $n:ident) -> $results:literal $body:block) => {
        mod $name {
            use super::*;

            pub fn host($a: i32, $b: i32, $n: i32) -> [i32; $results] $body

            #[tile_fn]
            pub fn device($a: Scalar<i32>, $b: Scalar<i32>, $n: Scalar<i32>) -> [Scalar<i32>; $results] $body

            #[kernel]
            pub fn entry(a: Scalar<i32>, b: Scalar<i32>, n: Scalar<i32>, out: PtrMut<i32>) {
                for (i, result) in device(a, b, n).into_iter().enumerate() {
                    (out + i).store(result);
                }
            }

            #[test]
            fn agree() {
                for (a, b) in [(0, 0), (3, 5), (5, 3), (-7, 2), (12, 18), (100, -1), (7, 7)] {
                    for n in [-1, 0, 1, 2, 5, 9] {
                        assert_eq!(run(entry::stage(), &[a, b, n], $results), host(a, b, n), "{a}, {b}, {n}");
                    }
                }
            }
        }
    };
}

host_and_device!(gcd(a, b, n) -> 2 {
    let (mut x, mut y) = (if a < 0 { -a } else { a }, if b < 0 { -b } else { b });
    let mut steps = n - n;
    while y != 0 && steps < 50 {
        let rest = x % y;
        x = y;
        y = rest;
        steps += 1;
    }
    [x, steps]
});

host_and_device!(nested(a, b, n) -> 3 {
    let mut sums = [a, b, n];
    let mut best = b;
    for i in 0..n {
        let mut local = a + i;
        for j in i..n {
            if j % 2 == 0 || local > 20 {
                sums[0] += local;
                local -= 1;
            } else if j > i {
                sums[1] += j;
            } else {
                let best = sums[2];
                sums[2] = best + 1;
            }
            if local > best {
                best = local;
            }
        }
        for k in 0..3 {
            sums[k] += best;
        }
    }
    sums
});

host_and_device!(values(a, b, n) -> 2 {
    let mut state = (a, b);
    for i in (0..n).step_by(2) {
        let larger = if state.0 >= state.1 { state.0 } else { state.1 };
        state.1 = if larger == i { larger + 1 } else if larger != a && i < 4 { state.0 } else { larger - i };
        if !(state.1 <= 3) {
            (state.0, state.1) = (state.1, state.0);
        }
    }
    [state.0, state.1]
});

host_and_device!(order(a, b, n) -> 3 {
    // A variable that is read after its change in the same branch, and one that only one branch changes.
    let mut x = a;
    let mut y = b;
    let mut z = n;
    if x < y {
        x += 1;
        y = x * 2;
        if y > z {
            z = x + y;
            x = z;
        }
    } else {
        z -= x;
    }
    while z > 100 {
        z -= 70;
        if z < 50 {
            y += z;
        }
    }
    [x, y, z]
});

/// Changed by a method alone: that is why it is `mut`, so it is carried.
#[derive(Carry, Clone, Copy)]
struct Fibonacci<T>(T, T);

impl<T: Copy + std::ops::Add<Output = T>> Fibonacci<T> {
    fn advance(&mut self) -> T {
        *self = Fibonacci(self.1, self.0 + self.1);
        self.0
    }
}

host_and_device!(methods(a, b, n) -> 2 {
    let mut state = Fibonacci(a, b);
    let mut last = a;
    for _ in 0..n {
        if state.advance() > 10 {
            state.advance();
        }
        last = state.0;
    }
    [last, state.1]
});

#[test]
fn floats_and_tiles_in_a_loop() {
    /// The running maximum of the rows of `x`, and how many rows raised it anywhere.
    #[kernel]
    fn running_max(x: View<f32, 2>, raised: PtrMut<i32>, block: usize) {
        let mut max = full([block], f32::NEG_INFINITY);
        let mut count = constant(0);
        for row in 0..x.dim(0) {
            let values = x.load([row, 0], [1, block]).sum(0);
            if (values > max).cast::<i32>().sum(0) > 0 {
                count += 1;
            }
            max = maximum(max, values);
        }
        raised.store(count);
    }

    let rows: [[f32; 4]; 5] =
        [[1.0, 2.0, 3.0, 4.0], [0.0; 4], [1.0, 2.0, 3.0, 4.5], [1.0, 2.0, 3.0, 4.5], [9.0, 0.0, 0.0, 0.0]];
    let memory = Memory::new();
    let (x, out) = (memory.allocate(80).unwrap(), memory.allocate(4).unwrap());
    x.write(0, &rows.as_flattened().iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
    let args = [Arg::row_major(x.address(), &[5, 4]), Arg::Ptr { address: out.address() }];
    let kernel = running_max::stage(4).unwrap();
    assert_eq!(kernel.params.len(), 2);
    assert_eq!(kernel.ty(kernel.params[1].value), tegula::ir::Type::ptr(Elem::I32));
    interp::run(&kernel, &Launch { grid: [1; 3] }, &args, &memory, &Options::default()).unwrap();
    let mut bytes = [0; 4];
    out.read(0, &mut bytes);
    assert_eq!(i32::from_le_bytes(bytes), 3);
}

// `ref mut` is a change, as `&mut` is.
host_and_device!(changed_through_ref_mut(a, b, n) -> 3 {
    let mut pair = (a, b);
    let mut maybe = Some(b);
    let mut last = n;
    let mut i = n - n;
    while i < n {
        let (ref mut p, _) = pair;
        *p += b;
        if let Some(ref mut p) = maybe {
            *p -= a;
        }
        match last {
            ref mut p => *p += i,
        }
        i += 1;
    }
    [pair.0, maybe.unwrap(), last]
});
