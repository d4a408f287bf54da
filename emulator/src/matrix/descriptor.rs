//! wgmma's shared-memory operands: descriptors, and which 16-byte chunk of shared memory holds what (PTX ISA 9.7.15.5).
//!
//! A wgmma always takes 32 bytes of k a row. An operand is read as 16-byte chunks, the unit that the swizzles move:
//!
//! - *K-major*: a chunk is consecutive k of one row. Eight rows make a block, `stride byte offset` apart; within it rows are one swizzle
//!   span apart (16, 32, 64, 128 bytes), and a row's two chunks are adjacent, without swizzle `leading byte offset` apart.
//! - *MN-major* (16-bit elements only): a chunk is 8 consecutive rows of one k. With a swizzle, a span of rows stands together, spans are
//!   `leading byte offset` apart, k's one span apart, and blocks of eight k's `stride byte offset`; without one, chunks of rows are
//!   `stride byte offset` apart, k's 16 bytes, and blocks of eight k's `leading byte offset`.
//!
//! The swizzle is an exclusive or on the bits of the *final address*, so that an operand may start inside of a pattern (as the k steps of a
//! kernel do). `spikes` of ours, known right on an H200, fix K-major and MN-major with 128-byte swizzle and base offset 0; the other rows of
//! the table are the ISA's text.

use super::Element;

/// Exclusive or of address bits 4… with bits 7…, over 1, 2 or 3 bits; also TMA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Swizzle {
    /// Addresses are as computed.
    #[default]
    None,
    /// 32-byte spans.
    B32,
    /// 64-byte spans.
    B64,
    /// 128-byte spans.
    B128,
}

impl Swizzle {
    /// Bytes of a span: what an inner row may be at most.
    pub const fn span(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }

    /// Where the byte of linear address `address` is.
    pub const fn apply(self, address: u32) -> u32 {
        self.apply_from(address, 0)
    }

    /// As [`Swizzle::apply`], for a pattern that starts `base` (0 to 7) 128-byte lines after a multiple of its period.
    const fn apply_from(self, address: u32, base: u32) -> u32 {
        let mask = self.span() / 16 - 1;
        address ^ (((address >> 7).wrapping_sub(base) & mask) << 4)
    }
}

/// Which index runs along contiguous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Major {
    /// k: the matrix is "row.col", not transposed.
    K,
    /// m or n: `imm-trans` is 1.
    Mn,
}

/// A decoded matrix descriptor; offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// Shared address of the first chunk.
    pub start: u32,
    /// See the module's header.
    pub leading: u32,
    /// See the module's header.
    pub stride: u32,
    /// 128-byte lines from the pattern's period to its start.
    pub base_offset: u32,
    /// The layout.
    pub swizzle: Swizzle,
}

impl Descriptor {
    /// Takes the 64 bits apart. Bits that mean nothing are ignored, as the hardware does.
    pub fn decode(bits: u64) -> Self {
        let field = |at: u32| ((bits >> at) as u32 & 0x3FFF) << 4;
        Descriptor {
            start: field(0),
            leading: field(16),
            stride: field(32),
            base_offset: (bits >> 49) as u32 & 7,
            swizzle: match bits >> 62 {
                0 => Swizzle::None,
                1 => Swizzle::B128,
                2 => Swizzle::B64,
                _ => Swizzle::B32,
            },
        }
    }

    /// The 64 bits. Offsets and start are multiples of 16 below 2^18.
    pub fn encode(self) -> u64 {
        let field = |bytes: u32, at: u32| ((bytes as u64 >> 4) & 0x3FFF) << at;
        let layout = match self.swizzle {
            Swizzle::None => 0,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
        };
        field(self.start, 0)
            | field(self.leading, 16)
            | field(self.stride, 32)
            | (self.base_offset as u64) << 49
            | layout << 62
    }
}

/// A CTA's shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The shared address of the first one.
    pub start: u32,
}

impl<'a> SharedBytes<'a> {
    /// The 16 bytes at a shared address, if it has them.
    pub fn chunk(self, address: u32) -> Option<&'a [u8]> {
        let at = address.checked_sub(self.start)? as usize;
        self.bytes.get(at..at + 16)
    }
}

/// An operand of `rows` rows (m or n) by 32 bytes of k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Where it is.
    pub descriptor: Descriptor,
    /// How it lies.
    pub major: Major,
    /// 64 for A, N for B.
    pub rows: u32,
    /// Its type.
    pub element: Element,
}

impl Operand {
    /// Chunks of 16 bytes that it consists of.
    pub const fn chunks(&self) -> u32 {
        self.rows * 2
    }

    /// The shared address of chunk `index`. Order: K-major row by row; MN-major k by k.
    pub const fn chunk_address(&self, index: u32) -> u32 {
        let Descriptor { start, leading, stride, base_offset, swizzle } = self.descriptor;
        let span = swizzle.span();
        let linear = match (self.major, swizzle) {
            (Major::K, _) => {
                let (row, half) = (index / 2, index % 2);
                let step = if matches!(swizzle, Swizzle::None) { leading } else { 16 };
                start + row / 8 * stride + row % 8 * span + half * step
            }
            (Major::Mn, Swizzle::None) => {
                let (k, chunk) = (index / (self.rows / 8), index % (self.rows / 8));
                start + chunk * stride + k / 8 * leading + k % 8 * 16
            }
            (Major::Mn, _) => {
                let (k, chunk) = (index / (self.rows / 8), index % (self.rows / 8));
                let in_span = span / 16;
                start + chunk / in_span * leading + chunk % in_span * 16 + k / 8 * stride + k % 8 * span
            }
        };
        swizzle.apply_from(linear, base_offset)
    }

    /// Calls `f(row, k, value)` for each element.
    ///
    /// # Errors
    /// The address of the first chunk outside of `shared`.
    pub fn read(&self, shared: SharedBytes<'_>, mut f: impl FnMut(usize, usize, f64)) -> Result<(), u32> {
        let bits = self.element.bits();
        let per_chunk = (128 / bits) as usize;
        for index in 0..self.chunks() {
            let address = self.chunk_address(index);
            let chunk = shared.chunk(address).ok_or(address)?;
            let mut visit = |e: usize, value: f64| match self.major {
                Major::K => f(index as usize / 2, index as usize % 2 * per_chunk + e, value),
                Major::Mn => {
                    let chunks = self.rows as usize / 8;
                    f(index as usize % chunks * 8 + e, index as usize / chunks, value);
                }
            };
            match bits {
                32 => {
                    for (e, b) in chunk.as_chunks::<4>().0.iter().enumerate() {
                        visit(e, self.element.value(u32::from_le_bytes(*b)));
                    }
                }
                16 => {
                    for (e, b) in chunk.as_chunks::<2>().0.iter().enumerate() {
                        visit(e, self.element.value(u16::from_le_bytes(*b) as u32));
                    }
                }
                8 => {
                    for (e, &b) in chunk.iter().enumerate() {
                        visit(e, self.element.value(b as u32));
                    }
                }
                _ => {
                    for e in 0..per_chunk {
                        let bit = e * bits as usize;
                        let pattern = (chunk[bit / 8] as u32 >> (bit % 8)) & ((1 << bits) - 1);
                        visit(e, self.element.value(pattern));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_survive_the_round_trip() {
        let d = Descriptor {
            start: 0x21400,
            leading: 16384,
            stride: 1024,
            base_offset: 5,
            swizzle: Swizzle::B64,
        };
        assert_eq!(Descriptor::decode(d.encode()), d);
        // The constant of the GEMM kernels: 128-byte swizzle, stride 1024, leading 1 unit.
        let d = Descriptor::decode(4611686293305360384 | 0x1C0);
        assert_eq!((d.start, d.stride, d.leading, d.swizzle), (0x1C00, 1024, 16, Swizzle::B128));
    }

    #[test]
    fn swizzles_permute_the_chunks_of_their_period() {
        for (swizzle, period) in [(Swizzle::B32, 256), (Swizzle::B64, 512), (Swizzle::B128, 1024)] {
            let mut seen: Vec<u32> = (0..period).map(|a| swizzle.apply(a)).collect();
            assert_eq!(swizzle.apply(0x80), 0x90);
            seen.sort_unstable();
            assert!(seen.iter().enumerate().all(|(i, &a)| i as u32 == a));
        }
    }

    /// Places elements by an independent description of the layouts, the strides as nested loops over (row, k), and reads them back.
    #[test]
    fn operands_are_read_from_where_the_canonical_layouts_put_them() {
        let value = |row: usize, k: usize| ((row * 31 + k * 7) % 251) as f64;
        for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
            for (major, rows) in [(Major::K, 64), (Major::K, 24), (Major::Mn, 64), (Major::Mn, 192)] {
                let span = swizzle.span();
                // A shared image as TMA would write it: boxes of `span` bytes in the contiguous direction.
                let (line, lines) = match major {
                    Major::K => (span, rows),
                    Major::Mn => (span, 16),
                };
                let box_bytes = line * lines;
                let start = 4096;
                let mut shared = vec![0u8; 65536];
                for row in 0..rows as usize {
                    for k in 0..16usize {
                        let (inner, outer) = if major == Major::K { (k, row) } else { (row, k) };
                        let byte = inner as u32 * 2;
                        let linear = start + byte / line * box_bytes + outer as u32 * line + byte % line;
                        let at = swizzle.apply(linear) as usize;
                        let f = half::f16::from_f64(value(row, k));
                        shared[at..at + 2].copy_from_slice(&f.to_le_bytes());
                    }
                }
                // Eight lines are `8·line` apart, boxes `box_bytes`: which of the two is "leading" is the table in the header.
                let (leading, stride) = match (major, swizzle) {
                    (Major::Mn, Swizzle::None) => (8 * line, box_bytes),
                    _ => (box_bytes, 8 * line),
                };
                let descriptor = Descriptor { start, leading, stride, base_offset: 0, swizzle };
                let operand = Operand { descriptor, major, rows, element: Element::F16 };
                let mut count = 0;
                operand
                    .read(SharedBytes { bytes: &shared, start: 0 }, |row, k, got| {
                        assert_eq!(got, value(row, k), "{swizzle:?} {major:?} {row},{k}");
                        count += 1;
                    })
                    .unwrap();
                assert_eq!(count, rows * 16);
            }
        }
    }

    #[test]
    fn outside_of_shared_memory_is_an_error() {
        let descriptor =
            Descriptor { start: 1024, leading: 0, stride: 1024, base_offset: 0, swizzle: Swizzle::B128 };
        let operand = Operand { descriptor, major: Major::K, rows: 64, element: Element::Bf16 };
        let read = |length, start| operand.read(SharedBytes { bytes: &vec![0; length], start }, |_, _, _| ());
        assert!(read(8192, 1024).is_ok());
        assert_eq!((read(8176, 1024), read(9216, 1040)), (Err(9200), Err(1024)));
    }
}
