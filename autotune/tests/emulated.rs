//! The whole path of a GPU without one: kernels of the library are compiled to PTX ahead of the trials, run on the emulated device in worker processes, checked against their
//! references, and ranked by the emulator's counters and the cost model. Such a device is deterministic, so what survives kills can be compared bit by bit.

use std::collections::BTreeMap;
use std::hash::BuildHasher as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tegula_autotune::device::Method;
use tegula_autotune::trial::{Answer, Key, Trial, Trials};
use tegula_records::{Folder, RecordFile};

/// Small shapes of three kernels, a few configs each.
const TUNE: &[&str] = &[
    "tune",
    "rms_norm,gemm,attention_decode",
    "--device",
    "emulated",
    "--trials",
    "5",
    "--jobs",
    "2",
    "--shape",
    "rows=16,cols=256,bits=16",
    "--shape",
    "m=16,n=64,k=128,bits=16",
    "--shape",
    "queries=1,keys=64,sequences=2,group=2,head_dim=32,bits=16",
];

fn tuner(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tegula-autotune"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command.env("TEGULA_CACHE_DIR", folder.join("kernels")).env_remove("TEGULA_CACHE");
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn run(folder: &Path, arguments: &[&str]) -> String {
    let output = tuner(folder, arguments).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

fn trials(folder: &Path) -> BTreeMap<Key, Trial> {
    Trials::read(&folder.join("records")).unwrap().into_iter().collect()
}

fn answers(trials: BTreeMap<Key, Trial>) -> BTreeMap<Key, Answer> {
    trials.into_iter().map(|(key, trial)| (key, trial.answer)).collect()
}

fn records(folder: &Path) -> Vec<(PathBuf, RecordFile)> {
    let contents = Folder::new(folder.join("records")).read();
    assert_eq!(contents.refused, []);
    contents.files
}

/// The record files' text, by name.
fn texts(folder: &Path) -> Vec<(String, String)> {
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    records(folder).into_iter().map(|(path, file)| (name(&path), file.print())).collect()
}

#[test]
fn counters_rank_configs_and_times_are_said_to_be_estimates() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = run(folder, TUNE);
    assert!(text.contains("Times are estimates, from the emulator's counters and the cost model"), "{text}");

    let files = records(folder);
    assert_eq!(files.len(), 3);
    for (_, file) in &files {
        assert_eq!(file.device, "emulated H200");
        assert_eq!((file.records.len(), &*file.records[0].method), (1, "estimate"));
        assert!(file.records[0].speedup >= 1.0 && file.records[0].tried >= 3, "{:?}", file.records);
    }
    // Configs that differ take different numbers of instructions, and the best is what the record has.
    for (_, file) in &files {
        let mut timed = BTreeMap::new();
        for (key, trial) in trials(folder).into_iter().filter(|(key, _)| key.kernel == file.kernel) {
            if let Answer::Timed(timing) = trial.answer {
                assert_eq!((timing.method, timing.spread), (Method::Estimate, 0.0));
                timed.insert(key.config, timing);
            }
        }
        let best = timed.values().map(|timing| timing.seconds).fold(f64::INFINITY, f64::min);
        let worst = timed.values().map(|timing| timing.seconds).fold(0.0, f64::max);
        assert!(best < worst, "{}: {timed:?}", file.kernel);
        let found = timed[&file.records[0].config];
        assert!(found.seconds <= best * (1.0 + 1e-9), "{}: {found:?}", file.kernel);
        assert_eq!(file.records[0].speedup, tegula_records::rounded(found.default / found.seconds));
    }
    // What the compilers built was what ran: a kernel a config, but for those that differ in their grid alone.
    let kernels = std::fs::read_dir(folder.join("kernels")).unwrap().count();
    let configs =
        trials(folder).keys().map(|key| key.config.clone()).collect::<std::collections::BTreeSet<_>>();
    assert!(kernels >= 3 && kernels <= configs.len() + 1, "{kernels} kernels, {} configs", configs.len());

    run(folder, &["report", "--json", "report.json"]);
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("Times are estimates"), "the page says so, too");
    let json: Value = serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap();
    assert_eq!(json["kernels"].as_array().unwrap().len(), 3);
    assert!(json["kernels"][0]["records"][0]["flops"].as_f64().unwrap() > 0.0, "{json}");
    let verified = run(folder, &["verify", "--device", "emulated"]);
    assert!(verified.contains("3 records are good, 0 stale, 0 refused"), "{verified}");
}

/// Shapes of which the same part is emulated are still two shapes.
#[test]
fn what_is_emulated_stands_for_the_whole_shape() {
    let folder = tempfile::tempdir().unwrap();
    let shapes = ["--shape", "m=1,n=4096,k=4096,bits=16", "--shape", "m=1,n=16384,k=4096,bits=16"];
    run(folder.path(), &[&["tune", "gemm", "--device", "emulated", "--trials", "1"], &shapes[..]].concat());
    let (_, file) = &records(folder.path())[0];
    let us: Vec<f64> = file.records.iter().map(|record| record.time_us).collect();
    assert!(us[1] > 2.0 * us[0] && us[1] < 6.0 * us[0], "four times the weights: {us:?}");
}

#[test]
fn killed_at_ten_moments_and_resumed_it_ends_as_if_undisturbed() {
    let (undisturbed, disturbed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (undisturbed, disturbed) = (undisturbed.path(), disturbed.path());
    let start = Instant::now();
    run(undisturbed, TUNE);
    let took = start.elapsed();

    // With a cache of kernels that is new after each kill, so that every run takes long enough to be killed at any moment of it.
    let mut random = 0;
    let (mut before, mut kills): (BTreeMap<Key, Trial>, usize) = (BTreeMap::new(), 0);
    while kills < 10 {
        let arguments: &[&str] = if kills == 0 { TUNE } else { &["tune", "--resume"] };
        let cache = disturbed.join(format!("kernels-{kills}"));
        let mut process = tuner(disturbed, arguments);
        let process = process.env("TEGULA_CACHE_DIR", &cache).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = process.spawn().unwrap();
        random += 1;
        let share = std::collections::hash_map::RandomState::new().hash_one(random) as f64 / u64::MAX as f64;
        // The first one has to write down its arguments.
        let least = if kills == 0 { 0.1 } else { 0.01 };
        std::thread::sleep(Duration::from_secs_f64((share * took.as_secs_f64() * 0.4).max(least)));
        process.kill().unwrap();
        process.wait().unwrap();
        kills += 1;
        let after = trials(disturbed);
        for (key, trial) in &before {
            assert_eq!(
                after.get(key),
                Some(trial),
                "no trial is lost, and none is repeated: not even its time"
            );
        }
        before = after;
    }
    run(disturbed, &["tune", "--resume"]);
    let after = trials(disturbed);
    assert!(before.iter().all(|(key, trial)| after.get(key) == Some(trial)));
    assert_eq!(answers(after), answers(trials(undisturbed)));
    assert_eq!(texts(disturbed), texts(undisturbed));
}
