//! The index of labels: which kernels are called so.
//!
//! It is not in the file, which launches of staged kernels find by hash, but made of it when a program that has only names asks first. Of each record the
//! labels are read and hashed, no more: variants and argument layouts are most of a record, and decoding them all would take a first launch longer than
//! everything else that it waits for. Nothing rests on the hash: whoever looks for a label compares it with those of the records that are found.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::codec::Reader;
use crate::error::Fault;
use crate::format::Label;
use crate::identity::SourceHash;

/// Labels of a bundle.
pub(crate) struct Labels {
    /// The hash of each label and the row of its kernel, sorted.
    by_hash: Vec<(u64, u32)>,
    /// For each row, the number of labels of all rows up to it.
    ends: Vec<u32>,
}

impl Labels {
    /// Of the records in the order of their rows.
    pub fn read<'b>(records: impl Iterator<Item = (SourceHash, &'b [u8])>) -> Result<Labels, Fault> {
        let (mut by_hash, mut ends) = (Vec::new(), Vec::new());
        for (row, (source, bytes)) in records.enumerate() {
            let mut r = Reader(bytes);
            // Labels come first in a record (`Record::encode`).
            let labels = r.list(|r| Some(hash([r.bytes()?, r.bytes()?, r.bytes()?])));
            let labels = labels.ok_or_else(|| {
                Fault::Invalid(format!("the names in the record of kernel {} cannot be read", source.short()))
            })?;
            by_hash.extend(labels.into_iter().map(|hash| (hash, row as u32)));
            ends.push(by_hash.len() as u32);
        }
        by_hash.sort_unstable();
        // One kernel may have a label twice, if somebody else wrote the file.
        by_hash.dedup();
        Ok(Labels { by_hash, ends })
    }

    /// The rows of kernels that may be called so, each once.
    pub fn rows(&self, label: &Label) -> impl Iterator<Item = usize> + '_ {
        let wanted = hash([&label.name, &label.types, &label.config].map(|text| text.as_bytes()));
        let from = self.by_hash.partition_point(|&(hash, _)| hash < wanted);
        self.by_hash[from..]
            .iter()
            .take_while(move |&&(hash, _)| hash == wanted)
            .map(|&(_, row)| row as usize)
    }

    /// The number of labels.
    pub fn len(&self) -> usize {
        self.ends.last().map_or(0, |&end| end as usize)
    }

    /// The row that has a label, by its number, and which of the row's it is.
    pub fn at(&self, number: usize) -> Option<(usize, usize)> {
        let row = self.ends.partition_point(|&end| end as usize <= number);
        let before = row.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        (row < self.ends.len()).then(|| (row, number - before))
    }
}

fn hash(label: [&[u8]; 3]) -> u64 {
    let mut hasher = DefaultHasher::new();
    label.hash(&mut hasher);
    hasher.finish()
}
