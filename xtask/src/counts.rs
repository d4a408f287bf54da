//! Sums up what test harnesses say at their end.
//!
//! libtest and libtest-mimic both close with `test result: ok. 3 passed; 0 failed; 1 ignored; …`, once a test binary;
//! a run of the workspace prints dozens of them, and nobody adds them up in their head.

use std::fmt;
use std::ops::AddAssign;

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests marked `#[ignore]` (or skipped by a harness of our own).
    pub skipped: usize,
}

impl Counts {
    /// The counts in a line of output, if it is a harness's closing line. Colours are ignored.
    pub fn parse(line: &str) -> Option<Self> {
        let line = strip_colours(line);
        let (_, rest) = line.trim_start().strip_prefix("test result: ")?.split_once(". ")?;
        let mut counts = Counts::default();
        for part in rest.split(';') {
            let Some((number, word)) = part.trim().split_once(' ') else { continue };
            let Ok(number) = number.parse::<usize>() else { continue };
            match word {
                "passed" => counts.passed = number,
                "failed" => counts.failed = number,
                "ignored" => counts.skipped = number,
                _ => {}
            }
        }
        Some(counts)
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// Removes `ESC [ … letter` sequences.
fn strip_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBTEST: &str =
        "test result: FAILED. 40 passed; 2 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.08s";

    #[test]
    fn reads_a_closing_line_of_libtest() {
        assert_eq!(Counts::parse(LIBTEST), Some(Counts { passed: 40, failed: 2, skipped: 1 }));
    }

    #[test]
    fn reads_libtest_mimic_and_colours() {
        let line = "test result: \u{1b}[32mok\u{1b}[0m. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s";
        assert_eq!(Counts::parse(line), Some(Counts { passed: 3, failed: 0, skipped: 0 }));
    }

    #[test]
    fn other_lines_are_not_counted() {
        for line in [
            "running 3 tests",
            "test result of ours: 3 passed",
            "",
            "error: test failed",
            "40 passed, 2 failed",
        ] {
            assert_eq!(Counts::parse(line), None, "{line}");
        }
    }

    #[test]
    fn sums_print_as_the_closing_line() {
        let mut sum = Counts { passed: 2, failed: 0, skipped: 0 };
        assert_eq!(sum.to_string(), "2 passed, 0 failed");
        sum += Counts::parse(LIBTEST).unwrap();
        assert_eq!(sum.to_string(), "42 passed, 2 failed, 1 skipped");
    }
}
