//! What is known of a device without opening it: passed to workers, and stored with trials.

use serde::{Deserialize, Serialize};
use tegula::runtime::{Device, Properties};
use tegula_kernels::DeviceClass;

/// A device's properties, and its ceilings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// The name that opens it.
    pub name: String,
    /// What the vendor calls it: records are keyed by this.
    pub model: String,
    /// What kernels are compiled for; `None`: it runs tile IR.
    pub target: Option<String>,
    /// Streaming multiprocessors, or worker threads.
    pub multiprocessors: u32,
    /// Bytes of shared memory of a CTA.
    pub shared_memory: usize,
    /// Bytes of L2 cache.
    pub l2_cache: usize,
}

/// How a device's times come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// By the device's events.
    Events,
    /// By this machine's clock.
    Wall,
    /// From the emulator's counters and the cost model: an estimate, which says which of two configs is probably faster, and not how fast it is.
    Estimate,
    /// By a model of the kernel's own.
    Simulated,
}

impl Method {
    /// The word that stands in records.
    pub fn name(self) -> &'static str {
        match self {
            Method::Events => "events",
            Method::Wall => "wall",
            Method::Estimate => "estimate",
            Method::Simulated => "simulated",
        }
    }
}

/// What a device can do at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Operations a second, of 16-bit tensor cores where there are any.
    pub flops: f64,
    /// Bytes a second from memory.
    pub bytes: f64,
    /// Cycles a second.
    pub clock: f64,
}

impl DeviceInfo {
    /// Of an open device.
    pub fn of(device: &Device) -> DeviceInfo {
        let p = device.properties();
        DeviceInfo {
            name: p.name.clone(),
            model: p.model.clone(),
            target: p.target.clone(),
            multiprocessors: p.multiprocessors,
            shared_memory: p.shared_memory,
            l2_cache: p.l2_cache,
        }
    }

    /// As the run time has it; how much memory there is nobody needs to know who only compiles.
    pub fn properties(&self) -> Properties {
        Properties {
            name: self.name.clone(),
            model: self.model.clone(),
            target: self.target.clone(),
            multiprocessors: self.multiprocessors,
            shared_memory: self.shared_memory,
            l2_cache: self.l2_cache,
            memory: usize::MAX,
        }
    }

    /// What the kernel library chooses by.
    pub fn class(&self) -> DeviceClass {
        let multiprocessors = self.multiprocessors.max(1);
        match &self.target {
            None => DeviceClass::Host { threads: multiprocessors },
            Some(target) => {
                let digits: String = target.chars().filter(char::is_ascii_digit).collect();
                DeviceClass::Gpu { multiprocessors, compute: digits.parse().unwrap_or(80) }
            }
        }
    }

    /// Does it emulate a GPU?
    pub fn is_emulated(&self) -> bool {
        self.name.starts_with("emulated")
    }

    /// How times come about on it.
    pub fn method(&self) -> Method {
        match (self.is_emulated(), &self.target) {
            (true, _) => Method::Estimate,
            (false, Some(_)) => Method::Events,
            (false, None) => Method::Wall,
        }
    }

    /// Its ceilings by the vendors' data sheets (dense, without boost of sparsity): H200 for sm_90, A100 80 GB for sm_80, L40S for sm_89; for a host, what a core does
    /// about, since it is drawn and never compared with.
    pub fn ceilings(&self) -> Ceilings {
        match self.target.as_deref() {
            Some(t) if t.starts_with("sm_90") => Ceilings { flops: 989e12, bytes: 4.8e12, clock: 1.83e9 },
            Some(t) if t.starts_with("sm_10") => Ceilings { flops: 2250e12, bytes: 8.0e12, clock: 1.85e9 },
            Some(t) if t.starts_with("sm_8") && t != "sm_80" => {
                Ceilings { flops: 362e12, bytes: 0.864e12, clock: 2.5e9 }
            }
            Some(_) => Ceilings { flops: 312e12, bytes: 2.04e12, clock: 1.41e9 },
            None => {
                let threads = f64::from(self.multiprocessors.max(1));
                Ceilings { flops: 40e9 * threads, bytes: 10e9 * threads, clock: 3e9 }
            }
        }
    }
}
