//! The tuner as a program, with kernels that go wrong: what is reported, what survives kills, what two of them do to one folder.
//!
//! This program is the tests and the tuner: with `TEGULA_TEST_TUNER` set it is the command line of `planted.rs`'s kernels, which is how a user's program becomes one.
//! (Hence `harness = false`: worker processes are this program once more.)

mod planted;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};
use planted::{LOG, SLOW, SOURCE, Scale, WIDER};
use serde_json::Value;
use tegula_autotune::trial::{Answer, Key, Kind, Trials};
use tegula_records::{Folder, RecordFile};

/// Makes this program the tuner.
const TUNER: &str = "TEGULA_TEST_TUNER";

fn main() -> ExitCode {
    if std::env::var_os(TUNER).is_some() {
        return tegula_autotune::main(vec![
            Box::new(Scale { name: "scale", faulty: false }),
            Box::new(Scale { name: "faulty_scale", faulty: true }),
        ]);
    }
    let tests: [(&str, fn()); 8] = [
        ("faults_are_reported_as_such_and_the_rest_is_tuned", faults),
        ("killed_at_ten_moments_and_resumed_the_record_is_that_of_an_undisturbed_run", kills),
        ("two_tuners_on_one_folder_end_with_all_records", two_tuners),
        ("two_devices_share_the_shapes", two_devices),
        ("a_config_that_is_added_is_the_only_one_that_is_tried", added_config),
        ("a_changed_kernel_makes_records_stale_and_is_tuned_anew", changed_kernel),
        ("records_are_shown_verified_compared_exported_and_merged", subcommands),
        ("what_cannot_be_is_refused_with_its_place", refusals),
    ];
    let tests = tests.into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            std::panic::catch_unwind(test).map_err(|panic| {
                let words = panic.downcast_ref::<String>().cloned();
                Failed::from(
                    words
                        .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                        .unwrap_or_default(),
                )
            })
        })
    });
    libtest_mimic::run(&Arguments::from_args(), tests.collect()).exit_code()
}

/// The tuner in a folder.
fn tuner(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments).current_dir(folder).env(TUNER, "1").stdin(Stdio::null());
    for variable in [WIDER, SOURCE, LOG, SLOW] {
        command.env_remove(variable);
    }
    command
}

/// Runs it; fails with what it said if it does.
fn run(command: &mut Command) -> Vec<Value> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    lines(&output)
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Lines of JSON. The last one of a killed process may be cut off.
fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let records = place.path().join("records");
    (place, records)
}

const ONE: &[&str] = &["tune", "scale", "--shape", "n=1000", "--device", "host", "--json"];
const SEVERAL: &[&str] = &[
    "tune", "scale", "--shape", "n=100", "--shape", "n=1000", "--shape", "n=10000", "--device", "host",
    "--json",
];

fn record(records: &Path, kernel: &str) -> RecordFile {
    let contents = Folder::new(records).read();
    assert_eq!(contents.refused, []);
    contents
        .files
        .into_iter()
        .map(|(_, file)| file)
        .find(|file| file.kernel == kernel)
        .expect("a record file")
}

fn trials(records: &Path) -> BTreeMap<Key, Answer> {
    Trials::open(records).unwrap().all().into_iter().map(|(key, trial)| (key, trial.answer)).collect()
}

fn faults() {
    let (place, records) = folder();
    let mut arguments = ONE.to_vec();
    arguments[1] = "faulty_scale";
    arguments.extend(["--timeout", "3s"]);
    let events = run(&mut tuner(place.path(), &arguments));

    let mut kinds = BTreeMap::new();
    for (key, answer) in trials(&records) {
        if let Answer::Failed(failure) = answer {
            kinds.insert(key.config.get("way").unwrap().to_string(), (failure.kind, failure.message));
        }
    }
    let kind = |way: &str| kinds[way].0;
    assert_eq!(
        [kind("wrong"), kind("hangs"), kind("traps"), kind("crashes")],
        [Kind::Wrong, Kind::Hang, Kind::Launch, Kind::Crash]
    );
    assert_eq!(kinds["wrong"].1, "y[1] is 3 instead of 2");
    assert!(kinds["traps"].1.contains("a planted trap"), "{kinds:?}");
    assert!(
        kinds["crashes"].1.contains("a planted crash") && kinds["crashes"].1.contains("SIGABRT"),
        "{kinds:?}"
    );
    assert_eq!(kinds.len(), 4, "what is illegal is never tried: {kinds:?}");

    let shape = events.iter().find(|event| event["event"] == "shape").unwrap();
    assert_eq!(shape["illegal"][0]["config"]["way"], "too much shared memory");
    assert_eq!(shape["illegal"][0]["reason"], "1048576 bytes of shared memory, but a CTA can have 232448");
    // √1024 = 32: the shape that stands for 513 to 1024.
    let file = record(&records, "faulty_scale");
    assert_eq!(file.records[0].config.to_string(), "way=good block=32");
    assert_eq!((file.records[0].tried, file.records[0].range("n")), (6, Some([513, 1024])));
    assert!(file.records[0].speedup > 1.1, "{:?}", file.records[0]);
}

fn kills() {
    let (undisturbed, records) = folder();
    let log = undisturbed.path().join("log");
    let start = Instant::now();
    run(tuner(undisturbed.path(), SEVERAL).env(LOG, &log).env(SLOW, "15"));
    let took = start.elapsed();
    let (expected, text) = (trials(&records), record(&records, "scale").print());
    let asked = |path: &Path| std::fs::read_to_string(path).unwrap_or_default().lines().count();
    let all = asked(&log);

    let (disturbed, records) = folder();
    let log = disturbed.path().join("log");
    let mut random = std::collections::hash_map::RandomState::new();
    let mut kills = 0;
    while kills < 10 {
        let mut arguments = SEVERAL.to_vec();
        if kills > 0 {
            arguments = vec!["tune", "--resume", "--json"];
        }
        let mut process = tuner(disturbed.path(), &arguments)
            .env(LOG, &log)
            .env(SLOW, "15")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Anywhere: in the start, in a trial, between two. The first one has written its arguments, which takes a moment.
        use std::hash::BuildHasher as _;
        let random_part = (random.hash_one(kills) >> 11) as f64 / (1u64 << 53) as f64;
        random = std::collections::hash_map::RandomState::new();
        let least = if kills == 0 { 0.5 } else { 0.0 };
        std::thread::sleep(took.mul_f64(0.35 * (least + random_part)));
        let ended = process.try_wait().unwrap();
        process.kill().unwrap(); // SIGKILL
        process.wait().unwrap();
        assert!(ended.is_none_or(|status| status.success()), "{ended:?}");
        kills += 1;
    }
    run(tuner(disturbed.path(), &["tune", "--resume", "--json"]).env(LOG, &log));
    assert_eq!(trials(&records), expected, "no trial is lost");
    assert_eq!(record(&records, "scale").print(), text, "and the record is the same");
    // A question is asked once, and once more if a kill cut it off; workers that outlive their tuner end with the question at hand.
    let asked = asked(&log);
    assert!((all..=all + kills).contains(&asked), "{asked} questions, {all} without {kills} kills");
}

fn two_tuners() {
    let (place, records) = folder();
    let one = |shapes: [&str; 3]| {
        let mut arguments = vec!["tune", "scale", "--device", "host", "--json"];
        shapes.iter().for_each(|shape| arguments.extend(["--shape", shape]));
        tuner(place.path(), &arguments)
            .env(SLOW, "5")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    // One shape is tuned by both.
    let both = [one(["n=10", "n=100", "n=1000"]), one(["n=1000", "n=10000", "n=20000"])];
    for process in both {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
    let shapes: Vec<u64> = record(&records, "scale").records.iter().map(|r| r.shape.values()[0]).collect();
    assert_eq!(shapes, [16, 128, 1024, 16384, 32768]);
    let databases = std::fs::read_dir(&records).unwrap();
    let databases = databases.filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|e| e == "redb"));
    assert_eq!(databases.count(), 2, "each had its own");
    // And what either found out is known to the next.
    let events = run(&mut tuner(
        place.path(),
        &["tune", "scale", "--device", "host", "--json", "--shape", "n=10", "--shape", "n=20000"],
    ));
    let end = events.last().unwrap();
    assert_eq!(end["trials"], end["known"], "{end}");
}

/// A worker each: the second one answers while the first is busy.
fn two_devices() {
    let (place, records) = folder();
    let log = place.path().join("log");
    let mut arguments = SEVERAL.to_vec();
    let device = arguments.iter().position(|word| *word == "host").unwrap();
    arguments[device] = "host,host";
    run(tuner(place.path(), &arguments).env(LOG, &log).env(SLOW, "40"));
    let (alone, alone_records) = folder();
    run(&mut tuner(alone.path(), SEVERAL));
    assert_eq!(record(&records, "scale").print(), record(&alone_records, "scale").print());
    let asked = std::fs::read_to_string(&log).unwrap().lines().count();
    assert_eq!(asked, 3 * (6 + 5), "every question once");
    // Trials of two shapes were under way at one time.
    let spans: Vec<(Key, [f64; 2])> = Trials::read(&records)
        .unwrap()
        .into_iter()
        .map(|(key, trial)| (key, [trial.at - trial.took, trial.at]))
        .collect();
    let together = spans.iter().any(|(key, [start, _])| {
        spans.iter().any(|(other, [begin, end])| key.shape != other.shape && begin < start && start < end)
    });
    assert!(together, "{spans:?}");
    // Devices of two models are two runs.
    arguments[device] = "host,emulated";
    let output = tuner(place.path(), &arguments).output().unwrap();
    assert!(!output.status.success());
    assert!(said(&output).contains("a run is for one model"), "{}", said(&output));
}

fn added_config() {
    let (place, records) = folder();
    run(&mut tuner(place.path(), ONE));
    let before = record(&records, "scale");
    let log = place.path().join("log");
    run(tuner(place.path(), ONE).env(LOG, &log));
    assert!(!log.exists(), "nothing is asked twice");
    run(tuner(place.path(), ONE).env(LOG, &log).env(WIDER, "1"));
    let asked = std::fs::read_to_string(&log).unwrap();
    assert_eq!(asked, "verify scale 1024 way=good block=1024\ntime scale 1024 way=good block=1024\n");
    let after = record(&records, "scale");
    assert_eq!((before.records[0].tried, after.records[0].tried), (6, 7));
    assert_eq!(before.records[0].config, after.records[0].config);
    // A team's records come without its trials: what is on record is not measured again.
    std::fs::remove_file(records.join("trials-0.redb")).unwrap();
    let events = run(tuner(place.path(), ONE).env(LOG, place.path().join("none")));
    assert_eq!(events.last().unwrap()["skipped"], 1);
    assert!(!place.path().join("none").exists());
    let mut fresh = ONE.to_vec();
    fresh.push("--fresh");
    assert_eq!(run(&mut tuner(place.path(), &fresh)).last().unwrap()["records"], 1);
}

fn changed_kernel() {
    let (place, records) = folder();
    run(tuner(place.path(), SEVERAL).env(SOURCE, "1111"));
    let changed = |arguments: &[&str]| run(tuner(place.path(), arguments).env(SOURCE, "2222"));
    let events = changed(ONE);
    let note = events.iter().find(|event| event["event"] == "note").unwrap();
    assert!(
        note["text"].as_str().unwrap().ends_with("3 records are stale now: the kernel has changed"),
        "{note}"
    );
    let file = record(&records, "scale");
    let states: Vec<Option<&str>> = file.records.iter().map(|r| r.stale.as_deref()).collect();
    let why = Some("the kernel's source was 1111, and is 2222");
    assert_eq!(states, [why, None, why]);
    let pruned = changed(&["prune", "--json"]);
    assert_eq!(pruned[0]["records"], 2);
    assert_eq!(pruned[0]["trials"], 36, "three shapes, six configs, gate and time");
    assert_eq!(record(&records, "scale").records.len(), 1);
}

fn subcommands() {
    let (place, records) = folder();
    run(&mut tuner(place.path(), SEVERAL));
    let mut other = SEVERAL.to_vec();
    other.extend(["--records", "others", "--trials", "1"]);
    run(&mut tuner(place.path(), &other));

    assert_eq!(run(&mut tuner(place.path(), &["show", "--json"])).len(), 3);
    let verified = run(&mut tuner(place.path(), &["verify", "--device", "host", "--json"]));
    assert_eq!((&verified[0]["good"], &verified[0]["stale"]), (&3.into(), &0.into()));
    let compared = run(&mut tuner(place.path(), &["compare", "others", "records", "--json"]));
    let ratio = compared[1]["ratio"].as_f64().unwrap();
    assert!(compared.len() == 3 && ratio > 1.1, "the default against the best: {ratio}");
    assert_eq!(compared[1]["in_one_run"], false, "the others' run has no trial of the best");
    let compared = run(&mut tuner(place.path(), &["compare", "records", "others", "--json"]));
    assert_eq!(compared[1]["in_one_run"], true);
    assert!((compared[1]["ratio"].as_f64().unwrap() * ratio - 1.0).abs() < 0.01);
    let exported = tuner(place.path(), &["export", "--format", "csv"]).output().unwrap();
    assert_eq!(said(&exported).lines().count(), 4);
    let merged = run(&mut tuner(place.path(), &["merge", "others", "records", "--into", "all", "--json"]));
    assert_eq!(merged[0]["merged"], 6);
    assert_eq!(record(&place.path().join("all"), "scale").print(), record(&records, "scale").print());
    let out = tuner(place.path(), &["report"]).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let page = std::fs::read_to_string(place.path().join("report.html")).unwrap();
    // Speed-ups, roofline, time to best, map; nothing from elsewhere.
    assert_eq!(page.matches("<svg").count(), 4);
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"), "{page}");
    assert!(page.contains("3 records; geometric mean"));
    assert!(said(&out).contains("scale                    3"), "a table: {}", said(&out));
    let shapes = run(&mut tuner(place.path(), &["shapes", "scale", "--shape", "n=7", "--json"]));
    assert_eq!(shapes[0]["shape"]["n"], 7);
    let trace = "{\"kernel\": \"scale\", \"shape\": {\"n\": 7}, \"count\": 3}\n{\"kernel\": \"scale\", \"shape\": {\"n\": 7}}\n";
    std::fs::write(place.path().join("trace.jsonl"), trace).unwrap();
    let shapes = run(&mut tuner(place.path(), &["shapes", "--from-trace", "trace.jsonl", "--json"]));
    assert_eq!(shapes[0]["count"], 4.0);
}

fn refusals() {
    let (place, records) = folder();
    run(&mut tuner(place.path(), ONE));
    let fails = |arguments: &[&str]| {
        let output = tuner(place.path(), arguments).output().unwrap();
        assert!(!output.status.success(), "{}", said(&output));
        said(&output)
    };
    std::fs::write(
        place.path().join("trace.jsonl"),
        "{\"kernel\": \"scale\", \"shape\": {\"n\": 7}}\n{\"kernel\": \"scale\", \"shape\": {\"m\": 7}}\n",
    )
    .unwrap();
    assert_eq!(
        fails(&["shapes", "--from-trace", "trace.jsonl"]),
        "error: trace.jsonl:2: scale: a shape has no `m`; it has n\n"
    );
    assert!(fails(&["tune", "scale", "--shape", "m=7"]).contains("scale: a shape has no `m`; it has n"));
    assert!(
        fails(&["tune", "scales", "--shape", "n=7"])
            .contains("no kernel `scales`; known: scale, faulty_scale")
    );
    assert!(fails(&["tune", "scale"]).contains("no shapes: name a model"));
    assert!(fails(&["tune", "--resume", "--records", "nothing"]).contains("nothing is no folder of records"));
    for command in ["show", "verify", "export", "prune"] {
        assert_eq!(fails(&[command, "nothing"]), "error: nothing is no folder of records\n");
    }
    std::fs::create_dir(place.path().join("empty")).unwrap();
    assert!(fails(&["tune", "--resume", "--records", "empty"]).contains("has no run to go on with"));
    assert!(fails(&["shapes", "--shapes", "llama3-8b", "--batches", "8,0"]).contains("a number from 1 to"));
    assert!(fails(&["tune", "scale", "--shape", "n=7", "--device", "cuda:99"]).starts_with("error: "));

    let path = Folder::new(&records).read().files[0].0.clone();
    let good = std::fs::read_to_string(&path).unwrap();
    let edited = |from: &str, to: &str| {
        std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
        fails(&["verify", "--device", "host"])
    };
    assert!(edited("block = 32", "blocks = 32").contains(".toml:7: config: `block` is missing"));
    let device = good.lines().find(|line| line.starts_with("device")).unwrap();
    assert!(
        edited(device, "device = \"NVIDIA H200\"")
            .contains(".toml:3: the records are of NVIDIA H200, but host is ")
    );
    assert!(edited("time_us = ", "time_us == ").contains(".toml:14: "));
    std::fs::write(&path, &good[..good.len() / 2]).unwrap();
    assert!(fails(&["verify"]).contains(".toml:"));
    // And nothing is written over it.
    let half = std::fs::read_to_string(&path).unwrap();
    assert!(fails(&[ONE, &["--fresh"]].concat()).contains(".toml:"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), half);
}
