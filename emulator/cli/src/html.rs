//! The annotated listing: one page, nothing beside it. What was found, sums, then each source file that `.loc` names and can be read, and the PTX, with the
//! counts of each line; cells are the hotter the more of the column's greatest value they have. The two are linked by line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tegula_emulator::{InstructionCount, Location, Program};

use crate::plan::Plan;
use crate::run::Results;
use crate::text::{extents, grouped, mean};

const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/script.js");

/// Sources up to so many lines are shown whole; of longer ones, so many lines around those that were counted.
const WHOLE: usize = 400;
const AROUND: u32 = 12;

/// So many findings are open at first, and so many are noted below a line.
const OPEN: usize = 10;
const NOTES: usize = 3;

/// The page.
pub fn page(plan: &Plan, results: &Results, roots: &[PathBuf]) -> String {
    let listings = Listings::new(plan, results, roots);
    let kernel = escape(&plan.kernel);
    let mut nav = String::new();
    let mut body = String::new();
    let mut section = |id: &str, title: &str, text: String| {
        if !text.is_empty() {
            let title = escape(title);
            let _ = write!(nav, "<a href=\"#{id}\">{title}</a>");
            let _ = writeln!(body, "<section id=\"{id}\"><h2>{title}</h2>{text}</section>");
        }
    };
    section("findings", "Findings", findings(results));
    section("counts", "Counts", sums(results));
    for (i, (title, text)) in listings.sources().into_iter().enumerate() {
        section(&format!("source{i}"), &title, text);
    }
    section("ptx", "PTX", listings.ptx());
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{kernel} · tegula-emu</title>\n\
         <style>\n{STYLE}</style></head>\n<body><header><h1><code>{kernel}</code></h1>{}<nav>{nav}</nav></header>\n{body}\
         <script>\n{SCRIPT}</script></body></html>\n",
        head(plan, results)
    )
}

/// Text as HTML.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            _ => out.push(c),
        }
    }
    out
}

fn head(plan: &Plan, results: &Results) -> String {
    let cluster = plan.cluster.map_or(String::new(), |ctas| format!(" in clusters of {}", extents(ctas)));
    let arguments: Vec<_> = plan.arguments.iter().map(|(text, _)| escape(text)).collect();
    let runs = match &results.runs[..] {
        [(only, _)] => only.to_string(),
        all => format!("{} runs, from {} on", all.len(), all[0].0),
    };
    let (class, verdict) = match results.findings.len() {
        0 => ("clean", "Clean: nothing was found".to_owned()),
        1 => ("found", "1 finding".to_owned()),
        n => ("found", format!("{n} findings")),
    };
    format!(
        "<p class=\"meta\">{} · target {} · {} CTAs of {} threads{cluster} · {} bytes of dynamic shared memory</p>\n\
         <p class=\"meta\">arguments: <code>{}</code></p>\n<p class=\"verdict {class}\">{verdict} <span class=\"dim\">({runs})</span></p>\n",
        escape(&plan.file.display().to_string()),
        escape(&results.module.program().target),
        extents(plan.grid),
        extents(plan.block),
        grouped(plan.shared.into()),
        if arguments.is_empty() { "none".to_owned() } else { arguments.join(", ") },
    )
}

fn findings(results: &Results) -> String {
    let one = |(i, (report, schedule)): (usize, &(tegula_emulator::Report, crate::plan::Schedule))| {
        let line = report.party.location.ptx_line;
        format!(
            "<pre class=\"finding\" id=\"f{i}\">{}\n  first with {schedule} · <a href=\"#p{line}\">PTX line {line}</a></pre>\n",
            escape(&report.to_string())
        )
    };
    let all: Vec<String> = results.findings.iter().enumerate().map(one).collect();
    let (first, rest) = all.split_at(all.len().min(OPEN));
    let rest = match rest {
        [] => String::new(),
        rest => format!("<details><summary>{} more</summary>{}</details>", rest.len(), rest.concat()),
    };
    first.concat() + &rest
}

fn sums(results: &Results) -> String {
    let (counters, program) = (&results.counters, results.module.program());
    let total = counters.total();
    let classes = counters.by_class(program);
    let most = classes.iter().map(|(_, count)| count.warps).max().unwrap_or(0).max(1);
    let mut out = String::from(
        "<div class=\"sums\"><table class=\"plain\"><tr><th>instructions</th><th>warps</th><th>threads a warp</th><th></th></tr>",
    );
    for (class, count) in &classes {
        let width = 100.0 * count.warps as f64 / most as f64;
        let _ = write!(
            out,
            "<tr><td>{class}</td><td>{}</td><td>{}</td><td class=\"bar\"><i style=\"width:{width:.1}%\"></i></td></tr>",
            grouped(count.warps),
            mean(count.threads_per_warp())
        );
    }
    let _ = write!(
        out,
        "<tr><td>all</td><td>{}</td><td>{}</td><td></td></tr></table>\n<table class=\"plain\"><tr><th>memory</th><th>requests</th><th>bytes read</th><th>bytes written</th></tr>",
        grouped(total.warps),
        mean(total.threads_per_warp())
    );
    for (name, traffic) in [("global", total.global), ("shared", total.shared), ("local", total.local)] {
        let _ = write!(
            out,
            "<tr><td>{name}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            grouped(traffic.requests),
            grouped(traffic.read),
            grouped(traffic.written)
        );
    }
    let rows = [
        ("global sectors of 32 bytes", grouped(total.sectors)),
        ("… a request", mean(total.sectors_per_request())),
        ("passes over shared banks", grouped(total.bank_passes)),
        ("… by conflicts", grouped(total.bank_conflicts)),
        ("polls in vain", grouped(total.polls)),
    ];
    let rows: String = rows
        .iter()
        .map(|(name, value)| format!("<tr><td colspan=\"3\">{name}</td><td>{value}</td></tr>"))
        .collect();
    let _ = write!(out, "{rows}</table></div>");
    out
}

/// A column of a listing.
struct Column {
    title: &'static str,
    /// What the mouse is told.
    hint: &'static str,
    /// The cell, empty where there is nothing to say.
    text: fn(&InstructionCount) -> String,
    /// How hot it is, before it is divided by the greatest of the column.
    heat: fn(&InstructionCount) -> f64,
}

fn number(value: u64) -> String {
    if value == 0 { String::new() } else { grouped(value) }
}

const COLUMNS: [Column; 6] = [
    Column {
        title: "warps",
        hint: "executions by a warp",
        text: |c| number(c.warps),
        heat: |c| c.warps as f64,
    },
    Column {
        title: "threads",
        hint: "threads a warp, where it is not all 32",
        text: |c| c.threads_per_warp().filter(|&n| n < 32.0).map_or(String::new(), |n| format!("{n:.1}")),
        // Idle lanes, as far as they matter.
        heat: |c| (32 * c.warps - c.threads) as f64,
    },
    Column {
        title: "global B",
        hint: "bytes of global memory read and written",
        text: |c| number(c.global.bytes()),
        heat: |c| c.global.bytes() as f64,
    },
    Column {
        title: "sect/req",
        hint: "32-byte sectors of global memory a request: 4 are the best for 4 bytes a thread",
        text: |c| c.sectors_per_request().map_or(String::new(), |n| format!("{n:.1}")),
        // Sectors beyond what the bytes need.
        heat: |c| c.sectors.saturating_sub(c.global.bytes().div_ceil(32)) as f64,
    },
    Column {
        title: "shared B",
        hint: "bytes of shared memory read and written",
        text: |c| number(c.shared.bytes()),
        heat: |c| c.shared.bytes() as f64,
    },
    Column {
        title: "conflicts",
        hint: "passes over the banks of shared memory that conflicts cost",
        text: |c| number(c.bank_conflicts),
        heat: |c| c.bank_conflicts as f64,
    },
];

/// Header cells, and the greatest heat of each column.
fn columns<'a>(counts: impl Iterator<Item = &'a InstructionCount> + Clone) -> (String, [f64; 6]) {
    let head = COLUMNS.iter().map(|c| format!("<th title=\"{}\">{}</th>", c.hint, c.title)).collect();
    (head, COLUMNS.each_ref().map(|c| counts.clone().map(c.heat).fold(0.0, f64::max)))
}

fn cells(count: Option<&InstructionCount>, most: &[f64; 6]) -> String {
    let Some(count) = count else { return "<td></td>".repeat(COLUMNS.len()) };
    let cell = |(column, most): (&Column, &f64)| {
        let text = (column.text)(count);
        // By the root, so that what is far from the top is still seen; never so strong that text is hard to read.
        let heat = if *most > 0.0 { 55.0 * ((column.heat)(count) / most).sqrt() } else { 0.0 };
        match (text.is_empty(), heat >= 1.0) {
            (false, true) => format!("<td class=\"heat\" style=\"--h:{heat:.0}\">{text}</td>"),
            _ => format!("<td>{text}</td>"),
        }
    };
    COLUMNS.iter().zip(most).map(cell).collect()
}

/// What the listings are made of.
struct Listings<'a> {
    plan: &'a Plan,
    results: &'a Results,
    roots: &'a [PathBuf],
    program: &'a Program,
    by_source: BTreeMap<(u32, u32), InstructionCount>,
    by_ptx: BTreeMap<u32, InstructionCount>,
    /// The source line of each PTX line that has instructions.
    origins: BTreeMap<u32, (u32, u32)>,
}

impl<'a> Listings<'a> {
    fn new(plan: &'a Plan, results: &'a Results, roots: &'a [PathBuf]) -> Self {
        let program = results.module.program();
        let ends: Vec<usize> = program.source.match_indices('\n').map(|(at, _)| at).collect();
        let mut origins = BTreeMap::new();
        // The last instruction of a function is the return that nobody has written.
        for place in
            program.functions.iter().filter_map(|f| f.places.split_last()).flat_map(|(_, written)| written)
        {
            if let Some(loc) = place.loc {
                let line = 1 + ends.partition_point(|&end| end < place.span.start as usize) as u32;
                origins.insert(line, (loc.file, loc.line));
            }
        }
        let (by_source, by_ptx) =
            (results.counters.by_source_line(program), results.counters.by_ptx_line(program));
        Listings { plan, results, roots, program, by_source, by_ptx, origins }
    }

    /// What was found at a line, as rows to stand below it; `is_here` tells which places are meant.
    fn notes(&self, is_here: impl Fn(&Location) -> bool) -> String {
        let mut rows = vec![];
        for (i, (report, _)) in self.results.findings.iter().enumerate() {
            let first = is_here(&report.party.location);
            let other = report.other.as_ref().is_some_and(|other| is_here(&other.location));
            if first || other {
                let summary = report.message.lines().next().unwrap_or_default();
                let role = if first { "" } else { " (the other party)" };
                rows.push(format!("<a href=\"#f{i}\">{}</a>{role}: {}", report.kind, escape(summary)));
            }
        }
        if rows.len() > NOTES {
            let more = rows.len() - NOTES;
            rows.truncate(NOTES);
            rows.push(format!("and {more} more"));
        }
        let row = |text: String| {
            format!(
                "<tr class=\"note\"><td colspan=\"{}\"></td><td class=\"number\"></td><td class=\"text\" colspan=\"2\">{text}</td></tr>",
                COLUMNS.len()
            )
        };
        rows.into_iter().map(row).collect()
    }

    /// Each source file: a title, and its listing or why there is none.
    fn sources(&self) -> Vec<(String, String)> {
        let files: BTreeSet<u32> = self.origins.values().map(|origin| origin.0).collect();
        files.into_iter().map(|file| self.source(file)).collect()
    }

    fn source(&self, file: u32) -> (String, String) {
        let name = self.program.file(file).unwrap_or("?");
        let Some(text) = self.find_source(name) else {
            let note = format!(
                "<p class=\"dim\">{} cannot be read: say where it is with <code>--source-root</code>.</p>",
                escape(name)
            );
            return (name.to_owned(), note);
        };
        let lines: Vec<&str> = text.lines().collect();
        let used: BTreeSet<u32> = self
            .origins
            .values()
            .filter(|origin| origin.0 == file && origin.1 > 0)
            .map(|origin| origin.1)
            .collect();
        let near = |line: u32| used.range(line.saturating_sub(AROUND)..=line + AROUND).next().is_some();
        let counts = self.by_source.iter().filter(|(key, _)| key.0 == file).map(|(_, count)| count);
        let (head, most) = columns(counts);
        let mut out = format!(
            "<div class=\"scroll\"><table class=\"code\"><tr>{head}<th>line</th><th class=\"text\" colspan=\"2\">{}</th></tr>\n",
            escape(name)
        );
        let mut skipping = false;
        for (number, code) in (1u32..).zip(&lines) {
            if lines.len() > WHOLE && !near(number) {
                if !std::mem::replace(&mut skipping, true) {
                    let _ =
                        write!(out, "<tr class=\"gap\"><td colspan=\"{}\">⋯</td></tr>", COLUMNS.len() + 3);
                }
                continue;
            }
            skipping = false;
            let notes = self.notes(|place| place.file.as_deref() == Some(name) && place.line == number);
            let first =
                self.origins.iter().find(|(_, origin)| **origin == (file, number)).map(|(line, _)| line);
            let (attribute, label) = match first {
                Some(line) => {
                    (format!(" data-loc=\"{file}:{number}\""), format!("<a href=\"#p{line}\">{number}</a>"))
                }
                None => (String::new(), number.to_string()),
            };
            let class = if notes.is_empty() { "" } else { " class=\"hit\"" };
            let _ = writeln!(
                out,
                "<tr id=\"s{file}-{number}\"{class}{attribute}>{}<td class=\"number\">{label}</td><td class=\"text\" colspan=\"2\">{}</td></tr>{notes}",
                cells(self.by_source.get(&(file, number)), &most),
                escape(code)
            );
        }
        out += "</table></div>";
        (name.to_owned(), out)
    }

    fn find_source(&self, name: &str) -> Option<String> {
        let beside = self.plan.file.parent().unwrap_or(Path::new(""));
        let folders = [Path::new(""), beside].into_iter().chain(self.roots.iter().map(PathBuf::as_path));
        folders.map(|folder| folder.join(name)).find_map(|path| std::fs::read_to_string(path).ok())
    }

    fn ptx(&self) -> String {
        let (head, most) = columns(self.by_ptx.values());
        let mut out = format!(
            "<div class=\"scroll\"><table class=\"code\"><tr>{head}<th>line</th><th>source</th><th class=\"text\">PTX</th></tr>\n"
        );
        for (number, code) in (1u32..).zip(self.program.source.lines()) {
            let notes = self.notes(|place| place.ptx_line == number);
            let (attribute, from) = match self.origins.get(&number) {
                Some((file, line)) => {
                    let name = self.program.file(*file).unwrap_or("?");
                    let short =
                        Path::new(name).file_name().map_or(name.into(), |name| name.to_string_lossy());
                    (
                        format!(" data-loc=\"{file}:{line}\""),
                        format!("<a href=\"#s{file}-{line}\">{}:{line}</a>", escape(&short)),
                    )
                }
                None => (String::new(), String::new()),
            };
            let class = if notes.is_empty() { "" } else { " class=\"hit\"" };
            let _ = writeln!(
                out,
                "<tr id=\"p{number}\"{class}{attribute}>{}<td class=\"number\">{number}</td><td class=\"from\">{from}</td><td class=\"text\">{}</td></tr>{notes}",
                cells(self.by_ptx.get(&number), &most),
                escape(&code.replace('\t', "    "))
            );
        }
        out += "</table></div>";
        out
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(super::escape("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
    }
}
