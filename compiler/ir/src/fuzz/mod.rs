//! Properties of random kernels: they verify, print, parse and print again; `simplify` does not change what they compute; what
//! `axis_info` says of a value is true of it. And the parser takes any text without panicking.

mod generate;

use generate::{CAPACITY, Rng, STORED, Stored, kernel};

use crate::analysis::axis_info::{AxisInfo, AxisInfoMap};
use crate::interp::{self, Arg, Launch, Memory};
use crate::kernel::Kernel;
use crate::numerics::bits_to_f64;
use crate::text::{parse, parse_kernel, print};
use crate::transform::PASSES;
use crate::types::{Elem, Shape};
use crate::verify::verify;

/// Seeds that are tried: few enough for every run of the tests; `TEGULA_FUZZ_KERNELS=100000` looks further.
fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("TEGULA_FUZZ_KERNELS").ok();
    0..asked.map_or(60, |n| n.parse().expect("TEGULA_FUZZ_KERNELS is a number"))
}

fn verified(kernel: &Kernel, what: &str) {
    if let Err(errors) = verify(kernel) {
        panic!("{what}: {errors:#?}\n{kernel}");
    }
}

/// Runs the kernel; gives the bit patterns of the views, in the order of [`STORED`].
fn run(kernel: &Kernel) -> Vec<Vec<u64>> {
    let memory = Memory::new();
    let mut args = vec![
        Arg::scalar(48i32),
        Arg::scalar(1i64),
        Arg::scalar(2.5f32),
        Arg::scalar(true),
        Arg::scalar(-7i8),
    ];
    let size = |elem: Elem| elem.size_of().expect("stored types are addressable");
    let buffers: Vec<_> = STORED
        .iter()
        .map(|&elem| memory.allocate(CAPACITY as usize * size(elem)).expect("a few KiB"))
        .collect();
    args.extend(buffers.iter().map(|buffer| Arg::row_major(buffer.address(), &[i64::from(CAPACITY)])));
    let options = interp::Options { parallel: false, ..interp::Options::default() };
    if let Err(error) = interp::run(kernel, &Launch { grid: [1, 1, 1] }, &args, &memory, &options) {
        panic!("{error}\n{kernel}");
    }
    let bits_of = |(buffer, &elem): (&std::sync::Arc<interp::Allocation>, &Elem)| {
        let mut bytes = vec![0; CAPACITY as usize * size(elem)];
        buffer.read(0, &mut bytes);
        let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |x, &byte| x << 8 | u64::from(byte));
        bytes.chunks(size(elem)).map(word).collect()
    };
    buffers.iter().zip(&STORED).map(bits_of).collect()
}

#[test]
fn random_kernels_verify_and_round_trip() {
    for seed in seeds() {
        let (kernel, _) = kernel(seed);
        verified(&kernel, "as generated");
        let text = print(&kernel);
        let parsed = parse_kernel(&text).unwrap_or_else(|e| panic!("{}", e.render("kernel", &text)));
        verified(&parsed, "parsed");
        assert_eq!(print(&parsed), text);
    }
}

#[test]
fn simplifying_changes_no_result() {
    for seed in seeds() {
        let (original, stored) = kernel(seed);
        let expected = run(&original);
        for pass in PASSES.iter().filter(|p| ["simplify", "fold", "cse", "licm", "dce"].contains(&p.name)) {
            let mut simplified = original.clone();
            (pass.run)(&mut simplified, &crate::target::GpuFeatures::SM_90)
                .expect("these passes do not fail");
            verified(&simplified, pass.name);
            let found = run(&simplified);
            for (i, &elem) in STORED.iter().enumerate() {
                let value = |bits: u64| if elem.is_float() { bits_to_f64(elem, bits) } else { 0.0 };
                // NaNs are equal whatever their bits, which no operation defines.
                let differs = |&at: &usize| {
                    let (a, b) = (expected[i][at], found[i][at]);
                    a != b && !(value(a).is_nan() && value(b).is_nan())
                };
                if let Some(at) = (0..CAPACITY as usize).find(differs) {
                    let stored =
                        stored.iter().rev().find(|s| s.view == i && s.offset as usize <= at).unwrap();
                    panic!(
                        "seed {seed}, {}: {:?} of {elem}, stored at {}: {:#x} became {:#x} at {at}\n{original}\n{simplified}",
                        pass.name, stored.value, stored.offset, expected[i][at], found[i][at]
                    );
                }
            }
        }
    }
}

#[test]
fn simplify_comes_to_rest() {
    for seed in seeds() {
        let (mut kernel, _) = kernel(seed);
        crate::transform::simplify::run(&mut kernel);
        let once = print(&kernel);
        assert!(
            !crate::transform::simplify::run(&mut kernel),
            "seed {seed} changes again:\n{once}\n{kernel}"
        );
        assert_eq!(print(&kernel), once);
    }
}

#[test]
fn axis_info_is_true() {
    for seed in seeds() {
        let (kernel, stored) = kernel(seed);
        let info = AxisInfoMap::compute(&kernel);
        let results = run(&kernel);
        for Stored { value, view, offset } in stored {
            let (elem, shape) = (STORED[view], kernel.ty(value).shape().expect("tiles are stored"));
            let Some(info) = info.get(value).filter(|_| !elem.is_float()) else { continue };
            let values: Vec<i128> = results[view][offset as usize..][..shape.num_elements() as usize]
                .iter()
                .map(|&bits| crate::numerics::convert::bits_to_int(elem, bits))
                .collect();
            if let Err(what) = check_axis_info(info, shape, &values) {
                panic!(
                    "seed {seed}: {what} of {value:?}, stored in out_{elem}[{offset}]: {info:?}\n{values:?}\n{kernel}"
                );
            }
        }
    }
}

/// Does the value have the runs and divisors that are claimed?
fn check_axis_info(info: &AxisInfo, shape: Shape, values: &[i128]) -> Result<(), &'static str> {
    if info.constant.is_some_and(|c| values.iter().any(|&v| v as i64 != c)) {
        return Err("constant");
    }
    for d in 0..shape.rank().max(1) {
        let extent = shape.dims().get(d).map_or(1, |&e| e as usize);
        let stride: usize = shape.dims().iter().skip(d + 1).map(|&e| e as usize).product();
        let (contiguity, constancy) = (info.contiguity[d] as usize, info.constancy[d] as usize);
        for (i, &value) in values.iter().enumerate() {
            let at = i / stride % extent;
            let before = (at > 0).then(|| values[i - stride]);
            if at.is_multiple_of(contiguity) && value % i128::from(info.divisibility[d]) != 0 {
                return Err("divisibility");
            }
            if !at.is_multiple_of(contiguity) && before != Some(value - 1) {
                return Err("contiguity");
            }
            if !at.is_multiple_of(constancy) && before != Some(value) {
                return Err("constancy");
            }
        }
    }
    Ok(())
}

#[test]
fn the_parser_takes_any_text() {
    let mut rng = Rng(7);
    let (first, _) = kernel(1);
    let (second, _) = kernel(2);
    let words = [
        "%",
        "#0",
        "@",
        "\"",
        "{",
        "}",
        "(",
        ")",
        "<",
        "x",
        "?",
        ":",
        ",",
        "=",
        "-",
        "1e",
        "9999999999",
        "for",
        "if",
        "ptr<",
        "tile<",
        "é",
        "\n",
    ];
    for text in [print(&first), print(&second)] {
        for _ in 0..400 {
            let mut mutated = text.clone();
            for _ in 0..1 + rng.below(3) {
                let start = boundary(&mutated, rng.below(mutated.len()));
                let end = boundary(&mutated, (start + rng.below(12)).min(mutated.len()));
                match rng.below(3) {
                    0 => mutated.replace_range(start..end, ""),
                    1 => mutated.replace_range(start..end, words[rng.below(words.len())]),
                    _ => {
                        let from = boundary(&text, rng.below(text.len()));
                        let to = boundary(&text, (from + 20).min(text.len()));
                        mutated.insert_str(start, &text[from..to]);
                    }
                }
            }
            match parse(&mutated) {
                Ok(kernels) => kernels.iter().for_each(|kernel| {
                    // Whatever parses, the verifier and the printer take too.
                    let _ = verify(kernel);
                    print(kernel);
                }),
                Err(error) => assert!(error.render("text", &mutated).contains("error: ")),
            }
        }
    }
}

/// The character boundary at or before a byte.
fn boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
