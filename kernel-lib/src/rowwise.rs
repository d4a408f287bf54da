//! Rectangles of elements: the configs that kernels without a reduction share.

use crate::DeviceClass;

/// A rectangle a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rectangle {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub block: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
}

/// 16 elements for each of 128 threads: two 16-byte pieces of 16-bit elements, or four of f32, in flight.
const GPU_TILE: usize = 2048;
/// The same with one warp for rows that are few and short, which many small CTAs spread over the GPU.
const SMALL_GPU_TILE: usize = 512;
/// f32 tiles of 64 KB: several fit the L2 cache of a core, and the cost of interpreting an operation no longer shows.
const HOST_TILE: usize = 16 << 10;

impl Rectangle {
    /// The rectangle for `rows` × `cols` on such a device.
    pub fn choose(rows: usize, cols: usize, device: DeviceClass) -> Rectangle {
        let (tile, num_warps) = match device {
            DeviceClass::Host { threads } => {
                // Every thread should have some.
                let each = rows.saturating_mul(cols).div_ceil(threads as usize).next_power_of_two();
                (HOST_TILE.min(each), 1)
            }
            DeviceClass::Gpu { multiprocessors, .. } => {
                let few = rows.saturating_mul(cols) < GPU_TILE * 4 * multiprocessors as usize;
                if few { (SMALL_GPU_TILE, 1) } else { (GPU_TILE, 4) }
            }
        };
        let block = cols.next_power_of_two().min(tile);
        Rectangle { rows: (tile / block).min(rows.next_power_of_two()), block, num_warps }
    }

    /// All that the choice can give on GPUs, and a part of what it gives on hosts: there every power of two is as legal.
    pub fn space() -> Vec<Rectangle> {
        let mut space = Vec::new();
        for (tile, num_warps) in [(SMALL_GPU_TILE, 1), (GPU_TILE, 4), (HOST_TILE, 1)] {
            for block in (0..=tile.ilog2()).map(|log| 1 << log) {
                space.extend([tile / block, 1].map(|rows| Rectangle { rows, block, num_warps }));
            }
        }
        space.sort_by_key(|r| (r.num_warps, r.rows, r.block));
        space.dedup();
        space
    }

    /// More than 16 elements a thread: too many registers for a GPU.
    pub fn host_only(self) -> bool {
        self.rows * self.block > SMALL_GPU_TILE * self.num_warps as usize
    }

    /// The grid that covers `rows` × `cols`.
    pub fn grid(self, rows: usize, cols: usize) -> (usize, usize) {
        (rows.div_ceil(self.rows), cols.div_ceil(self.block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rectangles_cover_without_much_waste() {
        for device in [DeviceClass::H200, DeviceClass::Host { threads: 2 }] {
            for rows in [1, 2, 7, 256, 100_000] {
                for cols in [1, 3, 576, 1536, 14_336, 1 << 20] {
                    let r = Rectangle::choose(rows, cols, device);
                    assert!(r.rows.is_power_of_two() && r.block.is_power_of_two(), "{r:?}");
                    assert!(r.rows < 2 * rows && r.block < 2 * cols, "{r:?} for {rows} × {cols}");
                    let (down, across) = r.grid(rows, cols);
                    assert!(down * r.rows >= rows && across * r.block >= cols);
                    assert!(across <= 65_535, "the second extent of a CUDA grid");
                }
            }
        }
    }
}
