//! Grids: how many programs to run along each axis.

use std::fmt;

/// The extents of a grid. Made from one, two or three integers of any type; what is out of range (zero is not: an empty grid
/// runs nothing) is reported by the launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid(pub(crate) [i64; 3]);

/// An integer that a grid's extent can be written as.
pub trait Extent {
    /// The value; what does not fit becomes `i64::MAX`, which no device accepts.
    fn extent(self) -> i64;
}

macro_rules! extents {
    ($($t:ty)*) => {$(
        impl Extent for $t {
            fn extent(self) -> i64 {
                i64::try_from(self).unwrap_or(i64::MAX)
            }
        }
        impl From<$t> for Grid {
            fn from(x: $t) -> Grid {
                Grid([x.extent(), 1, 1])
            }
        }
    )*};
}
extents!(i32 u32 i64 u64 usize);

impl<X: Extent, Y: Extent> From<(X, Y)> for Grid {
    fn from((x, y): (X, Y)) -> Grid {
        Grid([x.extent(), y.extent(), 1])
    }
}

impl<X: Extent, Y: Extent, Z: Extent> From<(X, Y, Z)> for Grid {
    fn from((x, y, z): (X, Y, Z)) -> Grid {
        Grid([x.extent(), y.extent(), z.extent()])
    }
}

impl<T: Extent, const N: usize> From<[T; N]> for Grid {
    /// # Panics
    /// At compile time, with more than three extents.
    fn from(extents: [T; N]) -> Grid {
        const { assert!(N >= 1 && N <= 3, "a grid has one to three extents") };
        let mut grid = [1; 3];
        for (to, from) in grid.iter_mut().zip(extents) {
            *to = from.extent();
        }
        Grid(grid)
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.0;
        write!(f, "({x}, {y}, {z})")
    }
}

/// The largest grid of every CUDA device (and, so that a kernel that runs on one device runs on all, of the others).
const LIMITS: [i64; 3] = [i32::MAX as i64, 65_535, 65_535];

impl Grid {
    /// The extents, or what is wrong with them.
    pub(crate) fn check(self) -> Result<[u32; 3], String> {
        for (axis, (&extent, &limit)) in self.0.iter().zip(&LIMITS).enumerate() {
            if extent < 0 || extent > limit {
                let name = ["x", "y", "z"][axis];
                return Err(format!(
                    "the grid {self} is out of range along {name}: 0 to {limit} programs are allowed{}",
                    if axis > 0 { "; put the longest axis first" } else { "" }
                ));
            }
        }
        Ok(self.0.map(|x| x as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        assert_eq!(Grid::from(7).check(), Ok([7, 1, 1]));
        assert_eq!(Grid::from((7usize, 2u32)).check(), Ok([7, 2, 1]));
        assert_eq!(Grid::from([1u64, 2, 3]).check(), Ok([1, 2, 3]));
        assert!(Grid::from(-1).check().unwrap_err().contains("along x"));
        assert!(Grid::from((1, 65_536)).check().unwrap_err().contains("along y: 0 to 65535"));
        assert!(Grid::from(u64::MAX).check().is_err());
    }
}
