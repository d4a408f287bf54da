//! Is there memory for a context of this length? Found out before anything is loaded: allocating what a file or a user dreams of ends the program,
//! by the allocator or, later, by the system.

use tegula::runtime::Device;

use super::{ActivationType, Options};
use crate::config::Config;
use crate::error::Fault;

/// The tables of positions, 0, 1, 2, … once and four times each, as i32.
const TABLES: u64 = 4 + 16;

/// Bytes of a position in the KV cache.
fn cached(config: &Config, dtype: ActivationType) -> u64 {
    let size = match dtype {
        ActivationType::F32 => 4,
        ActivationType::F16 | ActivationType::BF16 => 2,
    };
    // Of the config's bounds, 2¹² · 2¹² · 2⁸ · 8 is far from overflowing.
    2 * config.layers as u64 * config.kv_width() as u64 * size
}

/// Refuses a capacity that the device, or this machine, has not the memory for.
pub(super) fn check(config: &Config, device: &Device, options: Options) -> Result<(), Fault> {
    let positions = options.capacity as u64;
    let on_device = cached(config, options.dtype) + TABLES;
    let properties = device.properties();
    if properties.target.is_none() {
        // The tables are made in memory and then copied.
        let bytes = fits(positions, on_device + TABLES, available())?;
        // Limits of the process; the memory is given back at once.
        let limited = Vec::<u8>::new().try_reserve_exact(usize::try_from(bytes).unwrap_or(usize::MAX));
        return limited.map_err(|_| refusal(positions, u128::from(bytes)));
    }
    fits(positions, TABLES, available())?;
    let memory = Some(properties.memory as u64).filter(|&bytes| bytes > 0);
    fits(positions, on_device, memory).map(|_| ())
}

/// The bytes of so many positions, if that is no more than there are; `None`: not known.
fn fits(positions: u64, each: u64, available: Option<u64>) -> Result<u64, Fault> {
    let bytes = u128::from(positions) * u128::from(each);
    let most = available.unwrap_or(isize::MAX as u64);
    u64::try_from(bytes).ok().filter(|&bytes| bytes <= most).ok_or_else(|| refusal(positions, bytes))
}

fn refusal(positions: u64, bytes: u128) -> Fault {
    let mib = bytes >> 20;
    let problem = format!(
        "not enough memory for {positions} positions, which take {mib} MiB: ask for fewer (--context)"
    );
    Fault::new("the context", problem)
}

/// Bytes that programs can still have, by Linux.
fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(fits(100, 10, Some(1000)), Ok(1000));
        let fault = fits(1 << 30, 1 << 20, Some(1 << 40)).unwrap_err();
        assert!(
            fault
                .problem
                .starts_with("not enough memory for 1073741824 positions, which take 1073741824 MiB"),
            "{fault}"
        );
        assert!(fits(u64::MAX, u64::MAX, None).is_err());
    }
}
