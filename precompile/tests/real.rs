//! Real kernels through the real compiler: the command line's bundles, also of runs that are killed or meet each other, and a program without a compiler that runs from one.

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tegula::ir::artifact::Compiler as _;
use tegula::runtime::{Bundle, Device};
use tegula_codegen::Options;
use tegula_codegen::compile::PtxCompiler;
use tegula_precompile::{CodeKind, Plan, launched, write_file};

#[path = "../../kernel-lib/examples/deploy.rs"]
#[allow(dead_code, reason = "a program by itself, of which this calls a part")]
mod deploy;

/// Kernels that compile quickly, for two targets, one of which takes ptxas.
const MANIFEST: &str = r#"
output = "k.tegula"
[targets]
sm_90a = "cubin"
sm_80 = "ptx"
[[kernels]]
name = "rms_norm"
types = ["bf16, bf16"]
configs = ["block: 64,", "block: 512,", "block: 2048,"]
[[served]]
name = "add_rms_norm"
types = ["bf16, bf16"]
targets = ["sm_80"]
"#;

fn command(folder: &Path, threads: &str, words: &[&str]) -> Command {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("k.toml"), MANIFEST).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tegula-precompile"));
    command.arg("k.toml").args(words).current_dir(folder).env("RAYON_NUM_THREADS", threads);
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs it to the end; what it said.
fn run(folder: &Path, threads: &str, words: &[&str]) -> String {
    let output = command(folder, threads, words).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

fn start(folder: &Path) -> Child {
    command(folder, "1", &[]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// How many kernels it says that it did not compile.
fn taken(said: &str) -> usize {
    let (before, _) = said.split_once(" taken from").unwrap_or_else(|| panic!("{said}"));
    before.rsplit('(').next().and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

/// How many files there are, but for those that are being written.
fn files(folder: &Path) -> usize {
    let is_whole = |entry: &std::fs::DirEntry| !entry.file_name().to_string_lossy().starts_with(".tmp-");
    std::fs::read_dir(folder).map_or(0, |entries| entries.flatten().filter(is_whole).count())
}

#[test]
fn bytes_are_the_same_in_any_folder_on_any_number_of_threads_and_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (folder.path().join("here"), folder.path().join("some/where/else"));
    assert_eq!(taken(&run(&here, "1", &[])), 0);
    let bundle = std::fs::read(here.join("k.tegula")).unwrap();
    Bundle::from_bytes("k", bundle.clone()).unwrap().verify().unwrap();
    assert_eq!(files(&here), 2, "the manifest and the bundle");

    // Killed when some kernels are done: they are not compiled again, and the bundle is the same.
    let mut killed = start(&there);
    let (kept, began) = (there.join("k.tegula.kept"), Instant::now());
    while files(&kept) < 3 {
        assert!(began.elapsed() < Duration::from_secs(120) && killed.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(!there.join("k.tegula").exists());
    let whole = files(&kept);
    // One of them by half, as a full disk leaves it.
    let first =
        std::fs::read_dir(&kept).unwrap().flatten().map(|e| e.path()).find(|p| p.extension().is_some());
    let first = first.unwrap();
    std::fs::write(&first, &std::fs::read(&first).unwrap()[..100]).unwrap();
    let resumed = taken(&run(&there, "3", &[]));
    assert!(resumed + 1 >= 3 && resumed < whole, "{resumed} of {whole}");
    assert!(std::fs::read(there.join("k.tegula")).unwrap() == bundle && !kept.exists());

    // Nothing to do; and two at once, who both compile everything.
    let all = taken(&run(&there, "1", &[]));
    assert!(all >= 12 && std::fs::read(there.join("k.tegula")).unwrap() == bundle, "{all}");
    std::fs::remove_file(there.join("k.tegula")).unwrap();
    let both = [start(&there), start(&there)];
    for process in both {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert!(std::fs::read(there.join("k.tegula")).unwrap() == bundle);
    }
}

#[test]
fn what_cannot_be_is_said_before_anything_is_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let fails = |words: &[&str], expected: &str| {
        let began = Instant::now();
        let output = command(folder.path(), "1", words).output().unwrap();
        let said = text(&output);
        assert!(!output.status.success() && said.contains(expected), "{words:?}: {said}");
        assert_eq!(said.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{said}");
        assert!(began.elapsed() < Duration::from_secs(20));
    };
    fails(&["--output", "."], "it is a folder");
    fails(&["--output", "absent/k.tegula"], "nothing can be written to its folder");
    fails(&["--output", "k.toml/k.tegula"], "nothing can be written to its folder");
    fails(&["--output", "k.toml"], "is no bundle");
    assert_eq!(std::fs::read_to_string(folder.path().join("k.toml")).unwrap(), MANIFEST);
    let output = Command::new(env!("CARGO_BIN_EXE_tegula-precompile")).arg("absent.toml").output().unwrap();
    assert!(text(&output).contains("error: absent.toml: "), "{}", text(&output));
}

/// What the program launches on the device that is emulated, as PTX; then the program itself, without a compiler, from that bundle, and on the host.
#[test]
fn a_program_without_a_compiler_runs_on_the_emulated_device_from_a_real_bundle_and_on_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("k.tegula").display().to_string();
    let emulated = "emulated:sm_90a".to_owned();
    let device = Device::open(&emulated).unwrap();
    assert!(device.compiler().is_none());
    let kernels = launched::<Box<dyn Error>>(device.properties(), |device| {
        deploy::everything(&mut deploy::Report::of_launches(), device, true)
    })
    .unwrap();
    let compiler = PtxCompiler::new(Options { line_info: false, ..Options::default() });
    let plan = Plan::new().target("sm_90a", CodeKind::Ptx).launched("deploy", "bf16", "launch", &kernels);
    assert!(plan.coverage(&kernels, "sm_90a").unwrap().missing.is_empty());
    let outcome = plan.run(&compiler, None, &|_| ()).unwrap();
    assert!(outcome.failures.is_empty(), "{}", outcome.failures[0].message);
    write_file(path.as_ref(), &outcome.bundle).unwrap();
    let run = |device: &str, bundle: Option<&String>| {
        let json = folder.path().join("result.json").display().to_string();
        let arguments = deploy::Arguments {
            device: device.to_owned(),
            bundle: bundle.cloned(),
            json: Some(json.clone()),
            within: None,
        };
        deploy::run(&arguments).map(|()| std::fs::read_to_string(json).unwrap())
    };
    let names = |json: &str| json.matches("\"name\"").count();
    // Both compare every result with f64, within the same bounds.
    assert_eq!((names(&run(&emulated, Some(&path)).unwrap()), names(&run("host", None).unwrap())), (6, 6));
    drop(device);
    let without = run(&emulated, None).unwrap_err().to_string();
    assert!(without.contains("not precompiled") || without.contains("no compiler"), "{without}");
    let _ = compiler.version();
}
