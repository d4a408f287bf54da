//! Which bytes of shared memory an asynchronous operation touches.

use crate::matrix::{Major, Operand, Swizzle};

/// The bytes of shared memory that an operation touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Footprint {
    /// A range.
    Range {
        /// First byte.
        start: u32,
        /// Number of bytes.
        bytes: u32,
    },
    /// A wgmma operand.
    Operand(Operand),
}

impl Footprint {
    /// A range of bytes that includes all; its ends need not be touched.
    pub fn bounds(&self) -> std::ops::Range<u32> {
        match self {
            Footprint::Range { start, bytes } => *start..start + bytes,
            Footprint::Operand(operand) => {
                let d = operand.descriptor;
                let steps = |count: u32, step: u32| count.saturating_sub(1) * step;
                let span = d.swizzle.span();
                let reach = match (operand.major, d.swizzle) {
                    (Major::K, Swizzle::None) => steps(operand.rows / 8, d.stride) + steps(8, 16) + d.leading,
                    (Major::K, _) => steps(operand.rows / 8, d.stride) + steps(8, span) + 16,
                    (Major::Mn, Swizzle::None) => {
                        steps(operand.rows / 8, d.stride) + steps(8, 16) + d.leading
                    }
                    (Major::Mn, _) => {
                        let spans = (operand.rows * 2).div_ceil(span);
                        steps(spans, d.leading) + span + steps(8, span) + d.stride
                    }
                };
                // Swizzles move chunks within lines of 128 bytes.
                (d.start & !127)..((d.start + reach + 16).next_multiple_of(128))
            }
        }
    }

    /// Whether it touches one of the `bytes` bytes from `start`.
    pub fn overlaps(&self, start: u32, bytes: u32) -> bool {
        let bounds = self.bounds();
        let hit = |at: u32, length: u32| at < start + bytes && start < at + length;
        hit(bounds.start, bounds.len() as u32)
            && match self {
                Footprint::Range { .. } => true,
                Footprint::Operand(operand) => {
                    (0..operand.chunks()).any(|i| hit(operand.chunk_address(i), 16))
                }
            }
    }

    /// Calls `f(start, bytes)` for disjoint ranges that make it up.
    pub fn for_each(&self, mut f: impl FnMut(u32, u32)) {
        match self {
            Footprint::Range { start, bytes } => f(*start, *bytes),
            Footprint::Operand(operand) => {
                (0..operand.chunks()).for_each(|i| f(operand.chunk_address(i), 16))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Descriptor, Element};

    fn operand(start: u32, rows: u32, major: Major, swizzle: Swizzle) -> Operand {
        let descriptor = Descriptor { start, leading: 2048, stride: 1024, base_offset: 0, swizzle };
        Operand { descriptor, major, rows, element: Element::Bf16 }
    }

    #[test]
    fn bounds_contain_every_chunk() {
        for major in [Major::K, Major::Mn] {
            for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
                for rows in [8, 64, 88, 256] {
                    let footprint = Footprint::Operand(operand(4096 + 32, rows, major, swizzle));
                    let bounds = footprint.bounds();
                    footprint.for_each(|start, bytes| {
                        assert!(
                            bounds.contains(&start) && start + bytes <= bounds.end,
                            "{footprint:?} {start}"
                        );
                    });
                }
            }
        }
    }
}
