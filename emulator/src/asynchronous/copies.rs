//! What bulk and tensor copies move: which bytes, in which order, through which swizzle.

use crate::matrix::Swizzle;
use crate::memory::SharedMemory;
use crate::memory::window::SHARED_START;

use super::tensor_map::TensorMap;

/// A place in the cluster's shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterAddress {
    /// Rank of the CTA.
    pub rank: u32,
    /// Address in its window.
    pub offset: u32,
}

impl std::fmt::Display for ClusterAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x} of CTA rank {}", self.offset, self.rank)
    }
}

/// The global end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GlobalSide {
    /// Consecutive bytes.
    Range {
        /// Where.
        address: u64,
        /// How many.
        bytes: u32,
    },
    /// The box of a tensor.
    Box {
        /// The tensor.
        map: TensorMap,
        /// Where the box starts, innermost first; as many as the rank.
        coordinates: [i32; 5],
    },
}

/// A run of bytes in global memory and where it stands in the linear image of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where.
    pub address: u64,
    /// How many, at least one.
    pub bytes: u32,
    /// Offset in the image.
    pub image: u32,
}

impl GlobalSide {
    /// Bytes in shared memory, which is what counts as transferred.
    pub fn bytes(&self) -> u32 {
        match self {
            GlobalSide::Range { bytes, .. } => *bytes,
            GlobalSide::Box { map, .. } => map.box_bytes(),
        }
    }

    /// The swizzle of the shared image.
    pub fn swizzle(&self) -> Swizzle {
        match self {
            GlobalSide::Range { .. } => Swizzle::None,
            GlobalSide::Box { map, .. } => map.swizzle(),
        }
    }

    /// What the shared address must be a multiple of: 128 for the boxes of tensors, 16 for ranges.
    pub fn shared_alignment(&self) -> u32 {
        match self {
            GlobalSide::Range { .. } => 16,
            GlobalSide::Box { .. } => 128,
        }
    }

    /// The pattern that stands where nothing is copied, repeated.
    pub fn fill(&self) -> [u8; 8] {
        match self {
            GlobalSide::Range { .. } => [0; 8],
            GlobalSide::Box { map, .. } => map.fill_bytes(),
        }
    }

    /// Calls `f` for each run that is inside of the tensor; for stores (`written`) with the rest of the chunk of 16 bytes that a row of the tensor ends in: an H200 stores
    /// whole chunks.
    pub fn for_each_run(&self, written: bool, mut f: impl FnMut(Run)) {
        match self {
            GlobalSide::Range { bytes: 0, .. } => {}
            GlobalSide::Range { address, bytes } => f(Run { address: *address, bytes: *bytes, image: 0 }),
            GlobalSide::Box { map, coordinates } => map.for_each_row(&coordinates[..map.rank()], |row| {
                if !row.inside.is_empty() {
                    let image = row.offset + row.inside.start;
                    let end = if written { row.inside.end.next_multiple_of(16) } else { row.inside.end };
                    f(Run { address: row.address, bytes: end - row.inside.start, image });
                }
            }),
        }
    }
}

/// Appends to `image` the linear image of `bytes` bytes (a multiple of 16) that stand swizzled at an address.
pub fn gather(memory: &SharedMemory, offset: u32, bytes: u32, swizzle: Swizzle, image: &mut Vec<u8>) {
    for chunk in (offset..offset + bytes).step_by(16) {
        let at = (swizzle.apply(chunk) - SHARED_START) as usize;
        let length = (offset + bytes - chunk).min(16) as usize;
        image.extend_from_slice(&memory.memory.bytes()[at..at + length]);
    }
}

/// Writes a linear image (a multiple of 16 bytes, or less and no swizzle) through the swizzle.
pub fn scatter(memory: &mut SharedMemory, offset: u32, image: &[u8], swizzle: Swizzle) {
    for (chunk, source) in image.chunks(16).enumerate() {
        let at = (swizzle.apply(offset + 16 * chunk as u32) - SHARED_START) as usize;
        memory.memory.bytes_mut(at, source.len()).copy_from_slice(source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swizzled_images_come_back() {
        for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
            let mut memory = SharedMemory::new(0, 8192);
            let image: Vec<u8> = (0..4096).map(|i| (i * 7 % 251) as u8).collect();
            scatter(&mut memory, 2048 + 128, &image, swizzle);
            let mut back = vec![];
            gather(&memory, 2048 + 128, 4096, swizzle, &mut back);
            assert_eq!(back, image);
            // Row 1 of 128-byte rows has its chunks exchanged by the address's bits 7 and up: (2048 + 128 + 128) / 128 = 18, 18 % 8 = 2.
            if swizzle == Swizzle::B128 {
                let at = 2048 + 256 - SHARED_START as usize;
                assert_eq!(memory.memory.bytes()[at + 32..at + 48], image[128..144]);
            }
        }
    }
}
