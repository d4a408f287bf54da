//! What configs are chosen by: the kind of device, not the device.

use tegula::runtime::Device;

/// What the choice of a config may depend on. Data, so that the choice for any device can be tested on any machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceClass {
    /// The tile interpreter. An operation costs the same few hundred nanoseconds for a tile of 1 as for one of 1000 elements, so programs
    /// take several rows; but a tile should stay in the core's caches.
    Host {
        /// Worker threads.
        threads: u32,
    },
    /// A GPU.
    Gpu {
        /// Its streaming multiprocessors.
        multiprocessors: u32,
        /// Its compute capability as a number: 80, 89, 90.
        compute: u32,
    },
}

impl DeviceClass {
    /// The class of an open device.
    pub fn of(device: &Device) -> DeviceClass {
        let properties = device.properties();
        let multiprocessors = properties.multiprocessors.max(1);
        match &properties.target {
            None => DeviceClass::Host { threads: multiprocessors },
            Some(target) => DeviceClass::Gpu { multiprocessors, compute: compute_capability(target) },
        }
    }

    /// Has it Hopper's tensor copies (TMA) and tensor cores of warpgroups (wgmma)?
    pub fn is_hopper(self) -> bool {
        matches!(self, DeviceClass::Gpu { compute: 90, .. })
    }

    /// An H200, for tests and precompilation.
    pub const H200: DeviceClass = DeviceClass::Gpu { multiprocessors: 132, compute: 90 };

    /// An A100, for tests.
    pub const A100: DeviceClass = DeviceClass::Gpu { multiprocessors: 108, compute: 80 };
}

/// The number in `sm_90a`; the least that is compiled for where there is none.
fn compute_capability(target: &str) -> u32 {
    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_targets() {
        assert_eq!(["sm_80", "sm_89", "sm_90a", "sm_100a"].map(compute_capability), [80, 89, 90, 100]);
        assert!(DeviceClass::H200.is_hopper() && !DeviceClass::A100.is_hopper());
        assert!(!DeviceClass::Host { threads: 2 }.is_hopper());
    }
}
