//! Clock, power and temperature of a GPU, by `nvidia-smi`: what a measurement was made under.

use std::process::{Command, Stdio};

/// Clock of the multiprocessors (MHz), power (W), temperature (°C) of a CUDA device; `None` for other devices and where the tool is not.
pub fn state(device: &str) -> Option<[f64; 3]> {
    let number = device.strip_prefix("cuda:").or(if device == "cuda" { Some("0") } else { None })?;
    let output = Command::new("nvidia-smi")
        .args([
            "--query-gpu=clocks.sm,power.draw,temperature.gpu",
            "--format=csv,noheader,nounits",
            "-i",
            number,
        ])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(line: &str) -> Option<[f64; 3]> {
    let mut numbers = line.trim().split(',').map(|number| number.trim().parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_of_the_tool_are_read_and_errors_are_none() {
        assert_eq!(super::parse("1980, 612.33, 58\n"), Some([1980.0, 612.33, 58.0]));
        assert_eq!(super::parse("No devices were found\n"), None);
        assert_eq!(super::state("host"), None);
    }
}
