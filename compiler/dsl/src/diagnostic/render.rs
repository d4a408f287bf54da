//! Shows diagnostics the way rustc does.
//!
//! A staged kernel knows where its operations were written, but not what is written there: the source may be read only if it is on this
//! machine. So an excerpt is shown where it can be, and the position alone elsewhere.

use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use codespan_reporting::diagnostic::{Diagnostic as Shown, Label as ShownLabel};
use codespan_reporting::files::SimpleFiles;
use codespan_reporting::term::{Chars, Config, emit_to_string};
use tegula_ir::SourceLoc;

use super::{Diagnostic, Diagnostics};

/// Where the text of source files comes from.
#[derive(Default, Debug)]
pub struct Sources {
    roots: Vec<PathBuf>,
    texts: HashMap<String, String>,
}

impl Sources {
    /// No source is found.
    pub fn none() -> Sources {
        Sources::default()
    }

    /// Files named relative to the folder that cargo called rustc in: the workspace's root, which is the nearest folder with a `Cargo.lock` above
    /// the package under `cargo run` and `cargo test`, and above the current folder otherwise.
    pub fn from_environment() -> Sources {
        let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let here = std::env::current_dir().ok();
        let workspace = |from: &PathBuf| {
            from.ancestors().find(|folder| folder.join("Cargo.lock").is_file()).map(Path::to_owned)
        };
        let roots = [&package, &here].into_iter().flatten().filter_map(workspace).chain(here.clone());
        Sources { roots: roots.collect(), texts: HashMap::new() }
    }

    /// With the text of one file given.
    pub fn with_text(mut self, file: impl Into<String>, text: impl Into<String>) -> Sources {
        self.texts.insert(file.into(), text.into());
        self
    }

    fn read(&self, file: &str) -> Option<String> {
        // Joining an absolute name gives that name.
        self.texts
            .get(file)
            .cloned()
            .or_else(|| self.roots.iter().find_map(|root| std::fs::read_to_string(root.join(file)).ok()))
    }
}

/// The files shown so far, by name.
struct Excerpts<'s> {
    sources: &'s Sources,
    files: SimpleFiles<String, String>,
    ids: HashMap<String, Option<usize>>,
}

impl Excerpts<'_> {
    /// A file's id and the bytes of the token at a place.
    fn find(&mut self, loc: &SourceLoc) -> Option<(usize, Range<usize>)> {
        let Excerpts { sources, files, ids } = self;
        let id = *ids
            .entry(loc.file.to_string())
            .or_insert_with(|| sources.read(&loc.file).map(|text| files.add(loc.file.to_string(), text)));
        let id = id?;
        let text = files.get(id).ok()?.source();
        token_at(text, loc.line, loc.column).map(|range| (id, range))
    }
}

/// The token at a line and a column (of characters, both from 1): a whole word or number, else one character. `None` if the text has no such
/// place, which means that it is not the text that was compiled.
fn token_at(text: &str, line: u32, column: u32) -> Option<Range<usize>> {
    let line = text.split_inclusive('\n').nth(line.checked_sub(1)? as usize)?;
    let start_of_line = line.as_ptr() as usize - text.as_ptr() as usize;
    let (start, first) = line.char_indices().nth(column.checked_sub(1)? as usize)?;
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let len = if word(first) {
        line[start..].find(|c| !word(c)).unwrap_or(line.len() - start)
    } else {
        first.len_utf8()
    };
    (first != '\n').then_some(start_of_line + start..start_of_line + start + len)
}

/// Renders all faults, and a line that counts them.
pub(super) fn render(faults: &Diagnostics, sources: &Sources) -> String {
    let mut excerpts = Excerpts { sources, files: SimpleFiles::new(), ids: HashMap::new() };
    let mut out = String::new();
    for fault in &faults.list {
        render_one(fault, &mut excerpts, &mut out);
    }
    let count = match faults.list.len() {
        1 => "1 error".to_owned(),
        n => format!("{n} errors"),
    };
    // codespan-reporting pads lines, which no one sees in a terminal but everyone in a diff of goldens.
    let mut out: String = out.lines().flat_map(|line| [line.trim_end(), "\n"]).collect();
    write!(out, "error: kernel `{}` was not built due to {count}", faults.kernel).expect("strings take all");
    out
}

fn render_one(fault: &Diagnostic, excerpts: &mut Excerpts<'_>, out: &mut String) {
    let Some((file, token)) = excerpts.find(&fault.primary.loc) else {
        return render_position(fault, out);
    };
    let mut labels = vec![ShownLabel::primary(file, token).with_message(&fault.primary.text)];
    let mut notes = Vec::new();
    for label in &fault.secondary {
        match excerpts.find(&label.loc) {
            Some((file, token)) => labels.push(ShownLabel::secondary(file, token).with_message(&label.text)),
            None => notes.push(format!("{}: {}", label.loc, label.text)),
        }
    }
    notes.extend(trailers(fault));
    let shown = Shown::error().with_message(&fault.message).with_labels(labels).with_notes(notes);
    let config = Config { chars: Chars::ascii(), ..Config::default() };
    if emit_to_string(out, &config, &excerpts.files, &shown).is_err() {
        // The ranges were cut from the files' own text, so this is not reached; the position is never wrong.
        render_position(fault, out);
    }
}

fn trailers(fault: &Diagnostic) -> impl Iterator<Item = String> {
    let notes = fault.notes.iter().map(|n| format!("note: {n}"));
    notes.chain(fault.help.iter().map(|h| format!("help: {h}")))
}

/// Without the source's text.
fn render_position(fault: &Diagnostic, out: &mut String) {
    let labels = fault.secondary.iter().map(|l| format!("{}: {}", l.loc, l.text));
    let own = (!fault.primary.text.is_empty()).then(|| fault.primary.text.clone());
    let lines: String =
        own.into_iter().chain(labels).chain(trailers(fault)).map(|l| format!("  = {l}\n")).collect();
    writeln!(out, "error: {}\n --> {}\n{lines}", fault.message, fault.primary.loc).expect("strings take all");
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::sync::Arc;

    fn loc(line: u32, column: u32) -> SourceLoc {
        SourceLoc { file: Arc::from("src/k.rs"), line, column }
    }

    fn faults() -> Diagnostics {
        let fault = Diagnostic::new("tiles of shapes [128] and [64] do not broadcast together", loc(3, 13))
            .label("`+` of [128] and [64]")
            .also(loc(1, 15), "this has shape [128]")
            .note("shapes are aligned at their last dimension")
            .help("insert `.expand(1)`");
        Diagnostics { kernel: "k".into(), list: vec![fault] }
    }

    #[test]
    fn with_the_source() {
        let sources = Sources::none().with_text(
            "src/k.rs",
            "    let äx = x.load([0], [128]);\n    let b = w.load([0], [64]);\n    let s = äx + b;\n",
        );
        expect![[r#"
            error: tiles of shapes [128] and [64] do not broadcast together
              --> src/k.rs:3:13
              |
            1 |     let äx = x.load([0], [128]);
              |               - this has shape [128]
            2 |     let b = w.load([0], [64]);
            3 |     let s = äx + b;
              |             ^^ `+` of [128] and [64]
              |
              = note: shapes are aligned at their last dimension
              = help: insert `.expand(1)`

            error: kernel `k` was not built due to 1 error"#]]
        .assert_eq(&faults().render(&sources));
    }

    #[test]
    fn without_the_source_or_with_another_text() {
        let without = faults().render(&Sources::none());
        assert_eq!(faults().render(&Sources::none().with_text("src/k.rs", "one line\n")), without);
        expect![[r#"
            error: tiles of shapes [128] and [64] do not broadcast together
             --> src/k.rs:3:13
              = `+` of [128] and [64]
              = src/k.rs:1:15: this has shape [128]
              = note: shapes are aligned at their last dimension
              = help: insert `.expand(1)`

            error: kernel `k` was not built due to 1 error"#]]
        .assert_eq(&without);
    }
}
