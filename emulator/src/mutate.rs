//! Changes of a PTX text, one at a time: what a test of a code generator breaks in its output, to see that the sanitizers would have found it.
//!
//! Changes are by what an instruction is and which of its kind, so they apply to whatever a code generator writes. A [`Source`] knows the text's
//! instructions; [`Nth`] names one of them, [`Change`] what happens to it. No change moves a line, so places in the original are places in the mutant:
//! [`Expect`] says, in terms of the original, what must be reported. [`Source::synchronisation`] lists every change there is to how a kernel synchronises.
//!
//! Methods panic where a change does not fit the text: it is the test that is wrong then.

use std::ops::Range;

use crate::error::Span;
use crate::ptx::{self, ast};
use crate::report::{Party, Report, ReportKind};

/// The n-th instruction (from 0) whose opcode begins with these dotted words: `Nth("mbarrier.try_wait", 1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nth(pub &'static str, pub usize);

/// What happens to an instruction. Operands are numbered from 0, destinations first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is gone.
    Drop,
    /// `mbarrier.try_wait`, `mbarrier.test_wait`: it does not look and says that the phase is complete.
    GoOn,
    /// `mbarrier.try_wait.parity`: it waits for the other parity.
    FlipPhase,
    /// A 32-bit operand, a number or a register, is so much more: counts of arrivals, bytes, groups, threads, registers.
    Add(usize, i32),
    /// A 64-bit register operand (a matrix descriptor) is so much more.
    AddWide(usize, i64),
    /// An address, `[a]`, is so many bytes further.
    Shift(usize, i64),
    /// All lanes execute it, not only those of its guard.
    Unguard,
    /// It stands before that instruction instead.
    MoveBefore(Nth),
    /// It stands behind that instruction instead.
    MoveBehind(Nth),
    /// A part of its text is another.
    Replace(&'static str, &'static str),
}

/// Instructions that a report may name: some of those whose opcode begins so.
#[derive(Clone, Debug)]
pub struct Sites(pub &'static str, pub Range<usize>);

/// The end of a range of [`Sites`] that has no other.
pub const ALL: usize = usize::MAX;

/// What must be reported.
#[derive(Clone, Debug)]
pub struct Expect {
    /// By which sanitizer.
    pub kind: ReportKind,
    /// Whose instruction.
    pub party: Sites,
    /// Of two parties, the other's, in either order.
    pub other: Option<Sites>,
}

/// What a kernel's synchronisation is made of, and how each part can be wrong. The first row that fits an instruction counts.
const SYNCHRONISATION: &[(&str, &[Change])] = &[
    ("mbarrier.try_wait.parity", &[Change::GoOn, Change::FlipPhase]),
    ("mbarrier.init", &[Change::Add(1, 1), Change::Add(1, -1)]),
    ("mbarrier.arrive.expect_tx", &[Change::Add(2, 16), Change::Add(2, -16)]),
    ("mbarrier.arrive", &[Change::Drop]),
    ("fence.proxy.async", &[Change::Drop]),
    ("fence.mbarrier_init", &[Change::Drop]),
    ("wgmma.fence", &[Change::Drop]),
    ("wgmma.commit_group", &[Change::Drop]),
    ("wgmma.wait_group", &[Change::Drop, Change::Add(0, 1)]),
    ("cp.async.commit_group", &[Change::Drop]),
    ("cp.async.wait_group", &[Change::Drop, Change::Add(0, 1)]),
    ("cp.async.bulk.commit_group", &[Change::Drop]),
    ("cp.async.bulk.wait_group", &[Change::Drop, Change::Add(0, 1)]),
    ("bar.sync", &[Change::Drop]),
    ("bar.arrive", &[Change::Drop]),
    ("barrier.sync", &[Change::Drop]),
    ("barrier.cluster.wait", &[Change::Drop]),
    ("setmaxnreg.inc", &[Change::Add(0, 8)]),
];

/// A text and its instructions.
pub struct Source<'a> {
    text: &'a str,
    instructions: Vec<(Span, &'a str)>,
}

impl<'a> Source<'a> {
    /// Reads a module.
    ///
    /// # Panics
    /// If it is not PTX.
    pub fn new(text: &'a str) -> Source<'a> {
        fn collect(statements: &[ast::Statement<'_>], spans: &mut Vec<Span>) {
            for statement in statements {
                match statement {
                    ast::Statement::Instruction(i) => spans.push(i.span),
                    ast::Statement::Block(inner) => collect(inner, spans),
                    _ => {}
                }
            }
        }
        let module = ptx::parse(text).unwrap_or_else(|e| panic!("{e}"));
        let mut spans = vec![];
        module.functions.iter().flat_map(|f| &f.body).for_each(|body| collect(body, &mut spans));
        let opcode = |span: Span| {
            let text = text_of(text, span);
            let bare = if text.starts_with('@') { after_word(text) } else { text };
            bare.split([' ', '\t', '\n', ';']).next().unwrap_or_default()
        };
        Source { text, instructions: spans.into_iter().map(|s| (s, opcode(s))).collect() }
    }

    fn all(&self, words: &str) -> impl Iterator<Item = Span> {
        self.instructions.iter().filter(move |(_, opcode)| begins(opcode, words)).map(|(span, _)| *span)
    }

    fn find(&self, Nth(words, n): Nth) -> Span {
        let count = self.all(words).count();
        self.all(words).nth(n).unwrap_or_else(|| panic!("there are {count} of `{words}`, no number {n}"))
    }

    /// Every change to what synchronises, of each instruction in the text's order: what must be reported, unless the instruction is not needed.
    pub fn synchronisation(&self) -> Vec<(Nth, Change)> {
        let mut changes = vec![];
        for (i, &(_, opcode)) in self.instructions.iter().enumerate() {
            let Some(&(words, kinds)) = SYNCHRONISATION.iter().find(|(words, _)| begins(opcode, words))
            else {
                continue;
            };
            // Those of other rows count, too, if they begin so.
            let n = self.instructions[..i].iter().filter(|(_, before)| begins(before, words)).count();
            changes.extend(kinds.iter().map(|&change| (Nth(words, n), change)));
        }
        changes
    }

    /// The text with one instruction changed.
    ///
    /// # Panics
    /// If there is no such instruction, or the change does not fit it.
    pub fn change(&self, at: Nth, change: Change) -> String {
        let span = self.find(at);
        let text = text_of(self.text, span);
        let bare = text.trim_end_matches(';');
        let operand = |i: usize| {
            let all = operands(bare);
            all.get(i).cloned().unwrap_or_else(|| panic!("{at:?} has no operand {i}: `{bare}`"))
        };
        let with = |i: usize, new: &str| {
            let range = operand(i);
            format!("{}{new}{};", &bare[..range.start], &bare[range.end..])
        };
        let computed = |i: usize, ty: &str, operation: &str, by: i64| {
            let old = &bare[operand(i)];
            format!("{{ .reg {ty} changed; {operation} changed, {old}, {by}; {} }}", with(i, "changed"))
        };
        let replaced = match change {
            Change::Drop | Change::MoveBefore(_) | Change::MoveBehind(_) => String::new(),
            Change::GoOn => format!("setp.eq.u32 {}, 0, 0;", &bare[operand(0)]),
            Change::FlipPhase => computed(2, ".b32", "xor.b32", 1),
            Change::Add(i, by) => match bare[operand(i)].parse::<i64>() {
                Ok(number) => with(i, &(number + i64::from(by)).to_string()),
                Err(_) => computed(i, ".b32", "add.s32", by.into()),
            },
            Change::AddWide(i, by) => computed(i, ".b64", "add.s64", by),
            Change::Shift(i, by) => {
                let old = &bare[operand(i)];
                let inside = old.strip_prefix('[').unwrap_or_else(|| panic!("{at:?}: `{old}` is no address"));
                let end = inside.find([',', ']']).unwrap_or(inside.len());
                let (base, offset) = match inside[..end].split_once('+') {
                    Some((base, offset)) => (base, offset.trim().parse::<i64>().expect("an offset")),
                    None => (&inside[..end], 0),
                };
                with(i, &format!("[{base}+{}{}", offset + by, &inside[end..]))
            }
            Change::Unguard => after_word(text).to_owned(),
            Change::Replace(from, to) => {
                assert!(text.contains(from), "{at:?} has no `{from}`: `{text}`");
                text.replacen(from, to, 1)
            }
        };
        let mut edits = vec![(span.start as usize..span.end as usize, replaced)];
        match change {
            Change::MoveBefore(place) => {
                let start = self.find(place).start as usize;
                edits.push((start..start, format!("{text} ")));
            }
            Change::MoveBehind(place) => {
                let end = self.find(place).end as usize;
                edits.push((end..end, format!(" {text}")));
            }
            _ => {}
        }
        edits.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
        let mut out = self.text.to_owned();
        for (range, new) in edits {
            // Lines stay where they are.
            let lines = |s: &str| s.matches('\n').count();
            let missing = lines(&out[range.clone()]).saturating_sub(lines(&new));
            out.replace_range(range, &(new + &"\n".repeat(missing)));
        }
        out
    }

    /// The line of an instruction.
    fn line(&self, span: Span) -> u32 {
        1 + self.text[..span.start as usize].matches('\n').count() as u32
    }

    /// The lines that a report may name.
    ///
    /// # Panics
    /// If there are no such instructions.
    pub fn lines(&self, Sites(words, range): &Sites) -> Vec<u32> {
        let all: Vec<u32> = self.all(words).map(|span| self.line(span)).collect();
        let end = if range.end == ALL { all.len() } else { range.end };
        assert!(range.start < end && end <= all.len(), "there are {} of `{words}`, not {range:?}", all.len());
        all[range.start..end].to_vec()
    }

    /// Is one of the reports, of the text with a change, what is expected?
    pub fn is_found(&self, expect: &Expect, reports: &[Report]) -> bool {
        let mine = self.lines(&expect.party);
        let theirs = expect.other.as_ref().map(|other| self.lines(other));
        let at = |party: &Party, lines: &[u32]| lines.contains(&party.location.ptx_line);
        reports.iter().any(|report| {
            report.kind == expect.kind
                && match (&theirs, &report.other) {
                    // A deadlock has a cause that cannot always be told from its consequences.
                    (None, Some(other)) if report.kind == ReportKind::Deadlock => {
                        at(&report.party, &mine) || at(other, &mine)
                    }
                    (None, _) => at(&report.party, &mine),
                    (Some(theirs), Some(other)) => {
                        at(&report.party, &mine) && at(other, theirs)
                            || at(&report.party, theirs) && at(other, &mine)
                    }
                    (Some(_), None) => false,
                }
        })
    }
}

/// Does an opcode begin with these dotted words?
fn begins(opcode: &str, words: &str) -> bool {
    opcode.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn text_of(text: &str, span: Span) -> &str {
    &text[span.start as usize..span.end as usize]
}

/// What follows the first word.
fn after_word(text: &str) -> &str {
    text.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim_start())
}

/// Where the operands of an instruction are, without its semicolon.
fn operands(bare: &str) -> Vec<Range<usize>> {
    let guarded = if bare.starts_with('@') { after_word(bare) } else { bare };
    let start = bare.len() - after_word(guarded).len();
    let (mut depth, mut from, mut found) = (0, start, vec![]);
    for (at, c) in bare[start..].char_indices().map(|(i, c)| (start + i, c)).chain([(bare.len(), ',')]) {
        match c {
            '[' | '{' | '(' => depth += 1,
            ']' | '}' | ')' => depth -= 1,
            ',' if depth == 0 => {
                let part = &bare[from..at];
                let lead = part.len() - part.trim_start().len();
                found.push(from + lead..from + lead + part.trim().len());
                from = at + 1;
            }
            _ => {}
        }
    }
    found.retain(|range| !range.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 8.6\n.target sm_90a\n.address_size 64\n.entry k()\n{\n.reg .pred %p<2>;\n.reg .b32 %r<9>;\n\
        @%p1 bar.sync 1, %r1;\n{ .reg .b32 x;\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2+8], %r3; }\nbar.sync 0;\n\
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 64;\nwgmma.wait_group.sync.aligned\n 1;\n}\n";

    fn line(at: Nth, change: Change, number: usize) -> String {
        let out = Source::new(TEXT).change(at, change);
        assert_eq!(out.lines().count(), TEXT.lines().count(), "{out}");
        ptx::parse(&out).unwrap_or_else(|e| panic!("{e}"));
        out.lines().nth(number - 1).unwrap_or_default().to_owned()
    }

    #[test]
    fn changes_leave_the_rest_and_the_lines_alone() {
        let computed = "{ .reg .b32 changed; add.s32 changed, %r1, 32; @%p1 bar.sync 1, changed; }";
        assert_eq!(line(Nth("bar.sync", 0), Change::Add(1, 32), 8), computed);
        assert_eq!(line(Nth("bar", 0), Change::Unguard, 8), "bar.sync 1, %r1;");
        assert_eq!(line(Nth("bar.sync", 1), Change::Drop, 11), "");
        assert_eq!(line(Nth("mbarrier.try_wait", 0), Change::GoOn, 10), "setp.eq.u32 %p1, 0, 0; }");
        assert!(
            line(Nth("mbarrier.try_wait", 0), Change::FlipPhase, 10).contains("xor.b32 changed, %r3, 1;")
        );
        assert!(line(Nth("mbarrier.try_wait", 0), Change::Shift(1, 8), 10).contains("[%r2+16]"));
        assert!(line(Nth("mbarrier.arrive", 0), Change::Add(2, -16), 12).contains("[%r2], 48;"));
        assert_eq!(line(Nth("wgmma.wait_group", 0), Change::Add(0, 1), 14), " 2;");
        assert_eq!(line(Nth("wgmma", 0), Change::Drop, 15), "}");
        assert_eq!(
            line(Nth("bar", 1), Change::MoveBefore(Nth("bar", 0)), 8),
            "bar.sync 0; @%p1 bar.sync 1, %r1;"
        );
        assert_eq!(
            line(Nth("bar", 0), Change::MoveBehind(Nth("bar", 1)), 11),
            "bar.sync 0; @%p1 bar.sync 1, %r1;"
        );
    }

    #[test]
    fn every_instruction_that_synchronises_is_changed() {
        let changes = Source::new(TEXT).synchronisation();
        let drop = |n| (Nth("bar.sync", n), Change::Drop);
        assert!(
            changes.len() == 8 && changes.contains(&drop(0)) && changes.contains(&drop(1)),
            "{changes:?}"
        );
        let wait = |change| (Nth("mbarrier.try_wait.parity", 0), change);
        assert_eq!(changes[1..3], [wait(Change::GoOn), wait(Change::FlipPhase)]);
    }
}
