//! Host control flow keeps Rust's meaning: each function here is compiled as it stands and as `#[tile_fn]`, and both must do the same.

// Written to cover the constructs, not as one would write.
#![allow(clippy::all)]

use std::collections::{BTreeMap, VecDeque};

macro_rules! twice {
    ($($item:item)+) => {
        mod plain {
            use super::*;
            $($item)+
        }
        mod staged {
            use super::*;
            $(#[tegula::tile_fn] $item)+
        }
    };
}

#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub enum Mode {
    Causal,
    Window(i32),
    Full,
}

#[derive(Default)]
pub struct Counter {
    pub steps: usize,
    pub totals: [i64; 3],
    pub names: Vec<String>,
}

impl Counter {
    fn tick(&mut self) -> usize {
        self.steps += 1;
        self.steps
    }
}

twice! {
    pub fn jumps(n: i32) -> Vec<i32> {
        let mut out = Vec::new();
        'rows: for i in 0..n {
            if i % 7 == 6 {
                continue;
            }
            let mut j = 0;
            while j < 10 {
                j += 1;
                if j == 3 {
                    continue;
                }
                if i * j > 40 {
                    continue 'rows;
                }
                if i + j == 17 {
                    break 'rows;
                }
                out.push(i * 100 + j);
            }
            let found = loop {
                j -= 1;
                if j <= i || j < 0 {
                    break j;
                }
            };
            out.push(-found);
        }
        out
    }

    pub fn shadowing(n: i32) -> (i32, i32) {
        let mut x = 1;
        let mut y = 10;
        for i in 0..n {
            x += i;
            let mut x = x * 2;
            if x > 5 {
                x -= 1;
                y += x;
                let y = x;
                x = y + 1;
            } else {
                let mut y = 3;
                y += 1;
                x = y;
            }
            for x in 0..2 {
                y += x;
            }
            y += x;
        }
        if let Some(mut x) = Some(4) {
            x += 1;
            y += x;
        }
        (x, y)
    }

    pub fn early(values: &[i32], limit: Option<i32>) -> Option<i32> {
        let mut sum = 0;
        for &v in values {
            if v < 0 {
                return Some(v);
            }
            if sum > 100 && v != 3 {
                sum += limit?;
            }
            let Some(doubled) = v.checked_mul(2) else { return None };
            sum += doubled;
        }
        if sum == 0 { None } else { Some(sum) }
    }

    pub fn values(mode: Mode, n: usize) -> String {
        let width = if mode == Mode::Causal { "causal".to_string() } else if mode >= Mode::Full { format!("full{n}") } else { String::new() };
        let same = width == "causal" || "full1" == width;
        let first = match mode {
            Mode::Window(w) if w > 3 && n > 2 => w * 2,
            Mode::Window(w) => if w < 0 { -w } else { w },
            _ => 0,
        };
        let label: &str = if same { "same" } else { "other" };
        let ints = [1, 2, 3];
        let equal = ints[..] == [1, 2, 3] && vec![1, 2] == [1, 2] && !(0 < 0);
        format!("{width} {first} {label} {equal}")
    }

    pub fn places(c: &mut Counter, grid: &mut [[i32; 2]], n: usize) -> i64 {
        let mut pair = (0, 1);
        let mut queue = VecDeque::from([1, 2, 3]);
        for i in 0..n {
            c.totals[i % 3] += i as i64;
            if i % 2 == 0 {
                c.steps += 1;
                grid[i % 2][1] += 1;
                queue[i % 3] = 7;
            }
            (pair.0, pair.1) = (pair.1, pair.0 + pair.1);
            let t = c.tick();
            if t > 2 {
                c.names.push(t.to_string());
            }
            for row in grid.iter_mut() {
                row[0] += 2;
            }
            let r = &mut pair.0;
            if *r < 100 {
                *r += 1;
            }
        }
        queue.iter().sum::<i32>() as i64 + pair.0 + pair.1
    }

    pub fn closures(values: &[f64]) -> Vec<f64> {
        let mut calls = 0;
        let mut clamp = |x: f64| {
            calls += 1;
            if x < 0.0 { return 0.0; }
            if x > 1.0 { 1.0 } else { x }
        };
        let mut out: Vec<f64> = values.iter().map(|&x| clamp(x)).collect();
        out.retain(|x| *x > 0.25);
        out.sort_by(|a, b| if a < b { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater });
        out.push(calls as f64);
        out
    }

    pub fn consumed(flag: bool) -> Vec<usize> {
        let mut sorted = vec![3, 1, 2];
        sorted.sort();
        let mut seen = std::collections::HashMap::new();
        seen.insert(1, "one");
        let mut out = Vec::new();
        if flag {
            out.extend(sorted.into_iter().filter(|n| seen.get(n).is_some()));
        } else {
            out.push(seen.len());
        }
        out
    }

    pub fn short_circuit(log: &mut Vec<&'static str>, a: bool, b: bool) -> bool {
        let mut say = |what, answer| {
            log.push(what);
            answer
        };
        let both = say("a", a) && say("b", b);
        let either = say("a", a) || say("b", b);
        both || either && !a
    }

    pub fn iterators(words: &BTreeMap<String, usize>) -> Vec<String> {
        let mut out = vec![];
        for (name, &count) in words {
            for (i, c) in name.chars().enumerate().filter(|(i, _)| i % 2 == 0) {
                if c != 'x' && i <= count {
                    out.push(format!("{c}{i}"));
                }
            }
        }
        for i in (0..10).step_by(3).rev() {
            if i >= 6 || i == 0 {
                out.push(i.to_string());
            }
        }
        for c in 'a'..'d' {
            out.push(c.into());
        }
        for n in 3..=4u8 {
            out.push(n.to_string());
        }
        while let Some(last) = out.pop() {
            if last.len() > 1 {
                break;
            }
        }
        out
    }
}

/// A value that is not `Copy` moves in both branches, and a variable gets its value in them: `#[host]` leaves a statement to Rust.
#[tegula::tile_fn]
fn marked(flag: bool, text: String) -> usize {
    let length;
    #[host]
    if flag {
        length = text.into_bytes().len();
    } else {
        drop(text);
        length = 0;
    }
    let mut total = 0;
    #[host]
    for i in 0..length {
        if i == 5 {
            break;
        }
        total += i;
    }
    total
}

#[test]
fn jumps_and_scopes() {
    for n in 0..25 {
        assert_eq!(plain::jumps(n), staged::jumps(n));
        assert_eq!(plain::shadowing(n), staged::shadowing(n));
    }
    for values in [&[][..], &[0], &[1, 2, 3], &[50, 60, 3, 4], &[1, -5], &[i32::MAX]] {
        for limit in [None, Some(7)] {
            assert_eq!(plain::early(values, limit), staged::early(values, limit));
        }
    }
}

#[test]
fn values_and_places() {
    for mode in [Mode::Causal, Mode::Window(-2), Mode::Window(2), Mode::Window(8), Mode::Full] {
        for n in 0..4 {
            assert_eq!(plain::values(mode, n), staged::values(mode, n));
        }
    }
    let run = |f: fn(&mut Counter, &mut [[i32; 2]], usize) -> i64| {
        let (mut c, mut grid) = (Counter::default(), [[1, 2], [3, 4]]);
        let total = f(&mut c, &mut grid, 9);
        (total, c.steps, c.totals, c.names, grid)
    };
    assert_eq!(run(plain::places), run(staged::places));
}

#[test]
fn closures_iterators_and_short_circuits() {
    let values = [0.5, -1.0, 3.0, 0.1, 0.75];
    assert_eq!(plain::closures(&values), staged::closures(&values));
    assert_eq!([true, false].map(plain::consumed), [true, false].map(staged::consumed));
    for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert_eq!(plain::short_circuit(&mut first, a, b), staged::short_circuit(&mut second, a, b));
        assert_eq!(first, second);
    }
    let words: BTreeMap<String, usize> = [("axbxc".to_owned(), 2), ("yes".to_owned(), 9)].into();
    assert_eq!(plain::iterators(&words), staged::iterators(&words));
    assert_eq!(marked(true, "seven..".into()), 10);
    assert_eq!(marked(false, "seven..".into()), 0);
}
