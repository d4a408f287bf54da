//! Record files: what goes in comes out, what is wrong is refused with its place, and two writers lose nothing.

use std::fs;

use tegula_kernels::DeviceClass;
use tegula_kernels::gemm::config::Config as GemmConfig;

use crate::library::gemm::{Gemm, problem};
use crate::library::{Library, load};
use crate::*;

const H200: &str = "NVIDIA H200";

fn record(m: u64, time_us: f64) -> Record {
    let shape = Shape::of(&["m", "n", "k", "bits"], &[m, 4096, 4096, 16]);
    let config = GemmConfig::choose(&problem(&shape), true, DeviceClass::H200);
    Record {
        valid: bucket(Gemm::DIMS, &shape),
        config: Gemm::to_config(&config, &shape),
        shape,
        source: Gemm::source(),
        space: Gemm::SPACE,
        method: "events".into(),
        time_us,
        default_us: 20.0,
        speedup: 20.0 / time_us,
        tried: 12,
        stale: None,
        line: 0,
    }
}

fn file(records: Vec<Record>) -> RecordFile {
    RecordFile { records, ..RecordFile::new("gemm", H200) }
}

fn without_lines(mut file: RecordFile) -> RecordFile {
    file.records.iter_mut().for_each(|record| record.line = 0);
    file
}

/// A folder with this text as the H200's records of `gemm`; and what is refused of it, without the folder's name.
fn refused(text: &str) -> (usize, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gemm-nvidia-h200.toml"), text).unwrap();
    let loaded = load(folder.path(), H200, DeviceClass::H200);
    let prefix = format!("{}/", folder.path().display());
    (loaded.used, loaded.refused.iter().map(|problem| problem.to_string().replace(&prefix, "")).collect())
}

#[test]
fn what_is_printed_parses_and_does_not_depend_on_order() {
    let mut one = file(vec![record(64, 10.0), record(1, 12.345), record(4096, 1234.5)]);
    one.records[1].stale = Some("the kernel's \"source\" was\nanother".into());
    one.records[1].time_us = rounded(one.records[1].time_us);
    one.records.iter_mut().for_each(|r| r.speedup = rounded(r.speedup));
    one.records[2].time_us = rounded(one.records[2].time_us);
    let text = one.print();
    let parsed = RecordFile::parse("x.toml", &text).unwrap();
    assert_eq!(parsed.refused, []);
    let lines: Vec<usize> = parsed.file.records.iter().map(|record| record.line).collect();
    let at = |line: usize| text.lines().nth(line - 1).unwrap();
    assert!(lines.iter().all(|&line| at(line) == "[[record]]"), "{lines:?}\n{text}");
    assert_eq!(without_lines(parsed.file.clone()).print(), text);
    one.records.reverse();
    assert_eq!(one.print(), text);
    one.records.sort_by_key(|record| record.shape.extent("m"));
    assert_eq!(without_lines(parsed.file), one);
    assert_eq!(one.name(), "gemm-nvidia-h200.toml");
}

#[test]
fn a_good_file_is_used() {
    let (used, refused) = refused(&file(vec![record(64, 10.0), record(4096, 500.0)]).print());
    assert_eq!((used, refused), (2, vec![]));
}

#[test]
fn an_illegal_config_is_refused_with_its_line_and_the_others_are_used() {
    let text = file(vec![record(1, 10.0), record(4096, 500.0)]).print();
    let line = text.lines().collect::<Vec<_>>().iter().rposition(|line| *line == "[[record]]").unwrap() + 1;
    let rows = text.rfind("rows = 128").expect("the large product has tiles of 128 rows");
    let edit = |from: &str, to: &str| {
        let (head, tail) = text.split_at(rows);
        refused(&format!("{head}{}", tail.replacen(from, to, 1)))
    };
    let said = |(used, refused): (usize, Vec<String>)| {
        assert_eq!(used, 1);
        assert_eq!(refused.len(), 1, "{refused:?}");
        refused[0].clone()
    };
    assert_eq!(
        said(edit("rows = 128", "rows = 96")),
        format!(
            "gemm-nvidia-h200.toml:{line}: config: rows is 96, but tiles have extents that are powers of two"
        )
    );
    let shared = said(edit("block_k = 64", "block_k = 1024"));
    assert!(shared.contains("bytes of shared memory, but a CTA can have 232448"), "{shared}");
    assert_eq!(
        said(edit("num_warps = ", "warps = ")),
        format!("gemm-nvidia-h200.toml:{line}: config: `num_warps` is missing")
    );
    let (_, unknown) = refused(&text.replacen("\"gemv\"", "\"magic\"", 1));
    assert_eq!(
        unknown,
        [
            "gemm-nvidia-h200.toml:7: config: `algorithm` is `magic`, but it is one of `tiled`, `persistent`, `stream_k`, `gemv`"
        ]
    );
}

#[test]
fn another_gpus_file_is_refused_with_its_line() {
    let text = file(vec![record(64, 10.0)]).print().replace("H200", "A100");
    assert_eq!(
        refused(&text),
        (
            0,
            vec![
                "gemm-nvidia-h200.toml:3: the records are of NVIDIA A100, but this device is NVIDIA H200"
                    .to_owned()
            ]
        )
    );
}

#[test]
fn a_truncated_file_is_refused_wherever_it_ends() {
    let text = file(vec![record(64, 10.0), record(4096, 500.0)]).print();
    let mut between = 0;
    for end in 1..text.len() - 1 {
        let (used, refused) = refused(&text[..end]);
        assert_eq!((used, refused.len()), (0, 1), "cut after {end} bytes: {refused:?}");
        let place =
            refused[0].strip_prefix("gemm-nvidia-h200.toml:").unwrap_or_else(|| panic!("{refused:?}"));
        let line = place.split(':').next().and_then(|line| line.parse::<usize>().ok());
        assert!(line.is_some_and(|line| line <= text.lines().count()), "{refused:?}");
        between += usize::from(refused[0].contains("2 records are announced, but there are"));
    }
    assert!(between > 0, "one of the cuts is between two records");
}

#[test]
fn figures_ranges_and_doubles_are_checked() {
    let text = file(vec![record(64, 10.0)]).print();
    let one = |from: &str, to: &str| {
        let (_, mut refused) = refused(&text.replacen(from, to, 1));
        assert_eq!(refused.len(), 1, "{refused:?}");
        refused.remove(0)
    };
    assert_eq!(
        one("time_us = 10.0", "time_us = -1.0"),
        "gemm-nvidia-h200.toml:14: `time_us` is -1, but a number above 0 is needed"
    );
    assert_eq!(
        one("valid = { m = [33, 64] }", "valid = { m = [65, 128] }"),
        "gemm-nvidia-h200.toml:9: valid for `m` from 65 to 128, but the shape is m=64 n=4096 k=4096 bits=16"
    );
    assert_eq!(
        one("valid = { m = [33, 64] }", "valid = { n = [1, 8192] }"),
        "gemm-nvidia-h200.toml:7: `valid` has a range for `n`, which a record counts for one value of"
    );
    assert_eq!(
        one("format = 1", "format = 2"),
        "gemm-nvidia-h200.toml:2: format 2, but this program reads format 1"
    );
    let record_text = &text[text.find("[[record]]").unwrap()..];
    let twice = format!("{}\n{record_text}", text.replacen("records = 1", "records = 2", 1));
    let (used, refused) = refused(&twice);
    assert_eq!(used, 1);
    assert_eq!(refused, ["gemm-nvidia-h200.toml:19: counts for shapes that the record in line 7 counts for"]);
}

#[test]
fn records_of_a_changed_kernel_are_marked_with_the_reason() {
    let mut changed = file(vec![record(64, 10.0), record(4096, 500.0)]);
    changed.records[0].source = "0123456789abcdef".into();
    let now = Gemm::source();
    assert_eq!(changed.mark_stale(&now, Gemm::SPACE), 1);
    let reason = format!("the kernel's source was 0123456789abcdef, and is {now}");
    assert_eq!(changed.records[0].stale.as_deref(), Some(&*reason));
    assert_eq!(changed.records[1].stale, None);
    assert_eq!(changed.mark_stale(&now, Gemm::SPACE), 0, "no news");
    assert_eq!(refused(&changed.print()), (1, vec![]), "one is used, and the other is no fault");
}

#[test]
fn merging_keeps_the_faster_the_measured_and_the_current() {
    let time = |one: &Record, two: &Record| {
        let mut merged = file(vec![one.clone()]);
        merged.merge(file(vec![two.clone()]));
        assert_eq!(merged.records.len(), 1);
        merged.records[0].time_us
    };
    let (slow, fast) = (record(64, 12.0), record(64, 10.0));
    assert_eq!([time(&slow, &fast), time(&fast, &slow)], [10.0; 2]);
    let estimate = Record { method: "estimate".into(), ..record(64, 1.0) };
    assert_eq!([time(&slow, &estimate), time(&estimate, &slow)], [12.0; 2]);
    let stale = Record { stale: Some("changed".into()), ..record(64, 2.0) };
    assert_eq!([time(&slow, &stale), time(&stale, &slow)], [12.0; 2]);
    let mut put = file(vec![slow.clone()]);
    put.put(Record { time_us: 13.0, ..slow.clone() });
    assert_eq!(put.records[0].time_us, 13.0, "what is measured again counts, also if it is slower");
    put.put(estimate);
    assert_eq!((put.records.len(), put.records[0].time_us), (1, 13.0));
    let mut both = file(vec![record(64, 1.0)]);
    both.merge(file(vec![record(65, 1.0)]));
    assert_eq!(both.records.len(), 2, "another bucket");
}

#[test]
fn writers_at_one_time_lose_nothing_and_readers_see_whole_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = Folder::new(folder.path().join("records"));
    let writers = 4;
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let folder = &folder;
            scope.spawn(move || {
                for i in 0..8u64 {
                    let mut one = record(64, 10.0);
                    one.shape.set("n", 64 * (writer * 8 + i + 1));
                    folder.merge(file(vec![one])).unwrap();
                    assert_eq!(folder.read().refused, []);
                }
            });
        }
    });
    let contents = folder.read();
    assert_eq!(contents.files.len(), 1);
    assert_eq!(contents.files[0].1.records.len(), 8 * writers as usize);
}

#[test]
fn a_damaged_file_is_not_overwritten() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::new(place.path());
    let path = folder.merge(file(vec![record(64, 10.0)])).unwrap();
    let damaged = fs::read_to_string(&path).unwrap().replace("records = 1", "records = 7");
    fs::write(&path, &damaged).unwrap();
    let error = folder.merge(file(vec![record(128, 10.0)])).unwrap_err().to_string();
    assert!(error.contains("toml:5: 7 records are announced, but there are 1"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
}

#[test]
fn configs_of_the_library_survive_the_trip_through_data() {
    use tegula_kernels::tuned::{TunedDecode, TunedForward};
    let shape = Shape::of(&["m", "n", "k", "bits"], &[64, 4096, 4096, 16]);
    for config in GemmConfig::candidates(&problem(&shape), DeviceClass::H200) {
        let data = Gemm::to_config(&config, &shape);
        assert_eq!(Gemm::from_config(&data, &shape), Ok(config));
        assert_eq!(Gemm::check(&config, &shape, DeviceClass::H200), Ok(()));
    }
    use library::attention::{Decode, Forward, decode_shape};
    use tegula_kernels::attention::{decode::config::DecodeConfig, forward::config::ForwardConfig};
    let shape =
        Shape::of(&["queries", "keys", "sequences", "group", "head_dim", "bits"], &[1, 4096, 8, 4, 128, 16]);
    let decode = DecodeConfig::candidates(decode_shape(&shape), 8, DeviceClass::H200);
    assert!(decode.len() > 20, "{}", decode.len());
    for (config, splits) in decode {
        let typed = TunedDecode { config, splits };
        assert_eq!(Decode::from_config(&Decode::to_config(&typed, &shape), &shape), Ok(typed));
        assert_eq!(Decode::check(&typed, &shape, DeviceClass::H200), Ok(()));
    }
    let forward = ForwardConfig::candidates(512, 128, 128, 2, DeviceClass::H200);
    assert!(forward.len() > 10, "{}", forward.len());
    for typed in forward.into_iter().map(TunedForward::General).chain([TunedForward::Hopper]) {
        assert_eq!(Forward::from_config(&Forward::to_config(&typed, &shape), &shape), Ok(typed));
        assert_eq!(Forward::check(&typed, &shape, DeviceClass::H200), Ok(()));
    }
}
