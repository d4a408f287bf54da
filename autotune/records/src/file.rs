//! A record file: all records of one kernel on one device, as text that people review.
//!
//! ```toml
//! format = 1
//! kernel = "gemm"
//! device = "NVIDIA H200"
//! records = 1
//!
//! [[record]]
//! shape = { m = 64, n = 4096, k = 4096, bits = 16 }
//! valid = { m = [33, 64] }
//! config = { algorithm = "tiled", rows = 64, … }
//! source = "1f0c9a52d3b48e77"
//! space = 1
//! method = "events"
//! time_us = 12.31
//! default_us = 15.02
//! speedup = 1.22
//! tried = 41
//! ```
//!
//! A record counts for the extents in `valid`, and for the other ones as they are in `shape`. `records` says how many there are: a file that has been cut off between two
//! records is valid TOML, too.
//!
//! A file whose head is wrong is refused; a record that is wrong is refused alone. Either way the kernel runs, with its default.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use crate::bucket::{Dim, Valid, in_order};
use crate::fields::{Config, Shape, Value};
use crate::problem::{Problem, line_at};

/// The version of this format.
pub const FORMAT: u32 = 1;

/// The best config that was found for a bucket of shapes, and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What was measured.
    pub shape: Shape,
    /// For which shapes it counts.
    pub valid: Valid,
    /// How the work is cut.
    pub config: Config,
    /// The kernel's source, as [`source_hash`](crate::source_hash) has it.
    pub source: String,
    /// The version of the kernel's space.
    pub space: u32,
    /// How times came about: `events`, `wall`, `estimate`, `simulated`.
    pub method: String,
    /// Microseconds of a call, and of one with the default.
    pub time_us: f64,
    /// Microseconds of a call with the default.
    pub default_us: f64,
    /// How many times faster than the default, the two measured in turns.
    pub speedup: f64,
    /// Configs of which this is the best.
    pub tried: u32,
    /// Why it no longer counts, if it does not.
    pub stale: Option<String>,
    /// Its line in the file, 0 if it is in none.
    pub line: usize,
}

/// What a file says.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordFile {
    /// The kernel.
    pub kernel: String,
    /// The device's model.
    pub device: String,
    /// In the order of their shapes.
    pub records: Vec<Record>,
}

/// A file as read: what counts, and what was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// Without what was refused.
    pub file: RecordFile,
    /// Records that are wrong.
    pub refused: Vec<Problem>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    format: Spanned<u32>,
    kernel: String,
    device: String,
    records: Spanned<usize>,
    #[serde(default)]
    record: Vec<Spanned<RawRecord>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRecord {
    shape: Spanned<Shape>,
    valid: Spanned<Valid>,
    config: Spanned<Config>,
    source: String,
    space: u32,
    method: Spanned<String>,
    time_us: Spanned<f64>,
    default_us: Spanned<f64>,
    speedup: Spanned<f64>,
    tried: u32,
    stale: Option<String>,
}

impl RecordFile {
    /// Of this kernel and device, without records.
    pub fn new(kernel: &str, device: &str) -> RecordFile {
        RecordFile { kernel: kernel.to_owned(), device: device.to_owned(), records: Vec::new() }
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// If it is damaged, of another format, or cut off.
    pub fn parse(name: &str, text: &str) -> Result<Parsed, Problem> {
        if !text.ends_with('\n') {
            let reason = "the last line does not end: the file was cut off";
            return Err(Problem {
                file: name.to_owned(),
                line: text.lines().count().max(1),
                reason: reason.into(),
            });
        }
        let raw: RawFile = toml::from_str(text).map_err(|e| Problem::toml(name, text, &e))?;
        let at = |span: Range<usize>, reason: String| Problem::at(name, text, span.start, reason);
        if *raw.format.get_ref() != FORMAT {
            let reason = format!("format {}, but this program reads format {FORMAT}", raw.format.get_ref());
            return Err(at(raw.format.span(), reason));
        }
        if *raw.records.get_ref() != raw.record.len() {
            let (says, has) = (raw.records.get_ref(), raw.record.len());
            let reason = format!(
                "{says} records are announced, but there are {has}: the file was cut off, or edited without this number"
            );
            return Err(at(raw.records.span(), reason));
        }
        let mut parsed = Parsed { file: RecordFile::new(&raw.kernel, &raw.device), refused: Vec::new() };
        for record in raw.record {
            let span = record.span();
            match record.into_inner().checked(line_at(text, span.start), &at) {
                Ok(record) => parsed.file.records.push(record),
                Err(problem) => parsed.refused.push(problem),
            }
        }
        parsed.refuse_doubles(name);
        Ok(parsed)
    }

    /// As text. The same records give the same text, in whatever order they are.
    pub fn print(&self) -> String {
        let mut sorted: Vec<&Record> = self.records.iter().collect();
        sorted.sort_by(|a, b| {
            (&a.shape, &a.valid, &a.method, &a.source).cmp(&(&b.shape, &b.valid, &b.method, &b.source))
        });
        let mut text = String::from(
            "# Written by the autotuner; reviewed as code is. `tegula-autotune verify` says whether all of it can be used.\n",
        );
        let _ = writeln!(text, "format = {FORMAT}");
        let _ = writeln!(text, "kernel = {}", quoted(&self.kernel));
        let _ = writeln!(text, "device = {}", quoted(&self.device));
        let _ = writeln!(text, "records = {}", sorted.len());
        for record in sorted {
            record.print(&mut text);
        }
        text
    }

    /// The name that such a file has.
    pub fn name(&self) -> String {
        let slug = |text: &str| {
            let text = text.to_lowercase();
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
        };
        format!("{}-{}.toml", slug(&self.kernel), slug(&self.device))
    }

    /// Takes in another file's records: none is lost. Of two for one bucket, the one that counts is kept (not stale, and measured rather than estimated), then the faster.
    pub fn merge(&mut self, other: RecordFile) {
        let mut best: BTreeMap<(Shape, Valid), Record> = BTreeMap::new();
        for record in std::mem::take(&mut self.records).into_iter().chain(other.records) {
            // Whoever measured at other extents of the bucket: the key is what a record counts for.
            let mut key = record.shape.clone();
            for (name, range) in record.valid.iter() {
                key.set(name, range[1]);
            }
            match best.entry((key, record.valid.clone())) {
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(record);
                }
                std::collections::btree_map::Entry::Occupied(mut place) => {
                    if record.is_better_than(place.get()) {
                        place.insert(record);
                    }
                }
            }
        }
        self.records = best.into_values().collect();
    }

    /// Takes in what has just been found: it replaces what was known for its bucket, unless that was measured and this is an estimate.
    pub fn put(&mut self, record: Record) {
        let same = |old: &Record| old.valid == record.valid && old.corner(true) == record.corner(true);
        let worth_more =
            |old: &Record| old.stale.is_none() && old.method != "estimate" && record.method == "estimate";
        if !self.records.iter().any(|old| same(old) && worth_more(old)) {
            self.records.retain(|old| !same(old));
            self.records.push(record);
        }
    }

    /// Marks what was found for another source or space, and says of how many records that is news.
    pub fn mark_stale(&mut self, source: &str, space: u32) -> usize {
        let mut news = 0;
        for record in &mut self.records {
            let reason = if record.space != space {
                Some(format!("the config space's version was {}, and is {space}", record.space))
            } else if record.source != source {
                Some(format!("the kernel's source was {}, and is {source}", record.source))
            } else {
                None
            };
            news += usize::from(reason.is_some() && record.stale.is_none());
            record.stale = reason;
        }
        news
    }
}

impl RawRecord {
    fn checked(self, line: usize, at: &impl Fn(Range<usize>, String) -> Problem) -> Result<Record, Problem> {
        for (name, figure) in
            [("time_us", &self.time_us), ("default_us", &self.default_us), ("speedup", &self.speedup)]
        {
            if !(figure.get_ref().is_finite() && *figure.get_ref() > 0.0) {
                let reason = format!("`{name}` is {}, but a number above 0 is needed", figure.get_ref());
                return Err(at(figure.span(), reason));
            }
        }
        if !["events", "wall", "estimate", "simulated"].contains(&self.method.get_ref().as_str()) {
            let reason = format!(
                "`method` is `{}`, but it is one of `events`, `wall`, `estimate`, `simulated`",
                self.method.get_ref()
            );
            return Err(at(self.method.span(), reason));
        }
        for (name, &[least, most]) in self.valid.get_ref().iter() {
            let inside = self.shape.get_ref().get(name).is_some_and(|value| (least..=most).contains(value));
            if !inside {
                let reason = format!(
                    "valid for `{name}` from {least} to {most}, but the shape is {}",
                    self.shape.get_ref()
                );
                return Err(at(self.valid.span(), reason));
            }
        }
        Ok(Record {
            shape: self.shape.into_inner(),
            valid: self.valid.into_inner(),
            config: self.config.into_inner(),
            source: self.source,
            space: self.space,
            method: self.method.into_inner(),
            time_us: self.time_us.into_inner(),
            default_us: self.default_us.into_inner(),
            speedup: self.speedup.into_inner(),
            tried: self.tried,
            stale: self.stale,
            line,
        })
    }
}

impl Parsed {
    /// Two records that count for one shape would be a matter of luck: the second is refused.
    fn refuse_doubles(&mut self, name: &str) {
        let mut kept: Vec<Record> = Vec::new();
        for record in std::mem::take(&mut self.file.records) {
            match kept
                .iter()
                .find(|other| other.stale.is_none() && record.stale.is_none() && other.overlaps(&record))
            {
                Some(other) => self.refused.push(Problem {
                    file: name.to_owned(),
                    line: record.line,
                    reason: format!("counts for shapes that the record in line {} counts for", other.line),
                }),
                None => kept.push(record),
            }
        }
        self.file.records = kept;
    }
}

impl Record {
    /// For which values of an extent it counts.
    pub fn range(&self, name: &str) -> Option<[u64; 2]> {
        self.valid.get(name).copied().or_else(|| self.shape.get(name).map(|&value| [value, value]))
    }

    /// The smallest or the largest shape that it counts for.
    pub fn corner(&self, largest: bool) -> Shape {
        let mut shape = self.shape.clone();
        for (name, range) in self.valid.iter() {
            shape.set(name, range[usize::from(largest)]);
        }
        shape
    }

    /// Are its extents those of a kernel?
    ///
    /// # Errors
    /// What is missing, unknown, or a range of what has none.
    pub fn fits(&self, dims: &[Dim]) -> Result<(), String> {
        let names: Vec<&str> = dims.iter().map(|dim| dim.name).collect();
        in_order(&names, &self.shape)?;
        match self.valid.names().find(|name| !dims.iter().any(|dim| dim.name == *name && dim.bucketed)) {
            Some(name) => {
                Err(format!("`valid` has a range for `{name}`, which a record counts for one value of"))
            }
            None => Ok(()),
        }
    }

    fn overlaps(&self, other: &Record) -> bool {
        self.shape.names().all(|name| match (self.range(name), other.range(name)) {
            (Some([a, b]), Some([c, d])) => a <= d && c <= b,
            _ => false,
        })
    }

    fn is_better_than(&self, other: &Record) -> bool {
        let rank = |record: &Record| (record.stale.is_none(), record.method != "estimate");
        match rank(self).cmp(&rank(other)) {
            // Of two that are as fast, the one that more was tried for.
            std::cmp::Ordering::Equal => (self.time_us, other.tried) < (other.time_us, self.tried),
            order => order.is_gt(),
        }
    }

    fn print(&self, text: &mut String) {
        let _ = writeln!(text, "\n[[record]]");
        let _ = writeln!(
            text,
            "shape = {}",
            table(self.shape.iter().map(|(name, value)| (name, value.to_string())))
        );
        let ranges = self.valid.iter().map(|(name, [least, most])| (name, format!("[{least}, {most}]")));
        let _ = writeln!(text, "valid = {}", table(ranges));
        let values = self.config.iter().map(|(name, value)| match value {
            Value::Word(word) => (name, quoted(word)),
            other => (name, other.to_string()),
        });
        let _ = writeln!(text, "config = {}", table(values));
        let _ = writeln!(text, "source = {}", quoted(&self.source));
        let _ = writeln!(text, "space = {}", self.space);
        let _ = writeln!(text, "method = {}", quoted(&self.method));
        let _ = writeln!(text, "time_us = {:?}", rounded(self.time_us));
        let _ = writeln!(text, "default_us = {:?}", rounded(self.default_us));
        let _ = writeln!(text, "speedup = {:?}", rounded(self.speedup));
        let _ = writeln!(text, "tried = {}", self.tried);
        if let Some(stale) = &self.stale {
            let _ = writeln!(text, "stale = {}", quoted(stale));
        }
    }
}

/// To four digits: more are noise, in a review too.
pub fn rounded(x: f64) -> f64 {
    format!("{x:.3e}").parse().unwrap_or(x)
}

fn table<'a>(fields: impl Iterator<Item = (&'a str, String)>) -> String {
    let fields: Vec<String> = fields.map(|(name, value)| format!("{name} = {value}")).collect();
    if fields.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", fields.join(", ")) }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
