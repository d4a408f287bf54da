//! Which code a record was found with.

use std::hash::{Hash as _, Hasher as _};

/// A hash of sources, for [`Record::source`](crate::Record::source): comments, blank lines and indentation do not count, so that better words make no record stale.
///
/// It tells versions of one kernel apart, which nobody forges: 64 bits suffice. (FNV-1a: short, and the same everywhere.)
pub fn source_hash(texts: &[&str]) -> String {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    for text in texts {
        let code = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
        code.for_each(|line| line.hash(&mut hasher));
    }
    format!("{:016x}", hasher.finish())
}

struct Fnv(u64);

impl std::hash::Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::source_hash;

    #[test]
    fn code_counts_and_words_do_not() {
        let hash = source_hash(&["//! A kernel.\nfn f() {\n    1\n}\n"]);
        assert_eq!(hash, source_hash(&["//! The same kernel.\n\nfn f() {\n  // One.\n  1\n}\n"]));
        assert_ne!(hash, source_hash(&["fn f() {\n    2\n}\n"]));
        assert_ne!(source_hash(&["a\nb"]), source_hash(&["b\na"]));
        assert_eq!(hash.len(), 16);
    }
}
