//! The reader: what it refuses, and that nothing it is given makes it panic or hang.

use tegula_emulator::{Program, Rng};

use crate::harness::Test;

#[test]
fn unknown_things_are_errors_with_line_and_text() {
    for (body, message) in [
        ("frobnicate.b32 %r1, %r2;", "unknown instruction `frobnicate`"),
        ("add.s32.wild %r1, %r2, %r3;", "unknown modifier `.wild`"),
        ("add.s33 %r1, %r2, %r3;", "not a type"),
        ("add.s32 %r1, %r2;", "expected 3 operands"),
        ("add.s32 %r1, %nothing, 1;", "not declared"),
        ("add.s64 %rd1, %r2, 1;", "32 bits where 64 are needed"),
        ("setp.lo.s32 %q1, %r1, %r2;", "not for this type"),
        ("mov.f32 %f1, 1;", "an integer where a float"),
        ("bra nowhere;", "not a label"),
        (".section x;", "unknown directive"),
        ("ld.global.f16 %rs1, [%p0];", "not loaded or stored"),
        ("cvt.f32.f64 %f1, %rd1;", "no such conversion"),
        ("fma.rn.relu.f64 %rd1, %rd1, %rd1, %rd1;", "neither"),
        ("add.s32 %r1, %r2, 0x1ffffffffffffffff;", "at most 64 bits"),
    ] {
        let text = Test::new(&format!("{body}\nret;")).text(1);
        let error = Program::load(&text).expect_err(body);
        assert!(error.to_string().contains(message), "{body}: {error}");
        assert_eq!(
            text.lines().nth(error.line as usize - 1).map(str::trim),
            Some(error.text.as_str()),
            "{body}"
        );
        assert_eq!(error.text, body);
    }
}

/// Texts to damage.
fn seeds() -> Vec<String> {
    let mut out = vec![include_str!("../fixtures/k_p128_s6.ptx").to_owned()];
    for body in [
        "{ .reg .b32 x<3>; .reg .pred p; setp.lt.and.f32 p|%q1, %f1, 0f3F800000, !%q2; @!p bra L; L: mov.b64 {%r1, _}, %rd1; }",
        ".loc 1 2 3, function_name a, inlined_at 1 2 3\nld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%p0+-16];\nprmt.b32 %r1, %r2, %r3, 0x7604U;",
        ".param .b32 a;\ncp.async.cg.shared.global [%r1], [%p0], 16;\nlop3.or.b32 %r1|%q1, %r2, %r3, %r4, 0x1e, %q2;\nbar.sync 1, 64;",
    ] {
        out.push(
            Test {
                before: ".const .f32 c[2] = {1.5, -2e3};\n.global .u64 g = generic(c)+4;\n",
                ..Test::new(body)
            }
            .text(2),
        );
    }
    out
}

/// Damages a text: bytes, lines and words are removed, doubled, exchanged.
fn mutate(text: &str, rng: &mut Rng) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len());
        let most = if rng.one_in(4) { 200 } else { 8 };
        let length = 1 + rng.below(most);
        let end = (at + length).min(bytes.len());
        match rng.below(5) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let piece = bytes[at..end].to_vec();
                let to = rng.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            2 => bytes[at] = b"{}[]()<>;:,.@!|+-*/%&^~_$09azAZ\"\n "[rng.below(34)],
            3 => {
                let word = [
                    ".reg",
                    "{",
                    "}",
                    "0x",
                    "0f3F80",
                    "4294967295",
                    "-1",
                    ".b128",
                    "%r99999999",
                    "<<",
                    "::",
                    "/*",
                ][rng.below(12)];
                bytes.splice(at..at, word.bytes());
            }
            _ => bytes.swap(at, end - 1),
        }
        if bytes.is_empty() {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Damaged texts are read, or refused: the time of one is bounded, and nothing panics. `TEGULA_FUZZ_SECONDS` makes it longer.
#[test]
fn damaged_texts_do_not_panic() {
    let seconds: u64 = std::env::var("TEGULA_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let started = std::time::Instant::now();
    let seeds = seeds();
    let mut rng = Rng::new(1, 0);
    let mut n = 0;
    while n < 400 || started.elapsed().as_secs() < seconds {
        n += 1;
        // The small texts more often: they have the odder syntax.
        let seed = if rng.one_in(8) { &seeds[0] } else { &seeds[1 + rng.below(seeds.len() - 1)] };
        let text = mutate(seed, &mut rng);
        let begun = std::time::Instant::now();
        let _ = Program::load(&text);
        assert!(begun.elapsed().as_secs() < 10, "this takes too long:\n{text}");
    }
}

#[test]
fn deep_nesting_is_refused() {
    for open in ["{", "(", "[", "-", "~(", "@", "{.reg .b32 x;"] {
        let text = Test::new(&format!("mov.b32 %r1, {};", open.repeat(100_000))).text(0);
        assert!(Program::load(&text).is_err());
        let text = Test::new(&open.repeat(100_000)).text(0);
        assert!(Program::load(&text).is_err());
    }
}
