//! Records of a kernel of anyone's, found by shape: a few tens of nanoseconds, without allocation.

use tegula_kernels::tuned::{Entry, Table};

use crate::bucket::Dim;
use crate::fields::Config;
use crate::file::RecordFile;

/// The records of a kernel on a device.
#[derive(Debug)]
pub struct Lookup(Table<Config>);

impl Lookup {
    /// Those of a file that count; stale ones do not, nor do those with other extents than the kernel's.
    pub fn new(dims: &[Dim], file: &RecordFile) -> Lookup {
        let mut table = Table::new(dims.iter().map(|dim| dim.bucketed).collect());
        for record in file.records.iter().filter(|record| record.stale.is_none() && record.fits(dims).is_ok())
        {
            let ranges = dims.iter().filter_map(|dim| record.range(dim.name)).collect();
            table.add(Entry::new(ranges, record.config.clone(), format!("line {}", record.line)));
        }
        Lookup(table)
    }

    /// The config for a shape, whose extents are in the kernel's order.
    ///
    /// Whether it can run with the arguments at hand (strides, alignment, another device) is for the kernel to say once more: a record is a file that anyone may have written.
    #[inline]
    pub fn find(&self, shape: &[u64]) -> Option<&Config> {
        self.0.find(shape).map(|entry| entry.config())
    }
}
