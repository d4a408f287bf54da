//! What the runner launched is what the tuner tunes, and what it finds is what the runner then uses.

use std::path::Path;
use std::process::{Command, Output};

use tegula_autotune::device::DeviceInfo;
use tegula_autotune::search::run::Run;
use tegula_autotune::search::{Event, Observer, Settings};
use tegula_autotune::shapes::trace;
use tegula_autotune::trial::Trials;
use tegula_autotune::worker::session::Session;
use tegula_autotune::{Tunable, library};
use tegula_records::Folder;

struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event<'_>) {}
}

fn generate(folder: &Path, more: &[&str]) -> Output {
    let arguments =
        ["generate", "--random", "--dtype", "bf16", "--prompt", "a prompt of 20 bytes", "-n", "5"];
    let mut runner = Command::new(env!("CARGO_BIN_EXE_tegula-runner"));
    let output = runner.current_dir(folder).args(arguments).args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn a_trace_is_tuned_and_its_records_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let plain = generate(path, &["--trace", "served.jsonl"]);
    let text = std::fs::read_to_string(path.join("served.jsonl")).unwrap();
    // Four layers: the prompt at once, then tokens one by one, of which the last one need not be computed.
    let prompt = r#"{"kernel": "attention_forward", "shape": {"queries": 20, "keys": 20, "sequences": 4, "group": 2, "head_dim": 64, "bits": 16}, "count": 4}"#;
    assert!(text.lines().any(|line| line == prompt), "{text}");
    let decoded = text.lines().filter(|line| line.contains("attention_decode")).count();
    assert_eq!(decoded, 4, "{text}");
    // A second run appends.
    generate(path, &["--trace", "served.jsonl"]);
    assert_eq!(std::fs::read_to_string(path.join("served.jsonl")).unwrap(), text.repeat(2));

    let kernels = library::kernels();
    let known: Vec<&dyn Tunable> = kernels.iter().map(|kernel| &**kernel).collect();
    let demands = trace::parse("served.jsonl", &text.repeat(2), &known).unwrap();
    let asked: Vec<(&dyn Tunable, _)> =
        known.into_iter().zip(demands).filter(|(_, demand)| !demand.is_empty()).collect();
    let count: f64 = asked.iter().flat_map(|(_, demand)| demand.iter().map(|(_, count)| count)).sum();
    assert_eq!(count, 2.0 * 4.0 * 5.0, "counts add up");

    let device = tegula::device("host").unwrap();
    let records = path.join("records");
    let trials = Trials::open(&records).unwrap();
    let run = Run {
        kernels: asked,
        devices: vec![DeviceInfo::of(&device)],
        folder: Folder::new(&records),
        trials: &trials,
        budget: None,
        jobs: 0,
        settings: Settings { configs: Some(2), ..Settings::default() },
        observer: &Silent,
    };
    let summary = run.on(vec![Session::new(&kernels, device)], vec![]).unwrap();
    assert_eq!(summary.without, []);
    // Prompts of 17 to 32 tokens, and contexts of 17 to 32.
    assert_eq!(summary.found.len(), 2, "{:?}", summary.found);

    let tuned = generate(path, &["--records", "records"]);
    assert!(
        String::from_utf8_lossy(&tuned.stderr).contains("2 tuning records, and 0 of kernels as they were"),
        "{}",
        String::from_utf8_lossy(&tuned.stderr)
    );
    assert!(!plain.stdout.is_empty() && !tuned.stdout.is_empty());
}
