//! `tegula-emu` as its users see it: exit codes, JSON, files, what it says when it is used wrongly.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn emulator_fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("fixtures have plain names")
}

/// Runs the program: exit code, standard output, standard error.
fn tegula_emu(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_tegula-emu")).args(args).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("it writes text");
    (status.code().expect("it ends by itself"), text(stdout), text(stderr))
}

/// As [`tegula_emu`], with `--json`.
fn json(args: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = tegula_emu(&[args, &["--json"]].concat());
    (code, serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}{stderr}")))
}

/// Arguments that run `add` over 512 elements.
fn add<'a>(ptx: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let run = ["run", ptx, "--grid", "4", "--block", "128"];
    let buffers = ["-b", "x=f32:512:iota", "-b", "y=f32:512:ones", "-a", "x", "-a", "y"];
    [&run[..], &buffers, more].concat()
}

/// The elements of a file of NumPy's whose header has 128 bytes, two bytes each, as bf16.
fn bf16_of(path: &Path) -> Vec<f64> {
    let bytes = std::fs::read(path).expect("it has been written");
    let data = &bytes[128..];
    data.as_chunks::<2>().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f64()).collect()
}

/// The Hopper GEMM, C = A·Bᵀ of 256 by 256 by 256: clean, right, and counted as one counts by hand.
#[test]
fn a_hopper_gemm_from_the_command_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let outputs: Vec<String> =
        ["a", "b", "c"].map(|name| format!("{name}={}", text(&file(&format!("{name}.npy"))))).to_vec();
    let (ptx, launch) = (emulator_fixture("k_p256.ptx"), fixture("gemm.toml"));
    let mut args = vec!["run", text(&ptx), "--launch", text(&launch)];
    outputs.iter().for_each(|output| args.extend(["--out", output]));
    let (code, result) = json(&args);
    assert_eq!((code, &result["clean"]), (0, &Value::Bool(true)), "{result:#}");

    let [a, b, c] = ["a.npy", "b.npy", "c.npy"].map(|name| bf16_of(&file(name)));
    assert_eq!([a.len(), b.len(), c.len()], [65536; 3]);
    assert!(a != b && a.iter().all(|x| (-1.0..=1.0).contains(x)));
    for (i, &c) in c.iter().enumerate() {
        let (row, column) = (i / 256, i % 256);
        let want: f64 = (0..256).map(|k| a[row * 256 + k] * b[column * 256 + k]).sum();
        // Sums in f32 lose at most 256 · 2^-24 of the sum of magnitudes, at most 256; rounding to bf16 2^-9 of the result.
        let tolerance = 256.0 * 256.0 * 2f64.powi(-24) + want.abs() * 2f64.powi(-8);
        assert!((c - want).abs() <= tolerance, "c[{row}][{column}] is {c}, not {want}");
    }

    // Two tiles of 128 by 256; for each, 4 slices of 64 along K, in which two warpgroups execute 4 wgmmas: of 4 warps each.
    let class = |name: &str| {
        let classes = result["counters"]["classes"].as_array().expect("an array");
        classes.iter().find(|class| class["class"] == name).unwrap_or_else(|| panic!("{name}")).clone()
    };
    assert_eq!(class("matrix product")["warps"], 2 * 4 * 2 * 4 * 4);
    let total = &result["counters"]["total"];
    // Rows of A and B for each slice, of 128 bytes; C's rows, in boxes of 64 columns: 128 bytes, too.
    let loads = 2 * 4 * (128 + 256);
    let stores = 2 * 128 * 256 * 2 / 128;
    let global = &total["global"];
    assert_eq!(
        [&global["requests"], &global["read"], &global["written"]],
        [loads + stores, loads * 128, stores * 128]
    );
    // Four sectors each, since all of them are aligned.
    assert_eq!(total["sectors"], 4 * (loads + stores));
    // What was loaded is written to shared memory; C passes through it; two CTAs initialise the 8 mbarriers of a ring of four.
    assert_eq!(total["shared"]["written"], (loads + stores) * 128 + 2 * 8 * 8);
}

/// The same with one wait less is found out, whatever the number of seeds.
#[test]
fn a_broken_gemm_exits_with_1() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = std::fs::read_to_string(emulator_fixture("k_p256.ptx")).expect("the fixture");
    let at = good.find("wgmma.wait_group.sync.aligned 0;").expect("it waits for its products");
    let broken = format!("{}//{}", &good[..at], &good[at..]);
    let line = 1 + good[..at].matches('\n').count();
    let path = folder.path().join("broken.ptx");
    std::fs::write(&path, broken).expect("room");
    let launch = fixture("gemm.toml");
    let (code, result) =
        json(&["run", text(&path), "--launch", text(&launch), "--seeds", "2", "--late", "--random"]);
    assert_eq!((code, &result["clean"]), (1, &Value::Bool(false)));
    let runs = result["runs"].as_array().expect("an array");
    assert_eq!(runs.len(), 4);
    assert_eq!((&runs[3]["seed"], &runs[3]["timing"]), (&Value::from(1), &Value::from("random")));
    let findings = result["findings"].as_array().expect("an array");
    let hazard =
        findings.iter().find(|f| f["kind"] == "hazard with the asynchronous proxy").expect("it is found");
    assert!(hazard["party"]["ptx_line"].as_u64().expect("a line") > line as u64, "{hazard:#}");
    assert!(hazard["other"]["instruction"].as_str().expect("text").contains("wgmma"), "{hazard:#}");
    let (code, stdout, _) = tegula_emu(&["run", text(&path), "--launch", text(&launch)]);
    assert!(code == 1 && stdout.contains("wgmma") && stdout.contains("buffer a is at 0x"), "{stdout}");
}

#[test]
fn a_kernel_run_from_flags_and_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let ptx = fixture("add.ptx");
    let file = |name: &str| folder.path().join(name);
    let (npy, raw) = (format!("y={}", text(&file("y.npy"))), format!("x={}", text(&file("x.bin"))));
    let (code, stdout, stderr) = tegula_emu(&add(text(&ptx), &["--out", &npy, "--out", &raw, "--show", "y"]));
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert!(stdout.contains("clean") && stdout.contains("y (f32 of [512]): 1, 2, 3, 4,"), "{stdout}");
    assert!(stdout.contains("add.rs:4"), "{stdout}");
    let x = std::fs::read(file("x.bin")).expect("it has been written");
    assert_eq!((x.len(), &x[4..8]), (2048, &1f32.to_le_bytes()[..]));
    let y = std::fs::read(file("y.npy")).expect("it has been written");
    assert!(y.starts_with(b"\x93NUMPY") && y.ends_with(&512f32.to_le_bytes()));

    // Back in: the file says type and shape; a JSON launch file with paths beside it, the command line before it.
    let launch = file("again.json");
    let spec = r#"{ "grid": [4, 1], "block": 128, "args": ["x", "y"],
        "buffers": { "x": "f32:512:@x.bin", "y": "@y.npy" }, "out": { "y": "z.bin" } }"#;
    std::fs::write(&launch, spec).expect("room");
    let (code, _, stderr) = tegula_emu(&["run", text(&ptx), "--launch", text(&launch), "--grid", "1"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let z = std::fs::read(file("z.bin")).expect("it has been written");
    let z: Vec<f32> = z.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    // One CTA instead of four: y = x + 1 has become 2 x + 1 in its part only.
    assert_eq!((z[5], z[127], z[128]), (11.0, 255.0, 129.0));
}

/// The page of the book, "Debug a kernel without a GPU": its kernel is clean, and the broken one is reported at the lines that it shows.
#[test]
fn the_book_shows_what_is_printed() {
    let page = include_str!("../../../docs/book/src/emulated.md");
    let source = std::fs::read_to_string(fixture("matmul/src/main.rs")).expect("the fixture");
    let kernel =
        page.split("```rust,ignore\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the kernel");
    assert!(source.contains(kernel), "the page shows another kernel than {source}");

    let (ptx, launch) = (fixture("matmul/matmul.ptx"), fixture("matmul/matmul.toml"));
    let (code, stdout, _) =
        tegula_emu(&["run", text(&ptx), "--launch", text(&launch), "--seeds", "2", "--late", "--early"]);
    assert!(code == 0 && stdout.contains("clean: 4 runs, nothing found"), "{stdout}");
    let counts: Vec<_> = stdout.lines().skip_while(|line| !line.starts_with("instructions ")).collect();
    assert!(page.contains(&counts.join("\n")), "the page's counts are not\n{}", counts.join("\n"));

    // As `sed 424d` does.
    let good = std::fs::read_to_string(&ptx).expect("the fixture");
    let mut lines: Vec<_> = good.lines().collect();
    assert!(lines.remove(423).contains("cp.async.wait_group"));
    let folder = tempfile::tempdir().expect("a folder");
    let broken = folder.path().join("broken.ptx");
    std::fs::write(&broken, lines.join("\n")).expect("room");
    let (code, stdout, _) = tegula_emu(&["run", text(&broken), "--launch", text(&launch)]);
    assert_eq!(code, 1);
    let places: Vec<_> = page.lines().filter(|line| line.starts_with("    at src/main.rs:10")).collect();
    assert_eq!(places.len(), 3, "a report and a hazard with two parties");
    places.iter().for_each(|place| {
        assert!(stdout.contains(place), "the page shows\n{place}\nwhich is not in\n{stdout}")
    });
}

#[test]
fn the_listing_has_source_and_ptx_with_their_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("add.html");
    let ptx = fixture("add.ptx");
    let (code, _, stderr) = tegula_emu(&add(text(&ptx), &["--html", text(&page)]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let html = std::fs::read_to_string(&page).expect("it has been written");
    // Nothing is loaded from elsewhere.
    for outside in ["http://", "https://", "src=", "<link", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    let row = |id: &str| {
        let at = html.find(&format!("<tr id=\"{id}\"")).unwrap_or_else(|| panic!("no row {id}"));
        html[at..].split_once("</tr>").expect("a row ends").0.to_owned()
    };
    // Line 4 of the source: 8 instructions of 16 warps, 2048 bytes of x in, the same to shared memory.
    let source = row("s1-4");
    assert!(source.contains(">128</td>") && source.contains("shared[127 - i] = x[i];"), "{source}");
    assert_eq!(source.matches(">2\u{202f}048</td>").count(), 2, "{source}");
    let store = row("p27");
    assert!(store.contains("st.shared.f32 [%r4], %f1;") && store.contains(">16</td>"), "{store}");
    assert!(store.contains("href=\"#s1-4\""), "{store}");
    assert!(row("s1-2").contains("&amp;mut [f32]"));

    // A finding stands below its line: without the barrier's line the launch is one thread short of it.
    let (code, ..) = tegula_emu(&[
        "run",
        text(&ptx),
        "--grid",
        "4",
        "--block",
        "128",
        "-b",
        "x=f32:500:iota",
        "-b",
        "y=f32:512:ones",
        "-a",
        "x",
        "-a",
        "y",
        "--html",
        text(&page),
    ]);
    assert_eq!(code, 1);
    let html = std::fs::read_to_string(&page).expect("it has been written");
    let note = html.split("class=\"note\"").nth(1).expect("a finding is noted");
    assert!(note.contains("out of bounds") && note.contains("behind the 2000 bytes of `x`"), "{note}");
}

#[test]
fn check_lists_kernels_and_refuses_what_it_does_not_know() {
    let ptx = fixture("add.ptx");
    let (code, stdout, _) = tegula_emu(&["check", text(&ptx)]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("kernel add: 21 instructions") && stdout.contains("parameter 1, y: 8 bytes"),
        "{stdout}"
    );
    let (code, result) = json(&["check", text(&ptx)]);
    assert_eq!((code, &result["kernels"][0]["name"]), (0, &Value::from("add")));

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bad.ptx");
    let bad = std::fs::read_to_string(&ptx).expect("the fixture").replace("bar.sync 0;", "bar.fly 0;");
    std::fs::write(&path, bad).expect("room");
    let (code, stdout, _) = tegula_emu(&["check", text(&path)]);
    assert!(code == 1 && stdout.contains("PTX line 29:5") && stdout.contains("bar.fly 0;"), "{stdout}");
    let (code, result) = json(&["check", text(&path)]);
    assert_eq!((code, &result["error"]["line"]), (1, &Value::from(29)));
    let (code, _, stderr) = tegula_emu(&["run", text(&path), "--grid", "1", "--block", "1"]);
    assert!(code == 2 && stderr.contains("PTX line 29:5"), "{stderr}");
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_to_do() {
    let ptx = fixture("add.ptx");
    let ptx = text(&ptx);
    let folder = tempfile::tempdir().expect("a folder");
    let launch = folder.path().join("bad.toml");
    std::fs::write(&launch, "gird = 4\n").expect("room");
    let run = |more: &[&'static str]| [&["run", ptx][..], more].concat();
    for (args, words) in [
        (vec!["check", "no/such.ptx"], "cannot read no/such.ptx"),
        (run(&[]), "--grid is needed"),
        (run(&["--grid", "4"]), "--block is needed"),
        (run(&["--grid", "0", "--block", "1"]), "one to three extents"),
        (run(&["--grid", "4", "--block", "128"]), "has 2 parameters, and no arguments are given"),
        (run(&["--kernel", "sub", "--grid", "4"]), "no kernel `sub`; there are: add"),
        (run(&["--grid", "4", "--block", "2000", "-b", "x=f32:1", "-a", "x", "-a", "x"]), "1 to 1024"),
        (
            run(&["--grid", "4", "--block", "128", "-a", "x", "-a", "y"]),
            "declare it with --buffer x=TYPE:SHAPE",
        ),
        (
            run(&["--grid", "4", "--block", "128", "-a", "u32:1", "-a", "u64:1"]),
            "it has 4 bytes, and the parameter `x` has 8",
        ),
        (run(&["--grid", "4", "--block", "128", "-b", "x=f32"]), "no shape"),
        (run(&["--grid", "4", "--block", "128", "-b", "x=f32:4:@no.bin"]), "no.bin"),
        (run(&["--grid", "4", "--block", "128", "-b", "x=f32:1", "-b", "x=f32:1"]), "declared twice"),
        (run(&["--sanitize", "most", "--grid", "4"]), "invalid value 'most' for '--sanitize"),
        (run(&["--seeds", "0"]), "--seeds"),
        (run(&["--launch", "no.toml"]), "launch file no.toml"),
    ] {
        let (code, stdout, stderr) = tegula_emu(&args);
        assert!(code == 2 && stdout.is_empty() && stderr.contains(words), "{args:?}: {code} {stderr}");
    }
    let (code, _, stderr) = tegula_emu(&["run", ptx, "--launch", text(&launch)]);
    assert!(code == 2 && stderr.contains("gird"), "{stderr}");
}
