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
    },
}

impl DeviceClass {
    /// The class of an open device.
    pub fn of(device: &Device) -> DeviceClass {
        let properties = device.properties();
        match properties.target {
            None => DeviceClass::Host { threads: properties.multiprocessors.max(1) },
            Some(_) => DeviceClass::Gpu { multiprocessors: properties.multiprocessors.max(1) },
        }
    }

    /// An H200, for tests and precompilation.
    pub const H200: DeviceClass = DeviceClass::Gpu { multiprocessors: 132 };
}
