//! A run of steps with a headline and a time each, where a failing one does not keep the others from running.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::counts::Counts;
use crate::workspace::display;

/// The steps run so far and how they ended.
#[derive(Default)]
pub struct Steps {
    done: Vec<Done>,
    counts: Counts,
}

struct Done {
    name: String,
    passed: bool,
    time: Duration,
}

impl Steps {
    /// Runs one step. What it has to say it prints; an error is printed and remembered.
    pub fn run(&mut self, name: &str, step: impl FnOnce() -> Result<()>) {
        println!("\n==> {name}");
        let start = Instant::now();
        let result = step();
        let time = start.elapsed();
        match &result {
            Ok(()) => println!("    ok, {:.1} s", time.as_secs_f64()),
            Err(error) => println!("    FAILED, {:.1} s: {error:#}", time.as_secs_f64()),
        }
        self.done.push(Done { name: name.into(), passed: result.is_ok(), time });
    }

    /// Runs a command as a step named after it.
    pub fn command(&mut self, command: &mut Command) {
        self.run(&display(command), || crate::workspace::run(command));
    }

    /// Runs tests as a step, and counts them.
    pub fn tests(&mut self, command: &mut Command) {
        let mut counts = Counts::default();
        self.run(&display(command), || {
            let result = run_tests(command, &mut counts);
            // Tests that did not compile, or whose process died, close with no count; they must not look like none.
            counts.failed = counts.failed.max(usize::from(result.is_err()));
            result
        });
        self.counts += counts;
    }

    /// Prints how each step ended and, last, the counts alone on a line. Fails if any step did, or no test ran.
    pub fn finish(self) -> ExitCode {
        println!("\n==> summary");
        for step in &self.done {
            let verdict = if step.passed { "ok" } else { "FAILED" };
            println!("    {verdict:<6} {:>7.1} s  {}", step.time.as_secs_f64(), step.name);
        }
        println!("{}", self.counts);
        let passed = self.done.iter().all(|step| step.passed);
        if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Runs a test command, passes its standard output through, and sums up the counts in it.
fn run_tests(command: &mut Command, counts: &mut Counts) -> Result<()> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().context("no pipe to the tests")?;
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    // Bytes, not `lines()`: a test may print what is not UTF-8.
    while lines.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        if let Some(more) = Counts::parse(&text) {
            *counts += more;
        }
        line.clear();
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("tests failed ({status})");
    }
    if counts.passed == 0 {
        bail!("no test ran");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const ONE_PASSED: &str =
        "echo 'test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out'";

    #[test]
    fn a_failing_step_stops_no_other_and_fails_the_run() {
        let mut steps = Steps::default();
        steps.command(&mut shell("exit 3"));
        steps.tests(&mut shell(ONE_PASSED));
        assert_eq!(steps.counts, Counts { passed: 1, failed: 0, skipped: 2 });
        assert_eq!(steps.done.iter().map(|step| step.passed).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn tests_that_die_uncounted_count_as_one_failure() {
        let mut steps = Steps::default();
        steps.tests(&mut shell(&format!("{ONE_PASSED}; kill -SEGV $$")));
        assert_eq!(steps.counts, Counts { passed: 1, failed: 1, skipped: 2 });
    }

    #[test]
    fn running_no_test_is_a_failure() {
        let mut steps = Steps::default();
        steps.tests(&mut shell("true"));
        assert!(!steps.done[0].passed);
        assert_eq!(steps.counts.failed, 1);
    }
}
