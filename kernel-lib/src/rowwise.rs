//! Configs that kernels which work along rows share: rectangles, where no element depends on another, and pieces of one row.

use tegula::prelude::*;

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

    /// The programs that cover `rows` × `cols`; where a program's rectangle begins, [`Rectangle::corner`] says. All of them along x, since along y a
    /// GPU has 65535 at most, fewer than a long row may need.
    pub fn grid(self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(self.rows) * cols.div_ceil(self.block)
    }

    /// In a kernel: the first row and column of the program, for rows of `cols`.
    pub fn corner(self, cols: Scalar<i64>) -> (Scalar<i32>, Scalar<i32>) {
        let pieces = cdiv(cols.cast::<i32>(), self.block as i32);
        let down = program_id(0) / pieces;
        (down * self.rows as i32, (program_id(0) - down * pieces) * self.block as i32)
    }
}

/// A piece of a row a program, or at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Columns.
    pub block: usize,
    /// Warps of a CTA.
    pub num_warps: u32,
}

impl Piece {
    /// The programs that cover `rows` × `cols`, all along x as those of [`Rectangle::grid`].
    pub fn grid(self, rows: usize, cols: usize) -> usize {
        rows * cols.div_ceil(self.block)
    }

    /// In a kernel: the program's row, and which piece of it, for rows of `cols`.
    pub fn place(self, cols: Scalar<i64>) -> (Scalar<i32>, Scalar<i32>) {
        let pieces = cdiv(cols.cast::<i32>(), self.block as i32);
        let row = program_id(0) / pieces;
        (row, program_id(0) - row * pieces)
    }
}

/// What a kernel can hold of a row, from which the choice of its [`Piece`] follows.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    /// The narrowest piece, a power of two.
    pub least: usize,
    /// Columns that a warp holds, a power of two.
    pub per_warp: usize,
    /// Warps of the widest piece on a GPU, a power of two.
    pub most_warps: usize,
    /// The widest piece on the host, a power of two.
    pub host_most: usize,
}

impl Pieces {
    /// The piece for rows of `cols`.
    pub fn choose(self, cols: usize, device: DeviceClass) -> Piece {
        let block = cols.next_power_of_two().max(self.least);
        match device {
            DeviceClass::Host { .. } => Piece { block: block.min(self.host_most), num_warps: 1 },
            DeviceClass::Gpu { .. } => {
                let block = block.min(self.most_warps * self.per_warp);
                Piece { block, num_warps: block.div_ceil(self.per_warp) as u32 }
            }
        }
    }

    /// The choice for these widths, on GPUs and hosts; each once.
    pub fn space(self, widths: impl IntoIterator<Item = usize> + Clone) -> Vec<Piece> {
        let devices = [DeviceClass::H200, DeviceClass::Host { threads: 2 }];
        let mut space: Vec<_> = devices
            .into_iter()
            .flat_map(|device| widths.clone().into_iter().map(move |cols| self.choose(cols, device)))
            .collect();
        space.sort_by_key(|piece| (piece.num_warps, piece.block));
        space.dedup();
        space
    }

    /// All that the choice can give.
    pub fn whole_space(self) -> Vec<Piece> {
        let most = self.host_most.max(self.most_warps * self.per_warp);
        self.space((0..=most.ilog2()).map(|log| 1 << log))
    }

    /// More than a warp holds: too many registers for a GPU.
    pub fn host_only(self, piece: Piece) -> bool {
        piece.block > self.per_warp * piece.num_warps as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rectangles_cover_without_much_waste() {
        for device in [DeviceClass::H200, DeviceClass::Host { threads: 2 }] {
            for rows in [1, 2, 7, 256, 100_000] {
                for cols in [1, 3, 576, 1536, 14_336, 1 << 20, 1 << 29] {
                    let r = Rectangle::choose(rows, cols, device);
                    assert!(r.rows.is_power_of_two() && r.block.is_power_of_two(), "{r:?}");
                    assert!(r.rows < 2 * rows && r.block < 2 * cols, "{r:?} for {rows} × {cols}");
                    let (down, across) = (rows.div_ceil(r.rows), cols.div_ceil(r.block));
                    assert_eq!(r.grid(rows, cols), down * across);
                    // Of what fits into the memory of a GPU.
                    assert!(
                        rows * cols > 1 << 40 || r.grid(rows, cols) <= i32::MAX as usize,
                        "the first extent of a CUDA grid"
                    );
                }
            }
        }
    }

    #[test]
    fn pieces_are_powers_of_two_that_a_cta_holds() {
        let pieces = Pieces { least: 32, per_warp: 256, most_warps: 4, host_most: 1 << 14 };
        let choose = |cols, device| {
            let Piece { block, num_warps } = pieces.choose(cols, device);
            (block, num_warps)
        };
        assert_eq!(
            [1, 33, 257, 1 << 20].map(|cols| choose(cols, DeviceClass::H200)),
            [(32, 1), (64, 1), (512, 2), (1024, 4)]
        );
        let host = DeviceClass::Host { threads: 2 };
        assert_eq!([1, 33, 1 << 20].map(|cols| choose(cols, host)), [(32, 1), (64, 1), (1 << 14, 1)]);
        // 32, 64, …, 1024 on GPUs; up to 2¹⁴ on hosts, of which those of one warp are the same.
        assert_eq!(pieces.whole_space().len(), 6 + 6);
        assert!(pieces.whole_space().iter().filter(|piece| !pieces.host_only(**piece)).count() == 6);
    }
}
