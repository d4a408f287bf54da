//! The order of work on several streams from several threads, on a device that computes nothing and says what its streams were told. Conflicting
//! pieces of work must be ordered by what the streams were told, however the threads came along.

mod common;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use common::{Counting, scale, scale_views};
use tegula_runtime::testing::Log;
use tegula_runtime::{Device, LaunchError, Stream, Tensor};

/// A piece of work's use of memory: which stream, the how-manieth work there, whether it writes, and where.
struct Access {
    stream: usize,
    tick: usize,
    writes: bool,
    at: Range<u64>,
}

/// The conflicting pairs of uses of a log (see `Device::testing_logged`) that no chain of waits orders. By vector clocks: for each stream, how
/// much of each stream's work its next work comes behind.
fn races(log: &[String]) -> Vec<String> {
    let mut clocks: HashMap<usize, HashMap<usize, usize>> = HashMap::new();
    let mut seen: Vec<Access> = Vec::new();
    let mut races = Vec::new();
    for (line, text) in log.iter().enumerate() {
        let words: Vec<&str> = text.split(' ').collect();
        let stream: usize = words[1].parse().unwrap();
        match words[0] {
            "wait" => {
                let other = clocks.entry(words[2].parse().unwrap()).or_default().clone();
                let mine = clocks.entry(stream).or_default();
                for (s, tick) in other {
                    let known = mine.entry(s).or_default();
                    *known = tick.max(*known);
                }
            }
            "use" => {
                let clock = clocks.entry(stream).or_default();
                let uses = words[2..].iter().map(|word| {
                    let (start, length) = word[1..].split_once('+').unwrap();
                    let start: u64 = start.parse().unwrap();
                    (word.starts_with('w'), start..start + length.parse::<u64>().unwrap())
                });
                let tick = clock.get(&stream).copied().unwrap_or(0) + 1;
                for (writes, at) in uses {
                    for a in &seen {
                        let overlap = a.at.start < at.end && at.start < a.at.end;
                        let behind = clock.get(&a.stream).is_some_and(|&known| known >= a.tick);
                        if overlap && (writes || a.writes) && !behind && a.stream != stream {
                            races.push(format!(
                                "line {line}: {text} races with work {} of stream {}",
                                a.tick, a.stream
                            ));
                        }
                    }
                    seen.push(Access { stream, tick, writes, at });
                }
                clock.insert(stream, tick);
            }
            _ => {}
        }
    }
    races
}

#[test]
fn the_check_sees_races() {
    let check = |lines: &[&str]| races(&lines.iter().map(|l| l.to_string()).collect::<Vec<_>>()).len();
    assert_eq!(check(&["use 0 w0+8", "use 1 r0+4"]), 1);
    assert_eq!(check(&["use 0 w0+8", "use 1 w8+4", "use 0 r0+8", "use 2 r4+4 r9+1"]), 2);
    assert_eq!(check(&["use 0 w0+8", "wait 1 0", "wait 2 1", "use 2 r0+4"]), 0);
    assert_eq!(check(&["wait 1 0", "use 0 w0+8", "use 1 r0+4"]), 1);
    assert_eq!(check(&["use 0 r0+8", "use 1 r0+4"]), 0);
}

/// A device and so many streams.
fn setup<const N: usize>() -> (Device, Log, [Stream; N]) {
    let (device, log) = Device::testing_logged(Arc::new(|_, _| ()));
    device.set_cache_dir(None);
    device.set_compiler(Arc::<Counting>::default());
    let streams = std::array::from_fn(|_| device.new_stream().unwrap());
    (device, log, streams)
}

fn expect_no_races(log: &Log) {
    let log = log.lock().unwrap();
    let races = races(&log);
    assert!(races.is_empty(), "{} races, the first: {}", races.len(), races[0]);
    assert!(log.iter().filter(|l| l.starts_with("use")).count() > 100, "there was work");
}

#[test]
fn halves_that_two_threads_use_at_once() {
    let (device, log, [s, t, u]) = setup();
    let (x, mut y) = (device.zeros::<f32>(&[64]).unwrap(), device.zeros::<f32>(&[128]).unwrap());
    let mut z = device.zeros::<f32>(&[128]).unwrap();
    for round in 0..100 {
        let (low, high) = y.view_mut().split_at(0, 64).unwrap();
        std::thread::scope(|scope| {
            for (mut half, stream) in [(low, &s), (high, &t)] {
                let x = x.view();
                scope.spawn(move || {
                    scale_views(x, half.reborrow(), 1.0, 3, 64).grid(1).launch(stream).unwrap();
                    if round % 2 == 0 {
                        half.to_vec().unwrap();
                    }
                    half.fill_zero(stream).unwrap();
                });
            }
        });
        match round % 3 {
            0 => z.copy_from(&y.view(), &u).unwrap(),
            1 => y.fill_zero(&u).unwrap(),
            _ => y.copy_from_slice(&[1.0; 128]).unwrap(),
        }
    }
    expect_no_races(&log);
}

#[test]
fn a_graph_and_launches_of_other_threads_on_its_tensors() {
    let (device, log, [s, t, u]) = setup();
    let mut x = device.zeros::<f32>(&[64]).unwrap();
    let mut y = device.zeros::<f32>(&[64]).unwrap();
    let mut z = device.zeros::<f32>(&[64]).unwrap();
    let graph = device
        .capture(|g| {
            scale(&x, &mut y, 1.0, 3, 64).grid(1).launch(g)?;
            Ok::<_, LaunchError>(z.copy_from(&y.view(), g)?)
        })
        .unwrap();
    std::thread::scope(|scope| {
        let (graph, y) = (&graph, &y);
        for stream in [&s, &t] {
            scope.spawn(move || (0..50).for_each(|_| graph.launch(stream).unwrap()));
        }
        let mut out = device.zeros::<f32>(&[64]).unwrap();
        let (x, u) = (&mut x, &u);
        scope.spawn(move || {
            for _ in 0..100 {
                scale(y, &mut out, 1.0, 3, 64).grid(1).launch(u).unwrap();
                y.to_vec().unwrap();
            }
        });
        scope.spawn(move || {
            for _ in 0..50 {
                x.fill_zero(u).unwrap();
                x.copy_from_slice(&[1.0; 64]).unwrap();
            }
        });
    });
    expect_no_races(&log);
}

#[test]
fn recording_beside_launches_of_other_threads() {
    let (device, log, [s, t]) = setup();
    let x = device.zeros::<f32>(&[64]).unwrap();
    std::thread::scope(|scope| {
        for stream in [&s, &t] {
            let (device, x) = (&device, &x);
            scope.spawn(move || {
                let mut y = device.zeros::<f32>(&[64]).unwrap();
                for round in 0..40 {
                    scale(x, &mut y, 1.0, 3, 64).grid(1).launch(stream).unwrap();
                    if round % 4 == 0 {
                        let graph =
                            device.capture(|g| scale(x, &mut y, 1.0, 3, 64).grid(1).launch(g)).unwrap();
                        graph.launch(stream).unwrap();
                    }
                }
            });
        }
    });
    expect_no_races(&log);
    // Each graph has the one launch that was recorded, and no other.
    let log = log.lock().unwrap();
    let replayed = log.iter().filter(|l| l.starts_with("graph")).count();
    let launches = log.iter().filter(|l| l.starts_with("use") && l.contains(" r")).count();
    assert_eq!((replayed, launches), (20, 2 * 40 + 20));
}

#[test]
fn many_readers_and_a_writer_between() {
    let (device, log, streams) = setup::<4>();
    let mut x: Tensor<f32> = device.zeros(&[64]).unwrap();
    for round in 0..40 {
        std::thread::scope(|scope| {
            for stream in &streams {
                let x = &x;
                let mut out = device.zeros::<f32>(&[64]).unwrap();
                scope.spawn(move || (0..2).for_each(|_| out.copy_from(&x.view(), stream).unwrap()));
            }
        });
        x.fill_zero(&streams[round % 4]).unwrap();
    }
    expect_no_races(&log);
}
