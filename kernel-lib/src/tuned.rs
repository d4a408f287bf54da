//! Configs from tuning records: what is installed here is asked before a heuristic is.
//!
//! The crate `tegula-records` reads record files and installs them; this module only knows tables, so that a program without records carries nothing. What a table says is
//! checked against the arguments of each launch as a config from anywhere is: one that cannot run is not used, and the reason is said once.
//!
//! A lookup takes some tens of nanoseconds, allocates nothing and takes no lock (`cargo bench -p tegula-records`).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tegula::runtime::Device;

use crate::attention::decode::config::DecodeConfig;
use crate::attention::forward::config::ForwardConfig;
use crate::{gemm, rms_norm};

/// What counts for a range of shapes.
#[derive(Debug)]
pub struct Entry<C> {
    /// For each extent, the least and the most.
    ranges: Box<[[u64; 2]]>,
    config: C,
    /// Where it stands, for messages.
    origin: String,
    refused: AtomicBool,
}

impl<C> Entry<C> {
    /// A config for extents within these ranges; `origin` is where it comes from, as in `gemm-nvidia-h200.toml:14`.
    pub fn new(ranges: Box<[[u64; 2]]>, config: C, origin: String) -> Entry<C> {
        Entry { ranges, config, origin, refused: AtomicBool::new(false) }
    }

    /// The config.
    #[inline]
    pub fn config(&self) -> &C {
        &self.config
    }
}

/// Configs by shape.
#[derive(Debug)]
pub struct Table<C> {
    /// Which extents have ranges; by the others entries are found.
    bucketed: Box<[bool]>,
    entries: HashMap<u64, Vec<Entry<C>>, BuildHasherDefault<Spread>>,
}

impl<C> Table<C> {
    /// Without entries. `bucketed` says of each extent whether entries have ranges of it, or single values.
    pub fn new(bucketed: Box<[bool]>) -> Table<C> {
        Table { bucketed, entries: HashMap::default() }
    }

    /// Adds an entry; one with as many ranges as there are extents.
    pub fn add(&mut self, entry: Entry<C>) {
        debug_assert_eq!(entry.ranges.len(), self.bucketed.len());
        let key = self.key(entry.ranges.iter().map(|range| range[0]));
        self.entries.entry(key).or_default().push(entry);
    }

    /// The entry that counts for these extents.
    #[inline]
    pub fn find(&self, extents: &[u64]) -> Option<&Entry<C>> {
        let entries = self.entries.get(&self.key(extents.iter().copied()))?;
        entries.iter().find(|entry| {
            entry.ranges.iter().zip(extents).all(|([least, most], extent)| least <= extent && extent <= most)
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.values().map(Vec::len).sum()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Mixes the extents that have no ranges (as FxHash does).
    #[inline]
    fn key(&self, extents: impl Iterator<Item = u64>) -> u64 {
        let exact = extents.zip(&self.bucketed).filter(|(_, bucketed)| !**bucketed);
        exact.fold(0, |hash: u64, (extent, _)| {
            (hash.rotate_left(23) ^ extent).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        })
    }
}

/// Keys are hashes already; their high bits are the good ones.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    #[inline]
    fn write_u64(&mut self, key: u64) {
        self.0 = key ^ key >> 32;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// How attention decode splits keys, beside its config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TunedDecode {
    /// How the work is cut.
    pub config: DecodeConfig,
    /// Into how many parts keys are split.
    pub splits: usize,
}

/// How attention forward is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunedForward {
    /// By the kernel for Hopper, where it takes the arguments.
    Hopper,
    /// By the one for all, with this config.
    General(ForwardConfig),
}

/// What was tuned for one model of device.
pub struct Tuned {
    /// [`Properties::model`](tegula::runtime::Properties::model) of the devices it counts for.
    pub model: String,
    /// By m, n, k, bits.
    pub gemm: Table<gemm::config::Config>,
    /// By rows, cols, bits.
    pub rms_norm: Table<rms_norm::config::Config>,
    /// By queries, keys, sequences × heads, group, head dimension, bits; causal, with values as wide as keys.
    pub forward: Table<TunedForward>,
    /// By queries, keys, sequences × KV heads, group, head dimension, bits.
    pub decode: Table<TunedDecode>,
    /// Is told what is not used, and why: once an entry.
    pub log: Box<dyn Fn(&str) + Send + Sync>,
}

impl Tuned {
    /// Without entries, for a model; what is not used is said on the standard error.
    pub fn new(model: &str) -> Tuned {
        const ATTENTION: [bool; 6] = [true, true, true, false, false, false];
        Tuned {
            model: model.to_owned(),
            gemm: Table::new([true, false, false, false].into()),
            rms_norm: Table::new([true, false, false].into()),
            forward: Table::new(ATTENTION.into()),
            decode: Table::new(ATTENTION.into()),
            log: Box::new(|message| eprintln!("tegula: {message}")),
        }
    }

    /// The entry for a shape if `check` lets it run.
    pub fn legal<C: Copy, E: std::fmt::Display>(
        &self,
        kernel: &str,
        table: &Table<C>,
        extents: &[u64],
        check: impl FnOnce(&C) -> Result<(), E>,
    ) -> Option<C> {
        let entry = table.find(extents)?;
        match check(&entry.config) {
            Ok(()) => Some(entry.config),
            Err(reason) => {
                self.refuse(kernel, &entry.origin, &entry.refused, extents, &reason);
                None
            }
        }
    }

    #[cold]
    fn refuse(
        &self,
        kernel: &str,
        origin: &str,
        refused: &AtomicBool,
        extents: &[u64],
        reason: &dyn std::fmt::Display,
    ) {
        if !refused.swap(true, Ordering::Relaxed) {
            (self.log)(&format!(
                "{origin}: the record cannot be used for {kernel} of {extents:?}, whose default is taken: {reason}"
            ));
        }
    }
}

static TUNED: OnceLock<Tuned> = OnceLock::new();

/// Installs what was tuned: for this process, once, so that launches take no lock.
///
/// # Errors
/// Gives it back if something is installed already.
pub fn install(tuned: Tuned) -> Result<(), Box<Tuned>> {
    TUNED.set(tuned).map_err(Box::new)
}

/// What is installed for this device.
#[inline]
pub fn installed(device: &Device) -> Option<&'static Tuned> {
    TUNED.get().filter(|tuned| tuned.model == device.properties().model)
}

/// Hears the name and the extents of each launch.
pub type Listener = Box<dyn Fn(&'static str, &[u64]) + Send + Sync>;

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// From now on, tells of each launch that a record could say the config of: 16-bit elements, and no config of the caller's. Of this process, once. The extents are those
/// of the kernel's [`Table`], in their order.
///
/// # Errors
/// Gives it back if somebody listens already.
pub fn listen(listener: Listener) -> Result<(), Listener> {
    LISTENER.set(listener)
}

/// Tells of a launch.
#[inline]
pub(crate) fn launched(kernel: &'static str, extents: &[u64]) {
    if let Some(listener) = LISTENER.get() {
        listener(kernel, extents);
    }
}

/// The sources of a tuned kernel, by the name of its records: when they change, records are stale.
pub fn sources(kernel: &str) -> &'static [&'static str] {
    const ATTENTION: &str = include_str!("attention/softmax.rs");
    match kernel {
        "gemm" => &[
            include_str!("gemm/element.rs"),
            include_str!("gemm/epilogue.rs"),
            include_str!("gemm/kernel.rs"),
            include_str!("gemm/launch.rs"),
            include_str!("gemm/mod.rs"),
            include_str!("gemm/options.rs"),
            include_str!("gemm/product.rs"),
        ],
        "rms_norm" => &[include_str!("rms_norm/kernel.rs"), include_str!("rms_norm/mod.rs")],
        "attention_forward" => &[
            include_str!("attention/forward/kernel.rs"),
            include_str!("attention/forward/hopper.rs"),
            include_str!("attention/forward/mod.rs"),
            include_str!("attention/forward/schedule.rs"),
            include_str!("attention/matrix.rs"),
            ATTENTION,
        ],
        "attention_decode" => &[
            include_str!("attention/decode/cache.rs"),
            include_str!("attention/decode/kernel.rs"),
            include_str!("attention/decode/mod.rs"),
            include_str!("attention/decode/state.rs"),
            include_str!("attention/matrix.rs"),
            ATTENTION,
        ],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn entry(ranges: &[[u64; 2]], config: u32) -> Entry<u32> {
        Entry::new(ranges.into(), config, "gemm.toml:14".into())
    }

    /// A file that is added to a kernel's folder is part of its source, or is named here as one that no record depends on.
    #[test]
    fn sources_are_complete() {
        // Which config is chosen and what is legal is asked anew at each launch; the others are other kernels, or none.
        let others = [
            "config.rs",
            "fused.rs",
            "hopper.rs of gemm",
            "legal.rs",
            "reference.rs",
            "scored.rs",
            "options.rs of attention/forward",
            "options.rs of attention/decode",
            "workspace.rs",
            "tests.rs",
            "scored_tests.rs",
            "options_tests.rs",
            "extreme_tests.rs",
            "fp8_tests.rs",
            "fp8.rs of attention/forward",
        ];
        let folders = [
            ("gemm", "gemm"),
            ("rms_norm", "rms_norm"),
            ("attention_forward", "attention/forward"),
            ("attention_decode", "attention/decode"),
        ];
        for (kernel, folder) in folders {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder);
            if !path.exists() {
                println!("skipped: these tests run where their sources are not");
                return;
            }
            for file in std::fs::read_dir(path).unwrap().map(|file| file.unwrap().path()) {
                let name = file.file_name().unwrap().to_string_lossy().into_owned();
                let other = others.contains(&&*name) || others.contains(&&*format!("{name} of {folder}"));
                if file.is_file() && !other {
                    let text = std::fs::read_to_string(&file).unwrap();
                    assert!(sources(kernel).contains(&&*text), "{folder}/{name} is no source of {kernel}");
                }
            }
        }
    }

    #[test]
    fn entries_are_found_by_value_and_range() {
        let mut table = Table::new([true, false].into());
        table.add(entry(&[[1, 1], [4096, 4096]], 1));
        table.add(entry(&[[5, 8], [4096, 4096]], 8));
        table.add(entry(&[[5, 8], [576, 576]], 9));
        let find = |m, n| table.find(&[m, n]).map(|entry| *entry.config());
        assert_eq!([1, 2, 4, 5, 8, 9].map(|m| find(m, 4096)), [Some(1), None, None, Some(8), Some(8), None]);
        assert_eq!([find(7, 576), find(7, 577), find(4096, 7)], [Some(9), None, None]);
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn what_is_illegal_is_refused_with_a_reason_that_is_said_once() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let mut tuned = Tuned::new("a device");
        let log = said.clone();
        tuned.log = Box::new(move |message| log.lock().unwrap().push(message.to_owned()));
        let mut table = Table::new([true].into());
        table.add(entry(&[[1, 64]], 3));
        for _ in 0..3 {
            let found = tuned.legal("gemm", &table, &[7], |_| Err("rows of 14 bytes have no tensor map"));
            assert_eq!(found, None);
        }
        assert_eq!(tuned.legal("gemm", &table, &[7], |_| Ok::<(), &str>(())), Some(3));
        assert_eq!(
            *said.lock().unwrap(),
            [
                "gemm.toml:14: the record cannot be used for gemm of [7], whose default is taken: rows of 14 bytes have no tensor map"
            ]
        );
    }

    #[test]
    fn tuned_kernels_have_sources() {
        for kernel in ["gemm", "rms_norm", "attention_forward", "attention_decode"] {
            assert!(sources(kernel).iter().any(|text| text.contains("#[kernel")), "{kernel}");
        }
        assert!(sources("argmax").is_empty());
    }
}
