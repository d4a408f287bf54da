//! Clock, power and temperature of a GPU, by `nvidia-smi`: what a measurement was made under.
//!
//! The tool takes tens of milliseconds, more than most trials, so it is asked once a second in a thread of its own.

use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);

/// Clock of the multiprocessors (MHz), power (W), temperature (°C).
pub type State = [f64; 3];

/// Watches a device.
pub struct Monitor {
    latest: Arc<Mutex<Option<State>>>,
    /// Dropped, it ends the thread.
    _alive: Sender<()>,
}

impl Monitor {
    /// Of a device by its name; of what is no GPU there is nothing to say, nor where the tool is not.
    pub fn of(device: &str) -> Monitor {
        let latest = Arc::new(Mutex::new(None));
        let (alive, ended) = channel();
        if let Some(number) = device.strip_prefix("cuda:") {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            let (number, latest) = (named(number, visible.as_deref()), latest.clone());
            std::thread::spawn(move || {
                while let Some(state) = ask(&number) {
                    *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
                    if !matches!(ended.recv_timeout(EVERY), Err(RecvTimeoutError::Timeout)) {
                        break;
                    }
                }
            });
        }
        Monitor { latest, _alive: alive }
    }

    /// What was seen last.
    pub fn state(&self) -> Option<State> {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tool counts all GPUs, the driver those that are visible.
fn named(number: &str, visible: Option<&str>) -> String {
    let index: usize = number.parse().unwrap_or(0);
    let of_visible = visible.and_then(|all| all.split(',').nth(index)).map(str::trim);
    of_visible.filter(|name| !name.is_empty()).unwrap_or(number).to_owned()
}

fn ask(number: &str) -> Option<State> {
    let output = Command::new("nvidia-smi")
        .args([
            "--query-gpu=clocks.sm,power.draw,temperature.gpu",
            "--format=csv,noheader,nounits",
            "-i",
            number,
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(line: &str) -> Option<State> {
    let mut numbers = line.trim().split(',').map(|number| number.trim().parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tool_are_read_and_errors_are_none() {
        assert_eq!(parse("1980, 612.33, 58\n"), Some([1980.0, 612.33, 58.0]));
        assert_eq!(parse("No devices were found\n"), None);
        assert_eq!(Monitor::of("host").state(), None);
    }

    #[test]
    fn the_tool_is_asked_about_the_device_that_the_driver_means() {
        let named = |visible| named("1", visible);
        assert_eq!([named(None), named(Some("")), named(Some("4, 6"))], ["1", "1", "6"]);
        assert_eq!(named(Some("GPU-1a2b,GPU-3c4d")), "GPU-3c4d");
    }
}
